"""A Spark engine of which the first task of each stage dawdles once its work is done, and every task leaves a mark."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame

from pipeline.engines.spark import SparkEngine

SECONDS = 20  # far beyond what a copy of the task takes; Spark stops the dawdler when the copy is done


@dataclass(frozen=True)
class Dawdling:
    """A task and where its marks lie: files <task>-<partition>-<attempt>."""

    task: Callable[[Iterator[Any]], Iterator[Any]]
    marks: Path

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (self.marks / f"{type(self.task).__name__}-{partition}-{attempt}").touch()
        yield from self.task(batches)
        if partition == attempt == 0:
            time.sleep(SECONDS)


class DawdlingNumbers:
    """Numbers for tasks, over which these dawdle."""

    def __init__(self, numbers: DataFrame, marks: Path) -> None:
        self.numbers, self.marks = numbers, marks

    def mapInArrow(self, task: Any, schema: str) -> DataFrame:  # noqa: N802 — Spark's own names
        return self.numbers.mapInArrow(Dawdling(task, self.marks), schema)

    def mapInPandas(self, task: Any, schema: str) -> DataFrame:  # noqa: N802
        return self.numbers.mapInPandas(Dawdling(task, self.marks), schema)


class DawdlingEngine(SparkEngine):
    """Marks and slows the tasks that run over numbers, where a stage has several of them."""

    def __init__(self, master: str | None, marks: Path) -> None:
        super().__init__(master)
        self.marks = marks

    def _numbers(self, numbers: int, tasks: int) -> Any:
        frame = super()._numbers(numbers, tasks)
        return DawdlingNumbers(frame, self.marks) if numbers > 1 else frame
