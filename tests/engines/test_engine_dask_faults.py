"""The Dask engine when workers die, run other code or are far away, and what it tells of what it runs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dask.callbacks import Callback
from distributed import Client

from pipeline.base.canonical import code_digest
from pipeline.base.errors import PlanError, PrdpError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.tasks import NoiseTask, SumTask
from pipeline.engines.writers import Block
from pipeline.microdata.source import Piece, chunks, find
from pipeline.storage.paths import locate
from tests.engines.test_engine_dask import staged
from tests.support.cells import blocks, records, same, spec, write
from tests.support.dask_cluster import local_cluster, progress
from tests.support.leaks import forms, found
from tests.support.patience import PATIENCE
from udfs.noise.keystream import SecretKey

RAW = b"CANARY-KEY-of-thirty-two-bytes-!"
TOTAL = 777_123_456_789
SPEC = spec()


@pytest.fixture(scope="module")
def microdata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("microdata"), [records(2000, i) for i in range(4)], 500)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with local_cluster() as address:
        yield address


def kill_in_the_middle(cluster: str, running: Callable[[], bool]) -> None:
    """SIGKILL a busy worker once some of the work is done."""
    with Client(cluster, set_as_default=False) as client:
        pids = client.run(os.getpid)
        while running():
            done, busy = client.run_on_scheduler(progress)
            if done and busy:
                os.kill(pids[busy], signal.SIGKILL)
                return
            time.sleep(0.005)
    raise AssertionError("the work was over before a worker could be killed")


def with_a_kill(cluster: str, work: Callable[[], Any]) -> Any:
    """Return the result of `work` while one of the cluster's workers is killed; it is replaced afterwards."""
    with ThreadPoolExecutor(1) as thread, Client(cluster, set_as_default=False) as client:
        before = set(client.run(os.getpid).values())
        result = thread.submit(work)
        kill_in_the_middle(cluster, lambda: not result.done())
        found = result.result()
        client.wait_for_workers(2, timeout=PATIENCE)
        assert set(client.run(os.getpid).values()) != before
        return found


def test_a_worker_killed_in_the_middle_of_sums(microdata: Path, cluster: str) -> None:
    long = [(Piece(str(file), (0, 1, 2, 3)),) * 12 for file in find(locate(microdata)).files] * 4
    expected = DaskEngine(workers=2).sums(long, SPEC)
    assert same(with_a_kill(cluster, lambda: DaskEngine(cluster).sums(long, SPEC)), expected)


def test_a_worker_killed_in_the_middle_of_staging(tmp_path: Path, cluster: str) -> None:
    expected = staged(DaskEngine(workers=2), blocks(tmp_path / "calm", 40, 10_000))
    work = blocks(tmp_path / "killed", 40, 10_000)
    assert with_a_kill(cluster, lambda: staged(DaskEngine(cluster), work)) == expected
    left = {path.name for path in (tmp_path / "killed").iterdir()} - set(expected)
    assert all(name.startswith(".part-") for name in left)  # a half-written file never has a table's name


# -- which workers and which code ------------------------------------------------------------------------------------


