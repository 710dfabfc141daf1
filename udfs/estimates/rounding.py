"""Base values as whole units, so that every table adds up exactly and nothing shows of the rounding.

From the coarsest table of the chain to the base, one axis at a time: what the parts of a sum leave of their fractions
is carried along the axis, so that every run of neighbours is within one unit of its share (docs/mathematics.md,
section 14).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from scipy import sparse

from udfs.estimates.fixed import Fixed, FixedInCliques
from udfs.estimates.preconditioners import Chain
from udfs.estimates.tables import (
    Along,
    EstimateError,
    Observed,
    Positions,
    Sums,
    in_order,
    row_slabs,
    sums_between,
)
from udfs.numbers.arrays import Floats, Mask

WHOLE = 2.0**53  # doubles below it hold every whole number
ROUNDOFF = 1e-6  # of a unit: sums that differ by less are equal
CLOSE = 1e-3  # of a unit: how far a fixed total may seem from a whole number by rounding of its sums


@dataclass(frozen=True)
class Units:
    """Decimal units: 10^−`digits` of the measure's."""

    digits: int

    @classmethod
    def of(cls, base: Floats, unit: float) -> Self:
        """Return `unit`, a power of ten, or the next by tens of which all sums are whole below 2⁵³."""
        digits = round(-math.log10(unit))
        if not math.isclose(10.0**-digits, unit):
            raise EstimateError(f"the unit {unit} is no power of ten")
        most = float(np.abs(base).sum()) + base.size * 10.0**-digits
        while most * 10.0**digits >= WHOLE:
            digits -= 1
        return cls(digits)

    @property
    def per(self) -> float:
        """How many there are in one unit of the measure."""
        return 10.0**self.digits

    @property
    def unit(self) -> float:
        """One of them."""
        return float(f"1e{-self.digits}")

    def values(self, integers: Floats) -> Floats:
        """Return whole units in the measure's unit: the doubles nearest to the decimals."""
        return integers / 10.0**self.digits if self.digits >= 0 else integers * 10.0**-self.digits


class Parts(NamedTuple):
    """One table of the chain with a further position on each axis that it does not cover."""

    positions: Positions
    widths: tuple[int, ...]

    @classmethod
    def base(cls, shape: tuple[int, ...]) -> Self:
        """Return the base itself."""
        return cls(tuple(np.arange(n, dtype=np.int32) for n in shape), shape)

    @classmethod
    def of(cls, table: Observed) -> Self:
        """Return a table's cells, and those beside it."""
        short = [bool((axis < 0).any()) for axis in table.positions]
        pairs = list(zip(table.positions, table.widths, strict=True))
        return cls(
            tuple(np.where(axis < 0, np.int32(width), axis) for axis, width in pairs),
            tuple(width + more for (_, width), more in zip(pairs, short, strict=True)),
        )


Fill = Callable[[Floats, Floats, Mask | None, Along, int], Floats]


Held = tuple[Observed, Floats]  # a table on the base, and its cells as whole numbers, which stand already


def rounded(chain: Chain, fixed: Fixed | None, base: Floats, units: Units, held: Held | None = None) -> Floats:
    """Return base values in whole units: fixed totals are met, tables of the chain are within few units of theirs.

    With `held`, they add up to the whole units of that table.
    """
    own = None if chain.group.base is None or held is not None else chain.group.base.fixed
    steps = [(Parts.base(base.shape), own)]
    steps += [(Parts.of(level.known.table), level.known.fixed) for level in chain.levels]
    if fixed is not None:  # tables that are no finer would not let all fixed totals be met
        steps = [steps[0], *finer_levels(chain, fixed.joint), (Parts.of(fixed.joint), None)]
    if held is not None:
        steps, integers = [steps[0], *finer_levels(chain, held[0]), (Parts.of(held[0]), None)], held[1]
    else:
        top = Sums(*steps[-1][0]).up(base) * units.per
        integers = np.rint(top)
        if fixed is not None:
            inner = tuple(slice(0, width) for width in fixed.joint.widths)
            integers[inner] = meeting(top[inner], wanted(fixed, units), fixed, units)

    def fill(integers: Floats, real: Floats, free: Mask | None, along: Along, axis: int) -> Floats:
        return carried(integers, real * units.per, free, along, axis)

    for (coarse, _), (fine, stays) in zip(steps[:0:-1], steps[-2::-1], strict=True):
        if stays is not None:
            stays = np.pad(stays, [(0, n - m) for n, m in zip(fine.widths, stays.shape, strict=True)])  # noqa: PLW2901
        integers = expanded(integers, (coarse, fine), Sums(*fine).up(base), stays, by_slabs(fill))
    return integers


def everything(base: Floats, units: Units) -> Held:
    """Return the sum of all cells as one of whole units."""
    one = Observed("", tuple(np.zeros(n, dtype=np.int32) for n in base.shape), (1,) * base.ndim, None, None)
    return one, np.rint(np.full(one.widths, base.sum() * units.per))


