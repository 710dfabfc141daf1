"""How fast Spark makes totals and tables here, against bare Spark doing the same sums and writing them.

Both read the same Parquet files in one local session, in turn; the best of the rounds counts. prdp adds up, fills in
the cells without records, draws noise and writes tables; bare Spark groups, adds up and writes what it found. Growth
with records and with cells shows in the two halves of the table.

    python -m benchmarks.spark [--records N …] [--cores N] [--rounds N]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from pyspark.sql import functions as f

from pipeline.engines.spark import SparkEngine
from pipeline.microdata.generate import generate
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.staging import staging_at
from pipeline.totals import layout_of
from udfs.keystream import SecretKey

BY = {"naics2": "state", "naics6": "county"}  # few cells, and all of the domain's
SUMS = {"establishments": None, "employment": "employment", "payroll": "payroll"}


def main() -> None:
    """Generate data of each size, let both contenders run in turn, and print what was measured."""
    given = _arguments()
    engine = SparkEngine(f"local[{given.cores}]")
    print("   records      cells    totals   tables     both    bare Spark   ratio")
    for records in given.records:
        with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
            folder = Path(name)
            made = generate(records, 1, folder / "data", threads=given.cores)
            for naics, county in BY.items():
                plan = _plan(folder, made.plan, naics, county)
                layout = layout_of(plan)
                best = [
                    min(pair)
                    for pair in zip(
                        *(_round(engine, plan, folder, naics, county) for _ in range(given.rounds)), strict=True
                    )
                ]
                totals, both, bare = best
                cells = layout.tables[0].cells.size
                print(f"{records:10,} {cells:10,} {totals:7.2f} s {both - totals:6.2f} s {both:6.2f} s", end="")
                print(f" {bare:11.2f} s {both / bare:7.2f}", flush=True)
    engine.close()


def _round(engine: SparkEngine, plan: Plan, folder: Path, naics: str, county: str) -> tuple[float, float, float]:
    """Return the seconds of prdp's totals, of its totals and tables, and of bare Spark's sums and files."""
    scratch, out = staging_at(folder / "staging", "bench", f"totals-{time.monotonic_ns()}"), folder / "out"
    layout = layout_of(plan)
    began = time.perf_counter()
    totals = engine.totals(list(chunks(find(plan.dataset.path))), layout, scratch)
    summed = time.perf_counter() - began
    for table in layout.tables:
        (out / table.name).mkdir(parents=True)
        totals.stage(table.number, out / table.name, SecretKey.fresh())
    both = time.perf_counter() - began
    scratch.destroy()
    shutil.rmtree(out)
    bare = _timed(lambda: _bare(engine, plan.dataset.path, out, naics, county))
    shutil.rmtree(out)
    return summed, both, bare


def _bare(engine: SparkEngine, microdata: Path, out: Path, naics: str, county: str) -> None:
    digits = {"naics2": 2, "naics6": 6, "state": 2, "county": 5}
    keys = [f.substring(c, 1, digits[level]).alias(level) for c, level in (("naics", naics), ("county", county))]
    grouped = engine.session.read.parquet(str(microdata)).groupBy(*keys)
    grouped.agg(f.count("*"), f.sum("employment"), f.sum("payroll")).write.parquet(str(out))


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _plan(folder: Path, generated: Path, naics: str, county: str) -> Plan:
    """Write and load the generated plan with a table of each sum by the given levels."""
    plan = yaml.safe_load(generated.read_text())
    mechanism = {"kind": "gaussian", "sigma": 10**6}
    plan["queries"] = [
        {"name": name, "by": [naics, county], "mechanism": mechanism}
        | ({"count": "records"} if column is None else {"sum": column})
        for name, column in SUMS.items()
    ]
    path = generated.with_name(f"{naics}.yaml")
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return load_plan(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Times the Spark engine.")
    parser.add_argument("--records", type=int, nargs="+", default=[1_000_000, 8_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
