"""What the workers of every engine run: sums of a chunk, noise on a block, any task on an item.

No failure shows a value: prdp's own errors hold none, and of any other only the kind leaves the task.
"""

import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError, exhausted
from pipeline.engines.protocol import Item, Result, TaskFailed
from pipeline.engines.writers import Block, write_block
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk, shown
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal, staging_errors
from udfs.noise.keystream import SecretKey
from udfs.records.contract import ColumnUnfit, ContractBroken
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.sums import Frame, sum_batches


def system_reason(error: Exception) -> str:
    """Return the operating system's words for an error, without the file that it names; of any other the kind."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def without_values(
    run: Callable[[], Result], failed: Callable[[str], PrdpError], reason: Callable[[Exception], str] = system_reason
) -> Result:
    """Return the result of `run`; raises prdp's own errors as they are, and of any other `failed` of its reason.

    Where memory or threads are exhausted, it raises PrdpError: nothing is wrong with what was read or written.
    """
    try:
        return run()
    except (PrdpError, ContractBroken):
        raise
    except Exception as error:  # messages of Arrow and Python may show values
        failure, lacking = reason(error), exhausted(error)
    # Outside the handler, so that the value-bearing exception is not kept as context.
    raise PrdpError(lacking) if lacking else failed(failure)


def reading(chunk: Chunk, run: Callable[[], Result]) -> Result:
    """Return the result of `run`, which reads a chunk; of any other library's error a MicrodataError names the kind."""
    path = shown(chunk[0].path)
    return without_values(
        run,
        lambda kind: MicrodataError(f"microdata {path}: reading failed ({kind}); check that the file is whole"),
        lambda error: type(error).__name__,  # Arrow puts paths, which may show values, where the system's words stand
    )


def decoded(chunk: Chunk, spec: SumSpec, run: Callable[[Decoder, pa.RecordBatch], Result]) -> Iterator[Result]:
    """Yield the result of `run` for each batch of a chunk; raises as `reading` does."""
    decoder, batches = Decoder(spec), read(chunk, spec)

    def step() -> tuple[Result] | None:
        batch = next(batches, None)
        return None if batch is None else (run(decoder, batch),)

    while (result := reading(chunk, step)) is not None:
        yield result[0]


def require_same_code(code: str) -> None:
    """Return if this process runs the code whose digest is `code`; raises TaskFailed otherwise."""
    if code_digest() != code:
        raise TaskFailed("a worker runs another build of prdp than the driver: install the same on all machines")


@dataclass(frozen=True)
class SumTask:
    """Sums one chunk on a worker.

    `run` differs for every run: a cluster names tasks by their arguments, and shares the results of equal ones, even
    with a run that read the files before they changed. Threads share nothing and need none.
    """

    spec: SumSpec
    code: str
    run: str = ""

    def __call__(self, chunk: Chunk) -> Frame:
        """Return the chunk's frame of sums."""
        require_same_code(self.code)
        return reading(chunk, lambda: sum_batches(read(chunk, self.spec), self.spec))


@dataclass(frozen=True, eq=False, repr=False)
class SealedBlock:
    """Where a block of the table `query` lies sealed: for engines whose tasks pass through other processes."""

    query: str
    file: Location
    seal: Seal

    @classmethod
    def of(cls, block: Block, file: Location, seal: Seal) -> "SealedBlock":
        """Seal a block in a file; raises StateError where its place does not take it."""
        with staging_errors(f"table {block.query}"):
            file.write(seal.encrypt(file.name, pickle.dumps(block)))
        return cls(block.query, file, seal)

    def block(self) -> Block:
        """Return the block; raises cryptography's InvalidTag where the file is not as it was written."""
        block: Block = pickle.loads(self.seal.decrypt(self.file.name, self.file.read()))
        return block


@dataclass(frozen=True)
class NoiseTask:
    """Releases and writes one block on a worker."""

    code: str

    def __call__(self, block: Block | SealedBlock, *, key: SecretKey) -> int:
        """Write the block's file; return its number of rows."""
        require_same_code(self.code)
        return without_values(
            lambda: _written(block, key),
            lambda reason: TaskFailed(f"table {block.query}: drawing it failed ({reason})"),
        )


def _written(block: Block | SealedBlock, key: SecretKey) -> int:
    with staging_errors(f"table {block.query}"):
        opened = block.block() if isinstance(block, SealedBlock) else block
        write_block(opened, key)
        return opened.size


@dataclass(frozen=True, eq=False, repr=False)
class EachTask(Generic[Item, Result]):
    """Runs a task on an item on a worker."""

    task: Callable[[Item], Result]
    code: str

    def __call__(self, item: Item) -> Result:
        """Return the task's result for the item."""
        require_same_code(self.code)
        return without_values(
            lambda: self.task(item), lambda reason: TaskFailed(f"a task failed on a worker ({reason})")
        )


