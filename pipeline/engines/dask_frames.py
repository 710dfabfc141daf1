"""Dask DataFrames: microdata that are written partition by partition, and published tables as frames."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.delayed import delayed

from pipeline.build import code_digest
from pipeline.engines.dask import DaskEngine
from pipeline.engines.tasks import EachTask
from pipeline.errors import MicrodataError, PrdpError
from pipeline.microdata.frames import Frame, FrameColumns, SealedPart, SealPart, table_of


@dataclass(frozen=True, eq=False, repr=False)
class DaskFrame(Frame):
    """A Dask DataFrame; each partition is computed and written in a task of the engine."""

    frame: dd.DataFrame

    @property
    def names(self) -> Sequence[Any]:
        """The names of its columns."""
        return list(self.frame.columns)

    def require_types(self, columns: FrameColumns) -> None:
        """Return if the dtypes that the frame declares fit; each partition's own are checked when it is written."""
        table_of(self.frame._meta, columns)

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        """Have the partitions written by a Dask engine, or by threads here where the engine is another one."""
        workers = engine if isinstance(engine, DaskEngine) else DaskEngine()
        run = delayed(EachTask(part, code_digest()), pure=False)
        failure = ""
        try:
            parts = self.frame[part.columns.all].to_delayed()
            written: list[SealedPart] = workers.compute(delayed([run(each) for each in parts]))
            return written
        except PrdpError:
            raise
        except Exception as error:  # of the frame's own graph: its message may show a value
            failure = type(error).__name__
        raise MicrodataError(f"data: computing the Dask DataFrame failed ({failure}); compute a part of it to see why")


def from_parts(read: Callable[[str], pd.DataFrame], parts: Sequence[str]) -> dd.DataFrame:
    """Return a frame with one partition for each of `parts`, at least one, which `read` reads when it is needed."""
    frame: dd.DataFrame = dd.from_map(read, list(parts), meta=read(parts[0]).iloc[:0])
    return frame
