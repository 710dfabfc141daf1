"""What Spark's workers do with totals that are materialised, and with items of any kind: functions of pandas frames.

A frame holds numbers, of files or of items; what is done for each of them is whole arrays at a time.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.engines.protocol import NoiseTask, require_same_code
from pipeline.engines.spark_failures import Guarded
from pipeline.engines.spark_tasks import Files, Shared, Vault
from pipeline.storage import Place
from pipeline.tables import Block
from udfs.keystream import SecretKey


@dataclass(frozen=True, eq=False, repr=False)
class SealedFiles:
    """The exact totals of one table's files, given by their numbers in it; a file without sealed ones is all zero."""

    shared: Shared
    vault: Vault
    table: int
    sealed: frozenset[int]

    def blocks(self, numbers: Iterable[int], folder: Place) -> Iterator[tuple[int, Block]]:
        """Yield each number and its block, whose file lies in `folder`."""
        files = Files(self.shared.layout.tables)
        for number in numbers:
            place = files.first[self.table] + number
            table, name, first, end = files.at(place)
            totals = self.vault.read("totals", place)["total"] if place in self.sealed else np.zeros(end - first, int)
            yield number, table.block(first, end, totals, folder / name)


@dataclass(frozen=True, eq=False, repr=False)
class StageFiles(Guarded[pd.DataFrame]):
    """Releases and writes files of one table, given by their numbers in it: a vectorised function of pandas frames.

    The key is part of the task itself, which Spark encrypts where it stores or sends it (spark_session.py).
    """

    code: str
    files: SealedFiles
    folder: Place
    key: SecretKey

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the number of each written file, as its place, and how many rows it has."""
        require_same_code(self.code)
        write = NoiseTask(self.code)
        for number, block in self.files.blocks(_ids(batches), self.folder):
            written = write(block, key=self.key)
            yield pd.DataFrame({"place": number, "said": written["rows"]})


@dataclass(frozen=True, eq=False, repr=False)
class OverFile:
    """Runs a task on the totals of one file of a table, given by its number in it."""

    files: SealedFiles
    task: Callable[[Block], Any]

    def __call__(self, number: int) -> Any:
        """Return what the task makes of the file's block."""
        ((_, block),) = self.files.blocks([number], Path())
        return self.task(block)


@dataclass(frozen=True, eq=False, repr=False)
class EachItem(Guarded[pd.DataFrame]):
    """Runs a task over items, given by their numbers: a vectorised function of pandas frames."""

    task: Callable[[Any], Any]
    items: Sequence[Any]

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield each item's number, as its place, and its pickled result."""
        for number in _ids(batches):
            yield pd.DataFrame({"place": [number], "packed": [pickle.dumps(self.task(self.items[number]))]})


def _ids(frames: Iterable[pd.DataFrame]) -> Iterator[int]:
    return (int(number) for frame in frames for number in frame["id"])
