"""The exact solution for tables that nest one in another, in two passes: up from the base, and down again.

Sources: Hay, Rastogi, Miklau, Suciu (2010), section 4, for equal variances; docs/mathematics.md, section 14, for any.
"""

from dataclasses import dataclass, field

import numpy as np

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import Sums
from udfs.numbers.arrays import Floats

LEAST_SHARE = 1e-6  # of a base cell's own weight, where no table lies at the base: keeps the two passes finite
MOST_GAIN = 1e6  # a table known without noise counts like one that is known this much better


def over(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient, 0 where both are 0: of nothing unknown, nothing is corrected."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.broadcast(numerator, denominator).shape), where=denominator != 0
    )


@dataclass(frozen=True, eq=False)
class Level:
    """One table of a chain: how it is added up from the level below, and how well it is known from there.

    With V the variance of the table and D = Σ of its parts' variances, `gain` = D/(V + D) is how far its value moves
    the estimate from below, and the estimate from both has the variance D·(1 − gain).
    """

    known: Known
    sums: Sums
    below: Floats  # D
    gain: Floats = field(init=False)

    def __post_init__(self) -> None:
        variance = self.known.variance
        gain = np.where(
            np.isinf(variance), 0.0, over(self.below, np.where(np.isinf(variance), 1.0, variance) + self.below)
        )
        object.__setattr__(self, "gain", gain)

    @property
    def variance(self) -> Floats:
        """The variance of the estimate from this table and those below."""
        return self.below * (1 - self.gain)


class Chain:
    """The inverse of M = W₀ + Σ Aᵀ W A over the base and a chain of tables, each made up of cells of the one before."""

    def __init__(self, group: Group) -> None:
        self.group = group
        start = _first_variance(group, None)
        self.names = _best(group, start)
        self.start = _first_variance(group, self.names) if group.base is None else start
        self.levels: list[Level] = []
        parts, last = self.start, None
        for name in self.names:
            sums = group.sums[name] if last is None else group.within[last][name]
            known = next(known for known in group.known if known.name == name)
            below = sums.up(np.broadcast_to(parts, sums.shape))
            self.levels.append(Level(known, sums, below))
            parts, last = self.levels[-1].variance, name

    @property
    def bounds(self) -> bool:
        """Whether M ≤ N: all of M's weight is that of tables."""
        return self.group.base is not None and bool(np.isfinite(self.group.base.variance).all())

    @property
    def exact(self) -> bool:
        """Whether M = N: every table lies in the chain."""
        return self.bounds and len(self.names) == len(self.group.known) - 1

    def solve(self, right: Floats) -> Floats:
        """Return M⁻¹·right."""
        base: Floats = self.start * right
        correction = self._corrections(base, data=False)
        if correction is None:
            return base
        np.copyto(base, right)
        self.levels[0].sums.down(correction, base)
        base *= self.start
        return base

    def estimate(self) -> Floats:
        """Return the least-squares values on the base from the tables of the chain alone."""
        known = self.group.base
        base = np.zeros(self.group.shape) if known is None else known.values
        correction = self._corrections(base, data=True)
        if correction is None:
            return base.copy()
        out = np.zeros(self.group.shape)
        self.levels[0].sums.down(correction, out)
        out *= self.start
        out += base
        return out

    def _corrections(self, base: Floats, *, data: bool) -> Floats | None:
        """Return (estimate − sum of the base)/D of the first level's cells; None where there is no level."""
        sums, estimates, last = [], [], base
        for level in self.levels:
            sums.append(level.sums.up(last))
            step = level.known.values - sums[-1] if data else -sums[-1]
            last = sums[-1] + level.gain * step
            estimates.append(last)
        correction = None
        for number in reversed(range(len(self.levels))):
            level = self.levels[number]
            if correction is not None:
                spread = np.zeros(level.known.table.widths)
                self.levels[number + 1].sums.down(correction, spread)
                spread *= level.variance
                estimates[number] = estimates[number] + spread
            correction = over(estimates[number] - sums[number], level.below)
        return correction


def _first_variance(group: Group, chain: list[str] | None) -> Floats:
    """Return the variance of base cells: their table's, or where there is none, of about what other tables tell.

    Only the speed of convergence depends on what stands for a missing table.
    """
    own = None if group.base is None else group.base.variance
    if own is not None and np.isfinite(own).all():
        return own
    weights, others = np.zeros(group.shape), np.zeros(group.shape)
    for known in group.known:
        spread = np.zeros(group.shape)
        group.sums[known.name].down(np.broadcast_to(known.weights, known.table.widths), spread)
        weights += spread
        if chain is None or known.name not in chain:
            others += spread
    weights[weights == 0] = 1.0
    missing = 1 / np.maximum(others, LEAST_SHARE * weights)
    return missing if own is None else np.where(np.isfinite(own), own, missing)


def _best(group: Group, start: Floats) -> list[str]:
    """Return the chain of tables, finest first, that tells most beyond the base: the largest sum of log(1 + D/V)."""
    spread = group.folded(np.broadcast_to(start, group.shape))
    best: dict[str, tuple[float, list[str]]] = {}
    for known in reversed(group.known):
        if known is group.base:
            continue
        below = spread[known.name]
        gain = float(np.log1p(below / np.maximum(known.variance, below / MOST_GAIN + (below == 0))).sum())
        after = max((best[name] for name in group.within[known.name]), default=(0.0, []), key=lambda one: one[0])
        best[known.name] = gain + after[0], [known.name, *after[1]]
    return max(best.values(), default=(0.0, []), key=lambda one: one[0])[1]