def test_a_worker_with_other_code_is_refused(tmp_path: Path, microdata: Path, cluster: str) -> None:
    chunk, block = next(chunks(find(locate(microdata)))), blocks(tmp_path / "out", 1)[0]
    sum_up, release = SumTask(SPEC, "sha256:other"), partial(NoiseTask("sha256:other"), key=SecretKey(RAW))
    with Client(cluster, set_as_default=False) as client:
        for run in (
            partial(sum_up, chunk),
            partial(release, block),
            client.submit(sum_up, chunk).result,
            client.submit(release, block).result,
        ):
            with pytest.raises(TaskFailed, match="another build of prdp"):
                run()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_changed_or_foreign_copy_has_another_digest(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for name in ("udfs", "pipeline"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def digest() -> str:
        run = [sys.executable, "-c", "from pipeline.base.canonical import code_digest; print(code_digest())"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    assert digest() == code_digest()
    (tmp_path / "udfs" / "mechanisms" / "more.py").write_text("")
    added = digest()
    (tmp_path / "udfs" / "mechanisms" / "more.py").write_text("#")
    assert len({code_digest(), added, digest()}) == 3
    (tmp_path / "udfs" / "py.typed").unlink()
    assert "the package udfs found on the path is not prdp's" in digest()


REMOTE = (
    "tcp://192.0.2.1:8786",
    "192.0.2.1:8786",
    "tcp://dask.example:8786",
    "ucx://192.0.2.1:1",
    "tcp://0.0.0.0:8786",
)


def test_a_remote_scheduler_without_tls_is_refused_before_any_connection() -> None:
    program = (
        "import sys\nfrom pipeline.engines.dask import DaskEngine\nfrom pipeline.base.errors import PlanError\n"
        "try:\n    DaskEngine(sys.argv[1])\nexcept PlanError as error:\n"
        "    print(error, 'distributed' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, REMOTE[0]], capture_output=True, text=True, check=True)
    assert (
        done.stdout.strip() == f"scheduler='{REMOTE[0]}': a cluster beyond this machine must be reached by tls:// False"
    )
    for address in (*REMOTE, "tcp://[2001:db8::1]:8786", "tcp://127.0.0.1.example:8786", "tcp://localhost@192.0.2.1:1"):
        with pytest.raises(PlanError, match="tls"):
            DaskEngine(address)
    for address in ("tcp://127.0.0.1:8786", "tcp://localhost:8786", "tcp://[::1]:8786"):
        DaskEngine(address)


def test_workers_beyond_loopback_without_tls_are_refused(microdata: Path) -> None:
    """The scheduler answers on loopback, but its workers can be reached from elsewhere."""
    with local_cluster("0.0.0.0") as address:
        if "//127." in address:
            pytest.skip("this machine has no address but loopback")
        port = address.rpartition(":")[2]
        with pytest.raises(PrdpError, match="lies beyond this machine and is not reached by tls"):
            DaskEngine(f"tcp://127.0.0.1:{port}").sums(list(chunks(find(locate(microdata)))), SPEC)


def test_no_scheduler_at_a_loopback_port(microdata: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PrdpError, match="no Dask scheduler answers there") as raised:
            DaskEngine(address).sums(list(chunks(find(locate(microdata)))), SPEC)
    assert str(raised.value) == f"scheduler='{address}': no Dask scheduler answers there"
    assert raised.value.__cause__ is None


# -- nothing is told -------------------------------------------------------------------------------------------------


class Overheard(Callback):
    """All that a scheduler could tell of the graph it was given."""

    def __init__(self) -> None:
        super().__init__(start=self._heard)  # type: ignore[no-untyped-call]
        self.text = ""

    def _heard(self, graph: Any) -> None:
        for name, task in graph.items():
            parts = (name, task, *(getattr(task, each, None) for each in ("func", "args", "kwargs")))
            self.text += "\n".join(f"{part} {part!r}" for part in parts)
        self.text += f"{graph} {graph!r}"


@dataclass(frozen=True, eq=False)
class OpenBlock(Block):
    """The broken twin: a block with a repr."""


class OpenKey(SecretKey):
    """The broken twin: a key that shows itself."""

    def __repr__(self) -> str:
        return f"OpenKey({self._bytes.hex()})"


def overheard(work: Sequence[Block], key: SecretKey) -> str:
    with Overheard() as ears:
        DaskEngine(workers=2).stage(work, key)
    return str(ears.text)


def test_neither_key_nor_totals_stand_in_the_graph(tmp_path: Path) -> None:
    totals, work = [str(TOTAL + i) for i in range(4)], blocks(tmp_path / "out", 2, 2, TOTAL)
    text = overheard(work, SecretKey(RAW))
    assert "NoiseTask" in text
    assert not found(text, [*forms(RAW), *totals])
    assert found(overheard([OpenBlock(**vars(block)) for block in work], SecretKey(RAW)), totals) == totals
    assert found(overheard(work, OpenKey(RAW)), forms(RAW))


def test_nothing_confidential_in_what_a_cluster_says(tmp_path: Path) -> None:
    """With all logs on, of a child process and its workers, through failures of all kinds."""
    environment = os.environ | {
        "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "debug",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "tests.support.dask_talk", str(tmp_path), str(TOTAL), RAW.decode()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    for heard, times in (("Compute Failed", 5), ("ColumnUnfit", 2), ("TaskFailed", 8), ("good: done", 2)):
        assert said.count(heard) >= times, heard
    assert "DEBUG" in said
    assert not found(said, [str(TOTAL), f"{TOTAL:,}", str(TOTAL + 1), f"{TOTAL:x}", *forms(RAW)])