def finer_levels(chain: Chain, table: Observed) -> list[tuple[Parts, None]]:
    """Return the tables of the chain that are finer than a table."""
    return [(Parts.of(level.known.table), None) for level in chain.levels if _finer(level.known.table, table)]


def _finer(table: Observed, other: Observed) -> bool:
    return sums_between(table, other) is not None and sums_between(other, table) is None


def expanded(integers: Floats, parts: tuple[Parts, Parts], real: Floats, stays: Mask | None, fill: Fill) -> Floats:
    """Return whole numbers for the finer cells, near `real`, that add up to those of the coarser cells.

    `fill` splits the sums of one axis: of (sums, real parts, parts that may differ from their nearest whole number,
    axis) it makes whole parts.
    """
    coarse, fine = parts
    steps = []
    for finer, coarser, widths in zip(
        fine.positions, coarse.positions, zip(fine.widths, coarse.widths, strict=True), strict=True
    ):
        to = np.zeros(widths[0], dtype=np.int32)
        to[finer] = coarser
        steps.append(Along(to, widths[1]))
    for axis, along in enumerate(steps):
        if along.same:
            continue
        rest = tuple(np.arange(n, dtype=np.int32) for n in fine.widths[: axis + 1])
        positions = (*rest, *(step.positions for step in steps[axis + 1 :]))
        between = Sums(positions, (*fine.widths[: axis + 1], *coarse.widths[axis + 1 :]))
        free = None if stays is None else between.up((~stays).astype(np.float64)) > 0
        integers = fill(integers, between.up(real), free, along, axis)
    return integers


def by_slabs(fill: Fill) -> Fill:
    """Return the same, a few rows of the first axis at a time: for parts that other rows have no share in."""

    def filled(integers: Floats, real: Floats, free: Mask | None, along: Along, axis: int) -> Floats:
        out = np.empty(real.shape)

        def work(rows: slice) -> None:
            out[rows] = fill(integers[rows], real[rows], None if free is None else free[rows], along, axis)

        for _ in in_order(work, row_slabs(real.shape) if axis else [slice(None)]):
            pass
        return out

    return filled


def carried(integers: Floats, real: Floats, free: Mask | None, along: Along, axis: int) -> Floats:
    """Give each part along one axis its whole number, and one more where the carried fractions pass a half."""
    floor = np.floor(real) if free is None else np.where(free, np.floor(real), np.rint(real))
    rest = real - floor if free is None else np.where(free, real - floor, 0.0)
    counted = along.up(np.ones(real.shape) if free is None else free.astype(np.float64), axis)
    missing = integers - along.up(floor, axis) - along.up(rest, axis)
    missing[np.abs(missing) < ROUNDOFF] = 0.0  # else a part of nothing might be given −1
    spread = along.down(missing / np.maximum(counted, 1.0), axis)
    rest += spread if free is None else np.where(free, spread, 0.0)
    order = np.arange(along.length) if along.order is None else along.order
    steps = np.rint(np.cumsum(rest.take(order, axis=axis), axis=axis))
    floor += np.diff(steps, axis=axis, prepend=0.0).take(np.argsort(order), axis=axis)
    return floor


def wanted(fixed: Fixed, units: Units) -> Floats:
    """Return the fixed totals in whole units."""
    totals = fixed.totals * units.per
    integers: Floats = np.rint(totals)
    if (np.abs(totals - integers) > CLOSE).any():
        raise EstimateError(f"{fixed.names}: a fixed total is no multiple of {units.unit:g}, the unit of the estimates")
    return integers


def meeting(real: Floats, totals: Floats, fixed: Fixed, units: Units) -> Floats:
    """Return whole common parts near `real` that add up to these totals of whole units."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 — loaded where totals are fixed alone

    cells = real.ravel()
    floor = np.floor(cells + CLOSE / 2)
    rows = sparse.csr_array(fixed.rows)
    for more in (0, 1, 2, 8, 64):  # the parts may lie this much further from their real values
        solved = milp(
            np.where(cells - floor > 0.5, -1.0, 1.0) * np.abs(1 - 2 * (cells - floor)),
            integrality=np.ones(len(cells)),
            bounds=Bounds(-more, 1 + more),
            constraints=LinearConstraint(rows, totals - rows @ floor, totals - rows @ floor),
        )
        if solved.x is not None:
            result: Floats = (floor + np.rint(solved.x)).reshape(real.shape)
            return result
    raise EstimateError(f"{fixed.names}: no whole multiples of {units.unit:g} meet all fixed totals")


def settled(vector: Floats, fixed: FixedInCliques, units: Units) -> None:
    """Move a vector of whole units, in place, to meet all fixed totals: few units of each common part."""
    missing = wanted(fixed, units) - fixed.sums_of(vector)
    if missing.any():
        fixed.place(meeting(fixed.shared(missing), missing, fixed, units), vector)
