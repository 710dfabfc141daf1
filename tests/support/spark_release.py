"""Child process: releases on a Spark cluster under the known key, one after the other; it says their stages.

Arguments: the master, then a plan and the folder of its release for each. At each stage it waits for a line of input.
"""

import sys
from pathlib import Path

from pipeline.engines.spark import SparkEngine
from tests.support.submit import Place, submit


def stage(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    engine = SparkEngine(sys.argv[1])
    given = [Path(argument) for argument in sys.argv[2:]]
    for plan, folder in zip(given[::2], given[1::2], strict=True):
        submit(Place(plan, folder), engine=engine, say=lambda name, folder=folder: stage(f"{folder.name}: {name}"))
    engine.close()
