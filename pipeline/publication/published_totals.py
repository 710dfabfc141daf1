"""Totals of picked cells as published, without reconciling: from the one table that tells them best.

All of it is made of what releases published: post-processing, which costs no record anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce
from math import inf, sqrt
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.base.errors import PlanError, arg, hint, in_a_line
from pipeline.plan.domain.cells import QueryCells
from pipeline.plan.domain.keys import Where
from pipeline.plan.structure import TableFacts
from pipeline.publication.public_totals import Atoms, measure_of
from pipeline.publication.release_folder import VALUE
from pipeline.publication.released_tables import ReleasedTable, Releases
from udfs.estimates import intervals
from udfs.estimates.intervals import Law, Statistics, Totals, combined, half_step, law_of, multiplier
from udfs.mechanisms.additive_kinds import SymmetricStable
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats

USUAL = Fraction(95, 100)


@dataclass(frozen=True, eq=False)
class Total:
    """An estimated total of picked cells: of what, of which records and tables, and what is known of its error.

    `variance` is infinite where the noise has none, and where it depends on the true total; `lower` and `upper` hold
    the total with the coverage that was asked for in any case. `keys`: records without a listed code in one of them
    are not in it. `step`: the lattice that the error lies on.
    """

    of: str
    where: Where
    keys: tuple[str, ...]
    tables: tuple[str, ...]
    value: float
    variance: float
    law: Law
    step: float
    lower: float
    upper: float

    @property
    def standard_error(self) -> float | None:
        """The standard error; None where there is none."""
        return sqrt(self.variance) if self.variance < inf else None

    @property
    def half_step(self) -> float:
        """The step over the standard error."""
        return self.step / sqrt(self.variance) if self.variance > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "of": self.of,
            "where": {level: list(codes) for level, codes in self.where.items()},
            "keys": list(self.keys),
            "tables": list(self.tables),
            "value": self.value,
            "standard_error": self.standard_error,
            "lower": self.lower,
            "upper": self.upper,
        }


@dataclass(frozen=True, eq=False)
class CellTotals:
    """The cells of a table in key order: values, variances, and ends of intervals of the coverage asked for."""

    facts: TableFacts
    cells: QueryCells
    totals: Totals
    ends: tuple[Floats, Floats]
    law: Law
    step: float

    @property
    def finite(self) -> bool:
        """Whether all errors have a variance."""
        return bool(np.isfinite(self.totals.variance).all())

    @property
    def half_step(self) -> float:
        """The step over the smallest standard error."""
        least = float(self.totals.variance.min(initial=np.inf))
        return self.step / sqrt(least) if 0 < least < np.inf else 0.0

    def stated(self) -> Statistics:
        """Return values and intervals alone."""
        return Statistics(self.totals.value, np.full_like(self.totals.value, np.nan), *self.ends)


@dataclass(frozen=True, eq=False)
class Cells:
    """Picked cells of one published table; `mask` is 1 for them on the table's own base, `interval` the coverage of
    released intervals."""

    table: ReleasedTable
    interval: Fraction
    atoms: Atoms
    mask: Floats

    @cached_property
    def parts(self) -> Floats:
        """The number of the part of each cell of the base."""
        return self._on_base(self.table.part_numbers())

    def _on_base(self, cells: Any) -> Floats:
        placed = self.atoms.placed(self.table.cells, np.asarray(cells, dtype=np.float64))
        grid = np.broadcast_to(placed, self.atoms.widths(self.table.cells))
        return grid[np.ix_(*self.atoms.positions(self.table.cells))]

    def variance(self, also: "Cells | None" = None) -> float:
        """Return the variance of the sum, or its covariance with that of other cells of the same table."""
        mask = self.mask if also is None else self.mask * also.mask
        each = [mechanism.variance(0.0) for mechanism in self.table.mechanisms.values()]
        return sum(v * n for v, n in zip(each, self.counts(mask), strict=True) if n)

    @cached_property
    def rank(self) -> tuple[int, float]:
        """What tables are chosen by: of how many keys a record needs a code, and about how large the sum's error is."""
        return len(self.keys), self._size_of_error()

    @property
    def keys(self) -> frozenset[str]:
        """The keys in which a record needs a code."""
        return self.table.facts.keys(self.table.domain)

    @cached_property
    def used(self) -> list[tuple[Mechanism, int]]:
        """The mechanisms of the cells, and how many cells each has."""
        counts = zip(self.table.mechanisms.values(), self.counts(self.mask), strict=True)
        return [(mechanism, count) for mechanism, count in counts if count]

    @property
    def step(self) -> float:
        """The step of the table's noise."""
        return float(next(iter(self.table.mechanisms.values())).step)

    @property
    def exponent(self) -> float | None:
        """The one alpha of the cells' noise; None where it is not stable, or there are several."""
        alphas = {mechanism.alpha if isinstance(mechanism, SymmetricStable) else None for mechanism, _ in self.used}
        alpha = alphas.pop()
        return None if alphas or alpha is None else float(alpha)

    def _size_of_error(self) -> float:
        if not self.table.additive:
            return inf  # none is published, but of single cells
        counts = self.counts(self.mask)
        each = [mechanism.interval_around(0.0, USUAL) for mechanism in self.table.mechanisms.values()]
        return sqrt(sum(n * (upper - lower) ** 2 for n, (lower, upper) in zip(counts, each, strict=True)))

    def counts(self, mask: Floats) -> list[int]:
        """Return the number of masked cells by part."""
        return [int(mask[self.parts == number].sum()) for number in range(len(self.table.mechanisms))]

    def total(self, coverage: float) -> Total:
        """Return the sum of the cells; PlanError where its error cannot be told."""
        table, size = self.table, int(self.mask.sum())
        if table.additive:
            value = float((self._on_base(table.values()) * self.mask).sum())
            variance = self.variance()
            law = combined(law_of(mechanism) for mechanism, _ in self.used)
            half = _half_width(table.name, self.used, coverage)
            lower, upper = value - half, value + half
        else:
            value, lower, upper = self._as_released(size, coverage)
            variance, law = inf, Law.ANY
        of, keys = measure_of(table.statistic), tuple(sorted(self.keys))
        return Total(of, {}, keys, (table.name,), value, variance, law, self.step, lower, upper)

    def _as_released(self, size: int, coverage: float) -> tuple[float, float, float]:
        if size != 1:
            raise PlanError(
                f"{self.table.name}: its noise is larger where the total is, so that sums of its cells have no "
                f"published error; pick one cell, or reconcile with {arg('expected')} or {arg('weights_from')}"
            )
        cell = int(self._on_base(np.arange(self.table.cells.size))[self.mask > 0][0])
        value, lower, upper = (float(each[cell]) for each in _released(self.table, self.interval, coverage))
        return value, lower, upper


