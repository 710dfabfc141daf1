"""Names of records and of their owners: compared as text, exactly, and hashed to buckets alike on every worker."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Int64s = NDArray[np.int64]


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
    texts = pc.fill_null(names, "").to_numpy(zero_copy_only=False)
    hashed = (pd.util.hash_array(texts, categorize=False) % np.uint64(count)).astype(np.int64)
    return np.where(np.asarray(names.is_null()), 0, hashed) if names.null_count else hashed


def distinct(names: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return the distinct names in order, and each row's place among them; null comes last."""
    coded = names.dictionary_encode("encode")
    order = pc.sort_indices(coded.dictionary)
    place = np.empty(len(order), dtype=np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    return coded.dictionary.take(order), place[np.asarray(coded.indices)]


def ranked(values: pa.DictionaryArray) -> tuple[int, Int64s]:
    """Return how many texts there are, and the rank of each row's among them; null has the last."""
    order = pc.sort_indices(values.dictionary)
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    rank[-1] = len(order)
    return len(order), rank[np.asarray(values.indices.fill_null(len(order)))]
