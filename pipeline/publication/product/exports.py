"""Published and reconciled tables in other formats, each with its description; no ledger, plan or microdata is needed.

What is exported was published already: it is post-processing, and costs no loss.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.canonical import readable_json
from pipeline.base.errors import PlanError, StateError, arg, hint, require_package
from pipeline.engines.writers import FORMATS
from pipeline.publication.description import CODES, PACKAGE
from pipeline.publication.manifest import write_manifest
from pipeline.publication.product.sdmx import write_sdmx
from pipeline.publication.release_folder import Published, published_in
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import filled

# Published tables in a DuckDB database, or as Delta tables: codes are text, and descriptions are comments.

FILE = "tables.duckdb"  # not the release's name: DuckDB takes a file's name for a catalog's, and some are its own
LIST = pa.schema([("code", pa.string()), ("name", pa.string())])


def write_database(published: Published, home: Path) -> dict[str, str]:
    """Write all tables to tables.duckdb, and the lists of codes to its schema codes; return each table's file."""
    duckdb = require_package("duckdb", arg("to", "duckdb"))
    with duckdb.connect(str(home / FILE)) as database:

        def create(name: str, rows: pa.RecordBatchReader | pa.Table) -> None:
            database.register("_incoming", rows)
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM _incoming")
            database.unregister("_incoming")

        for table in published.each():
            create(_name(table), pa.RecordBatchReader.from_batches(*published.rows(table)))
            for column, note in published.notes(table).items():
                target = f"COLUMN {_name(table)}.{_name(column)}" if column else f"TABLE {_name(table)}"
                database.execute(f"COMMENT ON {target} IS {_text(note)}")
        database.execute(f"CREATE SCHEMA {CODES}")
        for path in published.lists:
            names = published.names(path.removeprefix(f"{CODES}/"))
            columns = {"code": pa.array(list(names)), "name": pa.array([name or None for name in names.values()])}
            create(f"{CODES}.{_name(path.removeprefix(f'{CODES}/'))}", pa.table(columns).cast(LIST))
    return dict.fromkeys(published.tables, FILE)


def write_delta(published: Published, home: Path) -> dict[str, str]:
    """Write each table as a Delta table in a folder of its name; return these."""
    deltalake = require_package("deltalake", arg("to", "delta"))
    for table in published.each():
        (schema, batches), notes = published.rows(table), published.notes(table)
        noted = pa.schema([field.with_metadata({"comment": notes[field.name]}) for field in schema])
        rows = pa.RecordBatchReader.from_batches(noted, (each.cast(noted) for each in batches))
        deltalake.write_deltalake(home / table, rows, name=table, description=notes[""])
    return {table: table for table in published.tables}


