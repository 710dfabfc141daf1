"""What is done to a scene: a fault is a generator that does harm, waits at `yield` for the run, and mends."""

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Timer

import psycopg

from tests.faults.scene import HOSTS, LOCALHOST, Scene
from tests.faults.shared import ends
from tests.support.airflow import processes_with
from tests.support.spark import descendants

Act = Callable[[Scene], Iterator[None]]
Who = Callable[[Scene], int]

# --- whom


def driver(scene: Scene) -> int:
    return scene.driver.pid


def at_work(scene: Scene) -> int:
    """The process that has a task in hand: the driver itself on threads, a worker of Dask, a Python of Spark."""
    return scene.at_work()


def java(scene: Scene) -> int:
    """The driver's own Java."""
    return next(pid for pid in descendants(scene.driver.pid) if _command(pid).startswith("java"))


def executor(scene: Scene) -> int:
    """The Java of a Spark cluster whose Python has a task in hand."""
    pid = scene.at_work()
    while not _command(pid).startswith("java"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid


def leader(scene: Scene) -> int:
    """Dask's scheduler, or Spark's master."""
    return int((scene.cluster.scheduler if hasattr(scene.cluster, "scheduler") else scene.cluster.master).pid)


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/exe").resolve().name


# --- processes


def signalled(who: Who, number: int) -> Act:
    """Send a signal, once."""

    def act(scene: Scene) -> Iterator[None]:
        os.kill(who(scene), number)
        yield

    return act


def scheduler_killed(scene: Scene) -> Iterator[None]:
    """Kill Airflow's scheduler, and start it again as it was."""
    home, found = f"AIRFLOW_HOME={scene.path('airflow')}".encode(), processes_with("airflow\0scheduler")
    own = [Path(f"/proc/{pid}") for pid in found if home in Path(f"/proc/{pid}/environ").read_bytes()]
    scene.stack.callback(ends, *(worker for at in own for worker in descendants(int(at.name))))  # they outlive it
    command, variables = ((own[0] / name).read_bytes().strip(b"\0").split(b"\0") for name in ("cmdline", "environ"))
    for at in own:
        os.kill(int(at.name), signal.SIGKILL)
    environment = dict(variable.split(b"=", 1) for variable in variables)
    with (scene.path("logs") / "scheduler.log").open("wb") as log:
        scheduler = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    scene.stack.callback(scheduler.kill)
    yield


def leader_killed(scene: Scene) -> Iterator[None]:
    """Kill Dask's scheduler or Spark's master; before the next run the cluster is mended, or another is there."""
    os.kill(leader(scene), signal.SIGKILL)
    yield
    scene.borrow()


def workers_killed(scene: Scene) -> Iterator[None]:
    """Kill all workers of the cluster, and what they started; new ones come before the next run."""
    for worker in scene.cluster.workers:
        for pid in (worker.pid, *descendants(worker.pid)):
            os.kill(pid, signal.SIGKILL)
    yield
    scene.borrow()


def paused(who: Who, seconds: float = 6) -> Act:
    """Stop a process by SIGSTOP, and have it go on after some time."""

    def act(scene: Scene) -> Iterator[None]:
        pid = who(scene)
        os.kill(pid, signal.SIGSTOP)
        Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()
        yield

    return act


def frozen(who: Who) -> Act:
    """Stop a process by SIGSTOP until the run has ended."""

    def act(scene: Scene) -> Iterator[None]:
        pid = who(scene)
        os.kill(pid, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):  # a cluster may have ended what did not answer
            os.kill(pid, signal.SIGCONT)

    return act


def met_by_another(scene: Scene) -> Iterator[None]:
    """Stop the driver, run the same command meanwhile, and have the first one go on."""
    os.kill(scene.driver.pid, signal.SIGSTOP)
    scene.another_run()
    os.kill(scene.driver.pid, signal.SIGCONT)
    yield


def overtaken(scene: Scene) -> Iterator[None]:
    """Stop the driver and end its sessions, as of a host that is cut off; another publishes; the first one goes on."""
    os.kill(scene.driver.pid, signal.SIGSTOP)
    _end_sessions(scene)
    scene.another_run()
    os.kill(scene.driver.pid, signal.SIGCONT)
    yield


def _end_sessions(scene: Scene) -> None:
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{scene.database}'"
    scene.server.execute("postgres", end)


def out_of_memory(who: Who) -> Act:
    """Put a process into a group that may have one MiB more, and have it need more: the kernel kills it."""

    def act(scene: Scene) -> Iterator[None]:
        group, limit = control_group()
        group.mkdir()
        (group / limit).write_text(str(2**20))
        (group / "cgroup.procs").write_text(str(who(scene)))
        (scene.cues / "hungry").touch()
        yield
        (scene.cues / "hungry").unlink()
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            for worker in getattr(scene.cluster, "workers", ()):
                worker.poll()  # the killed one stays until its parent has noticed
            time.sleep(0.1)
        group.rmdir()

    return act


def control_group() -> tuple[Path, str]:
    """Return where a group of this process's own may lie, and its file for the limit, by the kernel's version."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    name = f"prdp-faults-{os.getpid()}"
    return (first / name, "memory.limit_in_bytes") if first.is_dir() else (second / name, "memory.max")


# --- disks and clocks


def full(folder: str) -> Act:
    """Leave no room in a folder, which is a small file system of its own."""

    def act(scene: Scene) -> Iterator[None]:
        filler = scene.path(folder) / "filler"
        with filler.open("wb", buffering=0) as file:
            for size in (2**16, 2**10, 1):
                try:
                    while file.write(b"\0" * size) == size:
                        pass
                except OSError:
                    continue
        yield
        filler.unlink()

    return act


def no_inodes(folder: str) -> Act:
    """Leave no number for another file in a folder."""

    def act(scene: Scene) -> Iterator[None]:
        filler = scene.path(folder) / "filler"
        filler.mkdir(mode=0o700)
        try:
            while True:
                (filler / str(time.monotonic_ns())).touch()
        except OSError:
            yield
        shutil.rmtree(filler)

    return act


def read_only(folder: str) -> Act:
    """Mount a folder's file system read-only."""

    def act(scene: Scene) -> Iterator[None]:
        _remount(scene.path(folder), "ro")
        yield
        _remount(scene.path(folder), "rw")

    return act


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


def clock_jumps(by: str) -> Act:
    """Set the driver's clock (libfaketime), as "+1d"."""

    def act(scene: Scene) -> Iterator[None]:
        (scene.folder / "clock").write_text(by)
        yield
        (scene.folder / "clock").write_text("+0")

    return act


# --- microdata


def microdata(how: Callable[[Path], None]) -> Act:
    """Change the file of microdata; put the first one back, with its time, as it was."""

    def act(scene: Scene) -> Iterator[None]:
        file = scene.path("world") / "microdata" / "part-0.parquet"
        shutil.copy2(file, scene.folder / "kept")
        how(file)
        yield
        shutil.copy2(scene.folder / "kept", file)

    return act


def truncated(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def replaced(file: Path) -> None:
    """Put another file of as many records in its place, as an upload does."""
    from pyarrow.parquet import write_table

    from tests.faults.scene import with_canaries

    write_table(with_canaries(299), file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


# --- servers and links


def server_restarts(scene: Scene) -> Iterator[None]:
    scene.server.crash()
    scene.server.start()
    yield


def server_gone(scene: Scene) -> Iterator[None]:
    scene.server.crash()
    yield
    scene.server.start()


def failed_over(scene: Scene) -> Iterator[None]:
    """The server dies for good, and its standby takes over."""
    scene.server.crash()
    scene.standby.execute("postgres", "SELECT pg_promote()")
    yield
    scene.server, scene.standby = scene.standby, scene.server


def no_connection_left(scene: Scene) -> Iterator[None]:
    """Take all connections that the server gives."""
    taken = []
    try:
        while True:
            taken.append(psycopg.connect(scene.server.conninfo()))
    except psycopg.OperationalError:
        yield
    for session in taken:
        session.close()


def locked(scene: Scene) -> Iterator[None]:
    """Another process keeps the ledger's file to itself until the run has ended."""
    other = sqlite3.connect(scene.place.ledger_path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    yield
    other.close()


def locked_for_a_while(scene: Scene) -> Iterator[None]:
    other = sqlite3.connect(scene.place.ledger_path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    Timer(6, other.close).start()
    yield


def cut(scene: Scene) -> Iterator[None]:
    scene.link.cut()
    yield
    scene.link.mend()


def cut_for_a_while(scene: Scene) -> Iterator[None]:
    scene.link.cut()
    Timer(4, scene.link.mend).start()
    yield


def slow(scene: Scene) -> Iterator[None]:
    scene.link.delay = 0.1
    yield
    scene.link.mend()


def still(scene: Scene) -> Iterator[None]:
    """Nothing arrives any more, and nobody is told."""
    scene.link.still = True
    yield
    scene.link.mend()


def name_leads(line: str) -> Act:
    """Have the name `localhost`, by which the driver knows its servers, lead elsewhere, or nowhere."""

    def act(scene: Scene) -> Iterator[None]:
        before = HOSTS.read_text()
        HOSTS.write_text(before.replace(LOCALHOST, line))
        if scene.server is not None:
            _end_sessions(scene)
        yield
        HOSTS.write_text(before)

    return act


name_leads_elsewhere = name_leads("127.0.0.99 localhost")  # where nobody listens
name_is_gone = name_leads("")


def store_fails(scene: Scene) -> Iterator[None]:
    """The object store answers 503 to everything."""
    scene.weather.failing = True
    yield
    scene.weather.failing = False


def store_is_slow(scene: Scene) -> Iterator[None]:
    scene.weather.delay = 0.1
    yield
    scene.weather.delay = 0.0
