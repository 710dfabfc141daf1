"""Names of records and of owners as text: in UTF-8, compared exactly, hashed to buckets alike on every worker."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.numbers.arrays import Int64s

REPLACED = "\ufffd"  # stands in text that was read from bytes that are not UTF-8


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are text, be it in views."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def in_utf8(values: pa.Array) -> pa.Array:
    """Return text with bytes that are not UTF-8 replaced (REPLACED), so that only their own record breaks the contract.

    Views of text become plain text; other values are returned as they are. Files and engines hand text on unchecked,
    and Arrow and Python would fail on it.
    """
    if pa.types.is_dictionary(values.type):
        texts = in_utf8(values.dictionary)
        return values if texts is values.dictionary else pa.DictionaryArray.from_arrays(values.indices, texts)
    if not is_text(values.type):
        return values
    try:
        values.validate(full=True)
        return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
    kind = pa.string() if pa.types.is_string(values.type) else pa.large_string()
    return pa.array([None if text is None else text.decode(errors="replace") for text in raw], kind)


def text_in_utf8(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with all its text in UTF-8, as `in_utf8` makes it."""
    return pa.record_batch([in_utf8(column) for column in batch.columns], names=batch.schema.names)


def as_text(names: pa.Array) -> pa.Array:
    """Return names, which are text or whole numbers, as plain text."""
    plain = names.dictionary_decode() if pa.types.is_dictionary(names.type) else names
    return plain.cast(pa.large_string())


def as_coded_text(values: pa.Array) -> pa.DictionaryArray:
    """Return text or whole numbers as dictionary-coded text, in which no text stands twice."""
    if not pa.types.is_dictionary(values.type):
        return as_text(values).dictionary_encode()
    inner = values.dictionary.cast(pa.large_string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(inner.indices.take(values.indices), inner.dictionary)


def buckets_of(names: pa.Array, count: int) -> Int64s:
    """Return the bucket of each name, below `count`: a hash of its text, the same on every worker; of null it is 0."""
    import pandas as pd  # noqa: PLC0415 — a tenth of a second that records without ids to compare do not need

    texts = pc.fill_null(names, "").to_numpy(zero_copy_only=False)
    hashed = (pd.util.hash_array(texts, categorize=False) % np.uint64(count)).astype(np.int64)
    return np.where(np.asarray(names.is_null()), 0, hashed) if names.null_count else hashed


def distinct(names: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return the distinct names in order, and each row's place among them; null comes last."""
    coded = names.dictionary_encode("encode")
    order = pc.sort_indices(coded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    return coded.dictionary.take(order), rank[np.asarray(coded.indices)]


def ranked(values: pa.DictionaryArray) -> tuple[int, Int64s]:
    """Return how many texts there are, and the rank of each row's among them; null has the last."""
    order = pc.sort_indices(values.dictionary)
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    rank[-1] = len(order)
    return len(order), rank[np.asarray(values.indices.fill_null(len(order)))]
