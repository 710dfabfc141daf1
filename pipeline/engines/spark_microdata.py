"""Spark's own microdata: a table of its catalog, fixed to its contents at the time it was looked up, or a DataFrame.

Spark itself scans the table, so that what a catalog allows a user to see is all that is read. A table format with
snapshots is read at its snapshot of that time; of tables that are plain files, names, sizes and times are compared.
Of a DataFrame each partition is written, sealed, by the worker that has it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.base.build import code_digest
from pipeline.base.canonical import digest
from pipeline.base.errors import PlanError
from pipeline.base.log import Log
from pipeline.engines.spark_driver import driver_of, in_plain_words
from pipeline.engines.spark_failures import Guarded
from pipeline.microdata.columns import require_columns
from pipeline.microdata.frames import Contents, Frame, FrameColumns, SealedPart, SealPart

NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,3}")
PLAIN_FILES = ("parquet", "orc", "hive")
SNAPSHOTS = {  # format → the statement that names the present snapshot, and the reader's option for it
    "delta": ("SELECT max(version) FROM (DESCRIBE HISTORY {table})", "versionAsOf"),
    "iceberg": ("SELECT snapshot_id FROM {table}.refs WHERE name = 'main'", "snapshot-id"),
}
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
RECORDS_AT_ONCE = "200000"  # that a worker is sent together
PARTS = "files string, records long, hashes string"
# A table that is made anew numbers its snapshots as the old one did.
IDENTITY = {"delta": "SELECT id FROM (DESCRIBE DETAIL {table})"}


@dataclass(frozen=True, eq=False)
class CatalogTable:
    """A table of the catalog, by its full name, at its `snapshot` (None: plain files)."""

    session: SparkSession
    name: str
    format: str
    snapshot: str | None

    def pin(self) -> str:
        """Return the digest of what ties the table to its records: its snapshot, or its files as they are now."""
        asking = IDENTITY.get(self.format)
        made = asking and str(self.session.sql(asking.format(table=self.name)).collect()[0][0])
        contents: object = self._files() if self.snapshot is None else [self.snapshot, made]
        return digest({"table": self.name, "format": self.format, "held": contents})

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the types of columns, as workers get them; raises as `frame`."""
        return to_arrow_schema(self.frame(columns).schema)

    def frame(self, columns: Sequence[str]) -> DataFrame:
        """Return the columns of the table; raises PlanError where one is missing, by its exact name."""
        table = self._table()
        require_columns(f"microdata in table {self.name}", table.columns, columns)
        return table.select(*map(_quoted, columns))

    def _table(self) -> DataFrame:
        if self.snapshot is None:
            return self.session.read.table(self.name)
        return self.session.read.option(SNAPSHOTS[self.format][1], self.snapshot).table(self.name)

    def _files(self) -> list[list[object]]:
        """Return name, size and time of each file, from the file system that Spark reads it from.

        Raises PlanError where Spark names a folder instead, as it does for formats that Hive alone reads.
        """
        if not hasattr(self.session, "_jsparkSession"):
            raise PlanError(
                f"dataset.source.table {self.name}: through Spark Connect a change of its files could not be seen; "
                f"release from their folder as path, or from a table of {' or '.join(SNAPSHOTS)}"
            )
        self.session.catalog.refreshTable(self.name)
        context = self.session.sparkContext
        path = context._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]  # a context that lives has one
        files: list[list[object]] = []
        for name in sorted(self._table().inputFiles()):
            file = path(context._jvm.java.net.URI(name))  # type: ignore[union-attr]
            status = file.getFileSystem(context._jsc.hadoopConfiguration()).getFileStatus(file)
            if status.isDirectory():  # its time tells nothing of the files below it
                raise _unpinned(self.name)
            files.append([name, status.getLen(), status.getModificationTime()])
        return files


def find_table(session: SparkSession, name: str) -> CatalogTable:
    """Return the table of that name with its present contents.

    Raises PlanError where there is none, and where nothing could tell that it changed during a run: views, and tables
    that are neither plain files nor of a format with snapshots.
    """
    if not NAME.fullmatch(name):
        raise PlanError(f"dataset.source.table {name}: name it as [catalog.][schema.]table, in letters, digits and _")
    try:
        described = {row.col_name: row.data_type for row in session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    except AnalysisException:
        described = {}
    if not described:
        raise PlanError(f"dataset.source.table {name}: Spark's catalog holds no such table; give its full name")
    kind = described.get("Provider", "").lower()
    if described.get("Type", "VIEW") == "VIEW" or kind not in (*PLAIN_FILES, *SNAPSHOTS):
        raise _unpinned(name)
    full_name = ".".join(f"`{described[part]}`" for part in ("Catalog", "Database", "Table"))
    if kind not in SNAPSHOTS:
        table = CatalogTable(session, full_name, kind, None)
        table.pin()  # a table that cannot be pinned is refused before anything is charged
        return table
    ((snapshot,),) = session.sql(SNAPSHOTS[kind][0].format(table=full_name)).collect()
    return CatalogTable(session, full_name, kind, str(snapshot))


def _unpinned(name: str) -> PlanError:
    return PlanError(
        f"dataset.source.table {name}: a change during a run could not be seen; release from a table of "
        f"parquet, orc, {' or '.join(SNAPSHOTS)}"
    )


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
    """A Spark DataFrame; its session encrypts what it sends and spills, and its workers share the staging folder."""

    frame: DataFrame

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.columns)

    def require_types(self, columns: FrameColumns) -> None:
        columns.require_types(to_arrow_schema(self.frame.select(*map(_quoted, columns.all)).schema))

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        session = self.frame.sparkSession
        driver = driver_of(session)
        driver.require_safe()
        columns = self.frame.select(*map(_quoted, part.columns.all))
        with in_plain_words(), batches(session, RECORDS_AT_ONCE), driver.working(Log(), ()):
            rows = columns.mapInArrow(SealPartition(code_digest(), part), PARTS).collect()
        return [SealedPart(tuple(row.files.split()), Contents(row.records, int(row.hashes, 16))) for row in rows]


@contextmanager
def batches(session: Any, records: str) -> Iterator[None]:
    """Have at most so many records sent to a worker together in a block; the session's own setting returns then."""
    before = session.conf.get(BATCH)
    session.conf.set(BATCH, records)
    try:
        yield
    finally:
        session.conf.set(BATCH, before)


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"
