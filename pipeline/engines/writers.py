"""Tables as files: blocks of public cells, which every engine writes the same way; and files hashed while written."""

import hashlib
import io
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.plan.domain.cells import QueryCells
from pipeline.plan.model import VALUES, Query
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from udfs.mechanisms.base import Mechanism, Released
from udfs.mechanisms.release import rehearse, release_cells
from udfs.noise.keystream import SecretKey

FILE_CELLS = 1 << 18

KeyColumn = tuple[tuple[str, ...], NDArray[np.int32]]  # codes, and the index of each cell's code among them


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """The cells of one file, with their confidential totals. It has no repr: engines log arguments of failed tasks."""

    query: str
    number: int
    first: int  # where the cells start in the query
    keys: dict[str, KeyColumn]
    totals: NDArray[np.int64]
    mechanisms: tuple[Mechanism, ...]  # of the query's parts
    part_of: NDArray[np.int32] | None  # which of them each cell has; None: the only one
    interval: Fraction
    integer: bool
    path: str
    notes: Mapping[str, str] = field(default_factory=dict)  # what the file says of its table, by the plan alone

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.totals)

    def values(self, key: SecretKey) -> Released:
        """Return the released values of the block's cells under `key`; the same at every call."""
        cells = np.arange(self.first, self.first + self.size, dtype=np.uint64)
        partition = {"cell": cells, "total": self.totals, "part": self.part_of}
        return release_cells(
            partition, self.mechanisms, key=key, query=self.number, interval=self.interval, integer=self.integer
        )

    def released(self, key: SecretKey) -> pa.Table:
        """Return the block's published rows under `key`: its keys as text, then VALUES; the same at every call."""
        released = self.values(key)
        return pa.table(in_text(self.keys) | {name: pa.array(getattr(released, name)) for name in VALUES})


def in_text(keys: Mapping[str, KeyColumn]) -> dict[str, pa.Array]:
    """Return columns of keys as text."""
    return {
        level: pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(codes, pa.string())).cast(pa.string())
        for level, (codes, indices) in keys.items()
    }


