"""What a release of very many records costs on a large cluster, computed from Spark's own event logs of small ones.

Releases of three sizes (few records, more records, more cells) run through spark-submit on local sessions of 1, 2 and 4
cores and on a standalone cluster of two workers, with an event log, which production leaves off: it shows counts. From
each log come tasks, seconds of tasks, bytes shuffled and the driver's seconds outside of jobs; from their differences,
what a million records, a million cells and a task cost.

    python -m benchmarks.spark_model [--records N N] [--cores N …] [--workers N] [--compute]

`--compute` measures nothing and computes the model anew from what is kept. It runs in the environment of `make setup`.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import MEASURED, ROOT, WORK, CommandFailed, Measured, run
from benchmarks.microdata import made, plan
from benchmarks.world import GAUSSIAN, ONE

CELLS = {3: "naics3", 6: "naics6"}
SECRET = "benchmark"  # of a cluster that lives for minutes, on loopback
LOGGED = {"eventLog.enabled": "true", "eventLog.compress": "false", "eventLog.rolling.enabled": "false"}


@dataclass(frozen=True)
class Logged:
    """What an event log says of one release."""

    tasks: int
    task_seconds: float  # of executors' cores, Python's workers included
    shuffled: int  # bytes written to the shuffle
    returned: int  # bytes of results, to the driver
    scan_tasks: int  # tasks of the stage that had most
    driver: float  # seconds in which no job ran, between the application's start and end


def read_log(lines: Iterable[str]) -> Logged:
    """Return what the lines of an event log add up to."""
    tasks, seconds, shuffled, returned = 0, 0.0, 0, 0
    stages: dict[int, int] = {}
    jobs: dict[int, list[int]] = {}
    ends: list[int] = []
    for line in lines:
        event = json.loads(line)
        match event["Event"]:
            case "SparkListenerApplicationStart" | "SparkListenerApplicationEnd":
                ends.append(event["Timestamp"])
            case "SparkListenerJobStart":
                jobs[event["Job ID"]] = [event["Submission Time"]]
            case "SparkListenerJobEnd":
                jobs[event["Job ID"]].append(event["Completion Time"])
            case "SparkListenerTaskEnd" if event.get("Task Metrics"):
                metrics = event["Task Metrics"]
                tasks += 1
                stages[event["Stage ID"]] = stages.get(event["Stage ID"], 0) + 1
                seconds += metrics["Executor Run Time"] / 1e3
                shuffled += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                returned += metrics["Result Size"]
    busy, until = 0, 0
    for start, end in sorted(jobs.values()):  # jobs may overlap
        busy += max(0, end - max(start, until))
        until = max(until, end)
    first, last = min(ends), max(ends)
    return Logged(tasks, seconds, shuffled, returned, max(stages.values(), default=0), (last - first - busy) / 1e3)


@dataclass(frozen=True)
class Rates:
    """What each unit of work costs on one deployment."""

    record_seconds: float  # of tasks, a million records
    cell_seconds: float  # of tasks, a million cells
    fixed_seconds: float  # of tasks, whatever the size
    sum_bytes: float  # shuffled for a sum, taken where nearly every record lies in a cell of its own
    driver: float  # seconds, whatever the size
    driver_cells: float  # seconds a million cells


def rates(runs: Iterable[Mapping[str, Any]]) -> Rates:
    """Return what follows from the differences of three releases: few records, more records, more cells."""
    few, more, wide = sorted(runs, key=lambda each: (each["cells"], each["records"]))
    records, cells = (more["records"] - few["records"]) / 1e6, (wide["cells"] - few["cells"]) / 1e6

    def slope(name: str, other: Mapping[str, Any], size: float) -> float:
        return max(0.0, float(other[name] - few[name]) / size)

    a_record, a_cell = slope("task_seconds", more, records), slope("task_seconds", wide, cells)
    rest = few["task_seconds"] - a_record * few["records"] / 1e6 - a_cell * few["cells"] / 1e6
    driver_cells = slope("driver", wide, cells)
    return Rates(
        record_seconds=a_record,
        cell_seconds=a_cell,
        fixed_seconds=max(0.0, rest),
        sum_bytes=wide["shuffled"] / wide["records"],
        driver=max(0.0, few["driver"] - driver_cells * few["cells"] / 1e6),
        driver_cells=driver_cells,
    )


@dataclass(frozen=True)
class Cluster:
    """What the model assumes."""

    records: float = 10e9
    cells: float = 4 * 2.9e6  # of four tables of six-digit industries by county
    finest: float = 2.9e6  # cells by which records are summed
    cores: int = 200
    cores_a_machine: int = 16
    network: float = 1.25e9  # bytes a second of a machine: 10 Gbit/s
    tasks_a_core: int = 4  # of a stage, as prdp divides the work
    stages: int = 4  # sums, totals, files, noise
    launch: float = 0.004  # seconds of the driver for a task
    slowest: float = 1.3  # the last task of a stage, over the mean


def model(found: Rates, cluster: Cluster) -> dict[str, float]:
    """Return the seconds of a release's parts on a cluster, their sum, and what moves."""
    records, cells = cluster.records / 1e6, cluster.cells / 1e6
    scans = cluster.tasks_a_core * cluster.cores
    tasks = cluster.stages * scans
    shuffled = found.sum_bytes * scans * min(cluster.finest, cluster.records / scans)  # a task sends each sum once
    parts = {
        "records": cluster.slowest * found.record_seconds * records / cluster.cores,
        "cells": cluster.slowest * found.cell_seconds * cells / cluster.cores,
        "start of workers": found.fixed_seconds / 2,  # which two of them shared when it was measured
        "shuffle": shuffled / (cluster.network * cluster.cores / cluster.cores_a_machine),
        "tasks launched by the driver": tasks * cluster.launch,
        "driver": found.driver + found.driver_cells * cells,
    }
    return parts | {"sum": sum(parts.values()), "tasks": tasks, "gigabytes shuffled": shuffled / 1e9}


