"""Spark: the engine for clusters. Workers open the files themselves; Spark moves, groups and repeats their work.

    chunks of files ─► sums of each, in slices of cells ─► shuffled by slice, added up, rolled up to each table's cells
                    ─► shuffled by file, added up, sealed: the totals, materialised
    (drawn, key) files of a table ─► sealed totals, or zeros ─► released and written

The driver sees the indexes of slices and files, and nothing of what is in them. Once a key exists, no task reads
microdata or a shuffle: a worker that dies takes nothing with it that would have to be summed again.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import BinaryType, LongType, StructType

from pipeline.base.canonical import code_digest
from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log
from pipeline.engines import spark_tasks
from pipeline.engines.protocol import Destination, Engine, Input, Item, Result, TaskFailed, counted_as
from pipeline.engines.spark_driver import Driver, connected, driver_of, in_plain_words, is_connect, require_address
from pipeline.engines.spark_frames import PACKED_ROWS, RECORDS, CatalogTable, find_table, settings
from pipeline.engines.spark_session import Get, end, open_session, require_here, submitted
from pipeline.engines.tasks import EachTask, Guarded
from pipeline.engines.totals import Layout, require_unbroken
from pipeline.engines.writers import Block
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging
from udfs.noise.keystream import SecretKey
from udfs.records.sums import UNCOUNTED, RecordCounts

PACKED = StructType().add("index", LongType()).add("packed", BinaryType())  # a slice or file, and numbers of it
DONE = StructType().add("index", LongType()).add("outcome", LongType())  # of names Java would make a reader of SQL
TASKS_A_CORE = 4
FEWEST_TASKS = 64  # chunks are joined down to these, or to TASKS_A_CORE times the cores if that is more

Task = Guarded[pa.RecordBatch]


class SparkEngine(Engine):
    """Runs a release on the Spark of `spark-submit`, or on a session of its own at `master` (default: local[*]).

    A master sc://… is a server of Spark Connect (spark_driver.py).

    The session is opened when it is first needed. Workers need the same build of prdp, and must reach the microdata
    and the staging folder. Refuses a Spark that sends or stores anything in the clear beyond this machine.
    """

    name = "spark"
    pickles_late = False

    def __init__(self, master: str | None = None, log: Log | None = None) -> None:
        if master is not None and submitted():
            raise PlanError(f"{arg('master')}: under spark-submit, give it to spark-submit itself")
        if master is not None:
            (require_address if is_connect(master) else require_here)(master)
        self.master, self.log = master, log or Log()
        self._session: SparkSession | None = None
        self._mine = False  # else it is the session of this process's own program

    def versions(self) -> Mapping[str, str]:
        return {"pyspark": pyspark.__version__} | {name: version(name) for name in ("numpy", "pyarrow")}

    @property
    def driver_moves(self) -> bool:
        return in_cluster_mode()

    @property
    def session(self) -> SparkSession:
        """The session, opened on first use."""
        if self._session is None:
            self._session = self._opened()
        return self._session

    def _opened(self) -> SparkSession:
        if self.master is not None and is_connect(self.master):
            self._mine = True
            session: SparkSession = connected(self.master)
            return session
        self._mine = SparkContext._active_spark_context is None
        if self._mine and not submitted():
            self.log.progress("starting Java")
        return open_session(self.master)

    @cached_property
    def driver(self) -> Driver:
        """Spark's driver, as far as PySpark itself does not reach it alike."""
        return driver_of(self.session)

    def close(self) -> None:
        """End the session that this engine opened, if any; nothing happens where its Java is gone already."""
        if self._session is not None and self._mine:
            with suppress(Py4JError, OSError), catch_warnings():
                simplefilter("ignore", RuntimeWarning)  # of PySpark, that the Java is gone
                end(self._session)
        self._session = None
        self.__dict__.pop("driver", None)

    def table(self, name: str) -> CatalogTable:
        return find_table(self.session, name)

    def totals(
        self, microdata: Input, layout: Layout, scratch: Staging, before: RecordCounts = UNCOUNTED
    ) -> "SealedTotals":
        scratch.create()
        vault = spark_tasks.Vault(scratch.path, Seal.fresh())
        shared = spark_tasks.Shared(self.driver.shipped(pickle.dumps(layout)))
        code = code_digest()
        summed = self._summed(microdata, layout, code, shared)
        slices_at_most = layout.spec.offsets[-1] // spark_tasks.SLICE_CELLS + 2
        files = spark_tasks.Files(layout.tables)
        parts = self._by_index(summed, slices_at_most, spark_tasks.AddSlices(code, shared), PACKED)
        add = spark_tasks.AddFiles(code, shared, vault)
        added_up = self._by_index(parts, files.first[-1] + 1, add, DONE)
        stages = counted_as("sums", microdata), "adding up", "totals"
        outcomes = self._outcomes(added_up, *stages, sent=PACKED_ROWS if isinstance(microdata, Sequence) else RECORDS)
        require_unbroken(layout, (outcome for _, outcome in outcomes if outcome != spark_tasks.SEALED))
        sealed = frozenset(require_once(index for index, outcome in outcomes if outcome == spark_tasks.SEALED)) - {
            spark_tasks.BROKEN
        }
        return SealedTotals(self, files, shared, vault, sealed, before + vault.counts())

    def each(self, task: Callable[[Item], Result], items: Sequence[Item], counted: str = "") -> list[Result]:
        code = code_digest()
        frame = self._numbers(len(items), len(items)).mapInPandas(
            spark_tasks.EachItem(code, EachTask(task, code), items), PACKED
        )
        results = {row["index"]: pickle.loads(row["packed"]) for row in self._collected(frame, counted)}
        if len(results) != len(items):
            raise TaskFailed("Spark left out a task; see its own logs")
        return [results[number] for number in range(len(items))]

    def stage(self, files: int, cells: int, task: spark_tasks.StageFiles) -> None:
        """Have all `files` of some tables written, which hold `cells` cells together."""
        written = self._outcomes(self._numbers(files, self._tasks).mapInPandas(task, DONE), "noise")
        if len(require_once(number for number, _ in written)) != files or sum(rows for _, rows in written) != cells:
            raise TaskFailed("Spark left out a file of a table, or a part of one; see its own logs")

    def _summed(self, microdata: Input, layout: Layout, code: str, shared: spark_tasks.Shared) -> DataFrame:
        if isinstance(microdata, CatalogTable):
            records = microdata.frame(layout.spec.columns)
            return records.coalesce(max(FEWEST_TASKS, self._tasks)).mapInArrow(
                spark_tasks.SumRecords(code, shared), PACKED
            )
        if not isinstance(microdata, Sequence):
            raise TypeError("a table of another engine")
        # Joined to as many tasks as keep the cluster busy: each sends its sums only once.
        tasks = min(max(FEWEST_TASKS, self._tasks), len(microdata))
        work = [sum(microdata[i::tasks], ()) for i in range(tasks)]
        return self._numbers(len(work), len(work)).mapInArrow(spark_tasks.SumChunks(code, shared, work), PACKED)

    @property
    def _tasks(self) -> int:
        """The number of tasks that keeps the cluster busy: each costs some tens of milliseconds beside its work."""
        return TASKS_A_CORE * self.driver.parallelism

    def _numbers(self, numbers: int, tasks: int) -> DataFrame:
        return self.session.range(0, numbers, 1, max(1, min(numbers, tasks)))

    def _by_index(self, packed: DataFrame, indexes: int, task: Task, schema: StructType) -> DataFrame:
        """Run a task over packed rows, those of one index together and one after the other."""
        shuffled = packed.repartition(min(indexes, self._tasks), "index").sortWithinPartitions("index")
        return shuffled.mapInArrow(task, schema)

    def _outcomes(self, *of: Any, sent: Mapping[str, str] = PACKED_ROWS) -> list[tuple[int, int]]:
        return [(row["index"], row["outcome"]) for row in self._collected(*of, sent=sent)]

    def _collected(self, frame: DataFrame, *stages: str, sent: Mapping[str, str] = PACKED_ROWS) -> list[Row]:
        """Return the rows of a frame; `stages` are the names of the stages whose tasks are counted in the log."""
        with in_plain_words(), settings(self.session, sent), self.driver.working(self.log, stages):
            return frame.collect()


