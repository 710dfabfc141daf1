"""What names of folders say: values of columns (`county=01001/`), and table formats whose files alone are no data."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
TABLE_LOGS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}  # a folder in the table → what it is
SNAPSHOTS = "metadata"  # an Iceberg table's, which holds files of the next name
SNAPSHOT = ".metadata.json"


def values_of(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return what the folders of a file's path, `column=value`, say of `columns`, as text; the innermost one counts."""
    parts = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    named = {unquote(name): None if value == NULL else unquote(value) for name, _, value in parts}
    return {column: value for column, value in named.items() if column in columns}


def shown(path: object) -> str:
    """Return a path of the microdata for a message: what it says of columns, which is of records, is left out."""
    return re.sub(r"(=|%3D)[^/]*", "=…", str(path))


def with_values(batch: pa.RecordBatch, values: Mapping[str, str | None], columns: Sequence[str]) -> pa.RecordBatch:
    """Return the columns of the batch, and for those that it lacks one of `values`, the same in every row."""
    found = [
        batch.column(name)
        if name in batch.schema.names
        else pa.repeat(pa.scalar(values[name], pa.string()), len(batch))
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(found, names=list(columns))


def table_format(keys: Sequence[str]) -> str | None:
    """Return which table format a folder with files and folders of these names, relative to it, is; None: none."""
    for key in keys:
        *folders, name = key.split("/")
        found = next((TABLE_LOGS[part] for part in [*folders, name] if part in TABLE_LOGS), None)
        if found is not None:
            return found
        if folders[-1:] == [SNAPSHOTS] and name.endswith(SNAPSHOT):
            return "an Iceberg table"
    return None
