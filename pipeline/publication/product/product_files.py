"""The files of a product's layouts, and of its Research and Basic tables: written piece by piece."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.engines.writers import PIECE, ROW_GROUP_CELLS, Hashed, Written
from pipeline.publication import release_folder
from pipeline.publication.product.derived_columns import Figures, Noted, NoteSpec, some, withheld
from pipeline.publication.product.product_layouts import Known, Names, Rows, Taken, not_alike
from pipeline.publication.product.product_spec import WITHHELD, ColumnSpec, LayoutSpec, ProductSpec, TableSpec
from pipeline.publication.product.product_tables import LOWER, RELEASED, UPPER, Grid, ShownTable, ShownTables
from pipeline.publication.release_folder import column
from udfs.numbers.arrays import Floats
from udfs.records.codes import OTHER

RANGE = (("low", "lower"), ("high", "upper"))  # endings of columns of ranges, and which end they have
MOST = np.nextafter(2.0**63, 0)


def write_layout(
    product: ProductSpec, layout: LayoutSpec, tables: ShownTables, names: Names, home: Path
) -> list[Hashed]:
    """Write a layout's files, text and Parquet, into the folder `home`; return them.

    Raises PlanError where no folder has one of its tables, or they do not fit into its rows.
    """
    known: Known = {}
    stacks = [Rows(product, layout, rows, tables, home, known) for rows in layout.rows]
    with ExitStack() as open_files:
        figures = [each.name for each in layout.columns if each.codes is None]
        files = {layout.file: figures}
        if layout.ranges:
            unbounded = [name for name in figures if not all(rows.bounded(name) for rows in stacks)]
            files[layout.ranges_file] = [f"{name}_{ending}" for name in unbounded for ending, _ in RANGE]
        made = [
            open_files.enter_context(Written(path, path.with_suffix(".parquet"), zipped=product.zip, empty=empty))
            for path, empty in ((home / "layouts" / file, empty) for file, empty in files.items())
        ]
        for area in dict.fromkeys(rows.area for rows in stacks):
            for pieces in _tables(product, layout, [rows for rows in stacks if rows.area == area], names):
                for file, piece in zip(made, pieces, strict=True):
                    file.write(piece)
    lacking = (each for rows in stacks for each in rows.numbers.values() if each.lacking)
    tables.remarks.update(f"{of.name}: it has no number for {of.level} {some([*of.lacking])}" for of in lacking)
    return [file for each in made for file in each.files]


def _tables(product: ProductSpec, layout: LayoutSpec, stacks: list[Rows], names: Names) -> Iterator[list[pa.Table]]:
    """Yield the next rows of the layout, and those with its ranges."""
    area = stacks[0].area
    texts = {
        each.name: np.concatenate([_texts(rows, each, names) for rows in stacks])
        for each in layout.columns
        if each.codes is not None and area not in each.codes
    }
    listed = np.concatenate([_listed(rows) for rows in stacks])
    keys = [texts[name] for name in reversed(layout.order) if name in texts]
    order = np.lexsort(keys) if keys else np.arange(len(listed))
    coded = {name: pa.array(values[order]).dictionary_encode() for name, values in texts.items()}
    for areas, taken in _read_together(layout, stacks):
        own = _ended(stacks, [rows.figures(areas, taken) for rows in stacks])
        shown = _noted(product, layout, stacks, own, areas)
        piece = _Piece(product, shown, [rows.count for rows in stacks], len(areas))

        of_areas = {
            each.name: pa.array([each.codes[area].written(code, names.get(area, {})) for code in areas], pa.string())
            for each in layout.columns
            if each.codes is not None and area in each.codes
        }

        kept = np.logical_and.outer([code != OTHER for code in areas], listed)
        every = some_shown = _Places.of(kept, order)
        if layout.leave_out_empty:
            some_shown = _Places.of(kept & ~piece.hidden(layout.columns).reshape(kept.shape), order)
        columns: dict[str, pa.Array] = {}
        ranges: dict[str, pa.Array] = {}
        for each in layout.columns:
            if each.name in of_areas:
                columns[each.name], ranges[each.name] = (
                    _coded(x.areas, of_areas[each.name]) for x in (some_shown, every)
                )
            elif each.name in coded:
                numbers, codes = coded[each.name].indices.to_numpy(), coded[each.name].dictionary
                columns[each.name], ranges[each.name] = (
                    _coded(numbers.take(x.rows), codes) for x in (some_shown, every)
                )
            else:
                columns[each.name] = piece.column(each, some_shown.cells)
                if layout.ranges and each.value is not None and each.value not in product.lists:
                    ranges |= piece.ends(each, every.cells)
        yield [pa.table(columns), *([pa.table(ranges)] if layout.ranges else [])]


def _read_together(layout: LayoutSpec, stacks: Sequence[Rows]) -> Iterator[tuple[list[str], dict[Grid, Taken]]]:
    """Yield the codes of the next areas, and their rows of each grid; PlanError where these are not alike."""
    grids = dict.fromkeys(grid for rows in stacks for grid in rows.needed)
    first, *others = grids
    for other in others:
        if other.areas != first.areas:
            raise not_alike(layout, first.source, other.source)
    cells = [each for rows in stacks for _, each in rows.cells.values() if each is not None]
    picked = {grid: {level for each in cells if each.grid is grid for level in each.of} for grid in grids}
    axes = {grid: [number for number, level in enumerate(grid.codes, 1) if level in picked[grid]] for grid in grids}
    readers = {grid: grid.source.reader() for grid in grids}
    step = max(1, PIECE // max(prod(grid.shape) for grid in grids))
    for begin in range(0, first.areas, step):
        count = min(step, first.areas - begin)
        areas: list[str] = []
        keys: dict[Grid, pa.Table] = {}
        taken: dict[Grid, Taken] = {}
        for grid, reader in readers.items():
            rows = reader.take(count * prod(grid.shape))
            levels = grid.source.levels
            twins = (of for each, of in keys.items() if each.source.levels == levels and each.codes == grid.codes)
            if not any(release_folder.same_keys(rows, of, levels) for of in twins):
                keys[grid] = rows
                if not grid.fits(rows, count):
                    raise grid.refused(layout.file)
                own = grid.areas_of(rows).to_pylist()
                areas = areas or own
                if own != areas:
                    raise not_alike(layout, first.source, grid.source)
            taken[grid] = {
                name: _outermost(release_folder.numbers(rows, name).reshape(count, *grid.shape), axes[grid])
                for name in grid.source.figures
            }
        yield areas, taken


def _outermost(cube: NDArray[Any], axes: Sequence[int]) -> NDArray[Any]:
    """Return an array with these axes outermost in memory, so that what has one place on them lies side by side."""
    order = [*axes, *(axis for axis in range(cube.ndim) if axis not in axes)]
    return np.ascontiguousarray(cube.transpose(order)).transpose(np.argsort(order))


def _coded(numbers: NDArray[Any], texts: pa.Array, absent: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return texts by their numbers as a dictionary array, so that each text is compared and kept once."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=absent), texts)


def _texts(rows: Rows, shown: ColumnSpec, names: Names) -> NDArray[Any]:
    """Return what a column of codes shows in each of an area's rows."""
    level = next((level for level in rows.codes if level in (shown.codes or {})), None)
    if level is None:
        return np.full(rows.count, shown.otherwise)
    written_as = (shown.codes or {})[level]
    return rows.each_row(
        level, [written_as.written(code, names.get(level, {})) for code in rows.codes[level].to_pylist()]
    )


