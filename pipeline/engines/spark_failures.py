"""How a failure leaves a Spark worker: as one line that names its kind and says no value, and is read by the driver.

Spark shows the text of a task's exception to its logs and to the driver, with all exceptions that it came from.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipeline.engines.protocol import TaskFailed
from pipeline.errors import MicrodataError, PrdpError
from udfs.contract import ContractBroken

TOLD: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ContractBroken, MicrodataError, TaskFailed, PrdpError)
}
MARK = "prdp-failure"
_LINE = re.compile(MARK + r" (\{.*\})")


class WorkerFailure(Exception):
    """What a worker may tell of a failure."""


class Guarded(ABC):
    """A task whose failures tell no value."""

    @abstractmethod
    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the task makes of its batches."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the task makes of its batches; raises WorkerFailure alone."""
        failure = ""
        try:
            yield from self.rows(batches)
        except Exception as error:
            failure = said(error)
        if failure:  # outside the handler, so that the value-bearing exception is not kept as context
            raise WorkerFailure(failure)


def said(error: Exception) -> str:
    """Return the line for an error: our own errors hold no values, of any other only its kind is told."""
    kind = type(error).__name__
    told = {"kind": kind, "args": error.args} if kind in TOLD else {"kind": "", "args": [kind]}
    return f"{MARK} {json.dumps(told)}"


def understood(text: str) -> Exception:
    """Return the error to raise for what Spark says of a failed job; it repeats nothing of it but our own lines."""
    found = _LINE.search(text)
    if found:
        told = json.loads(found.group(1))
        if told["kind"] in TOLD:
            return TOLD[told["kind"]](*told["args"])
        return TaskFailed(f"a task on a Spark worker failed ({told['args'][0]})")
    if "PYTHON_VERSION_MISMATCH" in text:
        return TaskFailed("a Spark worker runs another Python than the driver: set PYSPARK_PYTHON to the same version")
    if re.search(
        r"(ModuleNotFoundError|ImportError|AttributeError|FileNotFoundError).*(pipeline|udfs|cloudpickle)", text
    ):
        return TaskFailed("a Spark worker cannot import prdp: install it there, or send it by --py-files (make pack)")
    if "OutOfMemoryError" in text or "ExecutorLostFailure" in text:
        return TaskFailed("Spark lost executors, perhaps for want of memory: give them more, see its own logs")
    return TaskFailed("Spark gave up; see its own logs, which are confidential")
