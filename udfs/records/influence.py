"""Records → influences → losses, whole batches at a time.

Guarantee: a loss stated here is at least the policy P(Δ) of the part of the query in which the record's cell lies, Δ
being the record's influence, and within one part in 10¹⁰ of it; a record in none of a query's cells has influence 0
and loss 0. Losses of queries add up (docs/mathematics.md, section 5). Influences are in steps of the query's
measure, or count records.

Influences are whole numbers and mostly small: losses of the smallest are looked up in a table, all others computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from udfs.mechanisms.additive import FLOAT_SLACK
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import LIMB, LOW, Floats, Int64s, Mask
from udfs.records.decoding import Records, SumSpec

SMALL = 1 << 16  # influences below so many steps are looked up
CERTAIN = 10**15  # a double's shortest decimal is the decimal that it was made of, up to so many digits
ABOVE = 1 + 2.0**-49  # far above the error of an influence as a double
MOST_TABLED = 16  # parts of a query: beyond, the table would not stay in a processor's cache


@dataclass(frozen=True, eq=False)
class QueryLoss:
    """What makes influences on one query, and losses, of records.

    `part_of`: by key, numbers of all codes, and last of those in no list, that add up to the part of the query in which
    a record's cell lies, a negative number where it is in none.
    """

    name: str
    base: int  # the number of the base of which its cells are a roll-up
    addend: str
    step: Fraction  # the addend's unit
    part_of: Mapping[int, Int64s]
    mechanisms: tuple[Mechanism, ...]  # of the parts
    most: int | None = None  # the largest influence of a unit on one cell

    def __post_init__(self) -> None:
        for mechanism in self.mechanisms:
            _ = mechanism.loss_curve  # computed here, on the driver: workers read it

    def parts(self, records: Records) -> Int64s | None:
        """Return the part in which each record of the domain is, negative where in none; None: all in the only one."""
        divided = {key: numbers for key, numbers in self.part_of.items() if numbers[:-1].any()}
        if not divided and len(self.mechanisms) == 1:
            return None
        return records.numbers(self.part_of)

    def loss(self, steps: Int64s, parts: Int64s | None) -> Floats:
        """Return upper bounds of the losses of influences ≥ 0 in steps, in parts ≥ 0 (None: the only one)."""
        if len(self.mechanisms) > MOST_TABLED:
            losses = np.zeros(len(steps))
            large = np.flatnonzero(steps)
        else:
            index = np.minimum(steps, SMALL - 1)
            losses = np.take(self._table, index if parts is None else index + parts * SMALL)
            large = np.flatnonzero(steps >= SMALL)
        if len(large):
            influence = self.influence_above(steps[large].astype(np.float64))
            losses[large] = self.loss_of(influence, None if parts is None else parts[large])
        return losses

    def influence_above(self, steps: Floats) -> Floats:
        """Return influences in the measure's unit, from steps that are exact or off by three last bits.

        Those that a double does not tell are rounded up: a policy may jump (⌈Δ/T⌉ of unit splitting).
        """
        influence = steps * float(self.step.numerator) / float(self.step.denominator)
        return np.where(steps < self._certain, influence, influence * ABOVE)

    def loss_of(self, influence: Floats, parts: Int64s | None) -> Floats:
        """Return the same for influences in the measure's unit."""
        if parts is None:
            return self.mechanisms[0].loss(influence)
        losses = np.zeros(len(influence))
        order = np.argsort(parts, kind="stable")  # there may be thousands of parts
        ends = np.cumsum(np.bincount(parts, minlength=len(self.mechanisms)))
        for mechanism, first, end in zip(self.mechanisms, [0, *ends], ends, strict=False):
            if end > first:
                mine = order[first:end]
                losses[mine] = mechanism.loss(influence[mine])
        return losses

    @cached_property
    def _certain(self) -> int:
        """The steps below which an influence has no more than fifteen digits; 0 where it is no decimal."""
        decimals = next((n for n in range(51) if 10**n % self.step.denominator == 0), None)
        return 0 if decimals is None else int(CERTAIN / (self.step * 10**decimals))

    @cached_property
    def _table(self) -> Floats:
        steps = self.influence_above(np.arange(SMALL, dtype=np.float64))
        return np.concatenate([mechanism.loss(steps) for mechanism in self.mechanisms])


