"""Sums over lattice noise as sums over some hundred distances, bounded from above (docs/tight.md, section 3).

Any function T of the distance k = 0, 1, 2, … that is convex and falling between neighbouring nodes k_0 = 0 < k_1 < … is
there at most its chord, and summed over all k < k_N that makes

    Σ_k T(k)  ≤  Σ_i c_i·T(k_i),        c_i = (k_{i+1} − k_{i−1})/2,  c_0 = 1,  c_N = (k_N − k_{N−1} − 1)/2.

Beyond k_N, T is the noise's probability times something that falls: the mass of the tail times its first value.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.weights import LogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

Falling = GeneralizedGaussianWeights | PolylogWeights  # families whose w is convex, with `fall` and `bend`

Ints = NDArray[np.int64]
FARTHEST = 2.0**64
DENSITY = 16  # nodes: all distances up to it, then steps of k/DENSITY
TAIL = 2.0**-20  # mass that may be left to the last node
SUMMED = 1 << 12  # terms of the normaliser that are added one by one
BITS = 96
CONCAVE_FROM = 2 - 2.0**-30  # a hair below 2, so that last bits do not decide of log-ratios that are 2 exactly
CONCAVITY = math.exp(-3)  # −Ψ_ε″ ≤ ε·e^{−L}·(L − 2) ≤ ε·e^{−3} for L > 2, and Ψ_ε is convex up to 2
SMALLEST = 2.0**-1000  # masses are raised to it: nothing underflows
UP = 1 + 2.0**-26  # far above the rounding of the bends, and of the tail's mass and the normaliser as doubles


def _grid() -> Floats:
    nodes = [0.0]
    while nodes[-1] < FARTHEST:
        nodes.append(min(FARTHEST, nodes[-1] + max(1.0, nodes[-1] // DENSITY)))
    return np.array(nodes)


GRID = _grid()


@dataclass(frozen=True, eq=False)
class Nodes:
    """Distances k_i and upper bounds of probabilities c_i·p(k_i) in their place, the tail's with the last.

    `chord` is (k_{i+1} − k_i)²/8, what of a bend a block rises above its chord, and `allowance` what Ψ_ε/ε may, of a
    log-ratio that is linear there and falls at most twice as far as w: both 0 where nothing lies between.
    """

    weights: Falling
    k: Floats
    mass: Floats
    chord: Floats
    allowance: Floats

    def ratios(self, steps: Floats) -> tuple[Floats, Floats, Floats]:
        """Return masses m, log-ratios ℓ ≥ 0 and a rest Γ that bound, for each shift, every sum below: a row each.

            Σ_{x < steps/2} p(x)·Ψ_ε(L(x))  ≤  Σ_i m_i·Ψ_ε(ℓ_i) + ε·Γ,        Ψ_ε(L) = (e^{εL} − 1)(1 − e^{−(1 + ε)L}),

        L(x) = ln p(x) − ln p(x − steps). Points x ≤ 0 come first, then those between 0 and steps/2. All three grow
        with `steps`.
        """
        bends = self.chord * self.weights.bend(self.k, steps[:, None]) * UP
        last = last_inside(self.k, steps)
        k = self.k[: last.max() + 1]
        outer = self.weights.fall(self.k, steps[:, None])
        inner = self.weights.fall(k, np.maximum(steps[:, None] - 2 * k, 0.0))
        everywhere = np.full_like(last, len(self.k) - 1)
        parts = self._part(outer, bends, everywhere), self._part(inner, bends[..., : len(k)], last, first=1)
        mass, ratios = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
        return mass, ratios, parts[0][2] + parts[1][2]

    def _part(self, ratios: Floats, bends: Floats, last: Ints, first: int = 0) -> tuple[Floats, Floats, Floats]:
        """Return m, ℓ and Γ of the nodes from number `first`, which has nothing between it and the next, to `last`."""
        # in a block L ≤ ℓ, the chord of L + bend, and Ψ(ℓ) ≤ chord of Ψ + ε·allowance where ℓ exceeds 2
        size = ratios.shape[1]
        rises = np.where(ratios + bends > CONCAVE_FROM, self.allowance[:size], 0.0)
        mass = np.where(np.arange(size) <= last[:, None], self.mass[:size], 0.0)[:, first:]
        raised = np.where(mass > 0, (ratios + larger_of_both_sides(bends))[:, first:], 0.0)
        return mass, raised, np.einsum("ij,ij->i", mass, larger_of_both_sides(rises)[:, first:])


def last_inside(k: Floats, steps: Floats) -> Ints:
    """Return, for each shift, the number of the first node from steps/2 on, where Ψ is 0; or of the last node."""
    last: Ints = np.minimum(1 + np.searchsorted(2 * k[1:], steps), len(k) - 1)
    return last


def larger_of_both_sides(blocks: Floats) -> Floats:
    """Return the larger of each node's two blocks, of nodes in the last dimension."""
    larger = blocks.copy()
    np.maximum(blocks[..., 1:], blocks[..., :-1], out=larger[..., 1:])
    return larger


@lru_cache(maxsize=64)
def nodes_of(weights: Falling) -> Nodes:
    """Return the nodes of a family: they reach as far as all but a millionth of the mass, at most to 2⁶⁴."""
    length = np.diff(GRID)
    density = np.exp(weights.fast(GRID))
    parts = np.append(length, 0.0) * density
    beyond = np.cumsum(parts[::-1])[::-1]
    end = min(len(GRID) - 1, int(np.count_nonzero(beyond > TAIL * beyond[0])))
    k, length = GRID[: end + 1], length[:end]
    counts = (np.append(length, -1.0) + np.append(1.0, length)) / 2
    ctx = context(BITS)
    tail = float(weights.tail(int(k[-1]), ctx)[1]) * UP + SMALLEST
    mass = counts * np.maximum(density[: end + 1], SMALLEST)
    mass[-1] += tail
    falls = 2 * weights.fall(k[:-1], length)
    between = length > 1
    return Nodes(
        weights=weights,
        k=k,
        mass=mass / normaliser(weights),
        chord=np.append(np.where(between, length * length / 8, 0.0), 0.0),
        allowance=np.append(np.where(between, falls * falls * (CONCAVITY / 8), 0.0), 0.0),
    )


@lru_cache(maxsize=256)
def normaliser_bounds(weights: LogWeights) -> tuple[float, float]:
    """Return bounds of Σ exp(w(|k|)) over all integers k, but for the rounding of exp(w)."""
    near = math.fsum(np.exp(weights.fast(np.arange(1.0, SUMMED))))
    low, high = (1 + 2 * (near + float(end)) for end in weights.tail(SUMMED, context(BITS)))
    return low / UP, high * UP


def normaliser(weights: LogWeights) -> float:
    """Return the lower one."""
    return normaliser_bounds(weights)[0]
