"""Privacy losses of lattice noise as some thousand atoms, bounded from above (docs/mathematics.md, section 16.2).

Z and Z + n are the laws of a total with and without a record that moves it by n lattice steps; with p(x) ∝ e^{w(|x|)}
the privacy loss at an outcome x is L(x) = w(|x|) − w(|x − n|). An atom (m, ℓ) stands for the outcomes of a block:
m is at least their probability, ℓ at least their losses. So the δ of atoms is never below that of the noise:

    δ(ε) = Σ_x p(x)·(1 − e^{ε − L(x)})₊  ≤  infinite + Σ_i m_i·(1 − e^{ε − ℓ_i})₊    for all ε.

Z being symmetric, the losses of (Z + n, Z) have the same law: an added record loses what a removed one does. Z being
unimodal too, δ(ε) grows with n, so that the pair of the largest shift bounds those of all smaller ones.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.losses.nodes import GRID, Falling, Stable, alpha_of, normaliser
from udfs.losses.stable_policy import shape_of
from udfs.losses.tight import LARGEST_ERROR
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, up_float

EXACT = 2.0**52  # whole numbers up to it, and their halves, are doubles
WIDEST = 2.0**44  # noise scales that leave room for tails below EXACT
ETA = 1 / 32  # nats by which w may fall in a block
BEND = ETA * ETA / 8  # of its mass, that may lie above the chord
MOST_PIECES = 1 << 16  # of one block
BITS = 96
UP = 1 + 2.0**-24  # far above the rounding of w, of e^w and of a sum of atoms, relatively
ROUNDING = 2.0**-46  # of losses, relative to the log-weights of which they are differences

# families of which atoms are known
Followed = Falling | LaplaceWeights | GaussianWeights | Stable | PiecewiseWeights
Window = tuple[float, float]
EVERYWHERE: Window = (-math.inf, math.inf)


@dataclass(frozen=True)
class Shifted:
    """The pair Z, Z + `steps` of lattice noise; `steps` ≥ 0."""

    weights: Followed
    steps: int


@dataclass(frozen=True)
class Response:
    """Randomised response of odds e^`pure`: no pair with this max divergence in both directions loses more.

    Source: Kairouz, Oh, Viswanath 2015.
    """

    pure: float


Pair = Shifted | Response


@dataclass(frozen=True, eq=False)
class Atoms:
    """Masses and losses, ordered by loss, and a mass whose loss is infinite: upper bounds all.

    `coarseness`: how far above a loss of the window that it stands for an atom's may lie.
    """

    mass: Floats
    loss: Floats
    infinite: float
    coarseness: float


def pair_of(weights: LogWeights, steps: int, pure: Fraction | None) -> Pair | None:
    """Return the pair of a shift by `steps` whose pure loss is at most `pure` (None: it has none).

    Of noise that is too wide for doubles, or of a family whose losses are not followed here, randomised response in
    its place; None where there is no pure loss either.
    """
    if isinstance(weights, Followed) and steps < EXACT / 2 and _narrow(weights):
        return Shifted(weights, steps)
    return None if pure is None else Response(up_float(pure))


def _narrow(weights: Followed) -> bool:
    return weights.scale < WIDEST and weights.fast_error <= LARGEST_ERROR


def atoms_of(pair: Pair, beyond: float, coarseness: float, window: Window = EVERYWHERE) -> Atoms:
    """Return the atoms of a pair: about `coarseness` apart where losses are dense and inside the window.

    At most about `beyond` of the mass is left to each end: an end's loss is the largest there, infinite if need be.
    """
    if isinstance(pair, Response):
        lie = 1 / (1 + math.exp(min(pair.pure, 700.0)))  # the truth has the probability e^P/(1 + e^P)
        return Atoms(np.array([lie * UP, (1 - lie) * UP]), np.array([-pair.pure, pair.pure]), 0.0, 0.0)
    if not pair.steps:
        return Atoms(np.ones(1), np.zeros(1), 0.0, 0.0)
    return _of_noise(pair, beyond, coarseness, window)


def _of_noise(pair: Shifted, beyond: float, coarseness: float, window: Window) -> Atoms:
    weights = pair.weights
    reach, outside = _reach(weights, beyond)
    starts = _starts(pair, reach, coarseness, window)
    first, last = starts[:-1], starts[1:] - 1  # whole distances are doubles
    both = np.concatenate([first, last])
    here, there = (weights.fast(np.abs(both - centre)).reshape(2, -1) for centre in (0.0, float(pair.steps)))
    ends = here - there + (np.abs(here) + np.abs(there)) * max(ROUNDING, 4 * weights.fast_error)
    bend, bend_of_loss = _bends(pair, first, last)
    most = ends.max(axis=0) + bend_of_loss
    count, density = last - first + 1, np.exp(here)
    mass = count * (density.mean(axis=0) + bend * density.max(axis=0)) * (UP / normaliser(weights))
    # beyond the last block L falls, and is below 0 beyond `steps`
    right, left = max(float(ends[1, -1]), 0.0), _left_of(pair, reach, float(ends[0, 0]))
    known = math.isfinite(left)
    losses = np.concatenate([most, [right], [left] * known])
    masses = np.concatenate([mass, [outside], [outside] * known])
    order = np.argsort(losses, kind="stable")
    rough = np.maximum(most, ends.max(axis=0)), ends.min(axis=0)
    rise = float((np.clip(rough[0], *window) - np.clip(rough[1], *window)).max())
    return Atoms(masses[order], losses[order], 0.0 if known else outside, rise)


def _bends(pair: Shifted, first: Floats, last: Floats) -> tuple[Floats | float, Floats | float]:
    """Return what e^w may exceed its chord by in each block, relative to its largest value, and L the larger end.

    Nothing where e^w is convex and L monotone in all blocks. Gaussian: at most h²/8, h = ℓ/s, as (e^w)″ ≥ −e^w/s².
    Stable: ln p lies above its chord by at most h²/8·B₂, and L by h²/8·min(2B₂, u·B₃), B_j ≥ |(ln p)^{(j)}| from the
    nearer end on, u = n/s.
    """
    weights = pair.weights
    half = ((last - first) / float(weights.scale)) ** 2 / 8 * UP
    if isinstance(weights, GaussianWeights):
        return half, 0.0
    if not isinstance(weights, Stable):
        return 0.0, 0.0
    shape, scale = shape_of(alpha_of(weights)), float(weights.scale)
    near = np.minimum(np.abs(first), np.abs(last)) / scale
    other = np.minimum(np.abs(first - pair.steps), np.abs(last - pair.steps)) / scale
    nearer, u = np.minimum(near, other), pair.steps / scale * UP
    bend = np.expm1(half * shape.bound(2, near)) * UP
    return bend, half * np.minimum(2 * shape.bound(2, nearer), u * shape.bound(3, nearer)) * UP


def _left_of(pair: Shifted, reach: float, loss: float) -> float:
    """Return a bound of L beyond the first block, where its loss is `loss`; infinite where there is none."""
    weights = pair.weights
    if isinstance(weights, GaussianWeights):
        return math.inf
    if isinstance(weights, PiecewiseWeights):  # L is straight between the knots of both, and level beyond the last
        knots = np.array(weights.steps, dtype=np.float64)
        points = np.append(reach, np.concatenate([knots, knots - pair.steps]))
        here, there = (weights.fast(np.maximum(points, reach) + shift) for shift in (0.0, float(pair.steps)))
        return float((here - there + (np.abs(here) + np.abs(there)) * ROUNDING).max())
    if not isinstance(weights, Stable):
        return loss  # w is convex: L falls with the distance from 0
    shape, y = shape_of(alpha_of(weights)), reach / float(weights.scale)
    return float(shape.beyond(y, np.array([pair.steps / reach * UP]))[0]) * UP if y >= shape.far_from else math.inf


@lru_cache(maxsize=256)
def _reach(weights: Followed, beyond: float) -> tuple[float, float]:
    """Return a distance, at most EXACT/4, and an upper bound of the mass beyond it on one side: about `beyond`."""
    grid = GRID[: int(np.searchsorted(GRID, EXACT / 4))]
    parts = np.diff(grid) * np.exp(weights.fast(grid[:-1]))
    rest = np.cumsum(parts[::-1])[::-1] / (2 * parts.sum())
    reach = float(grid[min(int(np.count_nonzero(rest > beyond)), len(grid) - 1)])
    reach = max(reach, 1.0)
    tail = weights.tail(int(reach) + 1, context(BITS))[1]
    return reach, min(1.0, float(tail) * UP / normaliser(weights))


def _cuts(weights: Followed, reach: float, steps: float) -> Floats:
    cuts = GRID[: int(np.searchsorted(GRID, reach, side="right"))]
    if isinstance(weights, PiecewiseWeights):
        knots = np.array(weights.steps, dtype=np.float64)
        cuts = np.union1d(cuts, knots[knots <= reach + steps])
    return cuts


def _starts(pair: Shifted, reach: float, coarseness: float, window: Window) -> Floats:
    """Return where blocks start, from −reach to reach, and the end of the last: 0 and `steps` are blocks of their own.

    In a block w(|x|) falls by about ETA at most, and L changes by about `coarseness` at most inside the window.
    """
    weights, steps = pair.weights, float(pair.steps)
    near = _cuts(weights, reach, steps)
    around = np.concatenate([-near, near, near + 1, steps - near, steps + near, steps + near + 1, [reach + 1, -reach]])
    starts = np.unique(around[(around >= -reach) & (around <= reach + 1)])
    for _ in range(2):  # pieces of a long block are not equal in w: those of its pieces nearly are
        here, there = weights.fast(np.abs(starts)), weights.fast(np.abs(starts - steps))
        loss = np.clip(here - there, *window)
        change = np.maximum(np.abs(np.diff(here)) / ETA, np.abs(np.diff(loss)) / coarseness)
        bend, bend_of_loss = _bends(pair, starts[:-1], starts[1:])
        change = np.maximum(change, np.sqrt(np.maximum(bend / BEND, bend_of_loss / coarseness)))
        pieces = np.minimum(np.clip(np.ceil(change), 1, MOST_PIECES), np.diff(starts)).astype(np.intp)
        owner = np.repeat(np.arange(len(pieces)), pieces)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        inner = starts[owner] + np.floor(np.diff(starts)[owner] * (number / pieces[owner]))
        starts = np.append(inner, starts[-1])
    return starts
