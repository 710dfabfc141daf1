"""Spark's own microdata: a table of its catalog, fixed to its contents at the time it was looked up, or a DataFrame.

Spark itself scans the table, so that what a catalog allows a user to see is all that is read. A table format with
snapshots is read at its snapshot of that time; of tables that are plain files, names, sizes and times are compared.
Of a DataFrame each partition is written, sealed, by the worker that has it.
"""

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline.base.canonical import code_digest, digest
from pipeline.base.errors import PlanError
from pipeline.base.log import Log
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.spark_driver import driver_of, in_plain_words
from pipeline.engines.tasks import Guarded, guarded, require_same_code
from pipeline.microdata.frames import Contents, Frame, FrameColumns, SealedPart, SealPart, joined
from pipeline.microdata.source import require_columns
from pipeline.plan.model import VALUES
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.release import rehearse, release_frame
from udfs.noise.keystream import MAX_QUERIES, SecretKey
from udfs.numbers.arrays import LARGEST
from udfs.records.contract import text_in_utf8

NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,3}")
PLAIN_FILES = ("parquet", "orc", "hive")
SNAPSHOTS = {  # format → the statement that names the present snapshot, and the reader's option for it
    "delta": ("SELECT max(version) FROM (DESCRIBE HISTORY {table})", "versionAsOf"),
    "iceberg": ("SELECT snapshot_id FROM {table}.refs WHERE name = 'main'", "snapshot-id"),
}
BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
COMPILED, INTERPRETER = "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"
RECORDS = {BATCH: "200000"}  # so many are sent to a worker together
PACKED_ROWS = {BATCH: "8", COMPILED: "false", INTERPRETER: "NO_CODEGEN"}  # of megabytes, too few to compile code for
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

    def seal(self, columns: Sequence[str], folder: Location, seal: Seal) -> list[str]:
        """Have each partition's rows written, sealed, by the worker that reads it; return the names of files."""
        task = SealRows(code_digest(), folder, seal)
        with in_plain_words(), settings(self.session, RECORDS), driver_of(self.session).working(Log(), ()):
            return [row.file for row in self.frame(columns).mapInArrow(task, "file string").collect()]

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
class SealRows(Guarded[pa.RecordBatch]):
    """Writes a partition of a table as it is; a repeated task's files have other names, and count nowhere."""

    code: str
    folder: Location
    seal: Seal

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each file: its name."""
        for batch in joined(map(text_in_utf8, batches)):
            name = f"rows-{uuid.uuid4().hex}"
            self.seal.write_batch(self.folder / name, batch)
            yield pa.record_batch({"file": [name]})


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
        with in_plain_words(), settings(session, RECORDS), driver.working(Log(), ()):
            rows = columns.mapInArrow(SealPartition(code_digest(), part), PARTS).collect()
        return [SealedPart(tuple(row.files.split()), Contents(row.records, int(row.hashes, 16))) for row in rows]


@contextmanager
def settings(session: Any, wanted: Mapping[str, str]) -> Iterator[None]:
    """Have settings of a session for a block; its own return then."""
    before = {key: session.conf.get(key) for key in wanted}
    try:
        for key, text in wanted.items():
            session.conf.set(key, text)
        yield
    finally:
        for key, text in before.items():
            session.conf.set(key, text)


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


# A mechanism as a pandas UDF, for experts who release a DataFrame of public cells and totals of their own.
#
# It gives the bytes that a release gives, and nothing else of a release: no ledger, no plan, no check of the cells.


class WithMechanism(Protocol):
    """A mechanism of `prdp.mechanisms`."""

    @property
    def mechanism(self) -> Mechanism:
        """The exact object underneath."""


class NoiseKey:
    """A key for the noise of one release, of the operating system's entropy; it lives in this process alone.

    It is never made from bytes, and can be neither copied nor pickled: it travels to workers within the UDFs that are
    made with it. Each query number is used once, since two tables with the same noise differ by their totals alone.
    """

    __slots__ = ("_key", "_lock", "_queries")

    def __init__(self) -> None:
        self._key = SecretKey.fresh()
        self._queries: set[int] = set()
        self._lock = threading.Lock()

    def for_query(self, query: int) -> SecretKey:
        """Return the key for a query that had none yet; raises PlanError otherwise."""
        if not isinstance(query, int | np.integer):
            raise PlanError("query: a query number is a whole number")
        if not 0 <= query < MAX_QUERIES:
            raise PlanError(f"query {query}: a query number lies between 0 and {MAX_QUERIES - 1}")
        with self._lock:
            if query in self._queries:
                raise PlanError(f"query {query}: this key has noise for it already; give another number or a fresh key")
            self._queries.add(query)
        return self._key

    def __repr__(self) -> str:
        return "NoiseKey(redacted)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NoiseKey can be neither pickled nor copied")


@dataclass(frozen=True, eq=False, repr=False)
class ReleaseCells:
    """Releases a batch of cells on a worker; its failures show no value.

    It is made on the driver, where the mechanism's tables are built: workers with other processors would build others.
    """

    code: str
    mechanism: Mechanism
    key: SecretKey
    query: int
    interval: Fraction
    integer: bool

    def __post_init__(self) -> None:
        rehearse(self.mechanism, self.interval)

    def __call__(self, cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        """Return the columns `value`, `lower`, `upper`, `standard_error` of a batch."""
        return guarded(lambda: self._released(cells, totals))

    def _released(self, cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        require_same_code(self.code)
        if cells.dtype != np.int64 or totals.dtype != np.int64:  # missing values make others
            raise TaskFailed("cells and totals must be of type long, without missing values")
        if cells.lt(0).any() or cells.duplicated().any():
            raise TaskFailed("cells must be numbers from 0, each once")
        if totals.lt(0 if self.mechanism.needs_nonnegative else -LARGEST).any():
            raise TaskFailed("a total lies below what the mechanism allows: 0, or −(2⁶³ − 1)")
        return release_frame(
            pd.DataFrame({"cell": cells, "total": totals}),
            (self.mechanism,),
            key=self.key,
            query=self.query,
            interval=self.interval,
            integer=self.integer,
        )[list(VALUES)]


def mechanism_udf(  # noqa: PLR0913 — the keystream's address beside the mechanism
    session: SparkSession,
    mechanism: Mechanism | WithMechanism,
    key: NoiseKey,
    *,
    query: int = 0,
    interval: float = 0.95,
    integer: bool = True,
) -> Callable[..., Any]:
    """Return a pandas UDF of two columns, a cell's number and its exact total, that releases the total.

    Guarantee: what it returns for a cell satisfies the mechanism's, if each of these is true. **No ledger accounts for
    it**: who calls it adds the loss up with every other release of the same records, and sees to it that

    - the rows are the public cells, all of them, whatever the records hold: a cell without records has the total 0;
    - the cells are disjoint, and the numbers of cells, from 0, depend on nothing confidential, each on one row;
    - totals are exact sums of records in whole steps of the mechanism, of magnitude at most 2⁶³ − 1, of records that
      the mechanism allows (`needs_nonnegative`: none below 0; `counts_only`: counts of records);
    - totals are materialised before the UDF is applied: evaluated anew, it draws the same noise, and the difference of
      two totals with the same noise is the difference of the records (so it is applied once; select its column's fields
      to use them again);
    - nothing but the four fields leaves the cluster, and the totals lie nowhere in the clear.

    Args:
        session: A session whose configuration encrypts what it stores and sends (docs/architecture.md, rule 4).
        mechanism: One of `prdp.mechanisms`, or the exact object underneath.
        key: `NoiseKey()`, of this call's release alone.
        query: The query's number; with the same key each number is used once.
        interval: The coverage of `lower` … `upper`, above 0 and below 1.
        integer: Whether the measure is an integer: values of additive mechanisms are then whole numbers.

    Returns:
        A UDF of (cell: long, total: long) whose value is a struct of `value`, `lower`, `upper` (long, or double in the
        measure's unit) and `standard_error` (double, in the measure's unit). The noise of a cell depends on key, query
        and cell alone, not on partitions. Applied a second time, the UDF raises PlanError.

    Raises:
        PlanError: The session is not safe to hold a key, the query's number is used up, or an argument is wrong.

    Examples:
        >>> release = mechanism_udf(spark, Gaussian(sigma=10), NoiseKey())       # doctest: +SKIP
        >>> cells.select("cell", release("cell", "total").alias("released"))     # doctest: +SKIP
    """
    if not 0 < interval < 1:
        raise PlanError(f"interval {interval}: it must lie above 0 and below 1")
    exact = mechanism if isinstance(mechanism, Mechanism) else mechanism.mechanism
    if integer and exact.step != 1:
        raise PlanError(f"step {exact.step}: totals of an integer measure are counted in steps of 1")
    driver_of(session).require_safe()
    number = "long" if integer and exact.additive else "double"
    release = ReleaseCells(code_digest(), exact, key.for_query(query), query, Fraction(str(interval)), integer)

    def released(cells: pd.Series, totals: pd.Series) -> pd.DataFrame:
        return release(cells, totals)

    fields = ", ".join(f"{name} {number}" for name in VALUES[:-1])
    udf: Callable[..., Any] = pandas_udf(released, f"{fields}, {VALUES[-1]} double")  # type: ignore[call-overload]
    return _once(udf)


def _once(udf: Callable[..., Any]) -> Callable[..., Any]:
    """Return a UDF that can be applied once: to other totals it would add the same noise."""
    unused = threading.Lock()

    def applied(cell: Any, total: Any) -> Any:
        if not unused.acquire(blocking=False):
            raise PlanError("this UDF was applied already, and has no other noise: make one with another query number")
        return udf(cell, total)

    return applied
