"""Base values as whole units, so that every table adds up exactly and nothing shows of the rounding.

From the coarsest table of the chain to the base, one axis at a time: what the parts of a sum leave of their fractions
is carried along the axis, so that every run of neighbours is within one unit of its share (docs/mathematics.md,
section 14).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

import numpy as np
from scipy import sparse

from udfs.estimates.cliques import blocks
from udfs.estimates.group import Fixed
from udfs.estimates.preconditioners import Chain
from udfs.estimates.tables import (
    Along,
    EstimateError,
    Int32s,
    Observed,
    Positions,
    Sums,
    in_order,
    joint_positions,
    row_slabs,
    sums_between,
)
from udfs.numbers.arrays import Floats, Mask

WHOLE = 2.0**53  # doubles below it hold every whole number
ROUNDOFF = 1e-6  # of a unit: sums that differ by less are equal
RAKED, LEAST = 40, 1e-6  # rounds of proportional fitting, and the least value of a cell in them
MANY, HASTY = 1 << 22, 12  # of so many cells fewer rounds are made: each takes seconds
UNEVEN = 4  # times the squared mean: the mean square of what is below 0 at the positions of an axis
FEWER = 4  # times fewer cells, of which some margins are fitted together
NOISY = 0.25  # of a table's sum above 0, below 0: of more, noise is most of the table, and it is not fitted
NOISE = 0.9  # of more, base values are little else than noise
CLEAR = 4.0  # root mean squares of what is below 0: values above as many are not noise alone
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
    own = None if chain.group.base is None else chain.group.base.fixed
    steps = [(Parts.base(base.shape), own)]
    steps += [(Parts.of(level.known.table), level.known.fixed) for level in chain.levels]
    if fixed is not None:  # tables that are no finer would not let all fixed totals be met
        steps = [steps[0], *_above(chain, fixed.joint), (Parts.of(fixed.joint), None)]
    if held is not None:
        steps, integers = [steps[0], *_above(chain, held[0]), (Parts.of(held[0]), None)], held[1]
    else:
        top = Sums(*steps[-1][0]).up(base) * units.per
        integers = np.rint(top) if fixed is None else _meeting(top, fixed, units)

    def fill(integers: Floats, real: Floats, free: Mask | None, along: Along, axis: int) -> Floats:
        return carried(integers, real * units.per, free, along, axis)

    for (coarse, _), (fine, stays) in zip(steps[:0:-1], steps[-2::-1], strict=True):
        if stays is not None:
            stays = np.pad(stays, [(0, n - m) for n, m in zip(fine.widths, stays.shape, strict=True)])  # noqa: PLW2901
        integers = expanded(integers, (coarse, fine), Sums(*fine).up(base), stays, fill)
    return integers


def _above(chain: Chain, table: Observed) -> list[tuple[Parts, None]]:
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
        integers = _by_slabs(integers, between.up(real), free, (along, axis, fill))
    return integers


def _by_slabs(integers: Floats, real: Floats, free: Mask | None, step: tuple[Along, int, Fill]) -> Floats:
    along, axis, fill = step
    out = np.empty(real.shape)

    def work(rows: slice) -> None:
        out[rows] = fill(integers[rows], real[rows], None if free is None else free[rows], along, axis)

    for _ in in_order(work, row_slabs(real.shape) if axis else [slice(None)]):
        pass
    return out


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


def _meeting(real: Floats, fixed: Fixed, units: Units) -> Floats:
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 — loaded where totals are fixed alone

    totals = fixed.totals * units.per
    integers = np.rint(totals)
    if (np.abs(totals - integers) > CLOSE).any():
        raise EstimateError(f"{fixed.names}: a fixed total is no multiple of {units.unit:g}, the unit of the estimates")
    inner = tuple(slice(0, width) for width in fixed.joint.widths)
    result = np.rint(real)
    cells = real[inner].ravel()
    floor = np.floor(cells + CLOSE / 2)
    rows = sparse.csr_array(fixed.rows)
    for more in (0, 1, 2):  # the parts may lie this much further from their real values
        solved = milp(
            np.where(cells - floor > 0.5, -1.0, 1.0) * np.abs(1 - 2 * (cells - floor)),
            integrality=np.ones(len(cells)),
            bounds=Bounds(-more, 1 + more),
            constraints=LinearConstraint(rows, integers - rows @ floor, integers - rows @ floor),
        )
        if solved.x is not None:
            result[inner] = (floor + np.rint(solved.x)).reshape(fixed.joint.widths)
            return result
    raise EstimateError(f"{fixed.names}: no whole multiples of {units.unit:g} meet all fixed totals")


# Display columns: non-negative whole numbers that add up, beside the unbiased estimates and never instead of them.
#
# From the coarsest table of the chain to the base, one axis at a time: the parts of each displayed sum are the nearest
# non-negative numbers that add up to it, then whole ones by carried fractions. What is displayed is biased upward where
# estimates are negative, and downward beside them (docs/mathematics.md, section 14).


def displayed(chain: Chain, base: Floats, held: Held | None = None, margins: Sequence[Sums] = ()) -> Floats:
    """Return whole numbers ≥ 0 for the base, each within 1 of its projection along its axis.

    With `held`, they add up to that table's, which are ≥ 0. With `margins` base values are raked to theirs first.
    """
    if margins:
        base = raked(base, margins, None if held is None else (Sums(held[0].positions, held[0].widths), held[1]))
    steps = [Parts.base(base.shape), *(Parts.of(level.known.table) for level in chain.levels)]
    if held is None:
        if margins:  # else what is rounded off in many small cells would be missing from their sums
            steps.append(Parts(tuple(np.zeros(n, dtype=np.int32) for n in base.shape), (1,) * base.ndim))
        integers = np.maximum(np.rint(Sums(*steps[-1]).up(base)), 0.0)
    else:
        steps = [steps[0], *(parts for parts, _ in _above(chain, held[0])), Parts.of(held[0])]
        integers = held[1]

    def fill(integers: Floats, real: Floats, _: Mask | None, along: Along, axis: int) -> Floats:
        return carried(integers, projected(integers, real, along, axis), None, along, axis)

    for coarse, fine in zip(steps[:0:-1], steps[-2::-1], strict=True):
        integers = expanded(integers, (coarse, fine), Sums(*fine).up(base), None, fill)
    return integers


def raked(base: Floats, margins: Sequence[Sums], held: tuple[Sums, Floats] | None = None) -> Floats:
    """Return base values above 0 whose margins are near those of `base`, as far as these are above 0.

    By iterative proportional fitting, in RAKED rounds (of MANY cells HASTY ones) from the margins with the most noise
    below 0, if it is not too much, to those with the least, of which in the second half of the rounds ever fewer are
    fitted, so that these hold best; `held` are sums that hold best of all.
    Without it small cells below 0 are taken from the others of a sum, as the nearest numbers above 0 are, and sums
    across it are far off.
    """
    known = [(sums, sums.up(base)) for sums in margins]
    noise = [shortfall(each) for _, each in known]
    order = sorted((n for n in range(len(margins)) if noise[n] <= NOISY), key=lambda n: -noise[n])
    tens = [math.ceil(math.log10(max(noise[n], LEAST))) for n in order]
    wanted = [
        run
        for _, alike in groupby(zip(tens, order, strict=True), key=lambda one: one[0])
        for run in Run.of([(known[n][0], above_zero(known[n][1])) for _, n in alike], base.size)
    ]
    wanted += [] if held is None else Run.of([held], base.size)
    values = start(base)
    rounds = RAKED if base.size < MANY else HASTY
    for number in range(rounds):
        for run in wanted[len(wanted) * max(2 * number - rounds, 0) // rounds :]:
            run.fit(values)
    return values


def start(base: Floats) -> Floats:
    """Return the values above 0 from which fitting starts: base values above 0, where they are not noise nearly all.

    Else those that noise alone does not make, and the mean of the others for each of these: fitting would have to move
    what is known of sums to the cells where noise is above 0 by chance.
    """
    if shortfall(base) <= NOISE:
        return np.maximum(base, LEAST)
    columns, axis = classed(base)
    values = np.empty_like(columns)
    for real, out in zip(columns.T, values.T, strict=True):
        below = real[real < 0]
        clear = real > CLEAR * math.sqrt(float(np.mean(below**2)) if len(below) else 0.0)
        mean = float(np.where(clear, 0.0, real).sum()) / max(1, int(np.count_nonzero(~clear)))
        out[:] = np.where(clear, real, max(mean, LEAST))
    return restored(values, base, axis)


def shortfall(sums: Floats) -> float:
    """Return what is below 0 as a share of what is above."""
    return float(-np.minimum(sums, 0).sum() / max(np.maximum(sums, 0).sum(), LEAST))


def above_zero(sums: Floats) -> Floats:
    """Return the sums of at least 0 that are nearest and have the same total: all are as far off, class by class."""
    real, axis = classed(sums)
    totals = np.maximum(real.sum(axis=0, keepdims=True), 0.0)
    return restored(projected(totals, real, Along(np.zeros(len(real), dtype=np.int32), 1), 0), sums, axis)


def classed(sums: Floats) -> tuple[Floats, int]:
    """Return sums as columns of alike noise, and the axis that tells it: one, unless few positions have most noise."""
    below = np.maximum(-sums, 0.0)
    by = [below.sum(axis=tuple(other for other in range(sums.ndim) if other != axis)) for axis in range(sums.ndim)]
    uneven = [float((each**2).mean() / max(each.mean(), LEAST) ** 2) for each in by]
    axis = max(range(sums.ndim), key=uneven.__getitem__)
    return np.moveaxis(sums, axis, -1).reshape(-1, sums.shape[axis] if uneven[axis] > UNEVEN else 1), axis


def restored(columns: Floats, sums: Floats, axis: int) -> Floats:
    """Return columns that `classed` made in the shape of the sums."""
    shape = np.moveaxis(sums, axis, -1).shape
    return np.moveaxis(columns.reshape(shape), -1, axis)


@dataclass(frozen=True, eq=False)
class Run:
    """Margins that are fitted one after the other on sums of far fewer cells, which make all of them up."""

    sums: Sums
    margins: list[tuple[Sums, Floats]]  # from the cells of `sums`

    @classmethod
    def of(cls, margins: Sequence[tuple[Sums, Floats]], size: int) -> list[Self]:
        """Return runs of all margins, each as few cells as to be worth it."""
        runs: list[tuple[list[Int32s], list[tuple[Sums, Floats]]]] = []
        for sums, totals in margins:
            own = [blocks(axis, width) for axis, width in zip(sums.positions, sums.widths, strict=True)]
            for number, (levels, members) in enumerate(runs):
                joint = [joint_positions(pair) for pair in zip(levels, own, strict=True)]
                if math.prod(int(axis.max()) + 1 for axis in joint) <= size // FEWER:
                    runs[number] = joint, [*members, (sums, totals)]
                    break
            else:
                runs.append((own, [(sums, totals)]))
        return [cls._made(*run) for run in runs]

    @classmethod
    def _made(cls, levels: list[Int32s], members: list[tuple[Sums, Floats]]) -> Self:
        widths = tuple(int(axis.max()) + 1 for axis in levels)
        margins = []
        for sums, totals in members:
            to = tuple(np.full(width, -1, dtype=np.int32) for width in widths)
            for step, axis, positions in zip(to, levels, sums.positions, strict=True):
                step[axis] = positions
            margins.append((Sums(to, sums.widths), totals))
        return cls(Sums(tuple(levels), widths), margins)

    def fit(self, values: Floats) -> None:
        """Multiply values, in place, by what makes each margin in turn the wanted one."""
        cells = self.sums.up(values)
        every = np.ones(cells.shape)
        for sums, totals in self.margins:
            factors = np.ones(cells.shape)
            sums.down(np.maximum(totals, LEAST) / np.maximum(sums.up(cells), LEAST) - 1, factors)
            every *= factors
            cells = cells * factors
        self.sums.scale(every, values)


def projected(sums: Floats, real: Floats, along: Along, axis: int) -> Floats:
    """Return the parts nearest to `real` in squared distance that are at least 0 and have these sums ≥ 0.

    They are max(x − τ, 0) with one τ for each sum (Michelot 1986): parts below τ are left out until none is.
    """
    active = np.ones(real.shape, dtype=bool)
    while True:
        counts = along.up(active.astype(np.float64), axis)
        above = along.up(np.where(active, real, 0.0), axis) - sums
        shift = along.down(above / np.maximum(counts, 1.0), axis)
        kept = active & (real > shift) & (along.down(sums, axis) > 0)
        if np.array_equal(kept, active):
            return np.where(active, real - shift, 0.0)
        active = kept
