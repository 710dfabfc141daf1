"""spark-submit: its outputs and exit codes, packed code, cluster mode, hosts of a network of which one is cut off."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from pipeline.engines.spark import chosen_by_cluster
from pipeline.engines.spark_session import java_home
from pipeline.ledger.database.address import in_a_file
from tests.support.hosts import Host, network
from tests.support.ledgers import is_bare, ledger_file
from tests.support.parity import RELEASE, SECTOR, attempt_of, released, wide
from tests.support.patience import PATIENCE
from tests.support.pythons import without_prdp
from tests.support.spark import ROOT, Cluster, standalone
from tests.support.submit import Place
from tests.support.world import records, write_world

Done = subprocess.CompletedProcess[str]
SECRET = "spark.authenticate.secret s3\n"


def spark_submit(
    environment: dict[str, str], configuration: str, *arguments: str, command: tuple[str, ...] = ()
) -> Done:
    """Run spark-submit with one of the product's configurations."""
    program = str(Path(sys.executable).with_name("spark-submit"))
    properties = ["--properties-file", str(ROOT / "conf" / "spark" / f"{configuration}.conf")]
    call = [*command, program, *properties, *arguments]
    return subprocess.run(call, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def release(place: Place, *more: str) -> list[str]:
    where = ["--ledger", ledger_file(place.ledger_path), "--out", str(place.out)]
    return [str(ROOT / "jobs" / "release.py"), str(place.plan), *where, *more]


def settled_once(place: Place) -> None:
    state = place.state()
    assert (state.status, state.draws) == ("settled", 1)


def here(folder: Path) -> dict[str, str]:
    """The environment of a driver that finds prdp here, with the Java that the product chooses."""
    java = java_home(os.environ, folder)
    return os.environ | {"JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}


@pytest.mark.drill  # in `make test` tests/engines/test_kubernetes.py starts it
def test_json_alone_stands_on_standard_output_and_nothing_is_left_behind(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(60)), tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = here(tmp_path) | {"TMPDIR": str(temporary)}
    done = spark_submit(environment, "local", *release(place, "--json"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["state"] == "settled"
    assert "] reading the microdata" in done.stderr
    counts = ("DAGScheduler", "TaskSetManager", "MemoryStore", "bytes")  # of Spark's own logs, by its default
    assert not [name for name in counts if name in done.stderr]
    assert not list(temporary.glob("prdp-*"))
    settled_once(place)


@pytest.mark.drill  # in `make test` tests/jobs/test_signals.py starts one
def test_an_embedded_session_leaves_nothing_behind(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(60)), tmp_path)
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")}
    call = [sys.executable, "-m", "jobs.cli", "release", str(place.plan), "--engine", "spark", "--json"]
    call += ["--ledger", ledger_file(place.ledger_path)]
    done = subprocess.run(call, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["state"] == "settled", done.stderr
    end = time.monotonic() + PATIENCE  # Java ends a moment after Python
    while (left := list((tmp_path / "temporary").glob("*"))) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


@pytest.mark.parametrize("key", ["spark.submit.deployMode=cluster", "spark.kubernetes.submitInDriver=true"])
def test_what_is_cluster_mode(key: str) -> None:
    name, value = key.split("=")
    assert chosen_by_cluster({name: value}.get)
    assert not chosen_by_cluster({"spark.submit.deployMode": "client"}.get)
    assert not chosen_by_cluster({}.get)


@pytest.mark.parametrize(
    ("url", "found"), [(None, True), ("a/b.sqlite", True), ("sqlite:////a/b", True), ("postgresql://h/d", False)]
)
def test_which_ledgers_are_files_of_a_machine(url: str | None, found: bool) -> None:
    assert in_a_file(url) == found


@pytest.mark.drill
def test_cluster_mode_with_a_ledger_in_a_file_is_refused_before_anything_is_reserved(tmp_path: Path) -> None:
    """As a driver on Kubernetes is started: in client mode, within a driver's pod."""
    place = Place(write_world(tmp_path, records(60)), tmp_path)
    mark = ("--conf", "spark.kubernetes.submitInDriver=true")
    done = spark_submit(here(tmp_path), "local", *mark, *release(place))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine" in done.stderr
    assert "Traceback" not in done.stderr
    assert is_bare(place.ledger_path)


@pytest.mark.drill
def test_packed_code_alone_on_a_cluster_with_authentication(tmp_path: Path) -> None:
    """Workers whose Python has the libraries and no prdp but what --py-files sends, in the secure configuration."""
    place = Place(write_world(tmp_path, records(200)), tmp_path)
    packed = tmp_path / "prdp.zip"
    subprocess.run([sys.executable, "-m", "jobs.submit", "pack", packed], cwd=ROOT, check=True)
    settings = (ROOT / "conf" / "spark" / "standalone.conf").read_text() + SECRET
    with standalone(tmp_path, settings=settings, workers_path="") as cluster:
        python = str(without_prdp(tmp_path / "bare"))
        environment = cluster.environment | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}

        def run(*options: str) -> Done:
            secret = ("--conf", "spark.authenticate.secret=s3")
            return spark_submit(environment, "standalone", "--master", cluster.url, *secret, *options, *release(place))

        refused = run("--conf", "spark.io.encryption.enabled=false")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "set spark.io.encryption.enabled to true; start it by spark-submit" in refused.stderr
        without = run()  # the broken twin: nothing is sent
        assert (without.returncode, without.stdout) == (1, "")
        assert "error: a Spark worker cannot import prdp" in without.stderr
        done = run("--py-files", str(packed))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "settled" in done.stdout
    settled_once(place)


# -- three hosts -----------------------------------------------------------------------------------------------------

SOON = """spark.network.timeout 20s
spark.executor.heartbeatInterval 5s
spark.network.timeoutInterval 10s
spark.worker.timeout 20
"""


def once_written(folder: Path, wanted: str, act: Callable[[], None]) -> Thread:
    """Act as soon as a file of the wanted name lies below a folder."""

    def watch() -> None:
        while not list(folder.rglob(wanted)):
            time.sleep(0.005)
        act()

    thread = Thread(target=watch, daemon=True)
    thread.start()
    return thread


def known_key_release(cluster: Cluster, driver: Host, plan: Path, folder: Path) -> Done:
    script = [str(ROOT / "tests" / "support" / "spark_release.py"), "-", "-", str(plan), str(folder)]
    options = ["--master", cluster.url, "--conf", "spark.authenticate.secret=s3"]
    options += ["--conf", f"spark.driver.host={driver.address}"]
    for line in SOON.splitlines():
        options += ["--conf", line.replace(" ", "=")]
    return spark_submit(cluster.environment, "standalone", *options, *script, command=driver.command)


@pytest.mark.drill
def test_a_worker_that_is_cut_off_in_the_noise(tmp_path: Path) -> None:
    """It goes on writing, unheard: the run ends with the same bytes, or plainly and the next one draws no second."""
    folder = tmp_path / "wide"
    folder.mkdir()
    plan = wide(folder, SECTOR)
    settings = (ROOT / "conf" / "spark" / "standalone.conf").read_text() + SECRET + SOON
    with network(3) as hosts, standalone(tmp_path, settings=settings, hosts=hosts) as cluster:
        place = Place(plan, folder)
        for name in ("spark.authenticate", "spark.network.crypto.enabled"):
            options = ("--master", cluster.url, "--conf", f"{name}=false", *release(place))
            refused = spark_submit(cluster.environment, "standalone", *options, command=hosts[0].command)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert f"set {name} to true" in refused.stderr
            assert not (place.out / RELEASE).exists()
        cut = once_written(folder / "state" / "staging", "jobs/part-*", hosts[1].cut)
        done = known_key_release(cluster, hosts[0], plan, folder)
        assert not cut.is_alive(), done.stdout + done.stderr[-3000:]
        if done.returncode != 0:
            assert "Traceback" not in done.stderr
            hosts[1].mend()
            done = known_key_release(cluster, hosts[0], plan, folder)
        assert done.returncode == 0, done.stderr[-3000:]
        log = (tmp_path / "master-0.log").read_text()
        assert "heartbeat" in log or "disassociated" in log or "Removing worker" in log
    state = place.state()
    assert state.status == "settled"
    assert attempt_of(folder) == released(plan, tmp_path / "dask", None)


@pytest.mark.drill
@pytest.mark.parametrize("lacking", ["master", "secret"])
def test_a_cluster_that_does_not_take_the_driver_in(tmp_path: Path, lacking: str) -> None:
    """No master at the address, or one that has another secret."""
    place = Place(write_world(tmp_path, records(60)), tmp_path)
    settings = (ROOT / "conf" / "spark" / "standalone.conf").read_text() + SECRET
    with standalone(tmp_path, workers=0, settings=settings) as cluster:
        url = cluster.url if lacking == "secret" else "spark://127.0.0.1:1"
        options = ("--master", url, "--conf", "spark.authenticate.secret=other")
        done = spark_submit(cluster.environment, "standalone", *options, *release(place))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"^error: (Spark does not start|master \S+: no worker gives an executor)", done.stderr, re.M)
    assert 'File "' not in done.stderr  # no traceback of Python
    state = place.state()
    assert (state.status, state.draws) == ("reserved", 0)
