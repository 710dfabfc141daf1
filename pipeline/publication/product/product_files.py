"""The files of a product's layouts, and of its Research and Basic tables: written piece by piece."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.engines.writers import PIECE, Hashed, Written
from pipeline.publication import release_folder
from pipeline.publication.product.derived_columns import Figures, Noted, NoteSpec, some, withheld
from pipeline.publication.product.product_layouts import Names, Rows, not_alike
from pipeline.publication.product.product_spec import WITHHELD, ColumnSpec, LayoutSpec, ProductSpec, TableSpec
from pipeline.publication.product.product_tables import LOWER, RELEASED, UPPER, ShownTable, ShownTables
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
    stacks = [Rows(product, layout, rows, tables, home) for rows in layout.rows]
    with ExitStack() as open_files:
        files = [layout.file, *([layout.ranges_file] if layout.ranges else [])]
        made = [
            open_files.enter_context(Written(path, path.with_suffix(".parquet"), zipped=product.zip))
            for path in (home / "layouts" / file for file in files)
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
    count = sum(rows.count for rows in stacks)
    listed = np.concatenate([_listed(rows) for rows in stacks])
    keys = [texts[name] for name in reversed(layout.order) if name in texts]
    order = np.lexsort(keys) if keys else np.arange(count)
    sorted_texts = {name: pa.array(values[order]).dictionary_encode() for name, values in texts.items()}
    letters = pa.array([*(flag.flag for flag in product.flags), WITHHELD], pa.string())
    step = max(1, PIECE // max(rows.inside for rows in stacks))
    for begin in range(0, stacks[0].areas, step):
        (areas, first), *others = [rows.read(min(step, stacks[0].areas - begin)) for rows in stacks]
        for rows, (codes, _) in zip(stacks[1:], others, strict=True):
            if rows.areas != stacks[0].areas or not codes.equals(areas):
                raise not_alike(layout, *(next(iter(each.grids.values())).source for each in (stacks[0], rows)))
        shown = _noted(
            product, layout, stacks, _ended(stacks, [first, *(each for _, each in others)]), areas.to_pylist()
        )
        figures = _Joined(shown, [rows.count for rows in stacks], order, len(areas))
        columns: dict[str, Any] = {}
        ranges: dict[str, Any] = {}
        empty = np.ones(count * len(areas), bool)
        for each in layout.columns:
            if each.value in product.lists:
                unlisted = figures.of(each.name, "missing")[1]
                columns[each.name] = pa.array(figures.of(each.name, "shown")[1], mask=unlisted)
            elif each.value is not None:
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
                lacking = figures.of(each.name, "missing")[1].astype(bool)
                columns[each.name] = _coded(numbered, letters, absent | lacking)
            elif each.notes is not None:
                sets, numbered = np.unique(figures.of(each.name, "notes")[1], return_inverse=True)
                columns[each.name] = _coded(numbered, pa.array([_notes(product, one) for one in sets], pa.string()))
            elif each.name in texts:
                place = np.tile(sorted_texts[each.name].indices.to_numpy(zero_copy_only=False), len(areas))
                columns[each.name] = ranges[each.name] = _coded(place, sorted_texts[each.name].dictionary)
            else:
                piece = (each.codes or {})[area]
                codes = pa.array([piece.written(code, names.get(area, {})) for code in areas.to_pylist()], pa.string())
                columns[each.name] = ranges[each.name] = _coded(np.repeat(np.arange(len(areas)), count), codes)
        kept = np.logical_and.outer([code != OTHER for code in areas.to_pylist()], listed[order]).ravel()
        shown = kept & ~empty if layout.leave_out_empty else kept
        yield [
            pa.table(columns).filter(pa.array(shown)),
            *([pa.table(ranges).filter(pa.array(kept))] if layout.ranges else []),
        ]


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


@dataclass(frozen=True, eq=False)
class _Joined:
    """Figures of all stacks of rows, of as many rows each, in the order of the layout."""

    stacks: list[dict[str, Figures | Noted | None]]
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
        return np.tile(absent, self.areas), np.concatenate(parts, axis=1).take(self.order, axis=1).ravel()


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
    with ExitStack() as open_files:
        made = {
            kind: open_files.enter_context(
                Written(*(home / kind / f"{table.name}{ending}" for ending in formats), zipped=product.zip)
            )
            for kind in (RESEARCH, BASIC)
        }
        for pieces in _side_by_side(table, turned):
            keys = next(iter(pieces.values()))
            made[RESEARCH].write(_research(keys, levels, pieces))
            made[BASIC].write(_basic(keys, levels, pieces, names, product))
    return [file for each in made.values() for file in each.files]


def _side_by_side(table: TableSpec, tables: Mapping[str, ShownTable]) -> Iterator[dict[str, pa.Table]]:
    readers = {measure: source.reader() for measure, source in tables.items()}
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
        lower, upper = release_folder.numbers(piece, LOWER), release_folder.numbers(piece, UPPER)
        figures = release_folder.numbers(
            piece, release_folder.DISPLAY if release_folder.DISPLAY in piece.column_names else release_folder.VALUE
        )
        relative = release_folder.coefficient(values, errors)
        hidden = withheld(product.basic, values, errors, lower, relative)
        hidden |= (figures < np.floor(lower)) | (figures > np.ceil(upper))
        columns[measure] = pa.array(release_folder.rounded_to(figures, int(product.basic.round)), mask=hidden)
        columns[f"{measure}_sd"] = _short(errors)
        columns[f"{measure}_cv"] = pa.array(np.round(relative, 1), mask=hidden)
        columns[f"{measure}_flag"] = _coded(hidden, pa.array(["", WITHHELD]))
    return pa.table(columns)


def _short(errors: Floats) -> Floats:
    """Return standard errors in DIGITS digits; infinite ones and 0 as they are."""
    coded = pa.array(errors).dictionary_encode()  # of additive noise a whole table has one
    errors = coded.dictionary.to_numpy()
    usual = np.isfinite(errors) & (errors > 0)
    places = DIGITS - 1 - np.floor(np.log10(np.where(usual, errors, 1.0)))
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.asarray(np.where(usual, np.rint(errors * up / down) / up * down, errors)[coded.indices.to_numpy()])
