"""Parquet files of single records and firms: this user's alone, and whole or absent."""

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PrdpError


class RowFile:
    """A Parquet file that grows by tables of one schema, and is in its place once it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        try:
            if self._writer is None:
                os.close(os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                self._writer = pq.ParquetWriter(self._aside, table.schema, compression="zstd", store_schema=False)
            self._writer.write_table(table)
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def close(self) -> None:
        """Put the file in its place; without any rows there is none."""
        if self._writer is None:
            return
        try:
            self._writer.close()
            os.replace(self._aside, self._path)
        except OSError as error:
            raise _unwritable(self._path, error) from None


def names_of(queries: Iterable[str]) -> list[str]:
    """Return the names of the columns of influences and losses, in the order of the queries."""
    return [f"{kind}_{query}" for query in queries for kind in ("influence", "loss")]


def _unwritable(path: Path, error: OSError) -> PrdpError:
    return PrdpError(f"diagnostics: {path.name} cannot be written ({error.strerror}); make room, and run again")