def ranges(cells: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, first cell and end of each Parquet file of a table; they depend on the number of cells alone."""
    for part, first in enumerate(range(0, max(cells, 1), FILE_CELLS)):
        yield f"part-{part:05d}.parquet", first, min(first + FILE_CELLS, cells)


def rehearse_query(query: Query, interval: Fraction) -> None:
    """Build the table of every mechanism of a query here, and release one cell that is thrown away.

    Tables are then shipped as integers, the same for all workers; and what a mechanism cannot compute is met before a
    draw is recorded.
    """
    for mechanism in query.mechanisms:
        rehearse(mechanism, interval)


# Formats of tables: one class each. A new format is one class here and one line of FORMATS.
#
# Parquet files are written by the workers as they draw; every other format is made from them afterwards. What is
# written depends on the released values alone, so that the same attempt key gives the same bytes on every engine.

ROW_GROUP_CELLS = 1 << 16


class Writer(ABC):
    """A format of tables; `name` is how it is asked for, and the ending of its files.

    Paths of files are relative to the folder tables/ of an attempt.
    """

    name: ClassVar[str]
    media: ClassVar[str]

    def files(self, query: str, cells: int) -> list[str]:
        """Return the paths of a table's files, which depend on the number of its public cells alone."""
        return [f"{query}.{self.name}"]

    @abstractmethod
    def write(self, file: Location, schema: pa.Schema, rows: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Write one file with all of the rows, in their order."""

    @abstractmethod
    def read(self, tables: Location, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table from its files in the folder `tables`, keys as text with their zeros."""

    def convert(self, tables: Location, query: str) -> None:
        """Make the table's file from its Parquet files."""
        (file,) = self.files(query, 0)
        self.write(tables / file, PARQUET.schema(tables, query), PARQUET.read(tables, query))


@final
class Parquet(Writer):
    """Files by ranges of the domain, in a folder of the query's name; keys are dictionary-coded."""

    name, media = "parquet", "application/vnd.apache.parquet"

    def files(self, query: str, cells: int) -> list[str]:
        """Return a file for each range of the cells."""
        return [f"{query}/{name}" for name, _, _ in ranges(cells)]

    def write(
        self,
        file: Location,
        schema: pa.Schema,
        rows: Iterable[pa.Table | pa.RecordBatch],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Write the file at once, with `notes` in its footer: a repetition replaces it by the same bytes."""
        buffer = pa.BufferOutputStream()
        coded = [name for name in schema.names if name not in VALUES]
        with pq.ParquetWriter(buffer, schema, compression="zstd", use_dictionary=coded, store_schema=False) as writer:
            writer.write_table(pa.concat_tables(rows), ROW_GROUP_CELLS)
            if notes:
                writer.add_key_value_metadata(dict(notes))
        file.write(buffer.getvalue())

    def read(self, tables: Location, query: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of every file, in the order of their names; of some columns, or of all."""
        for file in self._present(tables, query):
            with file.open() as raw, pq.ParquetFile(raw) as parquet:
                yield from parquet.iter_batches(columns=columns)

    def largest(self, tables: Location, query: str, most: int) -> pa.Table | None:
        """Return the rows with the `most` largest values, the largest first, of equal ones the first in key order.

        Row groups are read from the largest maximum down, until no other can have one of them: that is in their
        statistics. None where no file has a row.
        """
        files = self._present(tables, query)
        schema = self.schema(tables, query) if files else pa.schema([])
        keys = [name for name in schema.names if name not in VALUES]
        order = [("value", "descending"), *((key, "ascending") for key in keys)]
        best: pa.Table | None = None
        for maximum, number, group in sorted(self._maxima(files), key=lambda group: -group[0]):
            if best is not None and len(best) == most and best["value"][-1].as_py() > maximum:
                break
            with files[number].open() as raw, pq.ParquetFile(raw, read_dictionary=keys) as parquet:
                rows = parquet.read_row_group(group)
            some = rows.take(largest_of(rows["value"].to_numpy(), most)).cast(schema)
            best = pa.concat_tables([some, *([] if best is None else [best])]).sort_by(order).slice(0, most)
        return best

    @staticmethod
    def _maxima(files: Sequence[Location]) -> Iterator[tuple[float, int, int]]:
        """Yield the largest value of each row group, the number of its file, and its own in the file."""
        for number, file in enumerate(files):
            with file.open() as raw:
                metadata = pq.read_metadata(raw)
            value = metadata.schema.names.index("value")
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(value).statistics
                if statistics is not None:  # it has rows
                    yield statistics.max, number, group

    def schema(self, tables: Location, query: str) -> pa.Schema:
        """Return the names and types of the columns."""
        with self._present(tables, query)[0].open() as raw:
            return pq.read_schema(raw)

    def _present(self, tables: Location, query: str) -> list[Location]:
        files = (tables / query).files()
        return [file for file in files if file.suffix == ".parquet" and not file.name.startswith(".")]


def largest_of(numbers: NDArray[Any], most: int) -> NDArray[np.intp]:
    """Return the places of the `most` largest numbers, the largest first, of equal ones the first; NaN are last."""
    falling, some = -numbers, np.arange(len(numbers))
    if len(falling) > most:  # few are sorted, unless what is last of them is no number
        some = np.flatnonzero(~(falling > np.partition(falling, most - 1)[most - 1]))
    return some[np.argsort(falling[some], kind="stable")[:most]]


@final
class Csv(Writer):
    """One text file with a header; keys stand in quotes, their zeros kept."""

    name, media = "csv", "text/csv"

    def write(self, file: Location, schema: pa.Schema, rows: Iterable[pa.Table | pa.RecordBatch]) -> None:
        """Write the file batch by batch."""
        with file.writing() as stream, pa.csv.CSVWriter(stream, schema) as writer:
            for batch in rows:
                writer.write(batch)

    def read(self, tables: Location, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows; whole numbers come as int64, other values as float64."""
        file = tables / self.files(query, 0)[0]
        with file.open() as raw, pa.csv.open_csv(raw) as reader:
            names = reader.schema.names
        keys = pa.csv.ConvertOptions(column_types={name: pa.string() for name in names if name not in VALUES})
        with file.open() as raw, pa.csv.open_csv(raw, convert_options=keys) as reader:
            yield from reader


PARQUET: Final = Parquet()
FORMATS: Final[Mapping[str, Writer]] = MappingProxyType({writer.name: writer for writer in (PARQUET, Csv())})


def write_block(block: Block, key: SecretKey) -> None:
    """Release the block's cells and write its Parquet file; a repetition replaces it by the same bytes."""
    table = block.released(key)
    PARQUET.write(locate(block.path), table.schema, [table], block.notes)


def sweep(folder: Location, names: set[str]) -> None:
    """Remove what is not one of `names` from a table's staging folder: what tasks that were killed left."""
    for file in folder.files():
        if file.relative_to(folder) not in names:
            file.delete()


# Files of products and reconciled tables: written piece by piece as Parquet and CSV, hashed while written.

PIECE = 1 << 18  # rows of a piece
LEVEL = 1  # of compression by ISA-L: about as small as zlib's level 2, in a quarter of its time


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


class Written(ExitStack):
    """A table that is written in a block to all of some paths: as Parquet where they end with .parquet, else as CSV.

    `notes`: what Parquet files say of the table in their footer. `zipped`: each CSV file is the one member of an
    archive beside its path, with the ending .zip. `empty`: the columns that may lack values; None: any of them.
    """

    def __init__(
        self,
        *paths: Path,
        notes: Mapping[str, str] = MappingProxyType({}),
        zipped: bool = False,
        empty: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        for path in paths:
            path.parent.mkdir(exist_ok=True)
        self._paths, self._notes, self._writers, self._empty = paths, dict(notes), list[Any](), empty
        self._zipped = [zipped and path.suffix != ".parquet" for path in paths]
        names = (path.with_suffix(".zip") if packed else path for path, packed in zip(paths, self._zipped, strict=True))
        self.files = [self.enter_context(Hashed(name)) for name in names]

    def write(self, table: pa.Table) -> None:
        """Write the next rows; the first ones fix names and types."""
        fields = [each.with_nullable(self._empty is None or each.name in self._empty) for each in table.schema]
        table = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
        if not self._writers:
            for file, path, packed in zip(self.files, self._paths, self._zipped, strict=True):
                into = self.enter_context(_packed(file, path.name)) if packed else file
                self._writers.append(self.enter_context(_writer(into, path, table.schema, self._notes)))
        for number, each in enumerate(table.schema):
            if pa.types.is_dictionary(each.type):
                texts = pa.chunked_array(map(_each_once, table.column(number).chunks), each.type)
                table = table.set_column(number, each, texts)
        for writer in self._writers:
            writer.write(table)


def _each_once(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return texts whose dictionary has each once: for further ones Arrow 26 writes this process's memory to a file."""
    once = texts.dictionary.unique()
    if len(once) == len(texts.dictionary):
        return texts
    indices = pc.index_in(texts.dictionary, once).take(texts.indices).cast(texts.indices.type)
    return pa.DictionaryArray.from_arrays(indices, once, ordered=texts.type.ordered)


def key_pieces(cells: QueryCells) -> Iterator[tuple[slice, dict[str, pa.Array]]]:
    """Yield the keys of a table's cells as text, piece by piece, at least one, and which cells these are."""
    for start in range(0, max(cells.size, 1), PIECE):
        stop = min(start + PIECE, cells.size)
        yield slice(start, stop), in_text(cells.keys(start, stop))


class _Forward:
    """A file that is written on and on, so that its archive puts sizes behind the members, and its hash stays right."""

    def __init__(self, file: Hashed) -> None:
        self.write, self.flush = file.write, file.flush


@contextmanager
def _packed(file: Hashed, name: str) -> Iterator[Any]:
    """Yield the one member of a ZIP archive, without time or machine: the same bytes on one kind of processor."""
    from isal import isal_zlib  # noqa: PLC0415 — workers of a cluster need none

    forward: Any = _Forward(file)  # an archive needs no more than this
    with zipfile.ZipFile(forward, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open(name, "w", force_zip64=True) as packed:
            packed._compressor = isal_zlib.compressobj(LEVEL, wbits=-zlib.MAX_WBITS)  # type: ignore[attr-defined]
            yield packed
        archive.getinfo(name).external_attr = 0o644 << 16


def _writer(file: Any, path: Path, schema: pa.Schema, notes: dict[str, str]) -> Any:
    if path.suffix == ".parquet":
        texts = [field.name for field in schema if field.type == pa.string() or pa.types.is_dictionary(field.type)]
        # Whole numbers as differences are smaller, and need far less compression.
        encodings = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
        writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=texts,
            column_encoding=encodings,
            store_schema=False,
            write_statistics=texts[:1],  # rows are in its order: of other columns a piece has nearly all values
            write_batch_size=PIECE,
            max_rows_per_page=PIECE,  # pages are read whole: small ones are larger, and take longer
        )
        if notes:
            writer.add_key_value_metadata(notes)
        return writer
    return pa.csv.CSVWriter(file, schema, write_options=pa.csv.WriteOptions(batch_size=1 << 14))
