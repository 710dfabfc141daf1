"""How a failure leaves a Spark worker: as one line that names its kind and says no value, and is read by the driver.

Spark shows the text of a task's exception to its logs and to the driver, with all exceptions that it came from.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from pipeline.engines.protocol import TaskFailed
from pipeline.errors import MicrodataError, PrdpError
from udfs.records.contract import ContractBroken

TOLD: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (ContractBroken, MicrodataError, TaskFailed, PrdpError)
}
MEMORY = "give it more memory; Spark's own logs, which are confidential, say more"
SAID_BY_SPARK = (  # of several signs in one text the first counts
    ("PYTHON_VERSION_MISMATCH", "a Spark worker runs another Python than the driver: set PYSPARK_PYTHON to the same"),
    (
        r"MemoryError|OutOfMemoryError|bad_alloc|failed to map segment",
        f"a Spark worker has too little memory: {MEMORY}",
    ),
    (
        r"ModuleNotFoundError|ImportError|AttributeError.*(pipeline|udfs|cloudpickle)",
        "a Spark worker cannot import prdp or a library of it: install prdp there; its code alone can be sent by "
        "--py-files (make pack)",
    ),
    ("^Py4J(Network)?Error", f"Spark's driver ended in the middle of the run: {MEMORY}"),
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
MARK = "prdp-failure"
_LINE = re.compile(MARK + r" (\{.*\})")


class WorkerFailure(Exception):
    """What a worker may tell of a failure."""


Batch = TypeVar("Batch")  # of rows: Arrow's record batches, or pandas frames


class Guarded(ABC, Generic[Batch]):
    """A task whose failures tell no value."""

    @abstractmethod
    def rows(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield what the task makes of its batches."""

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
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
        text = told["args"][0]
        unknown = f"a task on a Spark worker failed ({text})"
    else:
        unknown = "Spark gave up; see its own logs, which are confidential"
    return TaskFailed(next((words for pattern, words in SAID_BY_SPARK if re.search(pattern, text)), unknown))