# How a failure leaves a Spark worker: as a record of its kind and fields, in one line, which the driver reads.
#
# Spark shows the text of a task's exception to its logs and to the driver, with all exceptions that it came from. So a
# task raises WorkerFailure alone, whose text is a `Failure` as JSON; no error's own text is ever interpreted.

MARK = "prdp-failure"
_LINE = re.compile(MARK + r" (\{.*\})")
# The errors that cross as they are; their fields, the arguments that make them again, are plain text without values.
OUR_OWN: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ColumnUnfit, ContractBroken, MicrodataError, PlanError, StateError, TaskFailed, PrdpError)
}
MEMORY = "give it more memory; Spark's own logs, which are confidential, say more"
THREADS = "raise its limit of threads (ulimit -u, or the container's)"
BY_SIGN = (  # signs of failures in Spark's text, or in the kind of an error; the first that is there counts
    ("PYTHON_VERSION_MISMATCH", "a Spark worker runs another Python than the driver: set PYSPARK_PYTHON to the same"),
    ("unable to create (new )?native thread|start new thread", f"Spark is out of threads on a machine: {THREADS}"),
    (
        r"MemoryError|OutOfMemoryError|bad_alloc|failed to map segment",
        f"a Spark worker has too little memory: {MEMORY}",
    ),
    (
        r"ModuleNotFoundError|ImportError|AttributeError.*(pipeline|udfs|cloudpickle)",
        "a Spark worker cannot import prdp or a library of it: install prdp there; its code alone can be sent by "
        "--py-files (make pack)",
    ),
    (r"^(Py4J(Network)?|Connection\w+|BrokenPipe)Error", f"Spark's driver ended in the middle of the run: {MEMORY}"),
    (
        r"(?s)^SparkConnect\w+ .*(UNAVAILABLE|INVALID_HANDLE|SESSION_NOT_FOUND|NO_ACTIVE_SESSION)",
        "the server of Spark Connect is out of reach, or has ended: start it, and run again",
    ),
    ("Cannot run program", "a Spark worker cannot start Python: set PYSPARK_PYTHON to one that all workers have"),
    (
        "Python worker (exited|failed)|EOFException",
        f"the Python of a Spark worker died again and again, perhaps for want of memory: {MEMORY}",
    ),
    (
        "ExecutorLostFailure|Master removed our application|SparkContext was shut down",
        f"Spark lost its executors again and again, perhaps for want of memory: {MEMORY}",
    ),
)


@dataclass(frozen=True)
class Failure:
    """What a worker says of a failure: the kind of error, and the fields of one of OUR_OWN; of others, none."""

    kind: str
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return the failure that an error stands for."""
        if lacking := exhausted(error):
            return cls(PrdpError.__name__, (f"a Spark worker is {lacking}",))
        kind = type(error).__name__
        return cls(kind, tuple(map(str, error.args)) if OUR_OWN.get(kind) is type(error) else ())

    def line(self) -> str:
        """Return the failure as one line of text, which `in_text` finds."""
        return f"{MARK} {json.dumps(asdict(self))}"

    @classmethod
    def in_text(cls, text: str) -> "Failure | None":
        """Return the first failure in Spark's text, None where there is none."""
        line = _LINE.search(text)
        if line is None:
            return None
        failure = json.loads(line.group(1))
        return cls(failure["kind"], tuple(failure["fields"]))

    def error(self) -> Exception:
        """Return the error for the driver to raise."""
        if self.kind in OUR_OWN and self.fields:
            return OUR_OWN[self.kind](*self.fields)
        return TaskFailed(_by_sign(self.kind) or f"a task on a Spark worker failed ({self.kind})")


def job_error(text: str) -> Exception:
    """Return the error for the driver to raise, from Spark's text on a failed job; it repeats nothing of that text."""
    failure = Failure.in_text(text)
    if failure is not None:
        return failure.error()
    return TaskFailed(_by_sign(text) or "Spark gave up; see its own logs, which are confidential")


def _by_sign(text: str) -> str | None:
    return next((words for sign, words in BY_SIGN if re.search(sign, text)), None)


class WorkerFailure(Exception):
    """All that a worker raises; its text is the line of a Failure."""


def guarded(run: Callable[[], Result]) -> Result:
    """Return the result of `run` on a worker; raises WorkerFailure alone."""
    try:
        return run()
    except Exception as error:
        failure = Failure.of(error)
    # Outside the handler, so that the value-bearing exception is not kept as context.
    raise WorkerFailure(failure.line())


Batch = TypeVar("Batch")  # of rows: Arrow's record batches, or pandas frames


class Guarded(ABC, Generic[Batch]):
    """A task of the build whose digest is `code`, and whose failures show no value."""

    code: str

    @abstractmethod
    def rows(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the task's rows for its batches."""

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the task's rows for its batches; raises WorkerFailure alone."""
        failure = None
        try:
            require_same_code(self.code)
            yield from self.rows(batches)
        except Exception as error:
            failure = Failure.of(error)
        if failure is not None:  # outside the handler, so that the value-bearing exception is not kept as context
            raise WorkerFailure(failure.line())
