"""How fast tables of many public cells are released on Dask, against the plain writing of the same tables.

Few records lie in all six-digit industries by county. Of each kind of mechanism a release of as many equal tables runs
in this process: sums, noise, intervals, files, public pages, publication. Beside it PyArrow writes the tables that were
released, in the same files by as many threads, and does nothing else. All take turns; medians of the rounds count, also
of this process's CPU time, which other programs disturb less.

    python -m benchmarks.cells [--tables N] [--rounds N] [--workers N]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import prdp
from pipeline.economy.generate import generate

RECORDS = 20_000
KEYS = ["naics6", "county"]
MECHANISMS = {
    "gaussian": {"kind": "gaussian", "sigma": 20},
    "laplace": {"kind": "laplace", "sigma": 20},
    "root": {"kind": "root", "k": 2, "a": 1, "sigma": 1},
    "log": {"kind": "log", "a": 10, "sigma": 0.1},
}

Times = tuple[float, float]  # seconds by the clock, and of the CPU


def main() -> None:
    """Generate the records, let the kinds run in turn, and print what was measured."""
    given = _arguments()
    releases: dict[str, list[Times]] = {kind: [] for kind in MECHANISMS}
    writes: dict[str, list[Times]] = {kind: [] for kind in MECHANISMS}
    cells = 0
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
        folder = Path(name)
        made = generate(RECORDS, 1, folder / "data", threads=given.workers).plan
        for number in range(given.rounds + 1):
            for kind, mechanism in MECHANISMS.items():
                here = folder / f"{kind}-{number}"
                plan = prdp.load_plan(_plan(made, here.name, mechanism, given.tables))
                release = partial(
                    plan.release,
                    ledger=prdp.create_ledger(here / "state" / "ledger"),
                    out=here / "out",
                    workers=given.workers,
                )
                released = _timed(release)
                tables = [pq.read_table(file) for file in sorted(here.rglob("tables/*/*.parquet"))]
                written = _timed(partial(_write, tables, here, given.workers))
                cells = sum(map(len, tables))
                shutil.rmtree(here)
                if number:  # the first round warms up
                    releases[kind].append(released)
                    writes[kind].append(written)
    print(f"{cells:,} cells in {given.tables} tables, {given.workers} threads, medians of {given.rounds} rounds")
    print("             wall      CPU   cells/s   over gaussian: wall   CPU   over a plain write: wall   CPU")
    middle = {kind: _medians(times) for kind, times in releases.items()}
    for kind, (wall, cpu) in middle.items():
        first, plain = middle["gaussian"], _medians(writes[kind])
        print(f"{kind:<9} {wall:5.2f} s  {cpu:5.2f} s  {cells / wall / 1e6:5.2f} M", end="")
        print(f" {wall / first[0]:19.2f} {cpu / first[1]:5.2f} {wall / plain[0]:26.2f} {cpu / plain[1]:5.2f}")


def _write(tables: list[pa.Table], folder: Path, threads: int) -> None:
    """Write each table to a file, keys dictionary-coded, as the release does."""

    def write(number: int) -> None:
        pq.write_table(tables[number], folder / f"{number}.parquet", compression="zstd", use_dictionary=KEYS)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(len(tables))))


def _plan(generated: Path, name: str, mechanism: dict[str, object], tables: int) -> Path:
    plan = yaml.safe_load(generated.read_text())
    query = {"sum": "employment", "by": KEYS, "mechanism": mechanism}
    plan["release"], plan["dataset"]["name"] = name, name
    plan["queries"] = [{"name": f"table{number}"} | query for number in range(tables)]
    plan["budget"] = []
    path = generated.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


def _timed(run: Callable[[], object]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def _medians(times: list[Times]) -> Times:
    wall, cpu = zip(*times, strict=True)
    return median(wall), median(cpu)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells", description="Times releases of many cells.")
    parser.add_argument("--tables", type=int, default=4, help="tables of 2.9 million cells in each release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
