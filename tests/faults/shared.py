"""What the rows of a run share: a server of PostgreSQL, a Spark cluster, a Dask cluster, each started on first need.

A row's verdict does not depend on the row before. Before each row, what was stopped goes on, what has ended is started
again in place, and then the server must answer, and the cluster's own leader must know all workers and each must be
free. A cluster of which it does not within WHOLE, on which a row ended otherwise than expected, or that has other
settings than a row wants, is ended, and another is started: so what leaks into its files is the row's own.
"""

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
PATH = f"{Path(__file__).parent / 'path'}:{ROOT}"  # of Python, for drivers and workers
WORKERS = 2
WHOLE = 600.0  # seconds for a cluster to be whole: a busy machine takes minutes to start a Java
SPARK = """spark.network.timeout 60s
spark.executor.heartbeatInterval 10s
spark.network.timeoutInterval 20s
"""


@dataclass
class Lent:
    """A cluster, its folder, what its processes were started with, and what ends it."""

    cluster: Any
    folder: Path
    settings: Mapping[str, str]
    stack: ExitStack

    @property
    def cues(self) -> Path:
        """A link, which leads the cluster's processes to the cues of the row."""
        return self.folder / "cues"

    def mended(self) -> bool:
        """Mend the cluster in place; return whether it is whole in the end."""
        deadline = time.monotonic() + WHOLE
        while self.cluster.mend(WORKERS) and time.monotonic() < deadline:
            if self.cluster.whole(WORKERS):
                return True
            time.sleep(0.5)
        return False


@dataclass
class Shared:
    """What is lent to one row after the other, in `folder`, until the stack ends."""

    folder: Path
    stack: ExitStack
    servers: list[PostgresServer] = field(default_factory=list)
    clusters: dict[str, Lent] = field(default_factory=dict)
    started: int = 0

    def server(self) -> PostgresServer:
        """Return the server, which answers."""
        if not self.servers:
            self.servers.append(PostgresServer(max_connections="30"))
            self.stack.callback(self.servers[0].stop)
        process = self.servers[0].process
        if process is None or process.poll() is not None:
            self.servers[0].start()
        return self.servers[0]

    def cluster(self, engine: str, settings: Mapping[str, str], cues: Path) -> Lent:
        """Return an engine's cluster, which is whole, and stops at a row's cues."""
        lent = self.clusters.get(engine)
        if lent is not None and (lent.settings != settings or not lent.mended()):
            self.end(engine)
        lent = self.clusters.get(engine) or self._start(engine, settings)
        lent.cues.unlink(missing_ok=True)
        lent.cues.symlink_to(cues)
        return lent

    def _start(self, engine: str, settings: Mapping[str, str]) -> Lent:
        self.started += 1
        lent = Lent(None, self.folder / f"cluster-{self.started}", settings, ExitStack())
        lent.folder.mkdir(parents=True)
        self.clusters[engine] = lent
        lent.stack.callback(end_others, lent.cues)
        with pytest.MonkeyPatch.context() as patch:  # for workers, and not for servers
            patch.setenv("FAULT_CUES", str(lent.cues))
            for name, value in settings.items():
                patch.setenv(name, value)
            if engine == "dask cluster":
                from tests.support.dask_cluster import dask_processes

                lent.cluster = lent.stack.enter_context(dask_processes(lent.folder, WORKERS, path=PATH))
            else:
                from tests.support.spark import standalone

                lent.cluster = lent.stack.enter_context(standalone(lent.folder, WORKERS, SPARK, workers_path=PATH))
        assert lent.mended(), f"the {engine} is not whole: {lent.folder}"
        return lent

    def end(self, engine: str, keep: bool = False) -> None:
        """End an engine's cluster, if there is one, and remove its files or keep them."""
        lent = self.clusters.pop(engine, None)
        if lent is not None:
            lent.stack.close()
            if not keep:
                shutil.rmtree(lent.folder)

    def end_all(self) -> None:
        """End all clusters."""
        for engine in list(self.clusters):
            self.end(engine)


def others(cues: Path) -> list[int]:
    """The processes that know of cues, which are still there."""
    mark, found = f"FAULT_CUES={cues}".encode(), []
    for at in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (at / "environ").read_bytes().split(b"\0") and int(at.name) != os.getpid():
                found.append(int(at.name))
    return found


def ends(*processes: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)


def end_others(cues: Path) -> None:
    """Kill the processes that know of cues, and wait until they are gone."""
    while left := others(cues):
        ends(*left)
        time.sleep(0.02)
