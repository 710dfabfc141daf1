"""How fast records become exact sums: the kernel on DaskEngine's threads against PyArrow's own group_by.

Both read the same files in the same run, by the same number of threads, and sum every measure and the count by naics6
and county. Each contender runs in a process of its own, so that its peak memory is its own; they take turns, and the
best of the rounds counts. The sums of both must be equal.

    python -m benchmarks.sums [--records N] [--threads N] [--rounds N]
"""

import argparse
import csv
import hashlib
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.economy.generate import Generated, generate
from pipeline.engines.dask import DaskEngine
from pipeline.microdata.source import chunks, find
from pipeline.storage.uri import locate
from udfs.records.codes import NOWHERE
from udfs.records.contract import MeasureColumn
from udfs.records.decoding import BaseCells, SumSpec
from udfs.records.keys import CodeColumn
from udfs.records.statistics import Count
from udfs.records.sums import CELL

RECORDS = Count().addend

KEYS = ("naics", "county")
MEASURES = ("employment", "payroll")

T = TypeVar("T")
Index = dict[str, int]  # code → place


@dataclass(frozen=True)
class Run:
    """One timed run: wall-clock seconds, peak resident bytes of the process, and a digest of the sums."""

    seconds: float
    peak: int
    sums: str


def main() -> None:
    """Generate the data, let both contenders run in turn, and print what was measured."""
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as folder:
        made = generate(given.records, 1, Path(folder) / "data", threads=given.threads)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
            runs: dict[str, list[Run]] = {"kernel": [], "pyarrow": []}
            for _ in range(given.rounds):
                for name, found in runs.items():
                    found.append(processes.submit(measure, name, made, given.threads).result())
    if len({run.sums for found in runs.values() for run in found}) != 1:
        raise SystemExit("error: the contenders found different sums")
    best = {name: min(found, key=lambda run: run.seconds) for name, found in runs.items()}
    print(f"{given.records:,} records, {given.threads} threads, best of {given.rounds}")
    for name, run in best.items():
        speed = given.records / run.seconds / 1e6
        print(f"{name:<8} {run.seconds:7.3f} s   {speed:7.2f} million records/s   peak {run.peak / 1e6:6.0f} MB")
    print(f"the kernel takes {best['kernel'].seconds / best['pyarrow'].seconds:.2f} times as long as group_by")


def measure(name: str, made: Generated, threads: int) -> Run:
    """Run one contender twice and time the second: imports, thread pools and page faults are paid for by then."""
    pa.set_cpu_count(threads)
    pa.set_io_thread_count(threads)
    naics, county = _codes(made.naics), _codes(made.counties)
    if name == "kernel":
        spec = _spec(naics, county)
        sums, seconds = _timed(
            lambda: DaskEngine(workers=threads).sums(list(chunks(find(locate(made.microdata)))), spec)
        )
        peak = _peak()
        frame = pd.DataFrame(sums)
        frame = frame[frame[CELL] >= 0]  # without the counts of records
    else:
        table, seconds = _timed(lambda: _group_by(find(locate(made.microdata)).files))
        peak = _peak()
        frame = _numbered(table, naics, county)
    return Run(seconds, peak, hashlib.sha256(frame.to_numpy().tobytes()).hexdigest())


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    run()
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


def _spec(naics: Index, county: Index) -> SumSpec:
    base = BaseCells(
        size=len(naics) * len(county),
        parts={
            0: np.append(np.arange(len(naics)) * len(county), NOWHERE),
            1: np.append(np.arange(len(county)), NOWHERE),
        },
        addends=(RECORDS, *MEASURES),
    )
    return SumSpec(
        keys=(CodeColumn("naics", "naics6", "naics6", naics), CodeColumn("county", "county", "county", county)),
        measures=tuple(MeasureColumn(name, name, Fraction(1), nonnegative=True) for name in MEASURES),
        bases=(base,),
        bad_records="refuse",
    )


def _group_by(paths: tuple[Path, ...]) -> pa.Table:
    """Return PyArrow's sums in its fastest form: keys as dictionaries, which are unified across files first."""
    read = (pq.read_table(path, columns=[*KEYS, *MEASURES], read_dictionary=list(KEYS)) for path in paths)
    table = pa.concat_tables(read).unify_dictionaries()
    return table.group_by(list(KEYS)).aggregate([([], "count_all"), *((name, "sum") for name in MEASURES)])


def _numbered(sums: pa.Table, naics: Index, county: Index) -> pd.DataFrame:
    """Return PyArrow's sums as the kernel's frame; this is not timed."""
    rows, columns = (
        np.array([index[code] for code in sums[key].to_pylist()], dtype=np.int64)
        for key, index in zip(KEYS, (naics, county), strict=True)
    )
    frame = pd.DataFrame({CELL: rows * len(county) + columns, RECORDS: sums["count_all"].to_numpy()})
    for name in MEASURES:
        frame[name] = sums[f"{name}_sum"].to_numpy()
    return frame.sort_values(CELL)


def _codes(path: Path) -> Index:
    with path.open(encoding="utf-8", newline="") as lines:
        return {code: i for i, code in enumerate(sorted(row["code"] for row in csv.DictReader(lines)))}


def _peak() -> int:
    """Return this process's peak resident bytes (Linux; getrusage would count what its parent held before)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sums", description="Times the sums kernel.")
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
