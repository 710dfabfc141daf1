"""Child process: a Dask cluster of two worker processes on this machine; it ends when its input closes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

from tests.support.patience import PATIENCE
from tests.support.tls import certificates

ROOT = Path(__file__).parents[2]


@contextmanager
def local_cluster(host: str = "127.0.0.1") -> Iterator[str]:
    """Yield the address of a cluster at `host`, whose scheduler and workers live in processes of their own."""
    command = [sys.executable, "-m", "tests.support.dask_cluster", host]
    patience = {f"DASK_DISTRIBUTED__COMM__TIMEOUTS__{part}": f"{PATIENCE}s" for part in ("CONNECT", "TCP")}
    environment = os.environ | patience | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as child:  # type: ignore[call-overload]
        yield child.stdout.readline().strip()
        child.stdin.close()


@dataclass(frozen=True)
class Processes:
    """A scheduler and workers without nannies, each a process: what is killed stays dead."""

    address: str
    scheduler: subprocess.Popen[str]
    environment: Mapping[str, str]
    stack: ExitStack
    folder: Path
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def start_worker(self) -> None:
        """Start a worker, which may take seconds to arrive."""
        options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1"]
        log = self.folder / f"worker-{len(list(self.folder.glob('worker-*.log')))}.log"
        self.workers.append(self.stack.enter_context(_dask(self.environment, log, "worker", self.address, *options)))

    def whole(self, workers: int) -> bool:
        """Return whether the scheduler knows the workers that are there alone, and each of them does a task."""
        try:
            with Client(self.address, timeout=10, set_as_default=False) as client:
                known = list(client.scheduler_info(n_workers=-1)["workers"])
                at_work = any(client.processing().values()) or client.who_has()
                asked = [client.submit(os.getpid, workers=[each], pure=False) for each in known]
                pids = {each.result(timeout=10) for each in asked}
        except Exception:  # of many kinds, as a scheduler or a worker may be gone, or stand still
            return False
        return not at_work and pids == {each.pid for each in self.workers} and len(pids) == workers

    def mend(self, workers: int) -> bool:
        """Have all go on that were stopped, start workers for those that ended; False where the scheduler did."""
        self.workers[:] = [worker for worker in self.workers if worker.poll() is None]
        for process in (self.scheduler, *self.workers):
            process.send_signal(signal.SIGCONT)
        while len(self.workers) < workers and self.scheduler.poll() is None:
            self.start_worker()
        return self.scheduler.poll() is None


@contextmanager
def dask_processes(
    folder: Path, workers: int, settings: Mapping[str, str] | None = None, path: str = str(ROOT)
) -> Iterator[Processes]:
    """Yield a cluster on loopback whose logs lie in `folder`; with `settings` of `with_tls`, one over TLS."""
    environment = os.environ | {"PYTHONPATH": path} | dict(settings or {})
    scheme = "tls" if settings else "tcp"
    options = ["--host", f"{scheme}://127.0.0.1", "--port", "0", "--no-dashboard"]
    with ExitStack() as stack:
        log = folder / "scheduler.log"
        scheduler = stack.enter_context(_dask(environment, log, "scheduler", *options))
        while not (told := re.search(r"Scheduler at:\s+(\S+)", log.read_text())):
            assert scheduler.poll() is None, log.read_text()
            time.sleep(0.05)
        cluster = Processes(told.group(1), scheduler, environment, stack, folder)
        for _ in range(workers):
            cluster.start_worker()
        yield cluster


@contextmanager
def _dask(environment: Mapping[str, str], log: Path, role: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *arguments]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def with_tls(folder: Path) -> dict[str, str]:
    """Write certificates for a cluster on loopback; return the variables that have Dask use them."""
    files = dict(zip(("ca", "cert", "key"), certificates("127.0.0.1"), strict=True))
    for name, pem in files.items():
        (folder / f"{name}.pem").write_bytes(pem)
    own = {f"{role}__{part}": f"{part}.pem" for role in ("SCHEDULER", "WORKER", "CLIENT") for part in ("cert", "key")}
    names = {"CA_FILE": "ca.pem", **{name.upper(): file for name, file in own.items()}}
    return {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(folder / file) for name, file in names.items()}


def progress(dask_scheduler: Any) -> tuple[int, str]:
    """Return, on the scheduler, the number of finished tasks, and a worker that runs one ('' if none does)."""
    done = sum(task.state == "memory" for task in dask_scheduler.tasks.values())
    return done, next((name for name, worker in dask_scheduler.workers.items() if worker.processing), "")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host=sys.argv[1]) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