@dataclass(frozen=True, eq=False, repr=False)
class RecordLosses:
    """Influences in steps and losses of the records of a batch, one array a query, in the queries' order.

    `inside`: which records count in a cell of the domain (None: all); `met`: which of them in one of the query's.
    """

    influences: tuple[Int64s, ...]
    losses: tuple[Floats, ...]
    met: tuple[Mask | None, ...]
    inside: Mask | None


def summed(losses: Sequence[Floats]) -> Floats:
    """Return sums of losses ≥ 0, an array a query, rounded up."""
    total = losses[0].copy()
    for loss in losses[1:]:
        total += loss
    total *= 1 + FLOAT_SLACK
    return total


def record_losses(records: Records, queries: Sequence[QueryLoss], spec: SumSpec) -> RecordLosses:
    """Return the influences and losses of the records of a batch in all queries."""
    inside = [records.cells(base)[1] for base in spec.bases]
    influences, losses, met = [], [], []
    for query in queries:
        parts, kept = query.parts(records), inside[query.base]
        if parts is not None:
            kept = parts >= 0 if kept is None else kept & (parts >= 0)
            parts = np.maximum(parts, 0)
        steps = np.abs(records.values[query.addend])
        if kept is not None:
            steps *= kept
        influences.append(steps)
        losses.append(query.loss(steps, parts))
        met.append(kept)
    return RecordLosses(tuple(influences), tuple(losses), tuple(met), _any([*inside, records.kept(spec)]))


def in_domain(records: Records, spec: SumSpec) -> Mask | None:
    """Return which records are kept, or count in a cell of some query though a code of theirs is in no list."""
    return _any([records.kept(spec), *(records.cells(base)[1] for base in spec.bases)])


def _any(masks: Sequence[Mask | None]) -> Mask | None:
    known = [mask for mask in masks if mask is not None]
    return None if len(known) < len(masks) else np.logical_or.reduce(known)


@dataclass(frozen=True, eq=False, repr=False)
class UnitRows:
    """Records in a query's cells: of each the unit (a firm, numbered below `count`), the cell, its part, its influence.

    Influences are in steps.
    """

    count: int
    units: Int64s
    cells: Int64s
    parts: Int64s
    influences: Int64s


def unit_losses(query: QueryLoss, rows: UnitRows) -> tuple[Floats, Floats]:
    """Return each unit's influence on a query, in the measure's unit, summed over its cells, and its loss.

    In one cell a unit's influences add up before the mechanism sees them: P at their sum, which is exact, also beyond
    63 bits. Losses add up over its cells, and are rounded up.
    """
    order = np.lexsort((rows.cells, rows.units))
    units, cells = rows.units[order], rows.cells[order]
    starts = np.flatnonzero(np.append(True, (np.diff(units) != 0) | (np.diff(cells) != 0))[: len(units)])
    if not len(starts):
        return np.zeros(rows.count), np.zeros(rows.count)
    influences = rows.influences[order]
    high, low = (np.add.reduceat(limb, starts) for limb in (influences >> LIMB, influences & LOW))
    sums = high.astype(np.float64) * 2.0**LIMB + low.astype(np.float64)
    if query.most is not None:
        sums = np.minimum(sums, query.most)
    influence = sums * float(query.step.numerator) / float(query.step.denominator)
    losses = query.loss_of(query.influence_above(sums), rows.parts[order][starts])
    of_unit = units[starts]
    in_most_cells = int(np.bincount(of_unit).max())
    slack = 1 + FLOAT_SLACK + in_most_cells * 2.0**-52  # a sum of n doubles errs by less than n·2⁻⁵³
    return _summed_by(of_unit, influence, rows.count), _summed_by(of_unit, losses * slack, rows.count)


def _summed_by(units: Int64s, values: Floats, count: int) -> Floats:
    sums = np.zeros(count)
    np.add.at(sums, units, values)
    return sums
