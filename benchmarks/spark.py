"""How fast Spark makes totals and tables here, against bare Spark doing the same sums and writing as many rows.

All read the same Parquet files in one local session, in turn; the best of the rounds counts.

    prdp    adds up exactly, fills in the cells without records, draws lattice noise, writes a table for each sum
    same    bare Spark: groups and adds up, joins the public cells, zeros where there are no records, adds a double
            times randn(), writes a table for each sum with the same columns and rows
    sums    bare Spark: groups, adds up, and writes the sums of the cells that have records in one table

Growth with records and with cells shows down the lines; of `skewed` data a third lies in one county and industry.

Of one run on 2 cores that three other programs used too (prdp's time over that of same, and over that of sums):

    records      cells     even          skewed
    250,000      4,233     0.63   1.43   0.44   0.91
    250,000  2,907,275     1.28   9.91   0.92  15.66
    1,000,000    4,233     0.50   1.43   0.74   1.53
    1,000,000  2,907,275   0.41  15.56   not run

It was made when each slice of sums was a task of its own: joined to four a core, the totals of 2.9 million cells took
1.7 to 3.0 s in place of 6.9 (250,000 records, one process, in turn).

    python -m benchmarks.spark [--records N …] [--cores N] [--rounds N]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.economy.generate import generate
from pipeline.engines.spark import SparkEngine
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.storage.staging import Staging
from pipeline.storage.uri import locate
from pipeline.tables.totals import layout_of
from udfs.noise.keystream import SecretKey

BY = {"naics3": "state", "naics6": "county"}  # few cells, and all of the domain's
SUMS = {"establishments": None, "employment": "employment", "payroll": "payroll"}
DIGITS = {"naics3": 3, "naics6": 6, "state": 2, "county": 5}
SIGMA = 10**6
Z = 1.959963984540054


def main() -> None:
    """Generate data of each size, let the contenders run in turn, and print what was measured."""
    given = _arguments()
    engine = SparkEngine(f"local[{given.cores}]")
    _ = engine.session
    print("   records   data       cells    totals   tables     prdp       same (ratio)      sums (ratio)")
    for records in given.records:
        with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
            folder = Path(name)
            made = generate(records, 1, folder / "data", threads=given.cores)
            for kind in ("even", "skewed"):
                if kind == "skewed":
                    _skew(folder / "data" / "microdata")
                for naics, county in BY.items():
                    plan = _plan(made.plan, naics, county)
                    rounds = [_round(engine, plan, folder, naics, county) for _ in range(given.rounds)]
                    totals, prdp, same, sums = (min(times) for times in zip(*rounds, strict=True))
                    cells = layout_of(plan).tables[0].cells.size
                    print(f"{records:10,}   {kind:6} {cells:10,} {totals:7.2f} s {prdp - totals:6.2f} s", end="")
                    print(f" {prdp:6.2f} s {same:8.2f} s ({prdp / same:4.2f})", end="")
                    print(f" {sums:8.2f} s ({prdp / sums:4.2f})", flush=True)
    engine.close()


def _round(engine: SparkEngine, plan: Plan, folder: Path, naics: str, county: str) -> tuple[float, float, float, float]:
    """Return the seconds of prdp's totals, of its totals and tables, and of both of bare Spark's."""
    scratch, out = Staging(locate(folder / "staging"), "bench", f"totals-{time.monotonic_ns()}"), folder / "out"
    layout = layout_of(plan)
    began = time.perf_counter()
    totals = engine.totals(list(chunks(find(plan.dataset.path))), layout, scratch)
    summed = time.perf_counter() - began
    for table in layout.tables:
        (out / table.name).mkdir(parents=True)
        totals.stage(table.number, locate(out / table.name), SecretKey.fresh())
    prdp = time.perf_counter() - began
    scratch.destroy()
    shutil.rmtree(out)
    same = _timed(lambda: _same(engine, plan, out, naics, county))
    rows = sum(pq.read_metadata(file).num_rows for file in out.rglob("*.parquet"))
    assert rows == sum(table.cells.size for table in layout.tables)
    shutil.rmtree(out)
    sums = _timed(lambda: _sums(engine, plan, naics, county).write.parquet(str(out)))
    shutil.rmtree(out)
    return summed, prdp, same, sums


def _sums(engine: SparkEngine, plan: Plan, naics: str, county: str) -> DataFrame:
    keys = [
        f.substring(column, 1, DIGITS[level]).alias(level) for column, level in (("naics", naics), ("county", county))
    ]
    grouped = engine.session.read.parquet(str(plan.dataset.path)).groupBy(*keys)
    return grouped.agg(*((f.sum(column) if column else f.count("*")).alias(name) for name, column in SUMS.items()))


def _same(engine: SparkEngine, plan: Plan, out: Path, naics: str, county: str) -> None:
    """Write as many tables, rows and columns as prdp does."""
    codes = (
        (naics, plan.domain.keys["naics"].level_codes(naics)),
        (county, plan.domain.keys["county"].level_codes(county)),
    )
    lists = [engine.session.createDataFrame([(code,) for code in every], [level]) for level, every in codes]
    cells = lists[0].crossJoin(f.broadcast(lists[1]))
    filled = cells.join(_sums(engine, plan, naics, county), [naics, county], "left").fillna(0).persist()
    for name in SUMS:
        value = f.round(f.col(name) + SIGMA * f.randn()).cast("long").alias("value")
        noisy = filled.select(naics, county, value)
        ends = [(f.col("value") + sign * round(Z * SIGMA)).alias(end) for end, sign in (("lower", -1), ("upper", 1))]
        noisy.select("*", *ends, f.lit(float(SIGMA)).alias("standard_error")).write.parquet(str(out / name))
    filled.unpersist()


def _skew(microdata: Path) -> None:
    """Put every third record into the county and industry of its file's first."""
    for file in microdata.glob("*.parquet"):
        table = pq.read_table(file)
        for key in ("naics", "county"):
            codes = table.column(key).to_numpy(zero_copy_only=False)
            codes[::3] = "722511" if key == "naics" else "06037"
            table = table.set_column(table.schema.get_field_index(key), key, pa.array(codes, pa.string()))
        pq.write_table(table, file)


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _plan(generated: Path, naics: str, county: str) -> Plan:
    """Write and load the generated plan with a table of each sum by the given levels."""
    plan = yaml.safe_load(generated.read_text())
    mechanism = {"kind": "gaussian", "sigma": SIGMA}
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
    parser.add_argument("--records", type=int, nargs="+", default=[250_000, 1_000_000, 4_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