def _listed(rows: Rows) -> NDArray[np.bool_]:
    """Return which of an area's rows a layout shows: record layouts have no code for `other`."""
    shown = np.ones(rows.count, bool)
    for level, codes in rows.codes.items():
        shown &= rows.each_row(level, [code != OTHER for code in codes.to_pylist()])
    return shown


def _ended(stacks: Sequence[Rows], shown: Sequence[Mapping[str, Figures | None]]) -> list[dict[str, Figures | None]]:
    """Return figures whose ranges end where those of the row do whose part theirs is, where both add up.

    Of several such rows it is that of the most levels: of an industry's by form the industry's.
    """
    ended: list[dict[str, Figures | None]] = []
    for rows, own in zip(stacks, shown, strict=True):
        ended.append(dict(own))
        wider = [
            number
            for number, each in enumerate(stacks)
            if {*each.by} < {*rows.by} and all(rows.codes[level].equals(codes) for level, codes in each.codes.items())
        ]
        if not wider:
            continue
        number = max(wider, key=lambda number: len(stacks[number].by))
        row_of = np.zeros(rows.count, np.int64)
        for level, codes in stacks[number].codes.items():
            row_of = row_of * len(codes) + rows.each_row(level, range(len(codes)))
        for name, (_, cells) in rows.cells.items():
            part, total, of = own[name], shown[number][name], stacks[number].cells[name][1]
            if part is None or total is None or cells is None or of is None:
                continue
            group, sources = cells.grid.source.group, (cells.grid.source, of.grid.source)
            if group is not None and all(each.group == group and each.adds_up for each in sources):
                ended[-1][name] = rows.ended(part, total.upper[:, row_of])
    return ended


