"""Files of products and reconciled tables: written piece by piece as Parquet and CSV, hashed while written."""

import hashlib
import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.plan.cells import QueryCells

PIECE = 1 << 18  # rows of a piece


class Hashed(io.FileIO):
    """A new file, and the SHA-256 of what is written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write some bytes."""
        written: int = super().write(data)
        self.sha256.update(memoryview(data)[:written])
        return written

    def facts(self, home: Path) -> dict[str, Any]:
        """Return path, size and digest, as the product's manifest holds them."""
        path = Path(str(self.name))
        size = path.stat().st_size
        return {"path": path.relative_to(home).as_posix(), "bytes": size, "sha256": self.sha256.hexdigest()}


class Written:
    """A table that is being written to several files."""

    def __init__(self, paths: list[Path], notes: Mapping[str, str]) -> None:
        self.files = [Hashed(path) for path in paths]
        self._notes = dict(notes)
        self._writers: list[Any] = []
        self._open = ExitStack()
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Write the next rows; the first ones fix names and types."""
        if not self._writers:
            for file in self.files:
                self._writers.append(self._open.enter_context(_writer(file, table.schema, self._notes)))
        for writer in self._writers:
            writer.write(table)
        self.rows += len(table)

    def close(self) -> None:
        """End the files."""
        self._open.close()
        for file in self.files:
            file.close()


@contextmanager
def written(*paths: Path, notes: Mapping[str, str] = MappingProxyType({})) -> Iterator[Written]:
    """Yield what writes the same table to all paths: those that end with .parquet as Parquet, others as CSV.

    `notes`: what Parquet files say of the table in their footer.
    """
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    table = Written(list(paths), notes)
    try:
        yield table
    finally:
        table.close()


def key_pieces(cells: QueryCells) -> Iterator[tuple[slice, dict[str, pa.Array]]]:
    """Yield the keys of a table's cells as text, piece by piece, at least one, and which cells these are."""
    for start in range(0, max(cells.size, 1), PIECE):
        stop = min(start + PIECE, cells.size)
        yield (
            slice(start, stop),
            {
                level: pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(codes, pa.string())).cast(pa.string())
                for level, (codes, indices) in cells.keys(start, stop).items()
            },
        )


def _writer(file: Hashed, schema: pa.Schema, notes: dict[str, str]) -> Any:
    if str(file.name).endswith(".parquet"):
        texts = [field.name for field in schema if field.type == pa.string()]
        writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=texts, store_schema=False)
        if notes:
            writer.add_key_value_metadata(notes)
        return writer
    return pa.csv.CSVWriter(file, schema, write_options=pa.csv.WriteOptions(batch_size=1 << 14))
