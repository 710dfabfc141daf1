"""Rényi divergences of all orders that a loss implies, from above: curves α ↦ D_α at one influence."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import ceil, inf, isfinite, log2, nan, nextafter, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.losses.nodes import OF_LOGS, UP, Stable, alpha_of, falls, moment_below, normaliser_bounds
from udfs.losses.stable_policy import bends_of
from udfs.losses.tight import LARGEST_EXPONENT, Summed, best_order, is_summable, pure_above, tight_loss, tight_losses
from udfs.noise.heavy_weights import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.exact import exact, s_over_sinh

SLACK = 1 + 2.0**-40  # far above the error of a few functions in doubles
LARGEST = 300.0  # e to it is a double with room to spare


def of_zcdp(rho: float, orders: Floats) -> Floats:
    """Return α·ρ at the orders α > 1, what a PRzCDP loss ρ means."""
    with np.errstate(over="ignore"):
        curve: Floats = orders * rho * SLACK
    return curve


def of_pure(pure: float, orders: Floats) -> Floats:
    """Return the divergences of randomised response with odds e^P: no mechanism of pure loss P has larger ones.

        (α − 1)·D_α = ln[cosh((α − ½)P)/cosh(P/2)] = ln[1 + 2·sinh(αP/2)·sinh((α − 1)P/2)/cosh(P/2)]

    At most P. Any two distributions with max divergence ≤ P in both directions are a post-processing of that pair
    (Kairouz, Oh, Viswanath 2015); the formula is Bun and Steinke 2016, proposition 3.3.
    """
    half = np.minimum(orders * (pure / 2), LARGEST)  # where it is cut, P itself is the bound
    less = np.minimum((orders - 1) * (pure / 2), LARGEST)
    moment = np.log1p(2 * np.sinh(half) * np.sinh(less) / np.cosh(min(pure / 2, LARGEST)))
    curve = np.where(orders * (pure / 2) < LARGEST, moment / (orders - 1) * SLACK, pure)
    return np.minimum(curve, pure)


# The tight loss of Laplace noise in doubles, for whole arrays; udfs.numbers.exact.laplace_zcdp_above has it in
# rationals.

SERIES = 0.01  # below it P − 1 + e^{−P} is summed as a series


def laplace_zcdp(pure: Floats, s: Fraction) -> Floats:
    """Return P − c·(1 − e^{−P}), c = s/sinh s, in double precision: P = `pure` ≥ 0, s > 0.

    (P − 1 + e^{−P}) + (1 − c)·(1 − e^{−P}), where nothing cancels.
    """
    return _excess(pure) + float(1 - s_over_sinh(s)) * -np.expm1(-pure)


def _excess(pure: Floats) -> Floats:
    # P − 1 + e^{−P} = P²/2·(1 − P/3·(1 − P/4·(1 − …))) where the difference would cancel
    small, series = np.minimum(pure, SERIES), np.ones_like(pure)
    for n in range(9, 2, -1):
        series = 1 - small / n * series
    return np.where(pure < SERIES, small**2 / 2 * series, pure + np.expm1(-pure))


# The tight loss as a table over all influences: a step function above it, within half a per cent (docs/tight.md).
#
# Knots depend on a family's parameters alone, so that one value can be computed by itself and is that of the whole
# table.

OCTAVES = 40  # knots reach 2⁴⁰ units, about 10¹², unless the paper's bound is as good before
STEEP = 2.0  # ln ρ rises at most about twice as fast as ln Δ, since √ρ is subadditive
LARGE = 8.0  # pure loss from which ln ρ rises at most about twice as fast as its logarithm
KNOTS_A_RISE = 200  # knots while ρ rises by the factor e
COARSEST = 25
HAIR = 1e-6  # far above the last bits of slopes: p = ½ has 8 times COARSEST parts on every processor, not 8 or 9
ENOUGH = 1.003  # the paper's bound this near ρ is as good
SMALL = 1 << 16  # steps below which losses are looked up directly


@dataclass(frozen=True)
class TightCurve:
    """Upper bounds of the tight loss: `rho[i]` for influences above `steps[i − 1]` up to `steps[i]` steps.

    Beyond the last knot the curve says nothing, and is infinite: the paper's bound is for the caller to take.
    Raises ValueError unless knots rise from 1 or above and losses are finite, above 0 and never fall.
    """

    steps: tuple[int, ...]
    rho: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.rho):
            raise ValueError("a curve of losses needs as many losses as knots")
        if not (self.steps[0] >= 1 and all(low < high for low, high in pairwise(self.steps))):
            raise ValueError("a curve of losses needs knots that rise from 1 or above")
        if not (self.rho[0] > 0 and isfinite(self.rho[-1]) and all(low <= high for low, high in pairwise(self.rho))):
            raise ValueError("a curve of losses needs finite losses that never fall")

    def at(self, steps: int) -> Fraction | float:
        """Return the loss of an influence of `steps` ≥ 0 steps; 0 at 0, infinite beyond the last knot."""
        if steps <= 0:
            return Fraction(0)
        index = bisect_left(self.steps, steps)
        return exact(self.rho[index]) if index < len(self.steps) else inf

    def over(self, steps: NDArray[Any]) -> Floats:
        """Return the same, rounded up to doubles, of whole numbers of steps as integers or doubles."""
        small = self._small
        result: Floats = np.take(small, np.minimum(steps, len(small) - 1).astype(np.intp), mode="clip")
        large = np.flatnonzero(steps >= len(small))
        if len(large):
            result[large] = self._padded[np.searchsorted(self._knots, steps[large])]
        return result

    def to_json(self) -> dict[str, list[int] | list[float]]:
        """Return the knots and losses; a loss means its shortest decimal."""
        return {"steps": list(self.steps), "rho": list(self.rho)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TightCurve":
        """Return the curve that `to_json` gave; raises ValueError on anything else."""
        steps, rho = document.get("steps"), document.get("rho")
        if set(document) != {"steps", "rho"} or not isinstance(steps, list) or not isinstance(rho, list):
            raise ValueError("a curve of losses has lists steps and rho, and nothing else")
        if not all(type(knot) is int for knot in steps) or not all(type(loss) in (int, float) for loss in rho):
            raise ValueError("a curve of losses holds whole knots and losses that are numbers")
        return cls(tuple(steps), tuple(float(loss) for loss in rho))

    @cached_property
    def _knots(self) -> Int64s:
        return np.array(self.steps, dtype=np.int64)

    @cached_property
    def _padded(self) -> Floats:
        return _raised([*self.rho, inf])

    @cached_property
    def _small(self) -> Floats:
        result = self._padded[np.searchsorted(self._knots, np.arange(SMALL))]
        result[0] = 0.0
        return result


@lru_cache(maxsize=256)
def tight_curve(weights: LogWeights, unit: int = 1) -> TightCurve:
    """Return the whole curve of a family: some hundred to ten thousand knots, about a tenth of a millisecond each.

    Its steps are of `unit` steps of the noise's lattice each: those of the measure, of which influences are multiples.
    """
    steps = knots(weights, unit)
    shifts = [knot * unit for knot in steps]
    return TightCurve(steps, tuple(accumulate(_losses(weights, shifts), max)))


def curve_at(weights: LogWeights, steps: int, unit: int = 1) -> Fraction | float:
    """Return what `tight_curve` says of an influence of `steps` ≥ 0, from one knot alone."""
    if steps <= 0:
        return Fraction(0)
    place = np.array([bisect_left(knots(weights, unit), steps)])
    loss = float(_at_knots(weights, unit, place)[0][place[0]])
    return exact(loss) if loss < inf else inf


def curve_over(weights: LogWeights, steps: Floats, unit: int = 1) -> Floats:
    """Return the same, rounded up to doubles, of whole numbers of steps: the knots that these need, each once."""
    places = np.searchsorted(_known(weights, unit)[0], steps)
    losses: Floats = _at_knots(weights, unit, places)[1][places]
    return np.where(steps > 0, losses, 0.0)


def _at_knots(weights: LogWeights, unit: int, places: Int64s) -> tuple[Floats, Floats]:
    """Return the losses at a family's knots, as stated and as doubles that are at least that, known at `places`."""
    steps, losses, raised = _known(weights, unit)
    missing = np.unique(places[np.isnan(losses[places])])
    if len(missing):
        known = _losses(weights, [n * unit for n in steps[missing].tolist()])
        raised[missing] = _raised(known)
        losses[missing] = known  # last: another thread takes what is known here as known in both
    return losses, raised


