"""DataFrames as microdata: the columns that a plan names, of types that cannot have altered a value.

Types come from dtypes and the plan, never from values: one record's missing value must not change what others' are. So
codes are text, measures are integers, decimals or decimal text, and an object column is text, in which any other value
breaks the contract of its record.

A frame is pinned by the multiset of its records: the sum, modulo 2²⁵⁶, of a keyed hash of each. It is the same in any
order, however the records are cut and whatever library holds them; without the key it tells nothing of a record.
"""

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.canonical import canonical_json
from pipeline.base.errors import MicrodataError, PlanError, PrdpError
from pipeline.microdata.source import is_marked, require_columns
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from udfs.records.contract import REPLACED, MeasureColumn, as_text, in_utf8, is_text, whole_steps

if TYPE_CHECKING:
    import pandas as pd

FILE_RECORDS = 1 << 20  # of a sealed file, which a task holds in memory
MODULUS = 1 << 256
INT64_ADVICE = "a missing value turns integers into floats: give Int64 (astype('Int64') before values are missing)"


@dataclass(frozen=True)
class FrameColumns:
    """The columns that are read of a frame, of which no two names are alike."""

    codes: tuple[str, ...]
    names: tuple[str, ...]  # of records and owners
    measures: tuple[MeasureColumn, ...]

    @property
    def all(self) -> list[str]:
        """The columns in a fixed order."""
        return list(dict.fromkeys([*self.codes, *self.names, *(measure.column for measure in self.measures)]))

    def require_types(self, schema: pa.Schema) -> None:
        """Return if a schema has every column once, with a type that fits; raises PlanError otherwise."""
        require_columns("data", schema.names, self.all)
        for name in self.all:
            kind = schema.field(name).type
            inner = kind.value_type if pa.types.is_dictionary(kind) else kind
            if is_text(inner):
                continue
            if name in self.codes:
                raise unfit(name, f"is {kind}: codes are text, with their leading zeros")
            if pa.types.is_floating(inner):
                raise unfit(name, f"is {kind}: give integers, decimals or text; {INT64_ADVICE}")
            if pa.types.is_decimal(inner) and inner.scale < 0:
                raise unfit(name, f"is {kind}: give decimals whose scale is not negative")
            if not pa.types.is_integer(inner) and not (pa.types.is_decimal(inner) and name not in self.names):
                raise unfit(name, f"is {kind}: give {'text or integers' if name in self.names else 'numbers'}")


@dataclass(frozen=True, repr=False)
class Contents:
    """The records of a part of a frame: how many, and the sum of their hashes; both are confidential."""

    records: int = 0
    hashes: int = 0

    def __add__(self, other: "Contents") -> "Contents":
        return Contents(self.records + other.records, (self.hashes + other.hashes) % MODULUS)

    def pin(self, columns: FrameColumns, key: bytes) -> str:
        """Return the digest of all contents under the key."""
        text = canonical_json({"columns": columns.all, "records": self.records, "hashes": f"{self.hashes:x}"})
        return "blake2b:" + hashlib.blake2b(text.encode(), key=key, digest_size=32).hexdigest()


@dataclass(frozen=True, repr=False)
class SealedPart:
    """Where a part of a frame lies sealed, and its contents."""

    files: tuple[str, ...]
    contents: Contents


@dataclass(frozen=True, eq=False, repr=False)
class SealPart:
    """Writes a part of a frame, sealed, into a private folder. It has no repr: it holds keys."""

    columns: FrameColumns
    folder: Location
    seal: Seal
    key: bytes

    def __call__(self, part: "pd.DataFrame | pa.Table") -> SealedPart:
        """Write a part, checked; raises PlanError where a column has another type."""
        table = part if isinstance(part, pa.Table) else table_of(part, self.columns)
        return self.write(table.to_batches(max_chunksize=FILE_RECORDS))

    def write(self, batches: Iterable[pa.RecordBatch]) -> SealedPart:
        """Write batches; a repeated task writes other files, of which none counts but those that are returned."""
        files, contents = [], Contents()
        for batch in joined(batches):
            # A copy: numbers of a frame lie in its own memory, where another thread could change them between what is
            # sealed and what is pinned.
            checked = checked_batch(batch, self.columns).copy_to(pa.default_cpu_memory_manager())
            files.append(f"rows-{uuid.uuid4().hex}")
            self.seal.write_batch(self.folder / files[-1], checked)
            contents += contents_of(checked, self.columns, self.key)
        return SealedPart(tuple(files), contents)


class Frame(ABC):
    """A DataFrame that holds microdata; its index, if any, is ignored."""

    @property
    @abstractmethod
    def names(self) -> Sequence[Any]:
        """The names of its columns."""

    @property
    def synthetic(self) -> bool | None:
        """True where it carries the mark of synthetic microdata; None: that cannot be known."""
        return None

    @abstractmethod
    def require_types(self, columns: FrameColumns) -> None:
        """Return if the columns' types fit, as far as they are known without reading records."""

    @abstractmethod
    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        """Have every part of the frame written, each read once; raises MicrodataError and TaskFailed, with no value."""


@dataclass(frozen=True, eq=False, repr=False)
class PandasFrame(Frame):
    """A pandas DataFrame."""

    frame: "pd.DataFrame"

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.columns)

    def require_types(self, columns: FrameColumns) -> None:
        table_of(self.frame.iloc[:0], columns)

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        rows = range(0, len(self.frame), FILE_RECORDS)
        return [_written(part, self.frame.iloc[first : first + FILE_RECORDS]) for first in rows]


