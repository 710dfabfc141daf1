"""Layouts: the rows of several tables in the columns and the order that users of an agency's files know.

Its tables are products of codes, turned so that the area is outermost, and so grids: area by area, all areas alike.
Rows are told by their place in an area, and sorted once. Levels that a row does not have are summed over. Errors of
such sums: of additive noise the squares are added. Those of estimates are correlated: they are at most the root of the
released variances' sum, since no sum of estimates has a larger one, and at most the sum of the estimates' own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, arg
from pipeline.publication import release_folder
from pipeline.publication.hashed_files import PIECE, Hashed, written
from pipeline.publication.product.derived_columns import (
    Figures,
    Part,
    change_of_rows,
    derived_figures,
    quotient_of,
    share_of_rows,
    summed,
    withheld,
)
from pipeline.publication.product.product_spec import (
    WITHHELD,
    ColumnSpec,
    DerivedSpec,
    LayoutSpec,
    ProductSpec,
    RowsSpec,
    Texts,
    WithholdSpec,
)
from pipeline.publication.product.product_tables import LOWER, RELEASED, UPPER, Grid, ShownTable, ShownTables
from pipeline.publication.release_folder import Reader
from udfs.estimates.intervals import Statistics
from udfs.records.codes import OTHER

Names = Mapping[str, Mapping[str, str]]  # level → code → name
RANGE = (("low", "lower"), ("high", "upper"))  # endings of columns of ranges, and which end they have
MOST = np.nextafter(2.0**63, 0)


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
            cube = cube.take(places, axis=levels.index(level) + 1)
        over = tuple(number + 1 for number, level in enumerate(levels) if level not in self.by)
        cube = summed(cube, over) if over else cube
        left = [level for level in levels if level in self.by]
        return cube.transpose(0, *(left.index(level) + 1 for level in self.by)).reshape(areas, -1)

    def _figure(self, rows: pa.Table, areas: int, name: str, power: int = 1) -> NDArray[Any]:
        return self.taken(release_folder.numbers(rows, name) ** power, areas)

    def stated(self, rows: pa.Table, areas: int) -> Statistics:
        """Return values, errors and intervals of rows of the table, as published, or as bounds of sums."""
        source, figure = self.grid.source, partial(self._figure, rows, areas)
        values, errors = figure(release_folder.VALUE), figure(release_folder.ERROR)
        if not self.summed:
            return Statistics(values, errors, figure(LOWER), figure(UPPER))
        errors = errors if source.reconciled else np.sqrt(figure(release_folder.ERROR, 2))
        if RELEASED[1] in source.figures:
            errors = np.minimum(errors, np.sqrt(figure(RELEASED[1], 2)))
        return Statistics(values, errors, values - source.reach * errors, values + source.reach * errors)

    def part(self, rows: pa.Table, areas: int) -> Part:
        """Return what a derived figure is made of: of its own cells, as they are stated."""
        source, stated = self.grid.source, self.stated(rows, areas)
        cells = prod(self.grid.shape) * areas // max(stated.value.size, 1)
        group = None if source.group is None else (self.grid.since, source.group)
        return Part(self.grid, group, source.law, source.own.step * cells, source.own.interval, stated)

    def figures(
        self, rows: pa.Table, areas: int, rule: WithholdSpec | None, limits: list[float], *, adds_up: bool
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
            shown = release_folder.rounded_to(self._figure(rows, areas, source.shown))
        relative = release_folder.coefficient(values, errors)
        letters = np.where(values > 0, np.digitize(relative, limits), len(limits))
        hidden = np.zeros(values.shape, bool) if rule is None else withheld(rule, values, errors, lower)
        lower, upper = np.floor(lower), np.ceil(upper)
        if rule is not None:
            hidden |= (shown < lower) | (shown > upper)
        if source.reconciled:  # what cannot be negative has no range below 0
            lower, upper = np.maximum(lower, 0), np.maximum(upper, 0)
        return Figures(shown, hidden, np.where(hidden, len(limits) + 1, letters).astype(np.int8), lower, upper)


@dataclass(frozen=True, eq=False)
class Made:
    """A derived figure of some rows: of which cells, now and, of a change, before."""

    spec: DerivedSpec
    above: Sequence[Cells]
    below: Sequence[Cells]
    sizes: tuple[int, ...]  # of a row's levels but the area
    axes: tuple[int, ...]  # of a share: over which of them its total is

    def figures(
        self, taken: Mapping[Grid, pa.Table], areas: int, rule: WithholdSpec | None, limits: list[float]
    ) -> Figures:
        """Return what is shown of it."""
        above, below = ([each.part(taken[each.grid], areas) for each in side] for side in (self.above, self.below))
        if self.spec.share:
            made = share_of_rows(above, (areas, *self.sizes), self.axes)
        elif self.spec.change:
            made = change_of_rows(above, below, relative=self.spec.relative)
        else:
            made = quotient_of(above, below)
        return derived_figures(self.spec, made, [*above, *below], rule, limits)


class Rows:
    """Some rows of a layout: the grids that it needs, read on together, and the codes that tell its rows."""

    def __init__(
        self, product: ProductSpec, layout: LayoutSpec, rows: RowsSpec, tables: ShownTables, home: Path
    ) -> None:
        shown = [column for column in layout.columns if column.measure in product.measures]
        made = {each.name: product.derived[each.measure] for each in layout.columns if each.measure in product.derived}
        self.layout, self.area = layout, rows.by[0]
        self.limits = [float(flag.under) for flag in product.flags if flag.under is not None]
        needed = {measure: rows.values[measure] for measure in product.read_by(layout.columns)}
        earlier = {name: needed[name] for each in made.values() if each.change for name in each.change}
        if earlier and tables.since is None:
            raise PlanError(f"{layout.file}: a change is since earlier releases: give them by {arg('since')}")
        self.grids = self._grids(product, tables, needed, home)
        before = self._grids(product, tables.since, earlier, home) if tables.since is not None else {}
        self.cells = {
            each.name: (str(each.measure), Cells.of_column(self.grids[str(each.measure)], each, rows, layout.file))
            for each in shown
        }
        grids = {id(grid): grid for grid in (*self.grids.values(), *before.values())}
        self._before, self._rows = before, rows
        adding = {name for total, others in layout.sums.items() for name in (total, *others)}
        self.add_up = {_key(*self.cells[name]) for name in adding}
        first, *others_of = grids.values()
        self.areas = first.areas
        self.codes = {level: first.codes[level] for level in rows.by[1:]}
        for other in others_of:
            alike = all(other.codes[level].equals(codes) for level, codes in self.codes.items())
            if not alike or other.areas != first.areas:
                raise _not_alike(layout, first.source, other.source)
        self.count = prod(len(codes) for codes in self.codes.values())
        self.made = {name: self._made(name, spec) for name, spec in made.items()}
        self.inside = max(prod(grid.shape) for grid in grids.values())
        self._readers = {grid: grid.source.reader() for grid in grids.values()}

    def _grids(
        self, product: ProductSpec, tables: ShownTables, needed: Mapping[str, Texts], home: Path
    ) -> dict[str, Grid]:
        """Return the grid of each measure, one object for all of one table."""
        grids: dict[str, Grid] = {}
        of_measure: dict[str, Grid] = {}
        file = self.layout.file
        for measure, table in tables.needed(needed, file, all_reconciled=product.reconciled).items():
            others = [level for level in table.levels if level != self.area]
            if len(others) == len(table.levels):
                raise PlanError(f"{file}: its rows are by {self.area}, which the table {table.name} has not")
            if table.name not in grids:
                grid = Grid.of(table.turned((self.area, *others), home, file), file)
                grids[table.name] = replace(grid, since=tables.since is None)
            of_measure[measure] = grids[table.name]
        return of_measure

    def _made(self, name: str, spec: DerivedSpec) -> Made:
        """Return a derived figure of these rows; PlanError where its errors are not known, or units changed."""
        file = self.layout.file

        def cells(measures: Sequence[str], grids: Mapping[str, Grid]) -> list[Cells]:
            of = [ColumnSpec(name=name, meaning=name, value=measure) for measure in measures]
            shown = (Cells.of_column(grids[str(each.value)], each, self._rows, file) for each in of)
            return [each for each in shown if each is not None]

        above = cells([*spec.ratio, *spec.share, *spec.change], self.grids)
        below = cells(spec.change, self._before) if spec.change else cells(spec.per, self.grids)
        if spec.change:
            for new, old in zip(above, below, strict=True):
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

    def texts(self, shown: ColumnSpec, names: Names) -> NDArray[Any]:
        """Return what a column of codes shows in each of an area's rows."""
        number = next((n for n, level in enumerate(self.codes) if level in (shown.codes or {})), None)
        if number is None:
            return np.full(self.count, shown.otherwise)
        (level, codes) = list(self.codes.items())[number]
        written_as = (shown.codes or {})[level]
        texts = np.array([written_as.written(code, names.get(level, {})) for code in codes.to_pylist()])
        sizes = [len(each) for each in self.codes.values()]
        return np.tile(np.repeat(texts, prod(sizes[number + 1 :])), prod(sizes[:number]))

    def listed(self) -> NDArray[np.bool_]:
        """Return which of an area's rows a layout shows: record layouts have no code for `other`."""
        shown = np.ones(1, dtype=bool)
        for codes in self.codes.values():
            shown = np.logical_and.outer(shown, [code != OTHER for code in codes.to_pylist()]).reshape(-1)
        return shown

    def read(self, areas: int) -> tuple[pa.Array, dict[str, Figures | None]]:
        """Return the next areas and, by column, its figures; None of an optional column without cells."""
        taken = {grid: _taken(reader, grid, areas, self.layout) for grid, reader in self._readers.items()}
        (first, codes), *others = [(grid, grid.areas_of(rows)) for grid, rows in taken.items()]
        for other, of_other in others:
            if not of_other.equals(codes):
                raise _not_alike(self.layout, first.source, other.source)
        known: dict[tuple[Any, ...], Figures] = {}  # a value and its flag are of the same cells
        shown: dict[str, Figures | None] = {}
        for name, (measure, cells) in self.cells.items():
            key = _key(measure, cells)
            if cells is not None and key not in known:
                rows, adds_up = taken[cells.grid], key in self.add_up
                known[key] = cells.figures(rows, len(codes), self.layout.withhold, self.limits, adds_up=adds_up)
            shown[name] = known.get(key)
        for name, made in self.made.items():
            shown[name] = made.figures(taken, len(codes), self.layout.withhold, self.limits)
        self._require_sums(shown)
        return codes, shown

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


