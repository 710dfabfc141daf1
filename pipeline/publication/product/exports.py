"""Published and reconciled tables in other formats, each with its description; no ledger, plan or microdata is needed.

What is exported was published already: it is post-processing, and costs no loss.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from pipeline.base.canonical import readable_json
from pipeline.base.errors import PlanError, StateError, require_package
from pipeline.base.names import hint
from pipeline.engines.writers import FORMATS
from pipeline.publication.manifest import write_manifest
from pipeline.publication.product.sdmx import write_sdmx
from pipeline.publication.product.workbook import write_workbooks
from pipeline.publication.release_folder import Published, published_in
from pipeline.publication.site.facts import CODES, PACKAGE
from pipeline.storage.folders import filled
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location

# Published tables in a DuckDB database, or as Delta tables: codes are text, and descriptions are comments.

FILE = "tables.duckdb"  # not the release's name: DuckDB takes a file's name for a catalog's, and some are its own
LIST = pa.schema([("code", pa.string()), ("name", pa.string())])


def write_database(published: Published, home: Path) -> dict[str, str]:
    """Write all tables to tables.duckdb, and the lists of codes to its schema codes; return each table's file."""
    duckdb = require_package("duckdb", "--to duckdb")
    with duckdb.connect(str(home / FILE)) as database:

        def create(name: str, rows: pa.RecordBatchReader | pa.Table) -> None:
            database.register("_incoming", rows)
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM _incoming")
            database.unregister("_incoming")

        for table in published.each():
            create(_name(table), pa.RecordBatchReader.from_batches(*published.rows(table)))
            for column, note in published.notes(table).items():
                at = f"COLUMN {_name(table)}.{_name(column)}" if column else f"TABLE {_name(table)}"
                database.execute(f"COMMENT ON {at} IS {_text(note)}")
        database.execute(f"CREATE SCHEMA {CODES}")
        for path in published.lists:
            names = published.names(path.removeprefix(f"{CODES}/"))
            columns = {"code": pa.array(list(names)), "name": pa.array([name or None for name in names.values()])}
            create(f"{CODES}.{_name(path.removeprefix(f'{CODES}/'))}", pa.table(columns).cast(LIST))
    return dict.fromkeys(published.tables, FILE)


def write_delta(published: Published, home: Path) -> dict[str, str]:
    """Write each table as a Delta table in a folder of its name; return these."""
    deltalake = require_package("deltalake", "--to delta")
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
        raise PlanError(f"--{min(chosen)}: it belongs to --to sdmx alone")
    published = published_in(folder)
    for name in tables:
        if name not in published.tables:
            raise PlanError(f"--table {name}: unknown table{hint(name, published.tables, 'table')}")
    published = published.only(tables or list(published.tables))
    if to != "csv" and published.package is None:
        raise StateError(f"{folder}: an earlier build wrote it, without {PACKAGE}: only csv can be made of it")
    at = out or Path(f"{published.name}-{to}")
    with filled(at, MARK) as unfinished:
        files = EXPORTS[to](published, unfinished, **chosen)
        about = {**published.facts, "format": to}
        write_manifest(unfinished, MARK, about | {"tables": _made(published, files)})
    placed = {name: str(at / file) for name, file in files.items()}
    return about | {"out": str(at), "tables": _made(published, placed)}


def _made(published: Published, files: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"path": file, "rows": published.tables[name].rows} for name, file in files.items()}


def _write_csv(published: Published, home: Path) -> dict[str, str]:
    """Write <table>.csv, and beside them their description and lists of codes."""
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


EXPORTS: Final[Mapping[str, Callable[..., Mapping[str, str]]]] = MappingProxyType(
    {"csv": _write_csv, "xlsx": write_workbooks, "duckdb": write_database, "delta": write_delta, "sdmx": write_sdmx}
)