def _name(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


MARK = "export.json"  # marks the folder as public: nothing confidential is written into it


def export(
    folder: Location, to: str, out: Path | None = None, tables: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    """Write tables (all, by default) to `out` in one of EXPORTS; return what was written.

    `options`: agency and year of sdmx. As CSV a released table has the bytes that the release would have published.
    Raises PlanError where format or table are unknown, a package is not installed, a workbook cannot hold a table, or
    agency or year are none; StateError as `Manifest.verified` and `filled`, and where an earlier build left no
    description, without which there is only CSV.
    """
    if to not in EXPORTS:
        raise PlanError(f"{to}: unknown format{hint(to, EXPORTS, 'format')}")
    chosen = {name: value for name, value in options.items() if value is not None}
    if chosen and EXPORTS[to] is not write_sdmx:
        raise PlanError(f"{arg(min(chosen))}: it belongs to {arg('to', 'sdmx')} alone")
    published = published_in(folder)
    for name in tables:
        if name not in published.tables:
            raise PlanError(
                f"{arg('tables', name, flag='table')}: unknown table{hint(name, published.tables, 'table')}"
            )
    published = published.only(tables or list(published.tables))
    if to != "csv" and published.package is None:
        raise StateError(f"{folder}: an earlier build wrote it, without {PACKAGE}: only csv can be made of it")
    home = out or Path(f"{published.name}-{to}")
    with filled(home, MARK) as unfinished:
        files = EXPORTS[to](published, unfinished, **chosen)
        about = {**published.facts, "format": to}
        write_manifest(unfinished, MARK, about | {"tables": _made(published, files)})
    placed = {name: str(home / file) for name, file in files.items()}
    return about | {"out": str(home), "tables": _made(published, placed)}


def _made(published: Published, files: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"path": file, "rows": published.tables[name].rows} for name, file in files.items()}


def _write_csv(published: Published, home: Path) -> dict[str, str]:
    files = {}
    for name in published.each():
        (files[name],) = FORMATS["csv"].files(name, published.tables[name].rows)
        schema, batches = published.rows(name)
        FORMATS["csv"].write(LocalPath(home) / files[name], schema, batches)
    if published.package is not None:
        about = [
            each | {"path": files[each["table"]], "format": "csv", "mediatype": "text/csv"}
            for each in published.described.values()
        ]
        lists = [each for each in published.package["resources"] if each["name"] in published.lists]
        package = {**published.package, "resources": [*about, *lists]}
        (home / PACKAGE).write_bytes(readable_json(package, 1).encode())
        (home / CODES).mkdir()
        for name, data in published.lists.items():
            (home / f"{name}.csv").write_bytes(data)
    return files


# Published tables as Excel workbooks, one a table: figures with codes as text and their names, and what they mean.

MOST_ROWS = (1 << 20) - 1  # of a sheet, beside its header
MOST_SHEETS = 250  # each is a file of its own while it is written
LONGEST_TITLE = 31  # letters of a sheet's title
EXACT = 10**15 - 1  # a workbook's numbers have 15 digits


@dataclass(frozen=True, eq=False)
class Sheets:
    """How the rows of a table are divided among sheets: by the part, at `level`, of their code of the key `key`.

    `part_of`: by code. `titles` and `rows`: by part, those of its sheet.
    """

    key: str
    level: str
    part_of: Mapping[str, str]
    titles: Mapping[str, str]
    rows: Mapping[str, int]


def write_workbooks(published: Published, home: Path) -> dict[str, str]:
    """Write <table>.xlsx for every table, sheets figures and about; return each table's file.

    A table with more rows than a sheet holds has a sheet for every state or other part of a key, and first one that
    lists them. Whole numbers of more than 15 digits, which a workbook would round, and infinite ones are text. Raises
    PlanError where no part of a key makes sheets that hold the table, before anything is written.
    """
    xlsxwriter = require_package("xlsxwriter", arg("to", "xlsx"))
    divided = {
        name: None if table.rows <= MOST_ROWS else _divided(published, name) for name, table in published.tables.items()
    }
    for name in published.each():
        with xlsxwriter.Workbook(str(home / f"{name}.xlsx"), {"constant_memory": True}) as book:
            bold = book.add_format({"bold": True})
            sheets = divided[name]
            if sheets is not None:
                _contents(book.add_worksheet("sheets"), sheets, published.names(sheets.level), bold)
            _figures(book, published, name, sheets, bold)
            sheet = book.add_worksheet("about")
            sheet.set_column(0, 0, 24)
            sheet.set_column(1, 1, 120)
            for row, (what, text) in enumerate(_about(published, name)):
                sheet.write_string(row, 0, what, bold)
                sheet.write_string(row, 1, text)
    return {name: f"{name}.xlsx" for name in published.tables}


def _divided(published: Published, table: str) -> Sheets:
    """Return how a large table is divided: by state, else by the coarsest part of its first key that fits, or a later.

    Raises PlanError where none does.
    """
    domain, counts = published.structure.domain, _counts(published, table)
    for state_first in (True, False):
        for key in counts:
            dimension = domain.dimension(key)
            for level in sorted(dimension.levels, key=lambda each: len(dimension.index(each))):
                parents, codes = dimension.between(key, level), dimension.level_codes(level)
                if parents is None or (level == "state") != state_first:
                    continue
                part_of = {
                    code: codes[position] for code, position in zip(dimension.level_codes(key), parents, strict=True)
                }
                rows = Counter[str]()
                for code, count in counts[key].items():
                    rows[part_of[code]] += count
                if len(rows) <= MOST_SHEETS and max(rows.values()) <= MOST_ROWS:
                    ordered = {part: rows[part] for part in codes if part in rows}
                    return Sheets(key, level, part_of, _titles(ordered, published.names(level)), ordered)
    raise PlanError(
        f"table {table}: its {published.tables[table].rows:,} rows are more than the {MOST_ROWS:,} of a workbook's "
        "sheet, also divided by state or by a part of a key: "
        f"choose others by {arg('tables', flag='table')}, or take {arg('to', 'csv')} or duckdb"
    )


def _counts(published: Published, table: str) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {key: Counter() for key in published.described[table]["schema"]["primaryKey"]}
    _, batches = published.rows(table)
    for batch in batches:
        for key, counter in counts.items():
            for counted in pc.value_counts(batch.column(key)).to_pylist():
                counter[counted["values"]] += counted["counts"]
    return counts


def _titles(parts: Iterable[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return each part's title: its code and name, as far as a sheet's title may go, and no two alike."""
    titles: dict[str, str] = {}
    taken = {"sheets", "about", "history"}
    for part in parts:
        plain = (
            re.sub(r"[\[\]:*?/\\]", "-", f"{part} {names.get(part, '')}").strip(" '")[:LONGEST_TITLE].strip(" '")
            or "part"
        )
        title, number = plain, 1
        while title.lower() in taken:
            number += 1
            title = f"{plain[: LONGEST_TITLE - 5]}~{number}"
        taken.add(title.lower())
        titles[part] = title
    return titles


def _contents(sheet: Any, sheets: Sheets, names: Mapping[str, str], bold: Any) -> None:
    sheet.freeze_panes(1, 0)
    sheet.set_column(0, 3, 32)
    for number, what in enumerate(("sheet", sheets.level, f"{sheets.level}_name", "rows")):
        sheet.write_string(0, number, what, bold)
    for row, (part, title) in enumerate(sheets.titles.items(), start=1):
        quoted = title.replace("'", "''")
        sheet.write_url(row, 0, f"internal:'{quoted}'!A1", string=title)
        sheet.write_string(row, 1, part)
        sheet.write_string(row, 2, names.get(part, ""))
        sheet.write_number(row, 3, sheets.rows[part])


def _figures(book: Any, published: Published, table: str, sheets: Sheets | None, bold: Any) -> None:
    """Write the rows of a table: after each key's code its name, where its list has names."""
    schema, batches = published.rows(table)
    keys = published.described[table]["schema"]["primaryKey"]
    listed = {level: published.names(level) for level in keys}
    names = {level: codes for level, codes in listed.items() if any(codes.values())}
    columns = [each for name in schema.names for each in ((name, f"{name}_name") if name in names else (name,))]

    def added(title: str, rows: int) -> Any:
        sheet = book.add_worksheet(title)
        sheet.freeze_panes(1, 0)
        sheet.set_column(0, len(columns) - 1, 16)
        sheet.autofilter(0, 0, rows, len(columns) - 1)
        for number, name in enumerate(columns):
            sheet.write_string(0, number, name, bold)
        return sheet

    if sheets is None:
        added_of = {"": added("figures", published.tables[table].rows)}
    else:
        added_of = {part: added(title, sheets.rows[part]) for part, title in sheets.titles.items()}
    key = 0 if sheets is None else schema.names.index(sheets.key)
    written = dict.fromkeys(added_of, 0)
    for batch in batches:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            part = "" if sheets is None else sheets.part_of[values[key]]
            sheet = added_of[part]
            written[part] += 1
            cell = 0
            for name, value in zip(schema.names, values, strict=True):
                _write(sheet, written[part], cell, value)
                cell += 1
                if name in names:
                    sheet.write_string(written[part], cell, names[name][value])
                    cell += 1


def _write(sheet: Any, row: int, column: int, value: str | float) -> None:
    if isinstance(value, str):
        sheet.write_string(row, column, value)  # as it stands: neither a number nor a formula
    elif isfinite(value) and (isinstance(value, float) or abs(value) <= EXACT):
        sheet.write_number(row, column, value)
    else:
        sheet.write_string(row, column, str(value))


def _about(published: Published, table: str) -> Iterator[tuple[str, str]]:
    package, about = published.package or {}, published.described[table]
    yield "title", about["title"]
    yield "description", about["description"]
    for key in ("unit", "statistic", "where", "interval"):
        if about.get(key) is not None:
            yield key, str(about[key])
    for text in about.get("mechanisms", ()):
        yield "mechanism", text
    yield "release", f"{package['release']}: {package['title']}"
    yield "plan_digest", package["plan_digest"]
    for each in package.get("contributors", ()):
        yield "contact", each["title"]
    yield from ((column, note) for column, note in published.notes(table).items() if column)
    yield "numbers", "whole numbers of more than 15 digits, and inf, are text: a workbook holds neither"


EXPORTS: Final[Mapping[str, Callable[..., Mapping[str, str]]]] = MappingProxyType(
    {"csv": _write_csv, "xlsx": write_workbooks, "duckdb": write_database, "delta": write_delta, "sdmx": write_sdmx}
)
