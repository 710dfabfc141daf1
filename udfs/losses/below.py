"""Lower bounds of the PRzCDP loss of lattice noise, which say how far above it a stated one may be.

ρ(Δ) = sup over α > 1 of D_α(Z ‖ Z + Δ)/α is at least D_α/α at any one order, and e^{εD_α} − 1, ε = α − 1, is a sum over
the outputs x < Δ/2 of terms p·Ψ_ε(L) ≥ 0 (docs/tight.md, section 2): at least what any part of them adds up to. Between
two distances p falls, so it is at least its value at the farther one, and L at least that at either end, less what it
bends where it need not fall. Proof: docs/tight.md, section 10.
"""

from functools import lru_cache

import numpy as np

from udfs.losses.curve import laplace_zcdp
from udfs.losses.nodes import UP, normaliser_bounds
from udfs.losses.piecewise import OF_LOGS, moment_below
from udfs.losses.stable_bends import bends_of
from udfs.losses.stable_nodes import Stable, alpha_of, falls
from udfs.losses.tight import LARGEST_EXPONENT, Summed, best_order, is_summable, pure_above
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats

Bounded = GeneralizedGaussianWeights | PolylogWeights | Stable  # families bounded by sums over distances
DOWN = 1 - 2.0**-24  # far below the rounding of sums in doubles
EXACT = 1 - 2.0**-40  # and of formulas
DENSITY = 11  # distances: all up to 2^DENSITY, then so many to twice as far
FARTHEST = 60
LEFT = 1e-7  # mass beyond the farthest distance, about
GRID = np.concatenate(
    [np.arange(2.0**DENSITY), *(2.0**i * (1 + np.arange(2**DENSITY) / 2**DENSITY) for i in range(DENSITY, FARTHEST))]
)


@lru_cache(maxsize=1 << 12)
def loss_below(weights: LogWeights, steps: int) -> float:
    """Return a lower bound of ρ at a shift of `steps` ≥ 0 lattice steps: within 1 % of it where ρ > 10⁻⁶; 0 at 0.

    0 where no bound is known: of other families, and where doubles do not reach.
    """
    if not steps:
        return 0.0
    if isinstance(weights, LaplaceWeights):
        return float(laplace_zcdp(np.array([steps / float(weights.scale)]), 1 / weights.scale)[0]) * EXACT
    if isinstance(weights, GaussianWeights):
        return float(steps**2 / (2 * weights.scale**2)) * EXACT
    return _summed_below(weights, steps) if isinstance(weights, Summed) else 0.0


def _summed_below(weights: Summed, steps: int) -> float:
    pure = pure_above(weights, steps)
    if not (is_summable(weights, pure) and steps < 2**FARTHEST):
        return 0.0
    excess = best_order(weights, steps, pure)
    mass, ratios = _parts(weights, float(steps))
    excess = min(excess, LARGEST_EXPONENT / max(pure, float(ratios.max())))
    sums = float(np.dot(mass, np.expm1(excess * ratios) * -np.expm1(-(1 + excess) * ratios)))
    moment = float(np.log1p(sums * DOWN))
    if isinstance(weights, PiecewiseWeights):
        moment = max(moment, moment_below(weights, steps, pure, excess))  # the better one but where P is tiny
    return moment / (excess * (1 + excess)) * DOWN


def _parts(weights: Summed, steps: float) -> tuple[Floats, Floats]:
    """Return masses and log-ratios, from below, of the outputs x ≤ 0 and of those between 0 and steps/2."""
    if isinstance(weights, PiecewiseWeights):  # what L bends at is a distance
        knots = np.array(weights.steps, dtype=np.float64)
        k, density = _probabilities(weights, np.unique([*GRID, *knots, *np.abs(knots - steps)]))
    else:
        k, density = _distances(weights)
    counts = np.append(1.0, np.diff(k))
    inside = int(np.count_nonzero(2 * k < steps))
    outer = _least(weights, k, np.full_like(k, steps), steps)
    inner = _least(weights, k[:inside], steps - 2 * k[:inside], steps)[1:]
    return np.append(counts * density, (counts * density)[1:inside]), np.append(outer, inner)


def _least(weights: Summed, k: Floats, moved: Floats, steps: float) -> Floats:
    """Return what L is at least between each distance and the one before."""
    if isinstance(weights, PiecewiseWeights):  # L is straight
        ahead = weights.fast(k + moved)
        ratios = np.maximum(weights.fast(k) - ahead + 2 * OF_LOGS * ahead, 0.0)
        straight: Floats = np.minimum(ratios, np.append(ratios[:1], ratios[:-1]))
        return straight
    if not isinstance(weights, Stable):
        exactly: Floats = weights.fall(k, moved)  # L falls
        return exactly * EXACT
    fall, error = falls(weights, k, weights.fast(k), moved)
    ratios = fall - error
    known, scale = bends_of(alpha_of(weights)), float(weights.scale)
    x, h = k[:-1] / scale, np.diff(k) / scale
    bends = np.minimum(2 * known.bound(2, x), steps / scale * known.bound(3, x)) * h * h / 8 * UP
    least = np.where(np.diff(k) > 1, np.minimum(ratios[1:], ratios[:-1]) - bends, ratios[1:])
    result: Floats = np.maximum(np.append(ratios[:1], least), 0.0)
    return result


@lru_cache(maxsize=8)
def _distances(weights: Bounded) -> tuple[Floats, Floats]:
    """Return distances and lower bounds of the probabilities there."""
    return _probabilities(weights, GRID)


def _probabilities(weights: Summed, k: Floats) -> tuple[Floats, Floats]:
    density = np.exp(weights.fast(k))
    summed = np.cumsum(np.append(1.0, np.diff(k)) * density)
    end = 1 + int(np.count_nonzero(summed < summed[-1] * (1 - LEFT)))
    return k[:end], density[:end] / normaliser_bounds(weights)[1] / UP
