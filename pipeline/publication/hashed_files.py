"""Files of products and reconciled tables: written piece by piece as Parquet and CSV, hashed while written."""

import hashlib
import io
import zipfile
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

    def __init__(self, paths: list[Path], notes: Mapping[str, str], *, zipped: bool = False) -> None:
        self._paths = paths
        self._zipped = [zipped and path.suffix != ".parquet" for path in paths]
        self.files = [
            Hashed(path.with_suffix(".zip") if packed else path)
            for path, packed in zip(paths, self._zipped, strict=True)
        ]
        self._notes = dict(notes)
        self._writers: list[Any] = []
        self._open = ExitStack()
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Write the next rows; the first ones fix names and types."""
        if not self._writers:
            for file, path, packed in zip(self.files, self._paths, self._zipped, strict=True):
                into = self._open.enter_context(_packed(file, path.name)) if packed else file
                self._writers.append(self._open.enter_context(_writer(into, path, table.schema, self._notes)))
        for writer in self._writers:
            writer.write(table)
        self.rows += len(table)

    def close(self) -> None:
        """End the files."""
        self._open.close()
        for file in self.files:
            file.close()


@contextmanager
def written(*paths: Path, notes: Mapping[str, str] = MappingProxyType({}), zipped: bool = False) -> Iterator[Written]:
    """Yield what writes the same table to all paths: those that end with .parquet as Parquet, others as CSV.

    `notes`: what Parquet files say of the table in their footer. `zipped`: each CSV file is the one member of an
    archive beside its path, with the ending .zip.
    """
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    table = Written(list(paths), notes, zipped=zipped)
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


class _Forward:
    """A file that is written on and on, so that its archive puts sizes behind the members, and its hash stays right."""

    def __init__(self, file: Hashed) -> None:
        self.write, self.flush = file.write, file.flush


@contextmanager
def _packed(file: Hashed, name: str) -> Iterator[Any]:
    """Yield the one member of a ZIP archive; neither time nor machine stands in it, so the bytes are the same."""
    member = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    member.compress_type, member.create_system, member.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
    with (
        zipfile.ZipFile(_Forward(file), "w") as archive,  # type: ignore[call-overload]  # it needs no more than this
        archive.open(member, "w", force_zip64=True) as packed,
    ):
        yield packed


def _writer(file: Any, path: Path, schema: pa.Schema, notes: dict[str, str]) -> Any:
    if path.suffix == ".parquet":
        texts = [field.name for field in schema if field.type == pa.string()]
        writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=texts, store_schema=False)
        if notes:
            writer.add_key_value_metadata(notes)
        return writer
    return pa.csv.CSVWriter(file, schema, write_options=pa.csv.WriteOptions(batch_size=1 << 14))
