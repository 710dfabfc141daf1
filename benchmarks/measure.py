"""How every benchmark of whole processes is measured, and the one file that keeps what was measured."""

import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from threading import Event, Thread
from typing import Any

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".work" / "bench"
MEASURED = WORK / "measured.json"
LIBRARIES = ("duckdb", "polars", "dask", "pyspark", "pyarrow", "pandas", "numpy", "scipy")
ADOPT = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent ends become this one's, which waits for them
LOOK = 0.2  # seconds between two looks at the memory of several processes


@dataclass(frozen=True)
class Run:
    """A command from start to end: seconds by the clock, seconds of processors, and resident MiB at most."""

    wall: float
    cpu: float
    peak: float


TAKEN = tuple(field.name for field in fields(Run))
LOAD = "load"  # of the machine before the session
Case = frozenset[tuple[str, object]]  # the facts of a row beside what was measured


class CommandFailed(Exception):
    """A measured command ended with another exit code than 0."""


def run(words: Sequence[str], environment: Mapping[str, str] | None = None, tree: bool = False) -> Run:
    """Run a program and return what it took, with all processes that it started.

    The peak is that of the largest process; of a `tree` of processes their sum, as seen five times a second, where
    memory that processes share counts once. What this process holds counts as the peak of those that it starts, so it
    stays small. Raises CommandFailed with the end of what the program told.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(ADOPT, 1)
    others = {*_children(os.getpid())}
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryFile() as told:
        # with it each command would compile all of prdp anew, which no installation does
        own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(words, env=own | {**(environment or {})}, stdout=told, stderr=subprocess.STDOUT)
        with _looking(process.pid, tree) as seen:
            _, status, used = os.wait4(process.pid, 0)
            wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            end = told.read()[-2000:].decode(errors="replace")
            raise CommandFailed(f"{' '.join(words)}: exit code {process.returncode}\n{end}")
    while adopted := {*_children(os.getpid())} - others:  # Java and its workers may end a little later
        for child in adopted:
            os.waitpid(child, 0)
    after = getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    return Run(wall, cpu, max(used.ru_maxrss / unit, *seen, 0))


@contextmanager
def _looking(pid: int, tree: bool) -> Iterator[list[float]]:
    """Yield a list that grows by the MiB of a tree of processes until the block ends."""
    seen: list[float] = []
    ended = Event()

    def look() -> None:
        while not ended.wait(LOOK):
            seen.append(sum(map(_proportional, _below(pid))))

    thread = Thread(target=look)
    if tree and sys.platform == "linux":
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        if thread.ident:
            thread.join()


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):  # it may end while it is looked at
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, task.read_text().split())
    return children


def _below(pid: int) -> list[int]:
    return [pid, *(below for child in _children(pid) for below in _below(child))]


def _proportional(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Measured:
    """What was measured, in a JSON file: the machine, versions, and every run with the facts of its case."""

    def __init__(self, path: Path = MEASURED, keep: bool = False) -> None:
        """Read a file, if it is there; cases that are measured anew lose their earlier runs unless `keep`."""
        self.path, self._keep, self._new = path, keep, set[Case]()
        self._versions, self._load = versions(), round(os.getloadavg()[0], 1)
        self.document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every run: the facts of its case, and what it took."""
        rows: list[dict[str, Any]] = self.document["runs"]
        return rows

    def add(self, taken: Run, **facts: object) -> None:
        """Keep a run, at once."""
        case = frozenset(facts.items())
        if case not in self._new and not self._keep:
            self.document["runs"] = [row for row in self.rows if case_of(row) != case]
        self._new.add(case)
        self.rows.append(facts | {name: round(took, 4) for name, took in asdict(taken).items()} | {LOAD: self._load})
        self._write()

    def put(self, name: str, found: object) -> None:
        """Keep something that is no run, under a name of its own."""
        self.document[name] = found
        self._write()

    def _write(self) -> None:
        self.document |= {"machine": machine(), "versions": self.document.get("versions", {}) | self._versions}
        others = {name: part for name, part in self.document.items() if name != "runs"}
        lines = ",\n".join(f"  {json.dumps(row)}" for row in self.rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_suffix(".half")
        half.write_text(f'{json.dumps(others, indent=1)[:-2]},\n "runs": [\n{lines}\n ]\n}}\n')
        half.replace(self.path)

    def medians(self) -> dict[Case, Run]:
        """Return the median of each figure of each case."""
        runs: dict[Case, list[Run]] = {}
        for row in self.rows:
            runs.setdefault(case_of(row), []).append(Run(*(row[name] for name in TAKEN)))
        return {case: Run(*(median(getattr(one, name) for one in of) for name in TAKEN)) for case, of in runs.items()}


def case_of(row: Mapping[str, object]) -> Case:
    """Return the facts of a row."""
    return frozenset((name, fact) for name, fact in row.items() if name not in (*TAKEN, LOAD))


def machine() -> dict[str, object]:
    """Return what a reader needs to know of this machine."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1), "system": sys.platform}


def versions() -> dict[str, str]:
    """Return the versions of Python, of this checkout and of the libraries."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = {"python": platform.python_version(), "prdp": commit.stdout.strip() or "unknown"}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
