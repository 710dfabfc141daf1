"""Privacy losses of lattice noise as some thousand atoms, bounded from above (docs/loss-distributions.md, section 2).

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

from udfs.losses.nodes import GRID, Falling, normaliser
from udfs.losses.tight import LARGEST_ERROR
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, up_float

EXACT = 2.0**52  # whole numbers up to it, and their halves, are doubles
WIDEST = 2.0**44  # noise scales that leave room for tails below EXACT
ETA = 1 / 32  # nats by which w may fall in a block
MOST_PIECES = 1 << 16  # of one block
BITS = 96
UP = 1 + 2.0**-24  # far above the rounding of w, of e^w and of a sum of atoms, relatively
ROUNDING = 2.0**-46  # of losses, relative to the log-weights of which they are differences


Window = tuple[float, float]
EVERYWHERE: Window = (-math.inf, math.inf)


@dataclass(frozen=True)
class Shifted:
    """The pair Z, Z + `steps` of lattice noise; `steps` ≥ 0."""

    weights: Falling | LaplaceWeights | GaussianWeights
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
    known = isinstance(weights, GaussianWeights | LaplaceWeights | GeneralizedGaussianWeights | PolylogWeights)
    if known and steps < EXACT / 2 and weights.scale < WIDEST and weights.fast_error <= LARGEST_ERROR:  # type: ignore[attr-defined]
        return Shifted(weights, steps)  # type: ignore[arg-type]
    return None if pure is None else Response(up_float(pure))


def atoms_of(pair: Pair, beyond: float, coarseness: float, window: Window = EVERYWHERE) -> Atoms:
    """Return the atoms of a pair: about `coarseness` apart where losses are dense and inside the window.

    At most about `beyond` of the mass is left to each end: an end's loss is the largest there, infinite if need be.
    """
    if isinstance(pair, Response):
        return _of_response(pair.pure)
    if not pair.steps:
        return Atoms(np.ones(1), np.zeros(1), 0.0, 0.0)
    return _of_noise(pair, beyond, coarseness, window)


def _of_response(pure: float) -> Atoms:
    """Truth with probability e^P/(1 + e^P)."""
    lie = 1 / (1 + math.exp(min(pure, 700.0)))
    return Atoms(np.array([lie * UP, (1 - lie) * UP]), np.array([-pure, pure]), 0.0, 0.0)


def _of_noise(pair: Shifted, beyond: float, coarseness: float, window: Window) -> Atoms:
    weights, steps = pair.weights, float(pair.steps)
    reach, outside = _reach(weights, beyond)
    starts = _starts(pair, reach, coarseness, window)
    first, last = starts[:-1], starts[1:] - 1  # whole distances are doubles
    count = starts[1:] - starts[:-1]
    here, there = (weights.fast(np.abs(np.concatenate([first, last]) - centre)) for centre in (0.0, steps))
    loss = here - there
    loss += (np.abs(here) + np.abs(there)) * ROUNDING
    ends = loss.reshape(2, -1)  # L is monotone in a block
    density = np.exp(here).reshape(2, -1)
    # e^w lies below its chord where it is convex; the Gaussian one above it by at most ℓ²/8·e^w/s²
    bend = float(1 / weights.scale) ** 2 / 8 if isinstance(weights, GaussianWeights) else 0.0
    mass = count * (density.mean(axis=0) + bend * (count - 1) ** 2 * density.max(axis=0))
    mass *= UP / normaliser(weights)
    infinite = 0.0
    right = max(float(loss[-1]), 0.0)  # L falls up to n and is below 0 beyond
    losses, masses = [ends.max(axis=0), [right]], [mass, [outside]]
    if isinstance(weights, GaussianWeights):
        infinite = outside
    else:  # w is convex: L falls with the distance from 0
        losses.append([float(ends[0, 0])])
        masses.append([outside])
    every, weight = np.concatenate(losses), np.concatenate(masses)
    order = np.argsort(every, kind="stable")
    rough = float(np.ptp(np.clip(ends, *window), axis=0).max())
    return Atoms(weight[order], every[order], infinite, rough)


@lru_cache(maxsize=256)
def _reach(weights: Falling | LaplaceWeights | GaussianWeights, beyond: float) -> tuple[float, float]:
    """Return a distance, at most EXACT/4, and an upper bound of the mass beyond it on one side: about `beyond`."""
    grid = GRID[: int(np.searchsorted(GRID, EXACT / 4))]
    parts = np.diff(grid) * np.exp(weights.fast(grid[:-1]))
    rest = np.cumsum(parts[::-1])[::-1] / (2 * parts.sum())
    reach = float(grid[min(int(np.count_nonzero(rest > beyond)), len(grid) - 1)])
    reach = max(reach, 1.0)
    tail = weights.tail(int(reach) + 1, context(BITS))[1]
    return reach, min(1.0, float(tail) * UP / normaliser(weights))


def _starts(pair: Shifted, reach: float, coarseness: float, window: Window) -> Floats:
    """Return where blocks start, from −reach to reach, and the end of the last: 0 and `steps` are blocks of their own.

    In a block w(|x|) falls by about ETA at most, and L changes by about `coarseness` at most inside the window.
    """
    weights, steps = pair.weights, float(pair.steps)
    near = GRID[: int(np.searchsorted(GRID, reach, side="right"))]
    around = np.concatenate([-near, near, near + 1, steps - near, steps + near, steps + near + 1, [reach + 1, -reach]])
    starts = np.unique(around[(around >= -reach) & (around <= reach + 1)])
    for _ in range(2):  # pieces of a long block are not equal in w: those of its pieces nearly are
        here, there = weights.fast(np.abs(starts)), weights.fast(np.abs(starts - steps))
        loss = np.clip(here - there, *window)
        change = np.maximum(np.abs(np.diff(here)) / ETA, np.abs(np.diff(loss)) / coarseness)
        pieces = np.minimum(np.clip(np.ceil(change), 1, MOST_PIECES), np.diff(starts)).astype(np.intp)
        owner = np.repeat(np.arange(len(pieces)), pieces)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        inner = starts[owner] + np.floor(np.diff(starts)[owner] * (number / pieces[owner]))
        starts = np.append(inner, starts[-1])
    return starts
