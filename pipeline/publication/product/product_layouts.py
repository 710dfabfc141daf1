"""Layouts: the rows of several tables in the columns and the order that users of an agency's files know.

Its tables are products of codes, turned so that the area is outermost, and so grids: area by area, all areas alike.
Rows are told by their place in an area, and sorted once. Levels that a row does not have are summed over. Errors of
such sums: of additive noise the squares are added. Those of estimates are correlated: they are at most the root of the
released variances' sum, since no sum of estimates has a larger one, and at most the sum of the estimates' own.

Earlier releases, of changes, are brought to the codes of today first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, arg
from pipeline.publication import release_folder
from pipeline.publication.product.derived_columns import (
    DerivedSpec,
    Figures,
    NumbersSpec,
    Part,
    WithholdSpec,
    change_of_rows,
    derived_figures,
    public_figures,
    quotient_of,
    share_of_rows,
    some,
    summed,
    withheld,
)
from pipeline.publication.product.product_spec import ColumnSpec, LayoutSpec, ProductSpec, RowsSpec, Texts
from pipeline.publication.product.product_tables import LOWER, RELEASED, UPPER, Grid, ShownTable, ShownTables
from udfs.estimates.intervals import Statistics, whole_range
from udfs.numbers.arrays import Floats
from udfs.records.codes import OTHER

Names = Mapping[str, Mapping[str, str]]  # level → code → name
Known = dict[tuple[str, bool, str], Grid]  # by area, whether it is of earlier releases, and table
Taken = Mapping[str, NDArray[Any]]  # figure → that of each cell of some areas


@dataclass(frozen=True, eq=False)
class Cells:
    """What a column shows, of some rows: of which grid, which codes of `of`, and over which levels it is summed."""

    grid: Grid
    of: Mapping[str, tuple[int, ...]]
    by: tuple[str, ...]  # without the area
    summed: bool

    @classmethod
    def of_column(cls, grid: Grid, shown: ColumnSpec, rows: RowsSpec, file: str) -> "Cells | None":
        """Return the cells of a column, None where an optional one has none.

        PlanError where the table lacks a level or a code, or may not be summed.
        """
        source = grid.source
        for level in (*rows.by, *shown.of):
            if level not in source.levels and not (shown.optional and level in shown.of):
                raise PlanError(f"{file}: column {shown.name} needs {level}, which the table {source.name} has not")
        of: dict[str, tuple[int, ...]] = {}
        for level, wanted in shown.of.items():
            known = grid.codes[level].to_pylist() if level in grid.codes else []
            codes = [wanted] if isinstance(wanted, str) else wanted
            of[level] = tuple(known.index(code) for code in codes if code in known)
            if not of[level]:
                if shown.optional:
                    return None
                names = " or ".join(codes)
                raise PlanError(f"{file}: column {shown.name}: the table {source.name} has no {level} {names}")
        over = [level for level in grid.codes if level not in rows.by and len(of.get(level, grid.codes[level])) > 1]
        if over and not (source.additive and source.adds_up):
            noise = "noise is not additive, so that errors of sums are not known"
            raise PlanError(
                f"{file}: column {shown.name} is a sum over {', '.join(over)} of the table {source.name}, whose "
                f"{noise if source.adds_up else 'cells each count an owner'}: release a table without "
                f"{'these levels' if len(over) > 1 else 'this level'}"
            )
        return cls(grid, of, tuple(rows.by[1:]), bool(over))

    def taken(self, values: NDArray[Any], areas: int) -> NDArray[Any]:
        """Return, of all cells of some areas, those shown: summed, a row for each area."""
        cube = values.reshape(areas, *self.grid.shape)
        levels = list(self.grid.codes)
        for level, places in self.of.items():
            axis = levels.index(level) + 1
            if level in self.by or len(places) > 1:
                cube = cube.take(places, axis=axis)
            else:  # a view, and nothing to add up
                cube = np.moveaxis(cube, axis, 0)[places[0]]
                levels.remove(level)
        over = tuple(number + 1 for number, level in enumerate(levels) if level not in self.by)
        cube = summed(cube, over) if over else cube
        left = [level for level in levels if level in self.by]
        cube = cube.transpose(0, *(left.index(level) + 1 for level in self.by))
        return np.ascontiguousarray(cube.reshape(areas, -1))

    def _figure(self, rows: Taken, areas: int, name: str, power: int = 1) -> NDArray[Any]:
        return self.taken(rows[name] if power == 1 else rows[name] ** power, areas)

    def stated(self, rows: Taken, areas: int) -> Statistics:
        """Return values, errors and intervals of rows of the table, as published, or as bounds of sums."""
        source, figure = self.grid.source, partial(self._figure, rows, areas)
        values = figure(release_folder.VALUE)
        if not self.summed:
            return Statistics(values, figure(release_folder.ERROR), figure(LOWER), figure(UPPER))
        errors = figure(release_folder.ERROR) if source.reconciled else np.sqrt(figure(release_folder.ERROR, 2))
        if RELEASED[1] in source.figures:
            errors = np.minimum(errors, np.sqrt(figure(RELEASED[1], 2)))
        return Statistics(values, errors, values - source.reach * errors, values + source.reach * errors)

    def part(self, taken: Mapping[Grid, Taken], areas: Sequence[str]) -> Part:
        """Return what a derived figure is made of: of its own cells, as they are stated."""
        source, stated = self.grid.source, self.stated(taken[self.grid], len(areas))
        cells = prod(self.grid.shape) * len(areas) // max(stated.value.size, 1) * source.merged
        group = None if source.group is None else (self.grid.since, source.group)
        return Part(self.grid, group, source.law, source.own.step * cells, source.own.interval, stated)

    def figures(
        self, rows: Taken, areas: int, rule: WithholdSpec | None, limits: list[float], *, adds_up: bool
    ) -> Figures:
        """Return what is shown of rows of the table.

        Of a sum it is the rounded estimate, and the sum of what is displayed where that must add up in its row: small
        cells are displayed too high, and many of them add up to far more than their total.
        """
        source, stated = self.grid.source, self.stated(rows, areas)
        values, errors, lower, upper = stated.value, stated.standard_error, stated.lower, stated.upper
        if self.summed and source.reconciled and not adds_up:
            shown = release_folder.rounded_to(np.maximum(values, 0))
        else:
            own = source.shown == release_folder.VALUE
            shown = release_folder.rounded_to(values if own else self._figure(rows, areas, source.shown))
        relative = release_folder.coefficient(values, errors)
        letters = np.zeros(values.shape, np.int8)
        for each in limits:
            letters += ~(relative < each)  # the last one of NaN
        np.maximum(letters, np.int8(len(limits)) * ~(values > 0), out=letters)
        lower, upper = whole_range(lower, upper, source.own.step)
        hidden = np.zeros(values.shape, bool) if rule is None else withheld(rule, values, errors, lower, relative)
        inside = values.dtype == np.int64 and source.additive and not source.reconciled  # within their own intervals
        if rule is not None and not inside:
            hidden |= (shown < lower) | (shown > upper)
        if source.reconciled:  # what cannot be negative has no range below 0
            lower, upper = np.maximum(lower, 0), np.maximum(upper, 0)
        np.maximum(letters, np.int8(len(limits) + 1) * hidden, out=letters)
        return Figures(shown, hidden, letters, lower, upper, relative, np.zeros(values.shape, bool))


@dataclass(frozen=True, eq=False)
class Numbers:
    """Public numbers of some rows, each row's by its code at a level: its area's, or one of `inner`, a row's each."""

    name: str
    spec: NumbersSpec
    level: str
    count: int  # of rows in an area
    inner: Sequence[str] | None
    lacking: dict[str, None] = field(default_factory=dict)  # codes that it does not list

    def part(self, _taken: Mapping[Grid, Taken], areas: Sequence[str]) -> Part:
        """Return the numbers."""
        codes = areas if self.inner is None else self.inner
        numbers = self.spec.of(self.level, codes)
        self.lacking.update((code, None) for code in np.array(codes)[np.isnan(numbers)] if code != OTHER)
        of_rows = numbers[:, None] if self.inner is None else numbers[None, :]
        return Part.public(self.name, np.broadcast_to(of_rows, (len(areas), self.count)))