@dataclass(frozen=True, eq=False, repr=False)
class ArrowFrame(Frame):
    """An Arrow table."""

    table: pa.Table

    @property
    def synthetic(self) -> bool | None:
        return is_marked(self.table.schema.metadata) or None

    @property
    def names(self) -> Sequence[Any]:
        return [*self.table.column_names]

    def require_types(self, columns: FrameColumns) -> None:
        columns.require_types(self.table.schema)

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        return [_written(part, self.table.select(part.columns.all))]


def _written(part: SealPart, rows: "pd.DataFrame | pa.Table") -> SealedPart:
    failure = ""
    try:
        return part(rows)
    except (PrdpError, OSError, MemoryError):
        raise
    except Exception as error:
        failure = type(error).__name__
    raise MicrodataError(f"data: the frame cannot be written ({failure})")


def table_of(frame: "pd.DataFrame", columns: FrameColumns) -> pa.Table:
    """Return the columns of a pandas frame, typed by their dtypes; raises PlanError where one does not fit."""
    require_columns("data", [name for name in frame.columns if isinstance(name, str)], columns.all)
    table = pa.table({name: _array(frame[name], name) for name in columns.all})
    columns.require_types(table.schema)
    return table


def _array(values: "pd.Series", name: str) -> pa.Array:
    """Return a column as its dtype says, an object column, which may hold anything, as text."""
    import pandas as pd  # noqa: PLC0415 — a tenth of a second that files as microdata do not need

    dtype = values.dtype
    held = dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype
    if isinstance(dtype, pd.CategoricalDtype) and dtype.categories.empty:  # no value, so no type
        return pa.nulls(len(values), pa.large_string())
    if held == np.dtype(object):
        return _texts(values)
    if not isinstance(held, np.dtype) and not hasattr(values.array, "__arrow_array__"):  # its values would say its type
        raise unfit(name, f"is {dtype}: give text, integers or decimals")
    failure = ""
    try:
        array = pa.array(values, from_pandas=True)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    except UnicodeEncodeError:
        return _texts(values)
    except MemoryError:
        raise
    except Exception as error:  # Arrow's own message may show a value
        failure = type(error).__name__
    raise unfit(name, f"of dtype {dtype} cannot be read ({failure}): give text, integers or decimals")


def _texts(values: "pd.Series") -> pa.Array:
    """Return values as text, so that one that is none breaks the contract of its record alone."""
    texts = [text if isinstance(text, str) else _absent_or_bad(text) for text in values.astype(object)]
    with suppress(UnicodeEncodeError):
        return pa.array(texts, pa.large_string())
    # Halves of surrogate pairs are replaced, as bytes of a file that are not UTF-8 are.
    texts = [text and text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    return pa.array(texts, pa.large_string())


def _absent_or_bad(value: object) -> str | None:
    """Return None for what pandas takes as missing, else text that is neither a code, a name nor a number."""
    import pandas as pd  # noqa: PLC0415

    missing = value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and isnan(value))
    return None if missing else REPLACED


def checked_batch(batch: pa.RecordBatch, columns: FrameColumns) -> pa.RecordBatch:
    """Return the columns of a batch, codes as dictionary-coded text; PlanError where a type does not fit."""
    columns.require_types(batch.schema)
    arrays = {name: _plain(batch.column(name)) for name in columns.all}
    return pa.record_batch(
        {name: array.dictionary_encode() if name in columns.codes else array for name, array in arrays.items()}
    )


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _plain(array.dictionary)).dictionary_decode()
    number = pa.types.is_integer(array.type) or pa.types.is_decimal(array.type)
    return array if number else in_utf8(array).cast(pa.large_string())


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of one schema joined to FILE_RECORDS records or a little more; none that are empty."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held += [batch] if len(batch) else []
        if sum(map(len, held)) >= FILE_RECORDS:
            yield from _one(held)
            held = []
    yield from _one(held)


def _one(held: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(held).unify_dictionaries().combine_chunks().to_batches() if held else []


def contents_of(batch: pa.RecordBatch, columns: FrameColumns, key: bytes) -> Contents:
    """Return the contents of a batch: measures count in their steps, so that types of one value are alike.

    A value that breaks the contract counts as such: two of them are alike.
    """
    fields = [_field(as_text(batch.column(name))) for name in (*columns.codes, *columns.names)]
    for measure in columns.measures:
        steps, faults = whole_steps(batch.column(measure.column), measure)
        bad = np.logical_or.reduce([rows for _, _, rows in faults]) if faults else None
        fields.append(_field(pa.array(steps, mask=bad).cast(pa.large_string())))
    records = pc.binary_join_element_wise(*fields, pa.scalar("", pa.large_string()))
    hashes = (hashlib.blake2b(record.encode(), key=key, digest_size=32).digest() for record in records.to_pylist())
    return Contents(len(batch), sum(int.from_bytes(record, "little") for record in hashes) % MODULUS)


def _field(texts: pa.Array) -> pa.Array:
    """Return texts with their lengths before them, "-" for null: joined, they can be read in one way alone."""
    length = pc.binary_length(texts).cast(pa.large_string())
    return pc.fill_null(pc.binary_join_element_wise(length, texts, pa.scalar(":", pa.large_string())), "-")


def unfit(column: str, what: str) -> PlanError:
    """Return the error of a frame's column that is of no fitting type."""
    return PlanError(f"data: column {column} {what}")
