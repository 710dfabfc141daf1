"""Layouts: the rows of several released tables in the columns and the order that users of an agency's files know.

Its tables are products of codes, the first level (the area) outermost, so that a table is a grid: area by area, all
areas alike. So rows are told by their place in an area, and sorted once. Levels that a row does not have are summed
over, and variances added, which is right for additive noise alone. Of reconciled values the errors are correlated:
there the released variances are added, since no sum of estimates has a larger one than the sum of released cells.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.publication.hashed_files import PIECE, Hashed, written
from pipeline.publication.product.product_spec import ColumnSpec, LayoutSpec, ProductSpec, RowsSpec
from pipeline.publication.release_folder import (
    ERROR,
    PUBLISHED,
    VALUE,
    Reader,
    Source,
    coefficient,
    column,
    equal_codes,
    needed,
    numbers,
    rounded_to,
)


@dataclass(frozen=True, eq=False)
class Grid:
    """A released table whose cells are, in each area, the same product of codes.

    `codes`: of each of its levels but the area, in their order.
    """

    source: Source
    codes: Mapping[str, pa.Array]

    @classmethod
    def of(cls, source: Source, file: str) -> "Grid":
        """Return the grid of a table, as its first area shows it; `pieces` hold every other area against it."""
        area, *levels = source.levels
        rows = 1 << 12
        while True:
            keys = source.reader().take(rows)
            places = column(keys, area).indices.to_numpy(zero_copy_only=False)
            if len(keys) == source.rows or places[-1] != places[0]:
                break
            rows *= 4
        last = int(np.argmax(places != places[:1])) if len(places) else 0
        first = keys.slice(0, last or len(places))
        grid = cls(source, {level: _distinct(first, level) for level in levels})
        if not prod(grid.shape) or source.rows % prod(grid.shape) or not grid.fits(first, 1):
            raise grid.refused(file)
        return grid

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of codes of each level but the area."""
        return tuple(len(codes) for codes in self.codes.values())

    def fits(self, rows: pa.Table, areas: int) -> bool:
        """Whether rows are those of so many areas, one after the other."""
        inside = prod(self.shape)
        if len(rows) != areas * inside:
            return False
        for number, (level, codes) in enumerate(self.codes.items()):
            each = prod(self.shape[number + 1 :])
            numbers = equal_codes(column(rows, level), codes).reshape(-1, len(codes), each)
            if not (numbers == np.arange(len(codes))[None, :, None]).all():
                return False
        area = column(rows, self.source.levels[0]).indices.to_numpy(zero_copy_only=False).reshape(areas, inside)
        return bool((area == area[:, :1]).all())

    @property
    def areas(self) -> int:
        """The number of areas."""
        return self.source.rows // prod(self.shape)

    def areas_of(self, rows: pa.Table) -> pa.Array:
        """Return the codes of the areas of rows that fit."""
        keys = column(rows, self.source.levels[0]).cast(pa.string())
        return keys.take(pa.array(np.arange(0, len(keys), prod(self.shape))))

    def refused(self, file: str) -> PlanError:
        """Return the error that the table is no grid."""
        return PlanError(
            f"{file}: the cells of the released table {self.source.name} are not the same in each "
            f"{self.source.levels[0]}: a layout needs tables of all combinations of codes"
        )


def _distinct(rows: pa.Table, level: str) -> pa.Array:
    return column(rows, level).cast(pa.string()).unique()