@lru_cache(maxsize=256)
def _known(weights: LogWeights, unit: int) -> tuple[Int64s, Floats, Floats]:
    """Return a family's knots, and what is known of the losses there: NaN for nothing, infinity beyond the last."""
    steps = np.array(knots(weights, unit), dtype=np.int64)
    unknown = np.append(np.full(len(steps), nan), inf)
    return steps, unknown, unknown.copy()


def _losses(weights: LogWeights, shifts: list[int]) -> list[float]:
    return tight_losses(weights, shifts) if isinstance(weights, Summed) else [tight_loss(weights, n) for n in shifts]


def _raised(losses: Sequence[float]) -> Floats:
    """Return the smallest doubles that are at least the shortest decimals of these, which are what they mean."""
    return np.array([nextafter(x, inf) if Decimal(repr(x)) > Decimal(x) else x for x in losses])


def stated_at(weights: LogWeights, steps: int) -> int:
    """Return the influence whose loss the curve states for one of `steps` > 0: the next knot's, or itself."""
    known = knots(weights)
    index = bisect_left(known, steps)
    return known[index] if index < len(known) else steps


@lru_cache(maxsize=256)
def knots(weights: LogWeights, unit: int = 1) -> tuple[int, ...]:
    """Return the knots of a family: each a whole number above the last by one part in n, or by 1 where that is more.

    n is chosen for each octave so that ρ rises by less than half a per cent between two.
    """
    pure = [pure_above(weights, unit << octave) for octave in range(OCTAVES + 1)]
    result = [1]
    for octave in range(_last_octave(weights, unit, pure)):
        slope = min(STEEP, 2 * log2(pure[octave + 1] / pure[octave])) if pure[octave] >= LARGE else STEEP
        parts = COARSEST * max(1, ceil(slope * KNOTS_A_RISE / COARSEST - HAIR))
        while result[-1] < 2 << octave:
            result.append(min(2 << octave, result[-1] + max(1, result[-1] // parts)))
    return tuple(result)


def _last_octave(weights: LogWeights, unit: int, pure: list[float]) -> int:
    """Return the first octave from which on the paper's bound is ENOUGH at its ends; OCTAVES where none is."""
    losses = _losses(weights, [unit << octave for octave in range(OCTAVES + 1)])
    worse = [octave for octave, x in enumerate(pure) if tanh(x / 2) * x > ENOUGH * losses[octave]]
    return min(max(worse, default=-1) + 1, OCTAVES)


# Lower bounds of the PRzCDP loss of lattice noise, which say how far above it a stated one may be.
#
# ρ(Δ) = sup over α > 1 of D_α(Z ‖ Z + Δ)/α is at least D_α/α at any one order, and e^{εD_α} − 1, ε = α − 1, is a sum
# over the outputs x < Δ/2 of terms p·Ψ_ε(L) ≥ 0 (docs/tight.md, section 2): at least what any part of them adds up to.
# Between two distances p falls, so it is at least its value at the farther one, and L at least that at either end, less
# what it bends where it need not fall. Proof: docs/tight.md, section 10.

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
    return _probabilities(weights, GRID)


def _probabilities(weights: Summed, k: Floats) -> tuple[Floats, Floats]:
    density = np.exp(weights.fast(k))
    summed = np.cumsum(np.append(1.0, np.diff(k)) * density)
    end = 1 + int(np.count_nonzero(summed < summed[-1] * (1 - LEFT)))
    return k[:end], density[:end] / normaliser_bounds(weights)[1] / UP