@dataclass(frozen=True, eq=False)
class Made:
    """A derived figure of some rows: of which cells, now and, of a change, before, or public numbers."""

    spec: DerivedSpec
    above: Sequence[Cells]
    below: Sequence[Cells | Numbers]
    sizes: tuple[int, ...]  # of a row's levels but the area
    axes: tuple[int, ...]  # of a share: over which of them its total is

    def figures(
        self, taken: Mapping[Grid, Taken], areas: Sequence[str], rule: WithholdSpec | None, limits: list[float]
    ) -> Figures:
        """Return what is shown of it."""
        above, below = ([each.part(taken, areas) for each in side] for side in (self.above, self.below))
        if self.spec.share:
            made = share_of_rows(above, (len(areas), *self.sizes), self.axes)
        elif self.spec.change:
            made = change_of_rows(above, below, relative=self.spec.relative)
        else:
            made = quotient_of(above, below)
        return derived_figures(self.spec, made, [*above, *below], rule, limits)


class Rows:
    """Some rows of a layout: the grids that it needs, and the codes that tell its rows.

    `known`: the grids of the layout's other rows; its own join them.
    """

    def __init__(  # noqa: PLR0913, PLR0917 — what they are made of
        self,
        product: ProductSpec,
        layout: LayoutSpec,
        rows: RowsSpec,
        tables: ShownTables,
        home: Path,
        known: Known,
    ) -> None:
        shown = [column for column in layout.columns if column.measure in product.measures]
        made = {each.name: product.derived[each.measure] for each in layout.columns if each.measure in product.derived}
        self.layout, self.area, self.by = layout, rows.by[0], rows.by
        self.limits = [float(flag.under) for flag in product.flags if flag.under is not None]
        self.remarks = tables.remarks
        needed = {measure: rows.values[measure] for measure in product.read_by(layout.columns)}
        earlier = {name: needed[name] for each in made.values() if each.change for name in each.change}
        if earlier and tables.since is None:
            raise PlanError(f"{layout.file}: a change is since earlier releases: give them by {arg('since')}")
        self._known = known
        self.grids = self._grids(product, tables, needed, home)
        before = self._grids(product, tables.since, earlier, home) if tables.since is not None else {}
        before = {measure: self._following(product, measure, grid, home) for measure, grid in before.items()}
        self.cells: dict[str, tuple[str, Cells | None]] = {
            each.name: (str(each.measure), Cells.of_column(self.grids[str(each.measure)], each, rows, layout.file))
            for each in shown
        }
        self.needed = list(dict.fromkeys((*self.grids.values(), *before.values())))
        self._before, self._rows = before, rows
        adding = {name for total, others in layout.sums.items() for name in (total, *others)}
        self.add_up = {_key(*self.cells[name]) for name in adding}
        first, *others_of = self.needed
        self.codes = {level: first.codes[level] for level in rows.by[1:]}
        for other in others_of:
            alike = all(other.codes[level].equals(codes) for level, codes in self.codes.items())
            if not alike or other.areas != first.areas:
                raise not_alike(layout, first.source, other.source)
        self.count = prod(len(codes) for codes in self.codes.values())
        of_lists = {each.name: str(each.value) for each in layout.columns if each.value in product.lists}
        of_lists |= {shown: spec.per[0] for shown, spec in made.items() if spec.per and spec.per[0] in product.lists}
        self.numbers = {shown: self._listed(product, name, shown) for shown, name in of_lists.items()}
        self.made = {name: self._made(name, spec) for name, spec in made.items()}

    def _following(self, product: ProductSpec, measure: str, grid: Grid, home: Path) -> Grid:
        """Return the grid of an earlier table by the codes of today; remark on those that are new, or gone."""
        new, old = self.grids[measure].source.codes(), grid.source.codes()
        became: dict[str, dict[str, str]] = {}
        for level in self.by:
            of_level = product.concordances.get(level)
            same = {code: code for code in old[level] if code in {*new[level]}}
            became[level] = same if of_level is None else of_level.followed(old[level], new[level])
            begun = sorted({*new[level]} - {*became[level].values()})
            for codes, are in ((begun, "new"), (sorted({*old[level]} - {*became[level]}), "gone")):
                if codes:
                    self.remarks.add(f"{level}: {are} since the earlier releases, {len(codes)} in all: {some(codes)}")
        for level in (level for level in old if level not in self.by and new.get(level) != old[level]):
            self.remarks.add(f"{level}: other codes are added up than in the earlier releases")
        if all(old[level] == new[level] == [*became[level].values()] for level in self.by):
            return grid
        today = {level: new[level] for level in self.by}
        table = grid.source.following(became, today, home, self.layout.file)
        return replace(Grid.of(table, self.layout.file), since=True)

    def _listed(self, product: ProductSpec, name: str, shown: str) -> Numbers:
        """Return the public numbers that a column shows, or is made of."""
        spec = product.lists[name]
        level = next((level for level in spec.codes if level in self.by), None)
        if level is None:
            what = f"the public list {name} has no codes of {' or '.join(self.by)}"
            raise PlanError(f"{self.layout.file}: column {shown}: {what}: name their column in lists.{name}.codes")
        inner = None if level == self.area else self.each_row(level, self.codes[level].to_pylist()).tolist()
        return Numbers(name, spec, level, self.count, inner)

    def _grids(
        self, product: ProductSpec, tables: ShownTables, needed: Mapping[str, Texts], home: Path
    ) -> dict[str, Grid]:
        """Return the grid of each measure, one object for all of one table."""
        of_measure: dict[str, Grid] = {}
        file = self.layout.file
        for measure, table in tables.needed(needed, file, all_reconciled=product.reconciled).items():
            others = [level for level in table.levels if level != self.area]
            if len(others) == len(table.levels):
                raise PlanError(f"{file}: its rows are by {self.area}, which the table {table.name} has not")
            key = (self.area, tables.since is None, table.name)
            if key not in self._known:
                grid = Grid.of(table.turned((self.area, *others), home, file), file)
                self._known[key] = replace(grid, since=tables.since is None)
            of_measure[measure] = self._known[key]
        return of_measure

    def _made(self, name: str, spec: DerivedSpec) -> Made:
        """Return a derived figure of these rows; PlanError where its errors are not known, or units changed."""
        file = self.layout.file

        def cells(measures: Sequence[str], grids: Mapping[str, Grid]) -> list[Cells]:
            of = [ColumnSpec(name=name, meaning=name, value=measure) for measure in measures]
            shown = (Cells.of_column(grids[str(each.value)], each, self._rows, file) for each in of)
            return [each for each in shown if each is not None]

        above = cells([*spec.ratio, *spec.share, *spec.change], self.grids)
        before = cells(spec.change, self._before) if spec.change else []
        below = [self.numbers[name]] if name in self.numbers else before or cells(spec.per, self.grids)
        if spec.change:
            for new, old in zip(above, before, strict=True):
                if new.grid.source.own.step != old.grid.source.own.step:
                    what = f"{new.grid.source.name} has another step in the earlier releases"
                    raise PlanError(f"{file}: column {name}: {what}: a change of units is no change of totals")
        for each in above if spec.share else ():
            if not each.grid.source.adds_up:
                raise PlanError(f"{file}: column {name}: the cells of {each.grid.source.name} each count an owner")
            if each.grid.source.law is None:
                what = f"the noise of the table {each.grid.source.name} grows with the total"
                raise PlanError(f"{file}: column {name}: {what}, so that errors of sums are not known: reconcile first")
        if lacking := [level for level in spec.over if level not in self.codes]:
            raise PlanError(f"{file}: column {name}: over: {lacking[0]} is no level of the rows after their first")
        axes = tuple(number for number, level in enumerate(self.codes, 1) if level in spec.over)
        return Made(spec, above, below, tuple(len(codes) for codes in self.codes.values()), axes)

    def each_row(self, level: str, of_codes: Sequence[Any]) -> NDArray[Any]:
        """Return in each of an area's rows what its code at a level has."""
        sizes, number = [len(each) for each in self.codes.values()], [*self.codes].index(level)
        return np.tile(np.repeat(np.array(of_codes), prod(sizes[number + 1 :])), prod(sizes[:number]))

    def bounded(self, name: str) -> bool:
        """Whether a column has a range in every row: of sums the noise may have no variance, and so no end."""
        cells = self.cells[name][1] if name in self.cells else None
        return (
            cells is not None and not cells.summed and not cells.grid.source.reconciled and cells.grid.source.additive
        )

    def figures(self, names: Sequence[str], taken: Mapping[Grid, Taken]) -> dict[str, Figures | None]:
        """Return by column its figures in the areas that were `taken`; None of an optional column without cells."""
        rule = self.layout.withhold
        known: dict[tuple[Any, ...], Figures] = {}  # a value, its flag and its notes are of the same cells
        for measure, cells in self.cells.values():
            key = _key(measure, cells)
            if cells is not None and key not in known:
                adds_up = key in self.add_up
                known[key] = cells.figures(taken[cells.grid], len(names), rule, self.limits, adds_up=adds_up)
        self._end_with_totals(known)
        shown: dict[str, Figures | None] = {name: known.get(_key(*each)) for name, each in self.cells.items()}
        shown |= {name: made.figures(taken, names, rule, self.limits) for name, made in self.made.items()}
        for name in self.numbers.keys() - self.made.keys():
            shown[name] = public_figures(self.numbers[name].part(taken, names))
        self._require_sums(shown)
        return shown

    def _end_with_totals(self, known: dict[tuple[Any, ...], Figures]) -> None:
        """End the ranges of what is added up where that of its total does, of reconciled figures alone."""
        for name, others in self.layout.sums.items():
            total, parts = self.cells[name], [self.cells[each] for each in others]
            cells = [each for _, each in (total, *parts) if each is not None]
            if _key(*total) in known and all(each.grid.source.reconciled for each in cells):
                for key in {_key(*each) for each in parts} & known.keys():
                    known[key] = self.ended(known[key], known[_key(*total)].upper)

    def ended(self, part: Figures, most: Floats) -> Figures:
        """Return a part of other figures, whose ranges end at `most`: nothing is below 0, so that its own does too.

        Bounds of errors are the same to both sides, so that each end misses with half of what its range may miss: one
        from another figure adds as much. A part whose range begins above keeps its own end.
        """
        upper = np.where(most < part.lower, part.upper, np.minimum(part.upper, most))
        hidden = part.withheld | ((part.shown > upper) & (self.layout.withhold is not None))
        flags = np.where(hidden, len(self.limits) + 1, part.flag).astype(np.int8)
        return part._replace(upper=upper, withheld=hidden, flag=flags)

    def _require_sums(self, shown: Mapping[str, Figures | None]) -> None:
        for name, others in self.layout.sums.items():
            figures = [shown[each] for each in (name, *others)]
            sources = {grid.name: grid for grid in (self.grids[self.cells[each][0]].source for each in (name, *others))}
            if None in figures or not all(each.reconciled for each in sources.values()):
                continue
            total, *parts = [each.shown for each in figures if each is not None]
            if not np.array_equal(total, np.sum(parts, axis=0)):
                raise PlanError(
                    f"{self.layout.file}: {name} is not the sum of {', '.join(others)}: the tables "
                    f"{' and '.join(sources)} were not reconciled with each other, or lack a class"
                )


def _key(measure: str, cells: Cells | None) -> tuple[Any, ...]:
    return measure, None if cells is None else tuple(cells.of.items())


def not_alike(layout: LayoutSpec, first: ShownTable, other: ShownTable) -> PlanError:
    """Return the error that two tables have not the same codes."""
    return PlanError(
        f"{layout.file}: the tables {first.name} and {other.name} have not the same codes in the same order: "
        "they cannot stand in the same rows"
    )