def in_cluster_mode() -> bool:
    """Whether spark-submit has this driver run on a machine of the cluster's choosing."""
    if not submitted():
        return False
    SparkContext._ensure_initialized()
    conf = SparkConf()
    return chosen_by_cluster(lambda key: conf.get(key, None))


def chosen_by_cluster(get: Get) -> bool:
    """Whether a configuration is one of cluster mode; on Kubernetes the driver's own says client mode."""
    return get("spark.submit.deployMode") == "cluster" or get("spark.kubernetes.submitInDriver") == "true"


def require_once(indexes: Iterable[int]) -> list[int]:
    """Return indexes in order; raises TaskFailed where two tasks had a part of the same one."""
    ordered = sorted(indexes)
    if len(set(ordered)) != len(ordered):
        raise TaskFailed("Spark gave one slice or file to two tasks: nothing is released")
    return ordered


@dataclass(frozen=True, eq=False, repr=False)
class SealedTotals:
    """The totals, in sealed files of a private folder that all workers reach; a file without records has none."""

    engine: SparkEngine
    files: spark_tasks.Files
    shared: spark_tasks.Shared
    vault: spark_tasks.Vault
    sealed: frozenset[int]
    records: RecordCounts

    def stage(self, places: Sequence[Destination], key: SecretKey) -> None:
        """Release and write the files of tables in parallel."""
        first, end = self.files.first[places[0].table], self.files.first[places[-1].table + 1]
        task = spark_tasks.StageFiles(code_digest(), self._totals, places, first, key)
        self.engine.stage(end - first, sum(self.files.tables[place.table].cells.size for place in places), task)

    def over(self, table: int, task: Callable[[Block], Result]) -> list[Result]:
        """Return the task's result for each file's totals."""
        files = range(*self.files.first[table : table + 2])
        return self.engine.each(spark_tasks.OverFile(self._totals, task), files, "files")

    @property
    def _totals(self) -> spark_tasks.SealedFiles:
        return spark_tasks.SealedFiles(self.shared, self.vault, self.sealed)


@contextmanager
def engine_on(session: Any, log: Log | None = None) -> Iterator[SparkEngine]:
    """Yield an engine on a user's session, which stays open, with its settings, when the block ends."""
    driver_of(session).require_safe()
    engine = SparkEngine(log=log)
    engine._session = session
    yield engine
