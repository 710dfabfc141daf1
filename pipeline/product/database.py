"""Published tables in a DuckDB database, or as Delta tables: codes are text, and descriptions are comments."""

from pathlib import Path

import pyarrow as pa

from pipeline.errors import require_package
from pipeline.product.published_folder import Published
from pipeline.report.site.facts import CODES

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