def _noted(
    product: ProductSpec,
    layout: LayoutSpec,
    stacks: Sequence[Rows],
    shown: Sequence[Mapping[str, Figures | None]],
    areas: Sequence[str],
) -> list[dict[str, Figures | Noted | None]]:
    """Return figures, and which footnotes they have in the columns of notes."""
    noted: list[dict[str, Figures | Noted | None]] = []
    for rows, figures in zip(stacks, shown, strict=True):
        noted.append({**figures})
        for each in layout.columns:
            if each.notes is not None:
                bits = (
                    note.holds(each.notes, figures[each.name], _places(rows, note, areas)).astype(np.int64) << bit
                    for bit, note in enumerate(product.footnotes)
                )
                noted[-1][each.name] = Noted(sum(bits, np.zeros((len(areas), rows.count), np.int64)))
    return noted


def _places(rows: Rows, note: NoteSpec, areas: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows meet what a footnote says of levels and codes."""
    meet = np.full((len(areas), rows.count), {*note.levels} <= {*rows.by})
    for level, codes in note.codes.items():
        if level == rows.area:
            meet &= np.isin(areas, codes)[:, None]
        elif level in rows.codes:
            meet &= rows.each_row(level, [code in codes for code in rows.codes[level].to_pylist()])
        else:
            meet[:] = False
    return meet


def _notes(product: ProductSpec, bits: int) -> str:
    return " ".join(note.note for number, note in enumerate(product.footnotes) if int(bits) >> number & 1)


class _Places(NamedTuple):
    """Rows in the order of a layout: the number of each one's area, its own in the area, and that of its figures."""

    areas: NDArray[np.intp]
    rows: NDArray[np.intp]
    cells: NDArray[np.intp]

    @classmethod
    def of(cls, kept: NDArray[np.bool_], order: NDArray[np.intp]) -> "_Places":
        """Return the places of the rows that are `kept`, area by area in some order."""
        areas, rows = np.nonzero(kept[:, order])
        return cls(areas, rows, areas * len(order) + order[rows])


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some areas' figures of all stacks of rows, of as many rows each."""

    product: ProductSpec
    stacks: list[dict[str, Figures | Noted | None]]
    counts: list[int]
    areas: int

    def of(self, name: str, figure: str, absent: float) -> NDArray[Any]:
        """Return a figure of a column, area by area; `absent` where it has no cells."""
        shown = (stack[name] for stack in self.stacks)
        parts = [
            np.full((self.areas, count), absent) if each is None else getattr(each, figure)
            for each, count in zip(shown, self.counts, strict=True)
        ]
        return np.concatenate(parts, axis=1).ravel()

    def hidden(self, columns: Iterable[ColumnSpec]) -> NDArray[np.bool_]:
        """Return which rows show nothing."""
        hidden = np.ones(self.areas * sum(self.counts), bool)
        for each in columns:
            if each.value is not None and each.value not in self.product.lists:
                hidden &= self.of(each.name, "withheld", absent=True)
        return hidden

    def column(self, shown: ColumnSpec, cells: NDArray[np.intp]) -> pa.Array:
        """Return what a column of figures, flags or notes shows of some rows."""
        of = partial(self.of, shown.name)
        if shown.flag is not None:
            letters = pa.array([*(flag.flag for flag in self.product.flags), WITHHELD], pa.string())
            return _coded(of("flag", 0).take(cells), letters, of("missing", absent=True).take(cells))
        if shown.notes is not None:
            sets, numbered = np.unique(of("notes", 0).take(cells), return_inverse=True)
            return _coded(numbered, pa.array([_notes(self.product, one) for one in sets], pa.string()))
        lacking = "missing" if shown.value in self.product.lists else "withheld"
        return pa.array(of("shown", 0).take(cells), mask=of(lacking, absent=True).take(cells))

    def ends(self, shown: ColumnSpec, cells: NDArray[np.intp]) -> Iterator[tuple[str, pa.Array]]:
        """Yield ends of ranges in some rows, nothing where there are none; of totals as whole numbers."""
        for ending, end in RANGE:
            ends = self.of(shown.name, end, np.nan).take(cells)
            unknown = None
            if ends.dtype != np.int64:
                unknown = ~np.isfinite(ends)
                ends = np.where(unknown, 0, ends)
                if shown.value in self.product.measures:
                    ends = np.clip(ends, -MOST, MOST).astype(np.int64)
            yield f"{shown.name}_{ending}", pa.array(ends, mask=unknown)


# Research and Basic tables: tables with the same cells, side by side.
#
# Research: every value as it was released, and its variance; where there is an estimate, both of it before. Basic:
# names of codes, rounded values (of estimates the whole numbers that add up), standard deviations and coefficients of
# variation; a value is withheld by the product's rule.

RESEARCH, BASIC = "research", "basic"
DIGITS = 4  # of a standard deviation in a Basic table


def write_table(product: ProductSpec, table: TableSpec, tables: ShownTables, names: Names, home: Path) -> list[Hashed]:
    """Write a table's Research and Basic files into the folder `home`; return them.

    Raises PlanError where no folder has one of its tables, or they have not the same cells.
    """
    of_measure = tables.needed(table.values, table.name, all_reconciled=product.reconciled)
    first = next(iter(of_measure.values()))
    levels = table.by or first.levels
    for level in first.levels:
        if level not in product.levels:
            raise PlanError(f"{table.name}: levels.{level}: say what it is: the table {first.name} has it")
    for each in of_measure.values():
        if sorted(each.levels) != sorted(first.levels) or each.rows != first.rows:
            raise _differ(table, first, each)
    if sorted(levels) != sorted(first.levels):
        raise PlanError(f"{table.name}: by: must be the keys of the table {first.name}, {', '.join(first.levels)}")
    turned = {measure: each.turned(levels, home, table.name) for measure, each in of_measure.items()}
    formats = (".parquet", ".csv") if product.csv else (".parquet",)
    hidden = [f"{measure}{ending}" for measure in table.values for ending in ("", "_cv")]
    with ExitStack() as open_files:
        made = {
            kind: open_files.enter_context(
                Written(*(home / kind / f"{table.name}{ending}" for ending in formats), zipped=product.zip, empty=empty)
            )
            for kind, empty in ((RESEARCH, ()), (BASIC, hidden))
        }
        for pieces in _side_by_side(table, turned):
            keys = next(iter(pieces.values()))
            made[RESEARCH].write(_research(keys, levels, pieces))
            made[BASIC].write(_basic(keys, levels, pieces, names, product))
    return [file for each in made.values() for file in each.files]


def _side_by_side(table: TableSpec, tables: Mapping[str, ShownTable]) -> Iterator[dict[str, pa.Table]]:
    readers = {
        measure: source.reader(PIECE // ROW_GROUP_CELLS, None if source.reconciled or not source.additive else UPPER)
        for measure, source in tables.items()
    }
    (first, of_first), *others = tables.items()
    done = False
    while not done:
        pieces = {measure: reader.take(PIECE) for measure, reader in readers.items()}
        for measure, other in others:
            if not release_folder.same_keys(pieces[first], pieces[measure], of_first.levels):
                raise _differ(table, of_first, other)
        done = len(pieces[first]) < PIECE
        yield pieces


def _differ(table: TableSpec, first: ShownTable, other: ShownTable) -> PlanError:
    return PlanError(
        f"{table.name}: the tables {first.name} and {other.name} have not the same cells in the same order: "
        "they cannot stand side by side; give them tables of their own"
    )


def _research(keys: pa.Table, levels: Sequence[str], pieces: Mapping[str, pa.Table]) -> pa.Table:
    columns: dict[str, Any] = {level: column(keys, level) for level in levels}
    for measure, piece in pieces.items():
        columns[measure] = column(piece, release_folder.VALUE)
        columns[f"{measure}_variance"] = release_folder.numbers(piece, release_folder.ERROR) ** 2
        if RELEASED[0] in piece.column_names:
            columns[f"{measure}_published"] = column(piece, RELEASED[0])
            columns[f"{measure}_published_variance"] = release_folder.numbers(piece, RELEASED[1]) ** 2
    return pa.table(columns)


def _basic(
    keys: pa.Table, levels: Sequence[str], pieces: Mapping[str, pa.Table], names: Names, product: ProductSpec
) -> pa.Table:
    columns: dict[str, Any] = {}
    for level in levels:
        coded = column(keys, level)
        columns[level] = coded
        if names.get(level):
            columns[f"{level}_name"] = release_folder.text_of(coded, names[level])
    for measure, piece in pieces.items():
        values, errors = (release_folder.numbers(piece, name) for name in (release_folder.VALUE, release_folder.ERROR))
        lower = release_folder.numbers(piece, LOWER)
        figures = release_folder.numbers(
            piece, release_folder.DISPLAY if release_folder.DISPLAY in piece.column_names else release_folder.VALUE
        )
        relative = release_folder.coefficient(values, errors)
        hidden = withheld(product.basic, values, errors, lower, relative)
        if UPPER in piece.column_names:
            hidden |= (figures < np.floor(lower)) | (figures > np.ceil(release_folder.numbers(piece, UPPER)))
        columns[measure] = pa.array(release_folder.rounded_to(figures, int(product.basic.round)), mask=hidden)
        columns[f"{measure}_sd"] = _short(errors)
        columns[f"{measure}_cv"] = pa.array(np.round(relative, 1), mask=hidden)
        columns[f"{measure}_flag"] = _coded(hidden, pa.array(["", WITHHELD]))
    return pa.table(columns)


def _short(errors: Floats) -> Floats:
    """Return standard errors in DIGITS digits; infinite ones and 0 as they are."""
    if len(errors) > 1 and errors.min() == errors.max():  # of additive noise a whole table has one
        return np.full(len(errors), _short(errors[:1])[0])
    coded = pa.array(errors).dictionary_encode()
    errors = coded.dictionary.to_numpy()
    usual = np.isfinite(errors) & (errors > 0)
    places = DIGITS - 1 - np.floor(np.log10(np.where(usual, errors, 1.0)))
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.asarray(np.where(usual, np.rint(errors * up / down) / up * down, errors)[coded.indices.to_numpy()])
