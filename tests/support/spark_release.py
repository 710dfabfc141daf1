"""Child process: a release on a Spark cluster under the known key; says its stages, then the name of its attempt.

Arguments: the plan, the folder of the release, and the master. At each stage it waits for a line of its input.
"""

import sys
from pathlib import Path

from pipeline.engines.spark import SparkEngine
from tests.support.submit import Place, submit


def stage(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    engine = SparkEngine(sys.argv[3])
    published = submit(Place(Path(sys.argv[1]), Path(sys.argv[2])), engine=engine, say=stage)
    print("published", published.attempt, flush=True)
    engine.close()
