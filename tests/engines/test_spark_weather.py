"""Bad cluster weather, for real: a plain line and an exit code each, no value, and a state from which a run goes on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from jobs.cli import main
from pipeline.base.log import Log
from pipeline.engines import spark_driver
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.spark_driver import OwnDriver
from pipeline.microdata import source
from tests.support.ledgers import ledger_file
from tests.support.patience import PATIENCE
from tests.support.pythons import EXECUTOR, OWN, another_build, another_version, killing_path, without_prdp
from tests.support.spark import PYSPARKS_OWN, ROOT, Cluster, in_the_shared_session, standalone
from tests.support.submit import Place
from tests.support.world import records, write_world

pytestmark = PYSPARKS_OWN
CANARY = "777123456789"
RELEASE = "small-release"
Done = subprocess.CompletedProcess[str]


def with_canary(folder: Path) -> Place:
    """A release of records of which one has a value that must never be told."""
    table = records(200)
    payroll = table.column("payroll").to_pylist()
    payroll[7] = int(CANARY)
    return Place(write_world(folder, table.set_column(4, "payroll", pa.array(payroll))), folder)


def call(place: Place, environment: dict[str, str], *options: str, before: str = "") -> Done:
    """Release in a process of its own; `before` is Python that it runs first."""
    arguments = ["release", str(place.plan), "--engine", "spark", "--ledger", ledger_file(place.ledger_path), *options]
    program = f"import sys\n{before}\nfrom jobs.cli import main\nsys.exit(main({arguments!r}))"
    ours = environment | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=ours, capture_output=True, text=True, check=False
    )


def told_plainly(done: Done, words: str, code: int = 1) -> None:
    """Whether a run ended with one plain line of these words."""
    of_others = ("[", "WARNING: Using incubator")  # our progress; Java's own greeting, and the shell's own complaint
    lines = [line for line in done.stderr.splitlines() if not line.startswith(of_others) and "spark-class:" not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]
    assert (done.returncode, done.stdout) == (code, "")
    assert CANARY not in done.stderr
    assert len(lines[0]) < 250


# -- Java ------------------------------------------------------------------------------------------------------------


def java(home: Path, version: str, otherwise: str) -> dict[str, str]:
    """Write a Java that says its version, and does otherwise when it shall run Spark."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    says = f"""case "$*" in -version) echo 'openjdk version "{version}"' >&2; exit 0;; esac"""
    script.write_text(f"#!/bin/sh\n{says}\n{otherwise}\n")
    script.chmod(0o700)
    return {"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"}


def test_a_java_that_does_not_start(tmp_path: Path) -> None:
    place = with_canary(tmp_path)
    told_plainly(call(place, java(tmp_path / "java", "21.0.1", "exit 3")), "Spark does not start (JAVA_GATEWAY_EXITED)")


# -- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Workers that have no prdp but the one that this Python has installed, and what a driver sends."""
    with standalone(tmp_path_factory.mktemp("cluster"), workers_path="") as found:
        yield found


