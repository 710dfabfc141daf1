"""Variances of estimates without drawing anything: exact where tables nest in one chain, upper bounds elsewhere.

What the least-squares estimate knows of a cell is at least what any selection of independent published values tells
(docs/mathematics.md, section 14): here the best that is found from inside the cell, and the best from outside it.
"""

import numpy as np

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import EstimateError, Observed, Positions, Sums, sums_between
from udfs.numbers.arrays import Floats


def combined(one: Floats, other: Floats) -> Floats:
    """Return the variance of the best mean of two independent values, 1/(1/v + 1/w); 0 and infinite ones included."""
    least, most = np.minimum(one, other), np.maximum(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isinf(most) | (least == 0), least, least / (1 + least / most))


class Variances:
    """Bounds of the variances of one group's estimates; those of every table are computed once.

    With V the variance of a table's value: `inside`, B = 1/(1/V + 1/D), D the least sum of the parts' B over the finer
    tables; `outside`, O = U + D' − B, with U = 1/(1/V' + 1/O') and D' of the coarser cell it lies in, the least over
    the coarser tables. Published values that enter B and O are not the same, so 1/(1/B + 1/O) bounds the variance.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._inside: dict[str, Floats] = {}
        self._outside: dict[str, Floats] = {}

    def of(self, table: Observed) -> Floats:
        """Return the bounds of a table's cells on the group's base; raises where no weighted tables make them up."""
        for known in self.group.known:
            to = sums_between(table, known.table)
            if to is not None and sums_between(known.table, table) is not None:
                own = combined(self.inside(known), self.outside(known))
                padded = np.pad(own, [(0, 1)] * own.ndim)  # a cell without base cells is 0
                return padded[np.ix_(*to)]
        inside = self._from_below(table)
        if not np.isfinite(inside).all():
            raise EstimateError(f"{table.name}: no weighted table makes up its cells")
        return combined(inside, self._from_above(table, inside))

    def inside(self, known: Known) -> Floats:
        """Return B of a weighted table's cells."""
        if known.name not in self._inside:
            own = np.broadcast_to(known.variance, known.table.widths)
            base = known is self.group.base  # the largest table: nothing lies below it
            self._inside[known.name] = own if base else combined(own, self._from_below(known.table))
        return self._inside[known.name]

    def outside(self, known: Known) -> Floats:
        """Return O of a weighted table's cells."""
        if known.name not in self._outside:
            self._outside[known.name] = self._from_above(known.table, self.inside(known))
        return self._outside[known.name]

    def _from_below(self, table: Observed) -> Floats:
        best = np.full(table.widths, np.inf)
        finer = {known.name: to for known in self.group.known if (to := _into(known.table, table)) is not None}
        for known in self.group.known:
            if known.name in finer and not finer.keys() & self.group.within[known.name].keys():
                np.minimum(best, Sums(finer[known.name], table.widths).up(self.inside(known)), out=best)
        return best

    def _from_above(self, table: Observed, inside: Floats) -> Floats:
        best = np.full(table.widths, np.inf)
        coarser = {known.name: to for known in self.group.known if (to := _into(table, known.table)) is not None}
        for known in self.group.known:
            if known.name not in coarser or any(known.name in self.group.within[other] for other in coarser):
                continue
            to = coarser[known.name]
            beyond = combined(np.broadcast_to(known.variance, known.table.widths), self.outside(known))
            beyond = beyond + Sums(to, known.table.widths).up(inside)
            padded = np.pad(beyond, [(0, 1)] * beyond.ndim, constant_values=np.inf)  # outside the coarser table
            with np.errstate(invalid="ignore"):
                rest = padded[np.ix_(*to)] - inside
            np.fmin(best, np.maximum(rest, 0.0), out=best)
        return best


def _into(finer: Observed, coarser: Observed) -> Positions | None:
    """Return where positions of a strictly finer table lie in the coarser one; None where it is not finer."""
    to = sums_between(finer, coarser)
    return None if to is None or sums_between(coarser, finer) is not None else to