class Published(Releases):
    """Verified releases of one dataset, each of whose tables speaks for itself."""

    def cells(self, of: str, where: Where) -> Cells:
        """Return the cells that make up a total in the table that tells it best.

        That is one that leaves out the records of as few keys as may be, and then of the smallest error. PlanError
        where no table tells it.
        """
        return min(self._telling(of, where), key=lambda each: each.rank)

    def mean(self, of: str, where: Where, coverage: float) -> Total:
        """Return the weighted mean of least scale of all tables of stable noise of one exponent that tell a total.

        They are of the same records: those with the fewest keys. Its law is known as that of a sum is
        (udfs.estimates.intervals). PlanError where there are not two such tables.
        """
        stable = [each for each in self._telling(of, where) if each.exponent is not None]
        best = min(stable, key=lambda each: each.rank, default=None)
        alike = [each for each in stable if best and (each.exponent, each.keys) == (best.exponent, best.keys)]
        if best is None or best.exponent is None or len(alike) < 2:
            raise PlanError(
                f"{arg('mean')}: there are no two tables of {of} with stable noise of one alpha that tell these cells"
            )
        used = [_stable(each.used) for each in alike]
        weights = intervals.best_weights(best.exponent, [intervals.scale_of(terms) for terms in used]).tolist()
        terms = [replace(term, weight=w) for terms, w in zip(used, weights, strict=True) for term in terms]
        value = sum(w * each.total(float(USUAL)).value for each, w in zip(alike, weights, strict=True))
        half = _of_stable(", ".join(each.table.name for each in alike), terms, coverage) * best.step
        names = tuple(each.table.name for each in alike)
        ends = value - half, value + half
        return Total(of, where, tuple(sorted(best.keys)), names, value, inf, Law.SYMMETRIC, best.step, *ends)

    def _telling(self, of: str, where: Where) -> Iterator[Cells]:
        """Yield the cells that make up a total in each table that tells it; PlanError where none does."""
        named = sorted({measure_of(table.statistic) for table in self.tables.values()})
        if of not in named:
            raise PlanError(f"{in_a_line(of)}: no table is of it{hint(of, named, 'measure')}")
        for level, codes in where.items():
            for code in codes:
                self.structure.domain.require_code(level, code)
        reason, twice, any_tells = "", "", False
        for table in self.tables.values():
            if measure_of(table.statistic) != of or not table.cells.size:
                continue
            try:
                atoms = Atoms.of(table.domain, {table.name: table.cells})
                mask = reduce(np.multiply.outer, atoms.mask(where))
            except PlanError as error:
                reason = str(error)
            else:
                if not table.statistic.adds_up and int(mask.sum()) != 1:
                    twice = f"{table.name}: owners count once in each cell, so that counts of several do not add up"
                    continue
                any_tells = True
                yield Cells(table, self.structures[str(table.source.folder)].interval, atoms, mask)
        if not any_tells:
            raise PlanError(f"no published table of {of} has these cells, or finer ones: {twice or reason}")

    def total(self, of: str, where: Where, coverage: float) -> Total:
        """Return the total; PlanError where no table tells it, or its error."""
        return replace(self.cells(of, where).total(coverage), where=where)

    def covariance(self, of: str, where: Where, other: str, other_where: Where) -> float:
        """Return the covariance of the errors of two totals: that of the cells of one table that are in both."""
        one, two = self.cells(of, where), self.cells(other, other_where)
        return one.variance(two) if one.table.name == two.table.name else 0.0

    def table(self, name: str, coverage: float) -> CellTotals:
        """Return the cells of a table; PlanError where there is none, or its intervals cannot be told."""
        table = self.named(name)
        interval = self.structures[str(table.source.folder)].interval
        mechanisms = list(table.mechanisms.values())
        law = max(map(law_of, mechanisms))
        if table.additive:
            values = table.values()
            variance, half = (
                self._by_cell(table, of_part)
                for of_part in (
                    [mechanism.variance(0.0) for mechanism in mechanisms],
                    [_half_width(name, [(mechanism, 1)], coverage) for mechanism in mechanisms],
                )
            )
            lower, upper = values - half, values + half
        else:
            values, lower, upper = _released(table, interval, coverage)
            variance = np.full(values.shape, inf)
        totals = Totals(values, variance)
        return CellTotals(table.facts, table.cells, totals, (lower, upper), law, float(mechanisms[0].step))

    def table_sum(self, name: str) -> tuple[Totals, Floats]:
        """Return the sum of a table's cells, and the covariances with it: the cells' own variances."""
        totals = self.table(name, float(USUAL)).totals
        return Totals(totals.value.sum(), totals.variance.sum()), totals.variance

    def _by_cell(self, table: ReleasedTable, of_part: Sequence[float]) -> Floats:
        grid = np.array(of_part, dtype=np.float64)[table.part_numbers()]
        shape = (table.cells.size,) if table.cells.listed is not None else table.cells.shape
        return np.broadcast_to(grid, shape).reshape(-1)


