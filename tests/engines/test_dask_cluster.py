"""A Dask cluster that loses its workers, its scheduler or its certificates: a plain line in bounded time, or totals."""

import os
import signal
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import distributed
import pyarrow as pa
import pytest
import yaml
from distributed import Client

from pipeline.base.errors import PlanError, PrdpError
from pipeline.engines import dask as dask_engine
from pipeline.engines.dask import Cluster, DaskEngine
from pipeline.engines.protocol import TaskFailed
from tests.support.cells import blocks
from tests.support.dask_cluster import Processes, dask_processes, local_cluster, progress, with_tls
from tests.support.parity import released
from tests.support.patience import PATIENCE
from tests.support.world import records, write_world
from udfs.noise.keystream import SecretKey

KEY = SecretKey(bytes(range(32)))


@contextmanager
def opened(cluster: Processes, **limits: float) -> Iterator[DaskEngine]:
    """Yield an engine whose limits, of dask.py, are as given."""
    engine = DaskEngine(cluster.address)
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in limits.items():
            patch.setattr(dask_engine, name, seconds)
        try:
            yield engine
        finally:
            engine.close()


def keys(variables: dict[str, str]) -> dict[str, str]:
    """The keys of Dask's configuration that such variables set."""
    return {name.removeprefix("DASK_").lower().replace("__", "."): text for name, text in variables.items()}


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def until(cluster: Processes, running: int = 0, workers: int = 1) -> None:
    """Return once so many workers are there, and run so many tasks."""
    with Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(workers, timeout=PATIENCE)
        while running and not client.run_on_scheduler(progress)[1]:
            time.sleep(0.02)


def test_no_worker_left_ends_in_a_line_and_the_next_run_goes_on_with_new_workers(tmp_path: Path) -> None:
    with (
        dask_processes(tmp_path, 1) as cluster,
        opened(cluster, LOOK_SECONDS=0.1, NO_WORKER_SECONDS=1.0) as engine,
        ThreadPoolExecutor(1) as thread,
    ):
        until(cluster)
        result = thread.submit(engine.each, nap, [PATIENCE])
        until(cluster, running=1)
        cluster.workers[0].kill()
        with pytest.raises(TaskFailed, match="no worker is left: start workers, and run again"):
            result.result(PATIENCE)
        cluster.start_worker()
        until(cluster)
        assert engine.each(nap, [0.0]) == [0.0]


def test_a_scheduler_that_stands_still_or_is_killed_ends_in_a_line(tmp_path: Path) -> None:
    with dask_processes(tmp_path, 1) as cluster, opened(cluster, LOOK_SECONDS=0.1) as engine:
        until(cluster)
        assert engine.each(nap, [0.0]) == [0.0]
        os.kill(cluster.scheduler.pid, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dask_engine, "ANSWER_SECONDS", 1)
            with pytest.raises(TaskFailed, match=r"the cluster gave up \(TimeoutError\)"):
                engine.each(nap, [0.0])
        os.kill(cluster.scheduler.pid, signal.SIGCONT)
        assert engine.each(nap, [0.0]) == [0.0]
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(engine.each, nap, [PATIENCE])
            until(cluster, running=1)
            cluster.scheduler.kill()
            with pytest.raises(PrdpError, match=r"the cluster gave up \(\w+\); see its own logs$"):
                result.result(PATIENCE)


def test_a_scheduler_that_stands_still_from_the_start_ends_in_a_line(tmp_path: Path) -> None:
    """Dask's own time limit ends where a connection begins to say who it is."""
    with dask_processes(tmp_path, 0) as cluster, opened(cluster, ANSWER_SECONDS=1) as engine:
        os.kill(cluster.scheduler.pid, signal.SIGSTOP)
        with pytest.raises(PrdpError, match="no Dask scheduler answers there"):
            engine.each(nap, [0.0])


