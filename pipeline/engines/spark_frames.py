"""Spark DataFrames as microdata: each partition is written, sealed, by the worker that has it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.build import code_digest
from pipeline.engines.spark import BATCH, SparkEngine
from pipeline.engines.spark_driver import driver_of, in_plain_words
from pipeline.engines.spark_failures import Guarded
from pipeline.log import Log
from pipeline.microdata.frames import Contents, Frame, FrameColumns, SealedPart, SealPart

PARTS = "files string, records long, hashes string"
RECORDS_AT_ONCE = "200000"  # that a worker is sent together


@dataclass(frozen=True, eq=False, repr=False)
class SealPartition(Guarded[pa.RecordBatch]):
    """Writes a partition, and yields where it lies."""

    code: str
    part: SealPart

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: the names of files, the number of records and the sum of their hashes."""
        sealed = self.part.write(batches)
        row = {"files": [" ".join(sealed.files)], "records": [sealed.contents.records]}
        yield pa.record_batch(row | {"hashes": [f"{sealed.contents.hashes:x}"]})


@dataclass(frozen=True, eq=False, repr=False)
class SparkFrame(Frame):
    """A Spark DataFrame; its session must encrypt what it sends and spills, as for a release."""

    frame: DataFrame

    @property
    def names(self) -> Sequence[Any]:
        """The names of its columns."""
        return list(self.frame.columns)

    def require_types(self, columns: FrameColumns) -> None:
        """Return if the types of the schema fit."""
        columns.require_types(to_arrow_schema(self.frame.select(*map(_quoted, columns.all)).schema))

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        """Have the partitions written by Spark's workers, which must share the staging folder."""
        session = self.frame.sparkSession
        driver = driver_of(session)
        driver.require_safe()
        columns = self.frame.select(*map(_quoted, part.columns.all))
        with in_plain_words(), _batches(session, RECORDS_AT_ONCE), driver.working(Log(), ()):
            rows = columns.mapInArrow(SealPartition(code_digest(), part), PARTS).collect()
        return [SealedPart(tuple(row.files.split()), Contents(row.records, int(row.hashes, 16))) for row in rows]


@contextmanager
def engine_on(session: Any, log: Log | None = None) -> Iterator[SparkEngine]:
    """Yield an engine on a user's session, which stays open, with its settings, when the block ends."""
    driver_of(session).require_safe()
    with _batches(session, session.conf.get(BATCH) or RECORDS_AT_ONCE):
        yield SparkEngine.on(session, log)


@contextmanager
def _batches(session: Any, records: str) -> Iterator[None]:
    """Have at most so many records sent to a worker together in a block; the session's own setting returns then."""
    before = session.conf.get(BATCH)
    session.conf.set(BATCH, records)
    try:
        yield
    finally:
        session.conf.set(BATCH, before)


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"