def _half_width(name: str, used: Sequence[tuple[Mechanism, int]], coverage: float) -> float:
    """Bound the error of a sum of cells by mechanism: those with a variance, and stable ones, share what may miss."""
    q = 1 - coverage
    step, stable = float(used[0][0].step), _stable(used)
    others = [(mechanism, count) for mechanism, count in used if not isinstance(mechanism, SymmetricStable)]
    variance = sum(mechanism.variance(0.0) * count for mechanism, count in others)
    if stable and others:
        q /= 2
    half = 0.0
    if stable:
        half += _of_stable(name, stable, 1 - q) * step
    if variance == inf:
        raise PlanError(f"{name}: its noise has no variance, and sums of it have no law that is known")
    if variance:
        k = multiplier(q, combined(law_of(mechanism) for mechanism, _ in others))
        half += (k + half_step(step / sqrt(variance))) * sqrt(variance)
    return half


def _stable(used: Sequence[tuple[Mechanism, int]]) -> list[intervals.Term]:
    return [
        intervals.Term(alpha=float(mechanism.alpha), scale=float(mechanism.steps), count=count)
        for mechanism, count in used
        if isinstance(mechanism, SymmetricStable)
    ]


def _of_stable(name: str, terms: Sequence[intervals.Term], coverage: float) -> float:
    try:
        return intervals.half_width(terms, coverage)
    except ValueError as refused:
        raise PlanError(f"{name}: {refused}") from None


def _released(table: ReleasedTable, interval: Fraction, coverage: float) -> list[Floats]:
    """Return values and ends of released intervals; PlanError where these cover less than is needed."""
    if coverage > interval:
        raise PlanError(
            f"{table.name}: its noise is larger where the total is, and its intervals are released with coverage "
            f"{float(interval):g}, where {coverage:.4g} is needed: ask for a smaller {arg('interval')}, or reconcile"
        )
    names = (VALUE, "lower", "upper")
    pieces = pa.concat_tables(table.source.pieces(names))
    return [pieces.column(name).to_numpy().astype(np.float64) for name in names]