def main() -> None:
    """Measure what is asked for, compute the model, print and keep it."""
    given = _arguments()
    measured = Measured(given.json)
    if not given.compute:
        measured.put("spark", list(_measured(given)))
    if "spark" not in measured.document:
        raise SystemExit(f"error: {given.json}: it holds no event logs' sums; leave out --compute")
    measured.put("spark_model", computed(measured.document["spark"]))
    print(written(measured.document))


def computed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rates of each deployment, and the model of their medians."""
    places = dict.fromkeys(each["place"] for each in runs)
    found = {place: rates([each for each in runs if each["place"] == place]) for place in places}
    middle = Rates(**{name: median(getattr(one, name) for one in found.values()) for name in Rates.__annotations__})
    cluster = Cluster()
    return {
        "rates": {place: asdict(one) for place, one in found.items()},
        "assumed": asdict(cluster),
        "model": model(middle, cluster),
    }


def written(document: Mapping[str, Any]) -> str:
    """Return the tables of the page."""
    if "spark_model" not in document:
        return "Not measured yet.\n"
    head = ("tasks", "s of tasks", "… a million records", "… a million cells", "driver, s")
    lines = [f"| on | {' | '.join((*head, 'MB shuffled', 'bytes a sum'))} |", "|---|" + "---:|" * 7]
    for place, one in document["spark_model"]["rates"].items():
        most = max((each for each in document["spark"] if each["place"] == place), key=lambda each: each["records"])
        figures = (one["record_seconds"], one["cell_seconds"], one["driver"], most["shuffled"] / 1e6, one["sum_bytes"])
        texts = (f"{most['tasks']}", f"{most['task_seconds']:.1f}", *(f"{figure:.2f}" for figure in figures))
        lines.append(f"| {place} | {' | '.join(texts)} |")
    lines += ["", "| of 10 billion records on 200 cores | |", "|---|---:|"]
    for name, figure in document["spark_model"]["model"].items():
        unit = "" if name in ("tasks", "gigabytes shuffled") else " s"
        lines.append(f"| {name} | {figure:,.0f}{unit} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Place:
    """Where Spark runs: what it is called, its master, and what spark-submit's environment needs beside."""

    name: str
    master: str
    environment: Mapping[str, str]


