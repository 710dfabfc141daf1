"""Base values as whole units, so that every table adds up exactly and nothing shows of the rounding.

From the coarsest table of the chain to the base, one axis at a time: what the parts of a sum leave of their fractions
is carried along the axis, so that every run of neighbours is within one unit of its share (docs/mathematics.md,
section 14).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from udfs.estimates.chain import Chain
from udfs.estimates.fixed import Fixed
from udfs.estimates.tables import EstimateError, Int32s, Observed, Positions, Sums, sums_between
from udfs.numbers.arrays import Floats, Mask

WHOLE = 2.0**53  # doubles below it hold every whole number
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

    def values(self, whole: Floats) -> Floats:
        """Return whole units in the measure's unit: the doubles nearest to the decimals."""
        return whole / 10.0**self.digits if self.digits >= 0 else whole * 10.0**-self.digits


class _Parts(NamedTuple):
    """One table of the chain with a further position on each axis that it does not cover."""

    positions: Positions
    widths: tuple[int, ...]

    @classmethod
    def base(cls, shape: tuple[int, ...]) -> Self:
        return cls(tuple(np.arange(n, dtype=np.int32) for n in shape), shape)

    @classmethod
    def of(cls, table: Observed) -> Self:
        short = [bool((axis < 0).any()) for axis in table.positions]
        pairs = list(zip(table.positions, table.widths, strict=True))
        return cls(
            tuple(np.where(axis < 0, np.int32(width), axis) for axis, width in pairs),
            tuple(width + more for (_, width), more in zip(pairs, short, strict=True)),
        )


def rounded(chain: Chain, fixed: Fixed | None, base: Floats, units: Units) -> Floats:
    """Return base values in whole units: fixed totals are met, tables of the chain are within few units of theirs."""
    own = None if chain.group.base is None else chain.group.base.fixed
    steps = [(_Parts.base(base.shape), own)]
    steps += [(_Parts.of(level.known.table), level.known.fixed) for level in chain.levels]
    if fixed is not None:  # tables that are no finer would not let all fixed totals be met
        finer = [level for level in chain.levels if _finer(level.known.table, fixed.joint)]
        steps = [steps[0], *((_Parts.of(level.known.table), None) for level in finer), (_Parts.of(fixed.joint), None)]
    reals = [base if not number else Sums(*part).up(base) for number, (part, _) in enumerate(steps)]
    top = reals[-1] * units.per
    whole = np.rint(top) if fixed is None else _meeting(top, fixed, units)
    for (coarse, _), (fine, stays), real in zip(steps[:0:-1], steps[-2::-1], reals[-2::-1], strict=True):
        if stays is not None:
            stays = np.pad(stays, [(0, n - m) for n, m in zip(fine.widths, stays.shape, strict=True)])  # noqa: PLW2901
        whole = _expanded(whole, (coarse, fine), real * units.per, stays)
    return whole


def _finer(table: Observed, other: Observed) -> bool:
    return sums_between(table, other) is not None and sums_between(other, table) is None


def _expanded(whole: Floats, parts: tuple[_Parts, _Parts], real: Floats, stays: Mask | None) -> Floats:
    """Return whole units of the finer cells, near `real`, that add up to those of the coarser cells."""
    coarse, fine = parts
    to = []
    for finer, coarser, width in zip(fine.positions, coarse.positions, fine.widths, strict=True):
        step = np.zeros(width, dtype=np.int32)
        step[finer] = coarser
        to.append(step)
    for axis, step in enumerate(to):
        rest = tuple(np.arange(n, dtype=np.int32) for n in fine.widths[: axis + 1])
        between = Sums((*rest, *to[axis + 1 :]), (*fine.widths[: axis + 1], *coarse.widths[axis + 1 :]))
        free = None if stays is None else between.up((~stays).astype(np.float64)) > 0
        whole = _carried(whole, between.up(real), free, step, axis)
    return whole


def _carried(whole: Floats, real: Floats, free: Mask | None, to: Int32s, axis: int) -> Floats:
    """Give each entry along one axis its whole part, and one more where the carried fractions pass a half."""
    floor = np.floor(real)
    if free is not None:
        floor = np.where(free, floor, np.rint(real))
    real = real - floor  # the fractions
    if free is not None:
        real[~free] = 0.0
    sums = Sums(
        tuple(to if number == axis else np.arange(n, dtype=np.int32) for number, n in enumerate(floor.shape)),
        whole.shape,
    )
    counted = sums.up(np.ones(floor.shape) if free is None else free.astype(np.float64))
    missing = (whole - sums.up(floor) - sums.up(real)) / np.maximum(counted, 1.0)
    if free is None:
        sums.down(missing, real)
    else:
        spread = np.zeros(floor.shape)
        sums.down(missing, spread)
        real += np.where(free, spread, 0.0)
    order = np.argsort(to, kind="stable")
    carried = np.rint(np.cumsum(real.take(order, axis=axis), axis=axis))
    carried = np.diff(carried, axis=axis, prepend=0.0)
    back = np.argsort(order, kind="stable")
    floor += carried.take(back, axis=axis)
    return floor


def _meeting(real: Floats, fixed: Fixed, units: Units) -> Floats:
    """Return whole units near `real` of the common parts of fixed totals, that meet all of them."""
    totals = fixed.totals * units.per
    whole = np.rint(totals)
    if (np.abs(totals - whole) > CLOSE).any():
        raise EstimateError(f"{fixed.names}: a fixed total is no multiple of {units.unit:g}, the unit of the estimates")
    inner = tuple(slice(0, width) for width in fixed.joint.widths)
    result = np.rint(real)
    cells = real[inner].ravel()
    floor = np.floor(cells + CLOSE / 2)
    rows = sparse.csr_array(fixed.rows)
    for more in (0, 1, 2):  # the parts may lie this much further from their real values
        found = milp(
            np.where(cells - floor > 0.5, -1.0, 1.0) * np.abs(1 - 2 * (cells - floor)),
            integrality=np.ones(len(cells)),
            bounds=Bounds(-more, 1 + more),
            constraints=LinearConstraint(rows, whole - rows @ floor, whole - rows @ floor),
        )
        if found.x is not None:
            result[inner] = (floor + np.rint(found.x)).reshape(fixed.joint.widths)
            return result
    raise EstimateError(f"{fixed.names}: no whole multiples of {units.unit:g} meet all fixed totals")