@dataclass(frozen=True, eq=False)
class Cells:
    """What a column shows, of some rows: of which grid, which codes of `of`, and over which levels it is summed."""

    grid: Grid
    of: Mapping[str, str]
    by: tuple[str, ...]  # without the area
    error: str  # the column of standard errors whose squares may be added

    @classmethod
    def of_column(cls, grid: Grid, shown: ColumnSpec, rows: RowsSpec, file: str) -> "Cells":
        """Return the cells of a column; PlanError where the table lacks a level or a code, or may not be summed."""
        source = grid.source
        for level in (*rows.by, *shown.of):
            if level not in source.levels:
                raise PlanError(f"{file}: column {shown.name} needs {level}, which the table {source.name} has not")
        if rows.by[0] != source.levels[0]:
            raise PlanError(f"{file}: the first level of the table {source.name} must be {rows.by[0]}")
        for level, code in shown.of.items():
            if code not in grid.codes[level].to_pylist():
                raise PlanError(f"{file}: column {shown.name}: the table {source.name} has no {level} {code}")
        summed = [level for level in grid.codes if level not in rows.by and level not in shown.of]
        if summed and not source.additive:
            raise PlanError(
                f"{file}: column {shown.name} is a sum over {', '.join(summed)} of the table {source.name}, whose "
                "noise is not additive, so that errors of sums are not known: release a table without "
                f"{'these levels' if len(summed) > 1 else 'this level'}"
            )
        error = PUBLISHED[1] if summed and source.reconciled is not None else ERROR
        return cls(grid, shown.of, tuple(rows.by[1:]), error)

    def taken(self, values: NDArray[Any], areas: int) -> NDArray[Any]:
        """Return, of all cells of some areas, those shown: summed, a row for each area."""
        cube = values.reshape(areas, *self.grid.shape)
        levels = list(self.grid.codes)
        for level, code in self.of.items():
            number = levels.index(level)
            cube = cube.take(self.grid.codes[level].index(code).as_py(), axis=number + 1)
            levels.pop(number)
        over = tuple(number + 1 for number, level in enumerate(levels) if level not in self.by)
        cube = _summed(cube, over) if over else cube
        left = [level for level in levels if level in self.by]
        return cube.transpose(0, *(left.index(level) + 1 for level in self.by)).reshape(areas, -1)


