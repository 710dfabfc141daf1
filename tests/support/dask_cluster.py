"""Child process: a Dask cluster of two worker processes on this machine; it ends when its input closes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import LocalCluster

from tests.support.patience import PATIENCE

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


def progress(dask_scheduler: Any) -> tuple[int, str]:
    """Return, on the scheduler, the number of finished tasks, and a worker that runs one ('' if none does)."""
    done = sum(task.state == "memory" for task in dask_scheduler.tasks.values())
    return done, next((name for name, worker in dask_scheduler.workers.items() if worker.processing), "")


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host=sys.argv[1]) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