def _taken(reader: Reader, grid: Grid, areas: int, layout: LayoutSpec) -> pa.Table:
    rows = reader.take(areas * prod(grid.shape))
    if not grid.fits(rows, len(rows) // prod(grid.shape)):
        raise grid.refused(layout.file)
    return rows


def _not_alike(layout: LayoutSpec, first: ShownTable, other: ShownTable) -> PlanError:
    return PlanError(
        f"{layout.file}: the tables {first.name} and {other.name} have not the same codes in the same order: "
        "they cannot stand in the same rows"
    )


def write_layout(
    product: ProductSpec, layout: LayoutSpec, tables: ShownTables, names: Names, home: Path
) -> list[Hashed]:
    """Write a layout's files, text and Parquet, into the folder `home`; return them.

    Raises PlanError where no folder has one of its tables, or they do not fit into its rows.
    """
    stacks = [Rows(product, layout, rows, tables, home) for rows in layout.rows]
    with ExitStack() as open_files:
        files = [layout.file, *([layout.ranges_file] if layout.ranges else [])]
        made = [
            open_files.enter_context(written(path, path.with_suffix(".parquet"), zipped=product.zip))
            for path in (home / "layouts" / file for file in files)
        ]
        for area in dict.fromkeys(rows.area for rows in stacks):
            for pieces in _tables(product, layout, [rows for rows in stacks if rows.area == area], names):
                for file, piece in zip(made, pieces, strict=True):
                    file.write(piece)
    return [file for each in made for file in each.files]


def _tables(product: ProductSpec, layout: LayoutSpec, stacks: list[Rows], names: Names) -> Iterator[list[pa.Table]]:
    """Yield the next rows of the layout, and those with its ranges."""
    area = stacks[0].area
    texts = {
        each.name: np.concatenate([rows.texts(each, names) for rows in stacks])
        for each in layout.columns
        if each.codes is not None and area not in each.codes
    }
    count = sum(rows.count for rows in stacks)
    listed = np.concatenate([rows.listed() for rows in stacks])
    keys = [texts[name] for name in reversed(layout.order) if name in texts]
    order = np.lexsort(keys) if keys else np.arange(count)
    sorted_texts = {name: pa.array(values[order]).dictionary_encode() for name, values in texts.items()}
    letters = pa.array([*(flag.flag for flag in product.flags), WITHHELD], pa.string())
    step = max(1, PIECE // max(rows.inside for rows in stacks))
    for begin in range(0, stacks[0].areas, step):
        (areas, first), *others = [rows.read(min(step, stacks[0].areas - begin)) for rows in stacks]
        for rows, (codes, _) in zip(stacks[1:], others, strict=True):
            if rows.areas != stacks[0].areas or not codes.equals(areas):
                raise _not_alike(layout, *(next(iter(each.grids.values())).source for each in (stacks[0], rows)))
        figures = _Joined([first, *(each for _, each in others)], [rows.count for rows in stacks], order, len(areas))
        columns: dict[str, Any] = {}
        ranges: dict[str, Any] = {}
        empty = np.ones(count * len(areas), bool)
        for each in layout.columns:
            if each.value is not None:
                absent, hidden = figures.of(each.name, "withheld")
                empty &= absent | hidden
                columns[each.name] = pa.array(figures.of(each.name, "shown")[1], mask=absent | hidden)
                for ending, end in RANGE:
                    ends = figures.of(each.name, end)[1]
                    unknown = absent | ~np.isfinite(ends)
                    held = np.where(unknown, 0, ends)
                    if each.value in product.measures:
                        held = np.clip(held, -MOST, MOST).astype(np.int64)
                    ranges[f"{each.name}_{ending}"] = pa.array(held, mask=unknown)
            elif each.flag is not None:
                absent, numbered = figures.of(each.name, "flag")
                columns[each.name] = letters.take(pa.array(numbered, mask=absent))
            elif each.name in texts:
                place = np.tile(sorted_texts[each.name].indices.to_numpy(zero_copy_only=False), len(areas))
                columns[each.name] = ranges[each.name] = sorted_texts[each.name].dictionary.take(pa.array(place))
            else:
                piece = (each.codes or {})[area]
                codes = pa.array([piece.written(code, names.get(area, {})) for code in areas.to_pylist()], pa.string())
                columns[each.name] = ranges[each.name] = codes.take(pa.array(np.repeat(np.arange(len(areas)), count)))
        kept = np.logical_and.outer([code != OTHER for code in areas.to_pylist()], listed[order]).ravel()
        shown = kept & ~empty if layout.leave_out_empty else kept
        yield [
            pa.table(columns).filter(pa.array(shown)),
            *([pa.table(ranges).filter(pa.array(kept))] if layout.ranges else []),
        ]


@dataclass(frozen=True, eq=False)
class _Joined:
    """Figures of all stacks of rows, of as many rows each, in the order of the layout."""

    stacks: list[dict[str, Figures | None]]
    counts: list[int]
    order: NDArray[np.intp]
    areas: int

    def of(self, name: str, figure: str) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return where a column has no cells, and a figure of its cells, 0 where it has none."""
        shown = [stack[name] for stack in self.stacks]
        parts = [
            np.zeros((self.areas, count), bool) if each is None else getattr(each, figure)
            for each, count in zip(shown, self.counts, strict=True)
        ]
        absent = np.repeat([each is None for each in shown], self.counts)[self.order]
        return np.tile(absent, self.areas), np.concatenate(parts, axis=1)[:, self.order].ravel()
