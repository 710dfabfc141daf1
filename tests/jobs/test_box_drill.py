"""The cluster in a box for real: built, started, releases through Airflow on both engines, an officer, dead workers,
restarts, a lost ledger put back, new secrets, an end.

Slow (half an hour, of which a third builds images the first time), and only where containers run: with Docker, or
as root with podman and Debian's packages (tests/support/podman.py). Images and the base stay in .work/box/engine.
Its containers, volumes and secrets are its own: a box that is in use loses nothing.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.podman import BASE, podman, why_not

ROOT = Path(__file__).parents[2]
SECRETS = ROOT / ".work" / "box" / "drill" / "secrets"
SERVICES = (
    *("master", "worker1", "worker2", "dask-scheduler", "dask-worker1", "dask-worker2"),
    *("ledger", "backup", "database", "airflow"),
)
PLANS = """
import yaml
plan = yaml.safe_load(open("data/demo/plan.yaml"))
plan["queries"] = [{"name": "small", "count": "records", "by": ["naics2", "state"],
                    "mechanism": {"kind": "gaussian", "sigma": 100}}]
for name in ("second", "third", "fourth"):
    yaml.safe_dump(plan | {"release": name}, open(f"data/demo/{name}.yaml", "w"))
"""
RELEASE_SECOND = (
    "spark-submit /opt/prdp/home/jobs/release.py data/demo/second.yaml --out releases --staging staging --hold"
)
RELEASE_FOURTH = (
    "prdp release data/demo/fourth.yaml --scheduler tls://dask-scheduler:8786 --out releases --staging staging"
)
READY = "until prdp ledger show second; do sleep 3; done"


def has_docker() -> bool:
    try:
        return not any(
            subprocess.run(["docker", *words], capture_output=True, check=False).returncode
            for words in (["compose", "version"], ["info"])
        )
    except OSError:
        return False


class Box:
    """The box under test, and what people do with it."""

    def __init__(self, environment: dict[str, str], compose: list[str]) -> None:
        self.environment, self.compose_command = os.environ | environment, compose

    def make(self, target: str) -> str:
        """Run a target of the Makefile."""
        return self._run(["make", target], check=True).stdout

    def compose(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the compose command."""
        return self._run([*self.compose_command, "--profile", "people", *words], check=check)

    def as_one(self, service: str, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a container of its own, as `submit` or `officer`."""
        return self.compose("run", "--rm", "--no-deps", "-T", service, "sh", "-c", command, check=check)

    def in_(self, service: str, command: str) -> str:
        """Run a command in a service that is up."""
        return self.compose("exec", "-T", service, "sh", "-c", command).stdout

    def restore(self, dump: str) -> None:
        """Put a dump of the ledger back, in place of what is there: docs/operations.md."""
        self.compose("stop", "airflow")
        self.in_("ledger", "psql --dbname postgres --command 'ALTER DATABASE ledger RENAME TO lost'")
        compose = " ".join(self.compose_command)
        put = f"{compose} exec -T ledger pg_restore --exit-on-error --create --dbname postgres"
        self._run(["sh", "-c", f"{compose} exec -T backup cat {dump} | {put}"], check=True)

    def _run(self, command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False, timeout=2400
        )
        assert not check or done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        settings = {
            "AIRFLOW_PORT": str(free.getsockname()[1]),
            "RECORDS": "5000",
            "COMPOSE_PROJECT_NAME": "prdp-drill",
            "PRDP_SECRETS": str(SECRETS),
        }
    if has_docker():
        yield from started(Box(settings, ["docker", "compose"]))
        return
    reason = why_not()
    if reason:
        pytest.skip(f"no Docker engine runs here, and {reason}")
    with podman((ROOT / ".work" / "box" / "engine").resolve()) as compose:
        yield from started(Box(settings | {"COMPOSE": str(compose), "BASE": BASE}, [str(compose)]))


def started(box: Box) -> Iterator[Box]:
    box.compose("down", "--volumes", check=False)
    try:
        box.make("up")
        yield box
    finally:
        box.compose("down", "--volumes", check=False)


@pytest.mark.drill
def test_the_whole_story(box: Box) -> None:
    told = box.make("demo-cluster")
    assert "release: success" in told
    assert "verify: success" in told
    assert "match the manifest" in told
    history = shown(box, "cbp-synthetic")
    assert (history["state"], history["draws"], len(history["attempts"])) == ("settled", 1, 1)

    # Again: nothing is drawn, and the same stands there.
    assert "release: success" in box.make("demo-cluster")
    assert shown(box, "cbp-synthetic")["attempts"] == history["attempts"]

    # What is public may be read by all, what is not by one user alone; nothing is left in staging.
    assert box.in_("airflow", "find releases ! -perm -o=r") == ""
    assert box.in_("airflow", "stat -c %a data staging; find staging -mindepth 1 ! -path '*/.*'").split() == [
        "700",
        "700",
    ]
    assert "Read-only" in box.compose("exec", "-T", "worker1", "touch", "data/x", check=False).stderr
    logs = box.in_("airflow", "cat $(find /srv/airflow/logs -name '*.log' -path '*task_id=release*')")
    assert "publishing" in logs
    assert "TaskSetManager" not in logs
    assert not any(text in logs for name, text in secrets().items() if not name.endswith(("_ca", "_certificate")))

    assert "Read-only" in box.compose("exec", "-T", "airflow", "touch", "/opt/prdp/x", check=False).stderr

    # Workers die; a release that is held meanwhile is approved by an officer, and by nobody else.
    box.as_one("generate", f"python -c '{PLANS}'")
    box.compose("kill", "worker2", "dask-worker2")
    assert "held" in box.as_one("submit", RELEASE_SECOND).stdout
    refused = box.as_one("submit", "prdp ledger approve second; echo code $?")
    assert "code 5" in refused.stdout
    assert shown(box, "second")["state"] == "held"
    box.as_one("officer", "prdp ledger approve second --operator olga")
    assert shown(box, "second")["state"] == "settled"
    box.as_one("submit", "prdp verify releases/second && prdp ledger verify --release releases/second")

    # Airflow releases on Dask too, also once everything was restarted.
    for service in SERVICES:
        box.compose("restart", service)
    assert "release: success" in box.in_("airflow", "trigger-release demo/third.yaml prdp_release_dask")
    assert (shown(box, "third")["state"], shown(box, "third")["draws"]) == ("settled", 1)
    assert shown(box, "cbp-synthetic")["attempts"] == history["attempts"]


@pytest.mark.drill
def test_a_lost_ledger_is_put_back(box: Box) -> None:
    old = next(iter(box.in_("backup", "ls /var/lib/backups/*.dump").split()))
    head = json.loads(box.as_one("submit", "prdp ledger verify --json").stdout)["head"]
    look = f"until ls /var/lib/backups/*-{head[:16]}.dump; do sleep 3; done"
    newest = box.in_("backup", f"timeout 180 sh -c '{look}'").split()[-1]

    # One that has forgotten a release is found out, and nothing is released on it.
    box.restore(old)
    box.as_one("officer", "prdp ledger admin close --reason 'restored from a backup'")
    refused = box.as_one("officer", "prdp ledger admin reopen --out releases; echo code $?")
    assert "it has forgotten what was lost since" in refused.stderr
    assert "code 5" in refused.stdout
    closed = box.as_one("submit", "prdp release data/demo/second.yaml --out releases --staging staging; echo code $?")
    assert "code 5" in closed.stdout

    box.in_("ledger", "psql --dbname postgres --command 'DROP DATABASE lost'")
    box.restore(newest)
    box.as_one("officer", "prdp ledger admin close --reason 'restored from a backup'")
    box.as_one("officer", "prdp ledger admin reopen --out releases")
    assert [shown(box, each)["state"] for each in ("cbp-synthetic", "second", "third")] == ["settled"] * 3
    box.compose("start", "airflow")


@pytest.mark.drill
def test_secrets_are_changed_and_volumes_stay(box: Box) -> None:
    before = secrets()
    box.make("down")
    for path in SECRETS.iterdir():
        path.unlink()
    box.make("up")
    assert not set(secrets().values()) & set(before.values())
    assert "settled" in box.as_one("submit", READY).stdout
    old = before["ledger_releaser"]
    line = f"ledger:5432:ledger:releaser:{old}"
    refused = box.as_one("submit", f"echo {line} > /run/prdp/private/passfile; prdp ledger show; echo code $?")
    assert "password authentication failed" in refused.stderr
    assert "code 5" in refused.stdout
    told = box.make("demo-cluster")  # both clusters and Airflow know the new ones
    assert "release: success" in told
    assert "match the manifest" in told
    box.as_one("submit", RELEASE_FOURTH)
    assert shown(box, "fourth")["state"] == "settled"


def shown(box: Box, release: str) -> dict[str, object]:
    done = box.as_one("submit", f"prdp ledger show {release} --json")
    return next(each for each in json.loads(done.stdout) if "attempts" in each)


def secrets() -> dict[str, str]:
    return {path.name: path.read_text() for path in SECRETS.iterdir()}
