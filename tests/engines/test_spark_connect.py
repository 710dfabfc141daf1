"""Releases by Spark Connect: what is refused before anything is sent, and the same bytes by a real server."""

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError, PrdpError
from pipeline.base.log import Log
from pipeline.engines import spark_driver
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_driver import PROXIES, TOKEN, ConnectDriver, require_address
from pipeline.engines.tasks import job_error
from tests.support.ledgers import is_bare, ledger_file
from tests.support.parity import PLANS, released
from tests.support.patience import PATIENCE
from tests.support.spark import ROOT, connect_server
from tests.support.world import records, write_world

SAFE = {"spark.io.encryption.enabled": "true", "spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TOKEN, *PROXIES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machine_is_reached_without_a_token_but_not_by_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_address(f"sc://{host}:15002")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    with pytest.raises(PlanError, match="by a proxy Spark Connect needs a token, and TLS"):
        require_address(f"sc://{host}:15002")


@pytest.mark.parametrize("more", ["", ":15002", ":443/;use_ssl=true"])
def test_other_machines_need_tls_and_a_token(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master, ledger = f"sc://spark.example{more}", tmp_path / "ledger" / "ledger.sqlite"
    call = ["release", str(write_world(tmp_path, records(9))), "--engine", "spark", "--ledger", ledger_file(ledger)]
    for token in (None, ""):
        if token is not None:
            monkeypatch.setenv(TOKEN, token)
        assert main([*call, "--master", master]) == 2
        assert f"error: --master {master}: beyond this machine Spark Connect needs a token" in capsys.readouterr().err
        assert is_bare(ledger)
    monkeypatch.setenv(TOKEN, "t")
    require_address(master)
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert DefaultChannelBuilder(master).secure  # PySpark's own word that it sends a token by TLS alone


@pytest.mark.parametrize(
    ("master", "words"),
    [("sc://h:1/;token=secret", "a token in the address"), ("sc://", "is sc://HOST:PORT"), ("sc://h:x", "sc://HOST:")],
)
def test_an_address_that_is_none_or_shows_a_token(master: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as raised:
        SparkEngine(master)
    assert "secret" not in str(raised.value)


class Session:
    """A session of Spark Connect: its settings, and what the watch asks of it."""

    def __init__(self, builder: Any, **settings: str) -> None:
        self.client, self.conf, self._builder, self.host = self, settings, builder, "localhost"
        self.handler: Any = None
        self.ended = Event()

    def registerProgressHandler(self, handler: Any) -> None:  # noqa: N802
        self.handler = handler

    def removeProgressHandler(self, handler: Any) -> None:  # noqa: N802
        assert handler is self.handler

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tag = tag

    def removeTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        assert tag == self.tag
        self.ended.set()


def builder_of(master: str) -> Any:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    return DefaultChannelBuilder(master)


def test_a_users_session_is_held_to_the_same() -> None:
    ConnectDriver(Session(builder_of("sc://localhost"), **SAFE)).require_safe()
    with pytest.raises(PlanError, match="needs a token"):
        ConnectDriver(Session(builder_of("sc://spark.example"), **SAFE)).require_safe()
    with pytest.raises(PlanError, match="of another program's making"):
        ConnectDriver(Session(object(), **SAFE)).require_safe()
    here = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1"}  # which a user could set
    for key in SAFE:
        with pytest.raises(PlanError, match=key):
            ConnectDriver(Session(builder_of("sc://localhost"), **here, **{**SAFE, key: "false"})).require_safe()


def test_jobs_whose_tasks_find_no_executor_are_ended_and_others_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOST_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(spark_driver, name, 0.01)

    def run(session: Session, running: int, patience: float) -> None:
        with ConnectDriver(session).working(Log(), ()):
            session.handler([], running, "operation", False)
            session.ended.wait(patience)
            raise ValueError("the job's own end")

    lost, alive = Session(None), Session(None)
    with pytest.raises(TaskFailed, match="no executor is left"):
        run(lost, 0, PATIENCE)
    with pytest.raises(ValueError, match="the job's own end"):
        run(alive, 1, 0.3)
    assert (lost.ended.is_set(), alive.ended.is_set()) == (True, False)


def test_a_server_that_ends_is_told() -> None:
    gone = "SparkConnectGrpcException <_InactiveRpcError …\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = …"
    assert "server of Spark Connect is out of reach" in str(job_error(gone))


# -- a real server ---------------------------------------------------------------------------------------------------


def settings(**changes: str) -> str:
    """What conf/spark/connect.conf says, on this machine."""
    own = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1", "spark.log.level": "INFO"}
    told = (ROOT / "conf" / "spark" / "connect.conf").read_text()
    return "\n".join([told, *(f"{key} {value}" for key, value in (own | changes).items())])


@pytest.mark.drill
def test_a_server_releases_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "of-the-server")
    with connect_server(tmp_path, "of-the-server", settings()) as master:
        for name in ("full", "combined"):
            (folder := tmp_path / name).mkdir()
            plan = PLANS[name](folder)
            engine = SparkEngine(master)
            found = released(plan, folder / "connect", engine)
            assert found == released(plan, folder / "dask", None)
            assert found != released(plan, folder / "other", engine, bytes(32))  # the broken twin: another key
            engine.close()
        engine = SparkEngine(master)
        assert engine.each(len, [[1], [], [2, 3]], "files") == [1, 0, 2]
        with pytest.raises(PrdpError, match=r"a task failed on a worker \(TypeError\)"):
            engine.each(len, [777123456789])
        for token in ("another", ""):
            monkeypatch.setenv(TOKEN, token)
            with pytest.raises(PrdpError, match="does not take the token"):
                _ = SparkEngine(master).session
        engine.close()
    assert "777123456789" not in (tmp_path / "server.log").read_text()


@pytest.mark.drill
def test_a_notebooks_session_releases_files_and_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv(TOKEN, "t")
    plan = prdp.load_plan(write_world(tmp_path, records(300)))
    with connect_server(tmp_path, "t", settings()) as master:
        spark = SparkSession(master)
        frame = spark.read.parquet(str(tmp_path / "microdata"))
        for name, given in {"files": {"master": spark}, "frame": {"data": frame}}.items():
            ledger = prdp.create_ledger(tmp_path / name / "ledger.sqlite")
            made = plan.release(ledger=ledger, out=tmp_path / name / "out", **given)
            assert made.state == "settled"
            manifest = json.loads((tmp_path / name / "out" / plan.name / "release.json").read_text())
            assert manifest["engine"]["name"] == "spark"
        assert spark.range(3).count() == 3  # it stays open
        spark.stop()


@pytest.mark.drill
def test_a_server_that_does_not_encrypt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "t")
    with (
        connect_server(tmp_path, "t", settings(**{"spark.io.encryption.enabled": "false"})) as master,
        pytest.raises(PlanError, match=r"set spark\.io\.encryption\.enabled to true"),
    ):
        _ = SparkEngine(master).session