def _measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    few, more = given.records
    sizes = [(few, 3), (more, 3), (few, 6)]
    folders = {records: made(given.home / "data", "generated", records) for records in given.records}
    for cores in given.cores:
        for records, digits in sizes:
            place = Place(f"local, {cores} cores", f"local[{cores}]", {})
            yield _submitted(place, folders[records], records, digits)
    if given.workers:
        with _cluster(given.workers) as (url, environment):
            for records, digits in sizes:
                place = Place(f"{given.workers} workers of 1 core", url, environment)
                yield _submitted(place, folders[records], records, digits)


def _submitted(place: Place, folder: Path, records: int, digits: int) -> dict[str, Any]:
    """Release by spark-submit; return what its event log says."""
    query = ONE | {"by": [CELLS[digits], "county"], "mechanism": GAUSSIAN}
    one = plan(folder, f"digits{digits}", [query])
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        (Path(new) / "log").mkdir()
        settings = {f"spark.{name}": text for name, text in LOGGED.items()} | {
            "spark.eventLog.dir": f"file://{new}/log"
        }
        name = "standalone" if place.environment else "local"
        (Path(new) / "conf").write_text((ROOT / "conf" / "spark" / f"{name}.conf").read_text())
        if place.environment:
            settings |= {"spark.authenticate.secret": SECRET}
        options = [word for each in settings.items() for word in ("--conf", "=".join(each))]
        submit = [
            str(Path(sys.executable).with_name("spark-submit")),
            "--master",
            place.master,
            "--properties-file",
            f"{new}/conf",
        ]
        release = [str(ROOT / "jobs" / "release.py"), str(one), "--out", f"{new}/out", "--quiet"]
        own = _java() | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "XDG_STATE_HOME": new}
        taken = run([*submit, *options, *release], own | dict(place.environment))
        (log,) = Path(new, "log").iterdir()
        logged = read_log(log.read_text().splitlines())
        cells = sum(_rows(path) for path in Path(new, "out").rglob("tables/*/*.parquet"))
    found = (
        {"place": place.name, "records": records, "cells": cells}
        | asdict(logged)
        | {"wall": taken.wall, "cpu": taken.cpu}
    )
    print(", ".join(f"{key} {fact}" for key, fact in found.items()), flush=True)
    return found


def _rows(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _java() -> dict[str, str]:
    from pipeline.engines.spark_session import java_home, private_folder

    return {"JAVA_HOME": str(java_home(os.environ, private_folder()))}


@contextmanager
def _cluster(workers: int) -> Iterator[tuple[str, dict[str, str]]]:
    from tests.support.spark import standalone

    settings = (ROOT / "conf" / "spark" / "standalone.conf").read_text() + f"spark.authenticate.secret {SECRET}\n"
    with tempfile.TemporaryDirectory() as folder, standalone(Path(folder), workers, settings) as cluster:
        yield cluster.url, cluster.environment


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_model", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs=2, default=[1_000_000, 8_000_000], help="default: 1 and 8 million")
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2, 4], help="of local sessions (default: 1 2 4)")
    parser.add_argument("--workers", type=int, default=2, help="of one core, of a standalone cluster (default: 2)")
    parser.add_argument("--compute", action="store_true", help="measure nothing, compute the model from what is kept")
    parser.add_argument(
        "--json", type=Path, default=MEASURED, metavar="FILE", help="default: .work/bench/measured.json"
    )
    parser.add_argument("--home", type=Path, default=WORK, metavar="FOLDER", help="of microdata (default: .work/bench)")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except CommandFailed as error:
        sys.exit(f"error: {error}")