def _summed(cube: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return sums along axes; those of whole numbers are held at ±(2⁶³ − 1), where they would wrap."""
    sums: NDArray[Any] = cube.sum(axis=axes)
    largest = float(np.abs(cube).max(initial=0))
    if cube.dtype == np.int64 and largest * prod(cube.shape[axis] for axis in axes) >= 2.0**62:
        exact = cube.astype(object).sum(axis=axes)
        most = np.iinfo(np.int64).max
        sums = np.clip(exact, -most, most).astype(np.int64)
    return sums


class Rows:
    """Some rows of a layout: the grids that it needs, read on together, and the codes that tell its rows."""

    def __init__(self, layout: LayoutSpec, rows: RowsSpec, sources: Mapping[str, Source], limits: list[float]) -> None:
        shown = [column for column in layout.columns if column.measure is not None]
        of_measure = needed(sources, rows.values, layout.file)
        used = {each.measure: of_measure[each.measure] for each in shown if each.measure is not None}
        self.layout, self.area, self.limits = layout, rows.by[0], limits
        self.grids = {measure: Grid.of(source, layout.file) for measure, source in used.items()}
        self.cells = {
            each.name: (each, Cells.of_column(self.grids[each.measure], each, rows, layout.file))
            for each in shown
            if each.measure is not None
        }
        first, *others = self.grids.values()
        self.areas = first.areas
        self.codes = {level: first.codes[level] for level in rows.by[1:]}
        for other in others:
            alike = all(other.codes[level].equals(codes) for level, codes in self.codes.items())
            if not alike or other.areas != first.areas:
                raise _not_alike(layout, first.source, other.source)
        self.count = prod(len(codes) for codes in self.codes.values())
        self.inside = max(prod(grid.shape) for grid in self.grids.values())
        self._readers = {measure: grid.source.reader() for measure, grid in self.grids.items()}

    def texts(self, shown: ColumnSpec) -> NDArray[Any]:
        """Return what a column of codes shows in each of an area's rows."""
        number = next((n for n, level in enumerate(self.codes) if level in (shown.codes or {})), None)
        if number is None:
            return np.full(self.count, shown.otherwise)
        (level, codes) = list(self.codes.items())[number]
        texts = np.array([(shown.codes or {})[level].written(code) for code in codes.to_pylist()])
        sizes = [len(each) for each in self.codes.values()]
        return np.tile(np.repeat(texts, prod(sizes[number + 1 :])), prod(sizes[:number]))

    def read(self, areas: int) -> tuple[pa.Array, dict[str, NDArray[Any]]]:
        """Return the next areas and, by column, a row for each: values in whole numbers, or numbers of flags."""
        taken = {m: _taken(self._readers[m], grid, areas, self.layout) for m, grid in self.grids.items()}
        (first, codes), *others = [(self.grids[m], self.grids[m].areas_of(rows)) for m, rows in taken.items()]
        for other, of_other in others:
            if not of_other.equals(codes):
                raise _not_alike(self.layout, first.source, other.source)
        shown = {}
        for name, (each, cells) in self.cells.items():
            rows = taken[str(each.measure)]
            values = cells.taken(numbers(rows, VALUE), len(codes))
            if each.flag is None:
                shown[name] = rounded_to(values)
            else:
                errors = np.sqrt(cells.taken(numbers(rows, cells.error) ** 2, len(codes)))
                number = np.digitize(coefficient(values, errors), self.limits)
                shown[name] = np.where(values > 0, number, len(self.limits)).astype(np.int8)
        return codes, shown


def _taken(reader: Reader, grid: Grid, areas: int, layout: LayoutSpec) -> pa.Table:
    rows = reader.take(areas * prod(grid.shape))
    if not grid.fits(rows, len(rows) // prod(grid.shape)):
        raise grid.refused(layout.file)
    return rows


def _not_alike(layout: LayoutSpec, first: Source, other: Source) -> PlanError:
    return PlanError(
        f"{layout.file}: the released tables {first.name} and {other.name} have not the same codes in the same order: "
        "they cannot stand in the same rows"
    )


def write_layout(product: ProductSpec, layout: LayoutSpec, sources: Mapping[str, Source], home: Path) -> list[Hashed]:
    """Write a layout's files, text and Parquet, into the folder `home`; return them.

    Raises PlanError where no release has one of its tables, or they do not fit into its rows.
    """
    limits = [float(flag.under) for flag in product.flags if flag.under is not None]
    stacks = [Rows(layout, rows, sources, limits) for rows in layout.rows]
    paths = (home / "layouts" / layout.file, (home / "layouts" / layout.file).with_suffix(".parquet"))
    with written(*paths) as made:
        for table in _tables(product, layout, stacks):
            made.write(table)
    return made.files


def _tables(product: ProductSpec, layout: LayoutSpec, stacks: list[Rows]) -> Iterator[pa.Table]:
    texts = {
        each.name: np.concatenate([rows.texts(each) for rows in stacks])
        for each in layout.columns
        if each.codes is not None and stacks[0].area not in each.codes
    }
    count = sum(rows.count for rows in stacks)
    keys = [texts[name] for name in reversed(layout.order) if name in texts]
    order = np.lexsort(keys) if keys else np.arange(count)
    sorted_texts = {name: pa.array(values[order]).dictionary_encode() for name, values in texts.items()}
    letters = pa.array([flag.flag for flag in product.flags], pa.string())
    step = max(1, PIECE // max(rows.inside for rows in stacks))
    for begin in range(0, stacks[0].areas, step):
        (areas, first), *others = [rows.read(min(step, stacks[0].areas - begin)) for rows in stacks]
        for rows, (codes, _) in zip(stacks[1:], others, strict=True):
            if rows.areas != stacks[0].areas or not codes.equals(areas):
                raise _not_alike(layout, *(next(iter(each.grids.values())).source for each in (stacks[0], rows)))
        shown = [first, *(each for _, each in others)]
        columns: dict[str, Any] = {}
        for each in layout.columns:
            if each.measure is not None:
                cells = np.concatenate([stack[each.name] for stack in shown], axis=1)[:, order].ravel()
                columns[each.name] = cells if each.flag is None else letters.take(pa.array(cells))
            elif each.name in texts:
                place = np.tile(sorted_texts[each.name].indices.to_numpy(zero_copy_only=False), len(areas))
                columns[each.name] = sorted_texts[each.name].dictionary.take(pa.array(place))
            else:
                piece = (each.codes or {})[stacks[0].area]
                codes = pa.array([piece.written(code) for code in areas.to_pylist()], pa.string())
                columns[each.name] = codes.take(pa.array(np.repeat(np.arange(len(areas)), count)))
        yield pa.table(columns)
