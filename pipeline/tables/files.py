"""Tables: the files of one query, cut by ranges of its public cells, written the same way by every engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.storage.location import Location
from pipeline.storage.uri import locate
from udfs.mechanisms.base import Mechanism, Released
from udfs.mechanisms.release import release_parts
from udfs.noise.keystream import SecretKey

FILE_CELLS = 1 << 18
ROW_GROUP_CELLS = 1 << 16
VALUES = ("value", "lower", "upper", "standard_error")

KeyColumn = tuple[tuple[str, ...], NDArray[np.int32]]  # codes, and each cell's place among them


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """The cells of one file: where they start in the query, their public keys and their confidential totals.

    `mechanisms` are those of the query's parts, `part_of` says which of them each cell has (None: the only one).
    It has no repr: engines log the arguments of failed tasks.
    """

    query: str
    number: int
    first: int
    keys: dict[str, KeyColumn]
    totals: NDArray[np.int64]
    mechanisms: tuple[Mechanism, ...]
    part_of: NDArray[np.int32] | None
    interval: Fraction
    integer: bool
    path: str

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.totals)


def ranges(cells: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, first cell and end of each file of a table: they depend on the number of public cells alone."""
    for part, first in enumerate(range(0, max(cells, 1), FILE_CELLS)):
        yield f"part-{part:05d}.parquet", first, min(first + FILE_CELLS, cells)


def write_block(block: Block, key: SecretKey) -> None:
    """Release the block's cells and write its file; a repetition replaces it by the same bytes."""
    released = release_parts(
        block.mechanisms,
        block.part_of,
        key=key,
        query=block.number,
        first=block.first,
        totals=block.totals,
        interval=block.interval,
        integer=block.integer,
    )
    whole = pa.BufferOutputStream()
    pq.write_table(
        _table(block, released),
        whole,
        row_group_size=ROW_GROUP_CELLS,
        compression="zstd",
        use_dictionary=list(block.keys),
        store_schema=False,
    )
    locate(block.path).write(whole.getvalue())


def _table(block: Block, released: Released) -> pa.Table:
    columns = {
        level: pa.DictionaryArray.from_arrays(pa.array(places), pa.array(codes, pa.string())).cast(pa.string())
        for level, (codes, places) in block.keys.items()
    }
    return pa.table(columns | {name: pa.array(getattr(released, name)) for name in VALUES})


def sweep(folder: Location, names: set[str]) -> None:
    """Remove what is not one of `names` from a table's staging folder: rests of tasks that were killed."""
    for file in folder.files():
        if file.relative_to(folder) not in names:
            file.delete()


def parquet_files(folder: Location) -> list[Location]:
    """Return the Parquet files of a table's folder, in the order of their names."""
    return [file for file in folder.files() if file.suffix == ".parquet" and not file.name.startswith(".")]


def write_csv(folder: Location, target: Location) -> None:
    """Write the table whose Parquet files lie in `folder` as one CSV file; keys stand in quotes, zeros kept."""
    parts = parquet_files(folder)
    with parts[0].open() as raw:
        schema = pq.read_schema(raw)
    with target.writing() as stream, pa.csv.CSVWriter(stream, schema) as writer:
        for part in parts:
            with part.open() as raw, pq.ParquetFile(raw) as file:
                for batch in file.iter_batches():
                    writer.write_batch(batch)
