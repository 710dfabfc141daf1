"""Out of memory or of threads: one plain line, exit code 1, and the next run goes on where this one ended."""

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipeline.engines.tasks
from jobs.cli import main
from pipeline.base.errors import PrdpError, exhausted
from pipeline.engines.dask import DaskEngine
from pipeline.engines.tasks import Failure, SumTask, job_error
from pipeline.microdata.source import chunks, find
from pipeline.storage.paths import locate
from tests.support.patience import PATIENCE
from tests.support.submit import Place
from tests.support.world import records, write_world

MIB, CANARY = 1 << 20, "CANARY-735-00-1"
EITHER = "(memory|threads)"


def release(plan: Path, folder: Path) -> list[str]:
    return [*map(str, ("release", plan, "--out", folder / "out", "--ledger", Place(plan, folder).ledger_path))]


def released(plan: Path, folder: Path, addresses: int, stack: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Release in a process that may use so many bytes of addresses, each thread so many of them for its stack."""

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
        if stack is not None:
            resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.RLIM_INFINITY))

    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *release(plan, folder)],
        preexec_fn=limits, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=Path(__file__).parents[2],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("addresses", "stack", "lacking"),
    [
        (100 * MIB, None, "memory"),  # in which a library in C would end in a violation of memory
        (330 * MIB, None, EITHER),
        (450 * MIB, None, EITHER),
        (6 << 30, 8 << 30, "threads"),  # not one beside the first
        (20 << 30, 8 << 30, "threads"),  # one or two
    ],
)
def test_a_release_that_lacks_memory_or_threads(
    tmp_path: Path, addresses: int, stack: int | None, lacking: str
) -> None:
    plan = write_world(tmp_path / "world", records(50))
    Place(plan, tmp_path).ledger()
    done = released(plan, tmp_path, addresses, stack)
    assert done.returncode == 1, done.stderr
    assert re.match(f"error: out of {lacking}: ", done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr
    assert main(release(plan, tmp_path)) == 0


def too_large(_: int) -> None:
    np.ones(1 << 58)


def too_large_for_arrow(_: int) -> None:
    pa.allocate_buffer(1 << 58)


def no_thread(_: int) -> None:
    raise RuntimeError(f"can't start new thread of {CANARY}")


def no_thread_of_arrow(_: int) -> None:
    raise pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")


def no_process(_: int) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def no_library(_: int) -> None:
    raise ImportError("libx.so.1: failed to map segment from shared object")


TASKS = {
    too_large: "memory",
    too_large_for_arrow: "memory",
    no_library: "memory",
    no_thread: "threads",
    no_thread_of_arrow: "threads",
    no_process: "threads",
}


@pytest.mark.parametrize(("task", "lacking"), TASKS.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_task_that_lacks_memory_or_threads(
    task: Callable[[int], None], lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any engine; what it read is not at fault, so that the exit code is 1, and no refusal because of records."""
    with pytest.raises(PrdpError, match=f"^out of {lacking}: ") as error:
        DaskEngine(workers=1).each(task, [1])
    assert error.value.exit_code == 1
    assert CANARY not in str(error.value)
    write_world(tmp_path, records(10))
    (chunk,) = chunks(find(locate(tmp_path / "microdata")))
    monkeypatch.setattr(pipeline.engines.tasks, "read", lambda *_: task(1))
    with pytest.raises(PrdpError, match=f"^out of {lacking}: ") as error:
        SumTask(None, pipeline.engines.tasks.code_digest())(chunk)  # type: ignore[arg-type]
    assert type(error.value) is PrdpError
    try:
        task(1)
    except Exception as raised:
        line = Failure.of(raised).line()
    assert CANARY not in line
    assert str(job_error(line)).startswith(f"a Spark worker is out of {lacking}: ")


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), ValueError("cannot allocate memory"), OSError(28, "No space"), KeyError(1)]
)
def test_other_errors_lack_nothing(error: Any) -> None:
    assert exhausted(error) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("java.lang.OutOfMemoryError: unable to create native thread: possibly out of memory", "out of threads"),
        ("java.lang.OutOfMemoryError: Java heap space", "too little memory"),
    ],
)
def test_java_s_own_words(text: str, words: str) -> None:
    assert words in str(job_error(f"{CANARY} {text}"))
    assert CANARY not in str(job_error(f"{CANARY} {text}"))