def configured(cluster: Cluster, folder: Path, python: Path | str = sys.executable, **settings: str) -> dict[str, str]:
    """The environment of a driver with Spark's settings, "_" for ".", whose workers run `python`."""
    (folder / "conf").mkdir()
    lines = (f"{name.replace('_', '.')} {value}\n" for name, value in settings.items())
    (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
    return cluster.environment | {"SPARK_CONF_DIR": str(folder / "conf"), "PYSPARK_PYTHON": str(python)}


@pytest.mark.drill
def test_a_worker_without_prdp_or_with_another_build_then_the_right_one(tmp_path: Path, cluster: Cluster) -> None:
    """One release through all of it: what failed before leaves a reservation from which the next run goes on."""
    place = with_canary(tmp_path)
    steps = {
        "missing": (without_prdp(tmp_path / "bare"), "", "cannot import prdp or a library of it"),
        "other": (sys.executable, str(another_build(tmp_path / "other")), "another build of prdp than the driver"),
        "nowhere": ("/nowhere/python", str(ROOT), "cannot start Python: set PYSPARK_PYTHON"),
        "right": (sys.executable, str(ROOT), ""),
    }
    for name, (python, path, words) in steps.items():
        (tmp_path / "steps" / name).mkdir(parents=True)
        environment = configured(cluster, tmp_path / "steps" / name, python, spark_executorEnv_PYTHONPATH=path)
        done = call(place, environment, "--master", cluster.url)
        if words:
            told_plainly(done, words)
        state = place.state()
        assert (state.status, state.draws) == (("reserved", 0) if words else ("settled", 1)), done.stderr


@pytest.mark.drill
def test_another_version_of_python_on_a_worker(tmp_path: Path, cluster: Cluster) -> None:
    other = another_version()
    if other is None:
        pytest.skip("there is no Python of another minor version on the path or beside this one")
    done = call(with_canary(tmp_path), configured(cluster, tmp_path, other), "--master", cluster.url)
    told_plainly(done, "another Python than the driver: set PYSPARK_PYTHON")


@pytest.mark.drill
@pytest.mark.parametrize(
    ("victim", "words"),
    [
        (OWN, "the Python of a Spark worker died again and again"),
        (EXECUTOR, "Spark lost its executors again and again"),
    ],
)
def test_a_task_that_always_kills_its_worker(tmp_path: Path, cluster: Cluster, victim: str, words: str) -> None:
    path = killing_path(tmp_path / "path", victim)
    environment = configured(cluster, tmp_path, spark_executorEnv_PYTHONPATH=path)
    told_plainly(call(with_canary(tmp_path), environment, "--master", cluster.url), words)


@pytest.mark.drill
def test_an_executor_with_too_little_memory_for_python(tmp_path: Path, cluster: Cluster) -> None:
    settings = {
        "spark_executor_pyspark_memory": "300m",
        "spark_executor_memory": "480m",
        "spark_executorEnv_PYTHONPATH": str(ROOT),
    }
    done = call(with_canary(tmp_path), configured(cluster, tmp_path, **settings), "--master", cluster.url)
    told_plainly(done, "a Spark worker has too little memory: give it more")


@pytest.mark.drill
def test_executors_whose_java_runs_out_of_memory(tmp_path: Path, cluster: Cluster) -> None:
    settings = {"spark_executor_memory": "24m", "spark_testing_reservedMemory": "1000000"}
    done = call(with_canary(tmp_path), configured(cluster, tmp_path, **settings), "--master", cluster.url)
    told_plainly(done, "no worker gives an executor")


@pytest.mark.drill
@pytest.mark.parametrize("at", ["sums", "noise"])
def test_the_last_worker_is_lost_in_the_middle(tmp_path: Path, at: str) -> None:
    """After the session's start; the next run, with a worker again, publishes."""
    place = with_canary(tmp_path)
    (tmp_path / "cluster").mkdir()
    with standalone(tmp_path / "cluster", workers=1) as cluster:
        before = f"""import os
from pipeline.engines import spark_driver
from pipeline.engines.spark import SparkEngine
from tests.support.spark import descendants
spark_driver.LOST_SECONDS, spark_driver.LOOK_SECONDS = 3, 0.5
done, worker = SparkEngine._{"outcomes" if at == "sums" else "numbers"}, [{cluster.workers[0].pid}]
def killing(engine, *arguments):
    if worker and {at == "sums" or "len(arguments) == 2 and sys._getframe(1).f_code.co_name == 'stage'"}:
        first = worker.pop()
        for pid in [first, *descendants(first)]:
            os.kill(pid, 9)
    return done(engine, *arguments)
SparkEngine._{"outcomes" if at == "sums" else "numbers"} = killing"""
        done = call(place, cluster.environment, "--master", cluster.url, before=before)
        told_plainly(done, "no executor is left: start workers, and run again")
        state = place.state()
        assert (state.status, state.draws) == (("reserved", 0) if at == "sums" else ("drawn", 1))
    (tmp_path / "again").mkdir()
    with standalone(tmp_path / "again", workers=1) as cluster:
        done = call(place, cluster.environment, "--master", cluster.url)
    state = place.state()
    assert (done.returncode, state.status) == (0, "settled"), done.stderr


class Tracked:
    """What the watch asks of Spark: how many executors there are beside the driver, and that jobs end."""

    def __init__(self, executors: int) -> None:
        self.master, self.executors, self.ended = "spark://10.0.0.1:7077", executors, Event()
        self._jsc = self

    def sc(self) -> "Tracked":
        return self

    statusTracker = sc  # noqa: N815 — Spark's name

    def getExecutorInfos(self) -> range:  # noqa: N802
        return range(self.executors + 1)

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.tag = tag

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag
        self.ended.set()


def test_jobs_are_ended_where_no_executor_is_left_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOST_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(spark_driver, name, 0.01)

    def run(context: Any, ends_itself: bool) -> None:
        with OwnDriver(context).working(Log(), ()):
            if not context.ended.wait(0.3 if ends_itself else PATIENCE) or not ends_itself:
                raise ValueError("the job's own end")

    with pytest.raises(TaskFailed, match="no executor is left"):
        run(Tracked(0), False)
    alive, local = Tracked(1), Tracked(0)
    local.master = "local[2]"
    for context in (alive, local):
        with pytest.raises(ValueError, match="the job's own end"):
            run(context, True)
        assert not context.ended.is_set()


# -- files that workers cannot read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_a_file_that_only_the_driver_saw(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that the driver found is gone, or elsewhere, when a worker opens it."""
    if engine == "spark":
        in_the_shared_session(monkeypatch)
    place = with_canary(tmp_path)
    file = tmp_path / "microdata" / "part-0.parquet"
    found_chunks = source.chunks

    def then_gone(found: source.Source) -> list[source.Chunk]:
        listed = list(found_chunks(found))
        file.unlink()
        return listed

    monkeypatch.setattr(source, "chunks", then_gone)
    assert main(["release", str(place.plan), "--engine", engine, "--ledger", ledger_file(place.ledger_path)]) == 4
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"error: microdata {file}: reading failed (FileNotFoundError); check that the file is whole"
    state = place.state()
    assert state.refunded
