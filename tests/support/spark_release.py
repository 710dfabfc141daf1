"""Child process: releases on a Spark cluster under the known key, one after the other; it says their stages.

Arguments: the master, or "-" under spark-submit; a folder for the marks of dawdling tasks (dawdle.py), or "-" for
ordinary ones; then a plan and the folder of its release for each. At each stage it waits for a line of input, but for
spark-submit, which gives none.
"""

import sys
from pathlib import Path

from pipeline.engines.spark import SparkEngine
from pipeline.microdata import source
from tests.support.dawdle import DawdlingEngine
from tests.support.submit import Place, submit

DAWDLED_RECORDS = 100  # in a chunk: small data make several tasks


def stage(name: str) -> None:
    print(name, flush=True)
    if sys.argv[1] != "-":
        sys.stdin.readline()


def engine_of(master: str | None, marks: str) -> SparkEngine:
    if marks == "-":
        return SparkEngine(master)
    source.CHUNK_RECORDS = DAWDLED_RECORDS
    return DawdlingEngine(master, Path(marks))


if __name__ == "__main__":
    engine = engine_of(None if sys.argv[1] == "-" else sys.argv[1], sys.argv[2])
    given = [Path(argument) for argument in sys.argv[3:]]
    for plan, folder in zip(given[::2], given[1::2], strict=True):
        submit(Place(plan, folder), engine=engine, say=lambda name, folder=folder: stage(f"{folder.name}: {name}"))
    engine.close()
