"""Sums over symmetric stable noise as sums over some hundred distances, from above (docs/tight.md, section 9).

The weights fall but are not convex, and log-ratios rise before they fall. So between two distances both are bounded by
chords raised by their bends, from certified bounds of derivatives (udfs.losses.stable_bends):

    ln p ≤ chord + h²/8·B₂,        L ≤ chord + h²/8·min(2·B₂, u·B₃),        h = n/s, u = shift/s,

n being the steps between. The exponential of the one chord lies below the chord of its ends, Ψ_ε of the other below
that of its ends but for an allowance, and what is summed is the product of two straight lines, exactly.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.losses.nodes import (
    BITS,
    CONCAVE_FROM,
    CONCAVITY,
    FARTHEST,
    SMALLEST,
    TAIL,
    UP,
    Ints,
    larger_of_both_sides,
    last_inside,
    normaliser,
)
from udfs.losses.stable_bends import Bends, bends_of
from udfs.noise.stable import CauchyWeights, StableWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

Stable = CauchyWeights | StableWeights
BEND = 2.0**-12  # of ln p and of its slope between two nodes, in the middle; it grows with the distance
MOST = 2.0**-7  # where little mass is left


@dataclass(frozen=True, eq=False)
class StableNodes:
    """Distances k_i with log-weights w; upper bounds of what Ψ at both ends of each block counts; what bends there.

    `near` and `far` are for the two ends of the block from k_i to k_{i+1}; `tail` is the mass from the last distance
    on. `second` and `third` are h²/8 times bounds of |(ln p)″| and |(ln p)‴|; `allowance` is what Ψ_ε/ε may exceed its
    chord by.
    """

    weights: Stable
    bends: Bends
    k: Floats
    w: Floats
    near: Floats
    far: Floats
    tail: float
    second: Floats
    third: Floats
    allowance: Floats

    def ratios(self, steps: Floats) -> tuple[Floats, Floats, Floats]:
        """Return masses m, log-ratios ℓ ≥ 0 and a rest Γ as `Nodes.ratios` does; all grow with `steps`."""
        u = steps[:, None] / float(self.weights.scale)
        bends = np.minimum(2 * self.second, u * self.third) * UP
        last = last_inside(self.k, steps)
        k, everywhere = self.k[: last.max() + 1], np.full_like(last, len(self.k) - 1)
        outer, inner = np.repeat(steps[:, None], len(self.k), axis=1), np.maximum(steps[:, None] - 2 * k, 0.0)
        parts = self._part(outer, bends, everywhere), self._part(inner, bends[:, : len(k) - 1], last, first=1)
        mass, ratios = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
        return mass, ratios, parts[0][2] + parts[1][2]

    def _part(self, moved: Floats, bends: Floats, last: Ints, first: int = 0) -> tuple[Floats, Floats, Floats]:
        """Return m, ℓ and Γ of the nodes from number `first` to `last`, from which the totals lie `moved` farther."""
        size = moved.shape[1]
        fall, error = falls(self.weights, self.k[:size], self.w[:size], moved)
        ratios = fall + error
        tail = last == len(self.k) - 1
        if tail.any():  # from there on a bound of L that falls
            growth = moved[tail, -1] / self.k[-1]
            ratios[tail, -1] = self.bends.beyond(float(self.k[-1]) / float(self.weights.scale), growth) * UP
        blocks, mass = np.arange(size - 1) < last[:, None], np.zeros_like(ratios)
        raised = np.zeros_like(ratios)
        raised[:, :-1] = bends * blocks
        ratios += larger_of_both_sides(raised)
        near, far = self.near[: size - 1] * blocks, self.far[: size - 1] * blocks
        mass[:, :-1] += near
        mass[:, 1:] += far
        mass[tail, -1] += self.tail
        concave = np.maximum(ratios[:, :-1], ratios[:, 1:]) > CONCAVE_FROM
        rest = np.einsum("ij,ij->i", self.allowance[: size - 1] * concave, near + far)
        return mass[:, first:], np.where(mass > 0, ratios, 0.0)[:, first:], rest


def falls(weights: Stable, k: Floats, w: Floats, moved: Floats) -> tuple[Floats, Floats]:
    """Return w(k) − w(k + moved), `w` being w(k), and how far off it may be: last bits of w, or for α = 1 of it."""
    if isinstance(weights, CauchyWeights):
        x, u = k / float(weights.scale), moved / float(weights.scale)
        fall = np.log1p(u * ((2 * x + u) / (1 + x * x)))
        return fall, fall * (UP - 1)
    ahead = weights.fast((k + moved).ravel()).reshape(moved.shape)
    fall = np.where(moved > 0, np.maximum(w - ahead, 0.0), 0.0)
    return fall, np.where(moved > 0, -3 * weights.fast_error * ahead, 0.0)


def alpha_of(weights: Stable) -> Fraction:
    """Return the exponent of the noise."""
    return Fraction(1) if isinstance(weights, CauchyWeights) else weights.alpha


@lru_cache(maxsize=64)
def stable_nodes(weights: Stable) -> StableNodes:
    """Return the nodes: so near each other that ln p bends by BEND between two, and more where little mass is left."""
    scale, bends = float(weights.scale), bends_of(alpha_of(weights))
    k, density = [0.0, 1.0], 1.0
    while k[-1] < FARTHEST and not (k[-1] >= bends.far_from * scale and k[-1] / scale * density <= TAIL):
        x = k[-1] / scale
        bend = min(BEND * (1 + x), MOST)
        width = np.sqrt(8 * bend / max(bends.bound(order, np.array([x]))[0] for order in (2, 3)))
        k.append(min(FARTHEST, k[-1] + max(1.0, np.floor(width * scale))))
        density = float(np.exp(weights.fast(np.array([k[-1]]))[0]))
    return _nodes(weights, bends, np.array(k))


def _nodes(weights: Stable, bends: Bends, k: Floats) -> StableNodes:
    n = np.diff(k)
    between = n > 1
    x, chord = k[:-1] / float(weights.scale), np.where(between, (n / float(weights.scale)) ** 2 / 8, 0.0) * UP
    first, second, third = (bends.bound(order, x) for order in (1, 2, 3))
    w = weights.fast(k)
    density = np.maximum(np.exp(w), SMALLEST) / normaliser(weights)
    raised = np.exp(chord * second) * UP
    left, right = density[:-1] * raised, density[1:] * raised
    # sums of (1 − t)², t(1 − t) and t² over t = 0, 1/n, …, (n − 1)/n
    squares, products, ahead = (n + 1) * (2 * n + 1) / (6 * n), (n * n - 1) / (6 * n), (n - 1) * (2 * n - 1) / (6 * n)
    tail = float(weights.tail(int(k[-1]), context(BITS))[1]) * UP + SMALLEST
    return StableNodes(
        weights=weights,
        bends=bends,
        k=k,
        w=w,
        near=left * squares + right * products,
        far=left * products + right * ahead,
        tail=tail / normaliser(weights),
        second=chord * second,
        third=chord * third,
        allowance=32 * chord * first**2 * (CONCAVITY / 8),
    )
