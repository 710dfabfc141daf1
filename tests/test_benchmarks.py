"""The benchmarks' own arithmetic: what a run took, which runs are kept, event logs, the model, stages and goals."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import goals, microdata, scale, spark_model, stages
from benchmarks.measure import ROOT, CommandFailed, Measured, Run, case_of
from benchmarks.world import World

ONE = Run(1.0, 2.0, 3.0)


MEASURING = """
import sys
from benchmarks.measure import CommandFailed, run
busy = "import time\\nwhile time.process_time() < 0.2: pass"
child = run([sys.executable, "-S", "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"])
held = run([sys.executable, "-S", "-c", "x = b'1' * (80 << 20)"])
print(child.wall, child.cpu, held.peak)
try:
    run([sys.executable, "-S", "-c", "import sys; print('too few'); sys.exit(3)"])
except CommandFailed as error:
    print(error)
"""


def test_a_run_counts_the_processes_it_starts_and_a_failure_tells_why() -> None:
    """In a process of its own: one that measures is small, and waits for all that it started."""
    done = subprocess.run([sys.executable, "-c", MEASURING], cwd=ROOT, capture_output=True, text=True, check=True)
    figures, failure = done.stdout.split("\n", 1)
    wall, cpu, peak = map(float, figures.split())
    assert wall >= 0.2
    assert cpu >= 0.2
    assert 80 <= peak < 120
    assert "exit code 3\ntoo few" in failure


def test_a_case_measured_again_replaces_what_was_kept_unless_rounds_are_added(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    first = Measured(path)
    for wall in (1.0, 5.0, 3.0):
        first.add(Run(wall, 2.0, 3.0), suite="s", by="prdp")
    first.add(ONE, suite="s", by="duckdb")
    first.put("stages", {"10": {}})
    assert first.medians()[frozenset({"suite": "s", "by": "prdp"}.items())] == Run(3.0, 2.0, 3.0)
    added = Measured(path, keep=True)
    added.add(Run(9.0, 2.0, 3.0), suite="s", by="prdp")
    assert [row["wall"] for row in Measured(path).rows] == [1.0, 5.0, 3.0, 1.0, 9.0]
    again = Measured(path)
    again.add(Run(7.0, 2.0, 3.0), suite="s", by="prdp")
    document = json.loads(path.read_text())
    assert [(row["by"], row["wall"]) for row in document["runs"]] == [("duckdb", 1.0), ("prdp", 7.0)]
    assert document["machine"]["cores"] == os.cpu_count()
    assert "stages" in document
    assert case_of(document["runs"][1]) == {("suite", "s"), ("by", "prdp")}


@pytest.mark.parametrize(("kind", "files"), [("shuffled", 4), ("skewed", 1)])
def test_microdata_of_every_kind_hold_the_same_records(tmp_path: Path, kind: str, files: int) -> None:
    microdata.write(kind, 1000, tmp_path / "made")
    read = pq.read_table(tmp_path / "made" / "microdata")
    assert len(list((tmp_path / "made" / "microdata").iterdir())) == files
    assert read["establishment_id"].to_pylist() != sorted(read["establishment_id"].to_pylist()) or kind != "shuffled"
    assert sorted(read["establishment_id"].to_pylist()) == [f"E{number:09d}" for number in range(1, 1001)]
    giant = (read["naics"].to_numpy() == "722511") & (read["county"].to_numpy() == "06037")
    assert (giant.sum() >= 333) == (kind == "skewed")
    assert (tmp_path / "made" / "plan.yaml").exists()


def event(kind: str, **facts: object) -> str:
    return json.dumps({"Event": f"SparkListener{kind}"} | facts)


def task(stage: int, seconds: float, shuffled: int) -> str:
    shuffle = {"Shuffle Bytes Written": shuffled}
    metrics = {"Executor Run Time": seconds * 1e3, "Shuffle Write Metrics": shuffle, "Result Size": 7}
    return event("TaskEnd", **{"Stage ID": stage, "Task Metrics": metrics})


def test_an_event_log_adds_up() -> None:
    log = [
        event("ApplicationStart", Timestamp=1000),
        event("JobStart", **{"Job ID": 0, "Submission Time": 2000}),
        event("JobStart", **{"Job ID": 1, "Submission Time": 3000}),
        task(0, 1.5, 100),
        task(0, 0.5, 20),
        task(1, 1.0, 0),
        event("JobEnd", **{"Job ID": 0, "Completion Time": 4000}),
        event("JobEnd", **{"Job ID": 1, "Completion Time": 5000}),
        event("ApplicationEnd", Timestamp=9000),
    ]
    told = spark_model.Logged(tasks=3, task_seconds=3.0, shuffled=120, returned=21, scan_tasks=2, driver=5.0)
    assert spark_model.read_log(log) == told


def test_rates_are_found_again_and_the_model_adds_them_up() -> None:
    def release(records: float, cells: float) -> dict[str, float]:
        facts = {"records": records, "cells": cells, "shuffled": 4 * records}
        return facts | {"task_seconds": 5 + 2 * records / 1e6 + 3 * cells / 1e6, "driver": 1 + cells / 1e6}

    found = spark_model.rates([release(1e6, 3e5), release(8e6, 3e5), release(1e6, 3e6)])
    told = {"record_seconds": 2, "cell_seconds": 3, "fixed_seconds": 5, "sum_bytes": 4, "driver": 1, "driver_cells": 1}
    assert asdict(found) == pytest.approx(told)
    small = spark_model.Cluster(
        records=1e9, cells=1e7, finest=1e6, cores=100, cores_a_machine=10, network=1e8, slowest=1.5
    )
    parts = {
        "records": 1.5 * 2 * 1000 / 100,
        "cells": 1.5 * 3 * 10 / 100,
        "start of workers": 2.5,
        "shuffle": 400 * 1e6 * 4 / 1e9,
        "tasks launched by the driver": 1600 * 0.004,
        "driver": 11,
    }
    moved = {"sum": sum(parts.values()), "tasks": 1600, "gigabytes shuffled": 1.6}
    assert spark_model.model(found, small) == pytest.approx(parts | moved)
    few = spark_model.model(found, replace(small, records=4e6, finest=1e9))
    assert few["gigabytes shuffled"] == pytest.approx(4 * 4e6 / 1e9)  # no task meets more cells than records


def test_samples_belong_to_stages() -> None:
    start = "<module> (jobs/cli.py:79);run (pipeline/release/steps.py:98)"
    samples = [
        f"{start};_find_and_load (<frozen importlib._bootstrap>:1176);x (udfs/noise/lattice.py:1) 100",
        f"{start};add_up (udfs/records/sums.py:12);sort (numpy/x.py:1) 40",
        f"{start};build_table (udfs/noise/lattice.py:9);moments (udfs/noise/weights.py:1) 20",
        f"{start};release (udfs/mechanisms/release.py:9) 20",
        f"{start} 20",
        "run (threading.py:982);_worker (concurrent/futures/thread.py:81) 5000",
    ]
    found = stages.added_up(samples, cpu=2.0)
    told = {"imports": 0.5, "records": 0.2, "noise": 0.1, stages.REST: 0.1, stages.NATIVE: 1}
    told["policies and noise tables"] = 0.1
    assert {stage: seconds for stage, seconds in found.items() if seconds} == pytest.approx(told)
    assert sum(stages.added_up(samples, cpu=0.5).values()) == pytest.approx(0.5)


def test_goals_are_read_from_the_cases_that_suites_write() -> None:
    facts: dict[str, object] = {"suite": "release", "records": 8_000_000, "microdata": "shuffled"}
    medians = {
        frozenset((facts | {"by": "prdp"}).items()): Run(3.0, 2.0, 300.0),
        frozenset((facts | {"by": "duckdb"}).items()): Run(1.0, 4.0, 200.0),
    }
    rows = goals.rows(medians)
    assert [row[1:] for row in rows] == [["2.8 ×", "3.00 ×", "no"], ["400 MiB", "300 MiB", "yes"]]


def test_large_releases_are_told_beside_the_straight_line(tmp_path: Path) -> None:
    measured = Measured(tmp_path / "measured.json")
    for records, wall in ((8_000_000, 3.0), (64_000_000, 10.0), (1_000_000_000, 254.0)):
        measured.add(Run(wall, 1.0, 500.0), suite="scale", microdata="generated", records=records, by="release")
    assert [row[-1] for row in scale.rows(measured)] == ["1.00", "1.00", "2.00"]


def test_another_checkout_runs_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    (tmp_path / "jobs" / "cli.py").write_text("raise SystemExit(7)\n")
    with pytest.raises(CommandFailed, match="exit code 7"):
        World(tmp_path, {"": tmp_path}).prdp(tmp_path, "--help")
