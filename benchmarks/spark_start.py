"""How long a whole release on Spark takes, from the shell and back, beside bare Spark's own sums and another checkout.

Every contender runs in processes of its own, Java and workers included; they take turns, and medians of the rounds
count: seconds by the clock, and of all processors, which other programs disturb less.

    prdp    prdp release --engine spark of one table: employment by industry of so many digits and by county
    beside  the same by another checkout of prdp
    bare    a PySpark program that groups the same files by the same codes, adds up and writes the sums to Parquet:
            no cells without records, no noise, no ledger, no pages, nothing encrypted

    python -m benchmarks.spark_start [--records N …] [--digits N …] [--rounds N] [--cores N] [--beside CHECKOUT]
"""

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

import yaml

from pipeline.economy.generate import generate
from pipeline.engines.spark_session import java_home, private_folder

ROOT = Path(__file__).parents[1]
ADOPT = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent ends become this one's, which waits for them
BARE = """
import sys
from pyspark.sql import SparkSession, functions as f
master, digits, data, out = sys.argv[1:]
settings = {"spark.master": master, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
session = SparkSession.builder.config(map=settings | {"spark.ui.showConsoleProgress": "false"}).getOrCreate()
keys = [f.substring("naics", 1, int(digits)).alias("naics"), "county"]
session.read.parquet(data).groupBy(*keys).agg(f.sum("employment").alias("value")).write.parquet(out)
session.stop()
"""

Times = tuple[float, float]


def main() -> None:
    """Let the contenders take turns on each size, and print medians and their ratios."""
    given = _arguments()
    ctypes.CDLL(None).prctl(ADOPT, 1)
    java = {"JAVA_HOME": str(java_home(os.environ, private_folder())), "PYSPARK_PYTHON": sys.executable}
    print("   records digits         wall      CPU   prdp's share of wall and CPU")
    for records in given.records:
        with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
            made = generate(records, 1, Path(name) / "data", threads=given.cores).plan
            for digits in given.digits:
                plan = _plan(made, digits)
                runs: dict[str, list[Times]] = {}
                for _ in range(given.rounds):
                    for contender, tree in (("prdp", ROOT), ("beside", given.beside)):
                        if tree is not None:
                            runs.setdefault(contender, []).append(_release(plan, tree, given.cores))
                    out = made.with_name("bare")
                    words = (f"local[{given.cores}]", str(digits), str(made.with_name("microdata")), str(out))
                    runs.setdefault("bare", []).append(_timed(["-c", BARE, *words], java))
                    shutil.rmtree(out)
                middle = {name: tuple(map(median, zip(*times, strict=True))) for name, times in runs.items()}
                for contender, (wall, cpu) in middle.items():
                    shares = f"{middle['prdp'][0] / wall:6.2f} {middle['prdp'][1] / cpu:5.2f} of {contender}"
                    print(f"{records:10,} {digits:6} {wall:10.2f} s {cpu:6.2f} s", shares * (contender != "prdp"))


def _release(plan: Path, tree: Path, cores: int) -> Times:
    with tempfile.TemporaryDirectory(dir=plan.parent) as at:
        words = ["release", str(plan), "--engine", "spark", "--master", f"local[{cores}]", "--out", f"{at}/out"]
        return _timed(["-m", "jobs.cli", *words, "--quiet"], {"PYTHONPATH": str(tree), "XDG_STATE_HOME": at})


def _plan(generated: Path, digits: int) -> Path:
    plan = yaml.safe_load(generated.read_text())
    mechanism = {"kind": "gaussian", "sigma": 20}
    plan["queries"] = [
        {"name": "table", "sum": "employment", "by": [f"naics{digits}", "county"], "mechanism": mechanism}
    ]
    plan["budget"] = []
    path = generated.with_name(f"naics{digits}.yaml")
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


def _timed(words: Sequence[str], environment: Mapping[str, str]) -> Times:
    """Run a Python program; return its seconds, and those of processors of all processes that it started."""
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    program = [sys.executable, *words]
    subprocess.run(program, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    while True:  # Java and the workers, which may end a little later
        try:
            os.wait()
        except ChildProcessError:
            break
    after = getrusage(RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[250_000, 8_000_000])
    parser.add_argument(
        "--digits", type=int, nargs="+", default=[3, 6], help="of industries: 282,600 or 2.9 million cells"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout of prdp, which takes turns")
    return parser.parse_args()


if __name__ == "__main__":
    main()