def test_a_worker_that_has_just_died_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS, and with workers that are asked for their settings as beyond this machine."""
    settings = with_tls(tmp_path)
    monkeypatch.setattr(dask_engine, "is_local", lambda address: False)
    with dask.config.set(keys(settings)), dask_processes(tmp_path, 1, settings) as cluster, opened(cluster) as engine:
        until(cluster)
        with pytest.raises(PrdpError, match="its workers spill to disk unencrypted"):
            engine.each(nap, [0.0])
    calm = settings | {f"DASK_DISTRIBUTED__WORKER__MEMORY__{name}": "False" for name in ("TARGET", "SPILL")}
    with dask.config.set(keys(settings)), dask_processes(tmp_path, 2, calm) as cluster:
        until(cluster, workers=2)
        with opened(cluster) as engine:
            for _ in range(3):
                os.kill(cluster.workers[0].pid, signal.SIGKILL)
                assert engine.each(nap, [0.0, 0.01, 0.02]) == [0.0, 0.01, 0.02]


def test_tls_without_certificates_is_refused_before_any_connection(tmp_path: Path) -> None:
    address = "tls://192.0.2.1:8786"
    settings = keys(with_tls(tmp_path))
    needed = "distributed.comm.tls.ca-file, distributed.comm.tls.client.cert"
    with pytest.raises(PlanError, match=f"{address}.: TLS needs certificates: set {needed} for Dask"):
        DaskEngine(address)
    with dask.config.set(settings):
        DaskEngine(address)
        (tmp_path / "key.pem").unlink()
        with pytest.raises(PlanError, match=r"tls\.client\.key: .*key\.pem cannot be read"):
            DaskEngine(address)


def test_the_configuration_that_is_shipped_is_one_that_is_accepted(tmp_path: Path) -> None:
    with_tls(tmp_path)
    shipped = (Path(__file__).parents[2] / "conf" / "dask" / "tls.yaml").read_text()
    settings = yaml.safe_load(shipped.replace("FOLDER", str(tmp_path)))["distributed"]
    memory = {f"distributed.worker.memory.{key}": value for key, value in settings["worker"]["memory"].items()}
    with dask.config.set({"distributed.comm.tls": settings["comm"]["tls"]}), dask.config.set(memory):
        DaskEngine("tls://192.0.2.1:8786")
        assert not dask_engine._spills()
        with dask.config.set({"distributed.worker.memory.spill": 0.7}):
            assert dask_engine._spills()


def test_one_connection_a_release_and_no_warning_of_a_large_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []

    class Counted(Client):  # type: ignore[misc]
        def __init__(self, *arguments: object, **named: object) -> None:
            connections.append(self)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(distributed, "Client", Counted)
    with local_cluster() as address, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        engine = DaskEngine(address)
        engine.stage(blocks(tmp_path / "small", 2), KEY)
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 B"}):
            engine.stage(blocks(tmp_path / "large", 2), KEY)
        assert len(connections) == 1
        engine.close()
        assert connections[0].status == "closed"
    assert not [warning for warning in heard if "large graph" in str(warning.message)]


def test_totals_pass_through_no_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a release sends to a cluster, pickled, holds no total; of blocks that are not sealed it would."""
    sent: list[bytes] = []

    def compute(cluster: object, collection: Any, told: object) -> Any:
        sent.append(cloudpickle.dumps(dict(collection.__dask_graph__())))
        return collection.compute(scheduler="sync")

    monkeypatch.setattr(Cluster, "compute", compute)
    table, large = records(40), 0x123456789ABCDE
    column = pa.array([large, *table.column("employment").to_pylist()[1:]], table.field("employment").type)
    plan = write_world(tmp_path, table.set_column(table.column_names.index("employment"), "employment", column))
    total = large.to_bytes(8, "little")[2:]  # others in its cell change the last bytes alone
    engine = DaskEngine("tcp://127.0.0.1:1")
    assert released(plan, tmp_path / "cluster", engine) == released(plan, tmp_path / "threads", None)
    assert sent
    assert not any(total in each for each in sent)
    monkeypatch.setattr(
        DaskEngine, "_stage_sealed", lambda engine, folder, seal, blocks, key: engine.stage(blocks, key)
    )
    released(plan, tmp_path / "open", engine)  # the broken twin
    assert any(total in each for each in sent)
