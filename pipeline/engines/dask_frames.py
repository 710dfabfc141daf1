"""Dask DataFrames: published tables as frames."""

from collections.abc import Callable, Sequence

import dask.dataframe as dd
import pandas as pd


def from_parts(read: Callable[[str], pd.DataFrame], parts: Sequence[str]) -> dd.DataFrame:
    """Return a frame with one partition for each of `parts`, at least one, which `read` reads when it is needed."""
    frame: dd.DataFrame = dd.from_map(read, list(parts), meta=read(parts[0]).iloc[:0])
    return frame
