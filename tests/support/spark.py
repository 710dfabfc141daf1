"""Spark for tests: an engine with a session in this process, and real clusters on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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


@dataclass
class Cluster:
    """A standalone master and its workers, each a process of its own on loopback, whose files lie in `folder`."""

    folder: Path
    hosts: Sequence[Host]  # of the master, and of the workers in turn
    environment: dict[str, str]
    workers_path: str
    url: str = ""
    page: str = ""  # of the master, which says what it knows
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    master: subprocess.Popen[bytes] = field(init=False)

    def start_master(self) -> None:
        """Start a master, at the address of the one before."""
        log = self._start("master.Master", self.hosts[0], "--port", self.url.rpartition(":")[2] or "0")
        self.master = self.started[-1]
        self.page = wait_for(log, r"MasterWebUI to \S+, and started at (\S+)")
        self.url = wait_for(log, r"Starting Spark master at (spark://\S+)")

    def start_worker(self) -> Path:
        """Start a worker of one core, which may take seconds to arrive; return its log."""
        host = self.hosts[1 + len(self.workers) % (len(self.hosts) - 1)]
        log = self._start("worker.Worker", host, "--cores", "1", "--memory", "1g", self.url)
        self.workers.append(self.started[-1])
        return log

    def _start(self, kind: str, host: Host, *arguments: str) -> Path:
        log = self.folder / f"{kind.partition('.')[0]}-{len(self.started)}.log"
        own = self.environment | {"SPARK_LOCAL_IP": host.address, "PYTHONPATH": self.workers_path}
        spark = f"{self.environment['SPARK_HOME']}/bin/spark-class"
        words = [*host.command, spark, f"org.apache.spark.deploy.{kind}", "--host", host.address, "--webui-port", "0"]
        with log.open("wb") as out:
            self.started.append(subprocess.Popen([*words, *arguments], env=own, stdout=out, stderr=out))
        return log

    def kill_a_worker(self) -> None:
        """SIGKILL a worker, its executors and their Python processes."""
        worker = self.workers.pop()
        for pid in [worker.pid, *descendants(worker.pid)]:
            os.kill(pid, signal.SIGKILL)
        worker.wait()

    def whole(self, workers: int) -> bool:
        """Return whether the master knows as many workers as are there, all of them free, and no application."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=10) as answer:
                known = json.load(answer)
        except OSError:
            return False
        alive = [worker for worker in known["workers"] if worker["state"] == "ALIVE"]
        free = not known["activeapps"] and not any(worker["coresused"] for worker in alive)
        # beside executors a worker has the shell that began it, which has ended and whose command is empty
        below = [Path(f"/proc/{pid}/cmdline") for worker in self.workers for pid in descendants(worker.pid)]
        return free and not any(map(_text, below)) and len(alive) == len(self.workers) == workers

    def mend(self, workers: int) -> bool:
        """Have all go on that were stopped, and start what has ended; True, as all can be mended."""
        if self.master.poll() is not None:
            self.start_master()
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        for process in (self.master, *self.workers):
            for pid in (process.pid, *descendants(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        while len(self.workers) < workers:
            self.start_worker()
        return True


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
    places = hosts or [Host(f"127.0.0.{max(i, 1)}") for i in range(workers + 1)]
    environment = os.environ | {
        "JAVA_HOME": str(java_home(os.environ, folder)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": places[0].address,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "spill"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    cluster = Cluster(folder, places, environment, workers_path)
    try:
        cluster.start_master()
        for log in [cluster.start_worker() for _ in range(workers)]:
            wait_for(log, "(Successfully registered with master)")
        yield cluster
    finally:
        for process in cluster.started:
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


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, by /proc."""
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
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
