"""Programs that operators put beside prdp: Prometheus reads its metrics, PgBouncer stands before its ledger."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.store import create_ledger
from tests.support.ledgers import ledger_file, reservation
from tests.support.needs import program
from tests.support.patience import PATIENCE
from tests.support.postgres import OWNER, PostgresServer
from tests.support.world import records, write_world

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.drill


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(*command: object, port: int, **options: object) -> Iterator[None]:
    """Run a server until the block ends; it is there once the port takes a connection."""
    with subprocess.Popen([*map(str, command)], **options) as process:  # type: ignore[call-overload]
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                assert process.poll() is None, "the server ended"
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    """A folder with the metrics of a release, of one that failed, and of the ledger's health."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    ledger = ("--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite"))
    for name, size in (("good", 50), ("bad", 60)):
        plan = write_world(tmp_path / name, records(size), release=name, dataset={"name": name})
        if name == "bad":
            next((tmp_path / name).glob("**/microdata/*.parquet")).write_bytes(b"no Parquet")
        assert main(["release", str(plan), *ledger, "--metrics", str(folder)]) == 2 * (name == "bad")
    main(["doctor", "--ledger-only", *ledger, "--metrics", str(folder)])
    return folder


def alerts() -> list[dict[str, str]]:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    return [yaml.safe_load(line)[0] for line in re.findall(r"^- \{alert: .*$", page, re.M)]


def test_promtool_accepts_metrics_and_alerts(metrics: Path, tmp_path: Path) -> None:
    promtool = program("promtool")
    text = "".join(path.read_text() for path in sorted(metrics.glob("*.prom")))
    for each in metrics.glob("*.prom"):
        done = subprocess.run(
            [promtool, "check", "metrics"], input=each.read_text(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, ""), each
    assert "prdp_run_exit_code" in text
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "prdp", "rules": alerts()}]}))
    assert len(alerts()) == 4
    subprocess.run([promtool, "check", "rules", rules], check=True, capture_output=True)
    broken = subprocess.run(
        [promtool, "check", "metrics"], input="prdp{ 1\n", capture_output=True, text=True, check=False
    )
    assert broken.returncode != 0


def test_prometheus_scrapes_metrics_and_raises_the_alarm(metrics: Path, tmp_path: Path) -> None:
    (metrics / "all").write_text("".join(path.read_text() for path in sorted(metrics.glob("prdp-*.prom"))))
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(metrics)))
    Thread(target=web.serve_forever, daemon=True).start()
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "prdp", "rules": alerts()}]}))
    job = {
        "job_name": "prdp",
        "metrics_path": "/all",
        "static_configs": [{"targets": [f"127.0.0.1:{web.server_port}"]}],
    }
    own = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(own | {"rule_files": ["rules.yml"]}))
    port = free_port()
    flags = (f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error")
    with running(program("prometheus"), f"--config.file={tmp_path}/prometheus.yml", *flags, port=port):
        deadline, firing = time.monotonic() + PATIENCE, set[str]()
        while "PrdpRunFailed" not in firing and time.monotonic() < deadline:
            time.sleep(1)
            with urlopen(f"http://127.0.0.1:{port}/api/v1/alerts") as answer:
                firing = {alert["labels"]["alertname"] for alert in json.load(answer)["data"]["alerts"]}
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query=prdp_run_exit_code") as answer:
            series = json.load(answer)["data"]["result"]
    web.shutdown()
    web.server_close()
    assert {each["metric"]["release"]: each["value"][1] for each in series} == {"good": "0", "bad": "2"}
    assert "PrdpRunFailed" in firing
    assert "PrdpNotRun" not in firing


@contextmanager
def pooled(server: PostgresServer) -> Iterator[int]:
    """Yield the port of a PgBouncer before the server, which gives each client a session."""
    port = free_port()
    users = server.give("users.txt", f'"{OWNER}" ""\n'.encode())
    text = f"""[databases]
* = user={OWNER} host={server.folder} port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {server.folder}
auth_type = any
auth_file = {users}
pool_mode = session
ignore_startup_parameters = extra_float_digits,options
"""
    config = server.give("pgbouncer.ini", text.encode())
    with running(program("pgbouncer"), "-q", config, port=port, user=server.user, cwd=server.folder):
        yield port


def test_a_ledger_behind_pgbouncer(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    database = postgres.database()
    with pooled(postgres) as port:
        address = f"postgresql://{OWNER}:any@127.0.0.1:{port}/{database}"
        ledger, other = create_ledger(address), create_ledger(address)
        ledger.reserve(reservation("r"))
        with ledger.lock("r"):
            attempt = ledger.draw("r", "sha256:pin")
            for another in (other, create_ledger(postgres.url(database))):
                with pytest.raises(StateError, match="under way"), another.lock("r"):
                    pass
            ledger.publish("r", attempt, "sha256:contents")
            ledger.settle("r", attempt)
        with other.lock("r"):
            assert other.verify()[0] == 4
