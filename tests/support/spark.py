"""Spark for tests: an engine with a session in this process, and real clusters on loopback."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext

from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_session import java_home
from tests.support.hosts import Host
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CONNECT_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
# PySpark leaves the sockets of its broadcasts to the garbage collector.
PYSPARKS_OWN = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_shared: list[SparkEngine] = []


def shared_engine() -> SparkEngine:
    """Return the engine whose session all tests of this process share: a session takes seconds to start."""
    if not _shared:
        _shared.append(SparkEngine("local[2]"))
    return _shared[0]


def in_the_shared_session(patch: pytest.MonkeyPatch) -> None:
    """Let commands release in the shared session, which starts here, and leave it open."""
    engine = shared_engine()
    assert engine.session
    patch.setattr("pipeline.engines.spark.SparkEngine", lambda **_: engine)
    patch.setattr(engine, "close", lambda: None)


def close_shared_engine() -> None:
    """End the shared session, if there is one; the next test that asks for it starts another."""
    while _shared:
        _shared.pop().close()


def end_java() -> None:
    """End the Java of this process; the next session starts another, with the environment as it is then."""
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(PATIENCE)
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def local_engine() -> Iterator[SparkEngine]:
    """Yield an engine with a session and a Java of its own, which have today's environment, in this process."""
    close_shared_engine()  # a process has one session
    end_java()
    engine = SparkEngine("local[2]")
    try:
        yield engine
    finally:
        engine.close()
        end_java()


@dataclass(frozen=True)
class Cluster:
    """A standalone master and its workers, each a process of its own on loopback."""

    url: str
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]]
    master: subprocess.Popen[bytes]
    start_worker: Callable[[], None]

    def kill_a_worker(self) -> None:
        """SIGKILL a worker, its executors and their Python processes."""
        worker = self.workers.pop()
        for pid in [worker.pid, *descendants(worker.pid)]:
            os.kill(pid, signal.SIGKILL)
        worker.wait()


@contextmanager
def standalone(
    folder: Path,
    workers: int = 2,
    settings: str = "",
    workers_path: str = str(ROOT),
    hosts: Sequence[Host] | None = None,
) -> Iterator[Cluster]:
    """Yield a standalone cluster of workers of one core, with Spark's `settings`, whose files lie in `folder`.

    The workers' Python path is `workers_path`; drivers find prdp here. The master runs on the first of `hosts`, each
    worker on one of the next; by default each worker has an address of its own on loopback.
    """
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(settings)
    home = Path(pyspark.__file__).parent
    places = hosts or [Host(f"127.0.0.{max(i, 1)}") for i in range(workers + 1)]
    environment = os.environ | {
        "JAVA_HOME": str(java_home(os.environ, folder)),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": places[0].address,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "spill"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, host: Host, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", host.address]
        own = environment | {"SPARK_LOCAL_IP": host.address, "PYTHONPATH": workers_path}
        with log.open("wb") as out:
            started.append(subprocess.Popen([*host.command, *command, *arguments], env=own, stdout=out, stderr=out))
        return log

    def start_worker(host: Host) -> None:
        name = f"worker-{len(started)}"
        start(name, "worker.Worker", host, "--cores", "1", "--memory", "1g", "--webui-port", "0", url)

    try:
        log = start("master", "master.Master", places[0], "--port", "0", "--webui-port", "0")
        url = wait_for(log, r"Starting Spark master at (spark://\S+)")
        for host in places[1 : workers + 1]:
            start_worker(host)
        for i in range(workers):
            wait_for(folder / f"worker-{i + 1}.log", "(Successfully registered with master)")
        yield Cluster(url, environment, started[1:], started[0], lambda: start_worker(places[-1]))
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)


def wait_for(log: Path, pattern: str) -> str:
    """Return what the first group of `pattern` matches in a log, once it stands there."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found.group(1)
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {pattern}:\n{log.read_text(errors='replace')[-2000:]}")


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, by /proc."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread may end while it is looked at
            children += map(int, task.read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


@contextmanager
def connect_server(folder: Path, token: str, settings: str) -> Iterator[str]:
    """Yield the address of a server of Spark Connect, of the wheel of PySpark, at this machine's name alone."""
    (folder / "server.conf").write_text(settings)
    home, log = Path(pyspark.__file__).parent, folder / "server.log"
    environment = os.environ | {
        "JAVA_HOME": str(java_home(os.environ, folder)),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "spill"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }
    chosen = {"address": "127.0.0.1", "port": "0"}
    options = [
        word for key, given in chosen.items() for word in ("--conf", f"spark.connect.grpc.binding.{key}={given}")
    ]
    command = [home / "bin" / "spark-submit", "--properties-file", folder / "server.conf", *options, "--class"]
    with log.open("wb") as out:
        server = subprocess.Popen([*command, CONNECT_SERVER, "spark-internal"], env=environment, stdout=out, stderr=out)
    try:
        port = wait_for(log, r"Spark Connect server started at: \S*:([0-9]+)")
        yield f"sc://localhost:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE)
