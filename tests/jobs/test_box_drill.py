"""The cluster in a box for real: built, started, a release through Airflow, an officer, a dead worker, an end.

Slow (a quarter of an hour, of which most builds images the first time), and only where containers run: with Docker, or
as root with podman and Debian's packages (tests/support/podman.py). Images and the base stay in .work/box/engine.
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
SECOND = """
import yaml
plan = yaml.safe_load(open("/srv/prdp/data/demo/plan.yaml"))
plan["release"] = "second"
plan["dataset"]["path"] = "/srv/prdp/data/demo/microdata"
plan["domain"] |= {key: f"/srv/prdp/data/demo/domain/{name}" for key, name in
                   (("naics", "naics.csv"), ("county", "counties.csv"))}
plan["queries"] = [{"name": "small", "count": "records", "by": ["naics2", "state"],
                    "mechanism": {"kind": "gaussian", "sigma": 100}}]
yaml.safe_dump(plan, open("/tmp/second.yaml", "w"))
"""
RELEASE_SECOND = (
    'python -c "$SECOND" && spark-submit /opt/prdp/home/jobs/release.py /tmp/second.yaml '
    "--out releases --staging staging --hold"
)


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
        return self.compose(
            "run", "--rm", "--no-deps", "-T", "-e", f"SECOND={SECOND}", service, "sh", "-c", command, check=check
        )

    def in_(self, service: str, command: str) -> str:
        """Run a command in a service that is up."""
        return self.compose("exec", "-T", service, "sh", "-c", command).stdout

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
            "PRDP_SECRETS": str(ROOT / ".work" / "box" / "secrets"),
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
    assert not any(secret in logs for secret in secrets())

    # A worker dies; a release that is held meanwhile is approved by an officer, and by nobody else.
    box.compose("kill", "worker2")
    assert "held" in box.as_one("submit", RELEASE_SECOND).stdout
    refused = box.as_one("submit", "prdp ledger approve second; echo code $?")
    assert "code 5" in refused.stdout
    assert shown(box, "second")["state"] == "held"
    box.as_one("officer", "prdp ledger approve second --operator olga")
    assert shown(box, "second")["state"] == "settled"
    box.as_one("submit", "prdp verify releases/second && prdp ledger verify --release releases/second")

    # The box is stopped and started: the ledger remembers.
    box.make("down")
    box.make("up")
    ready = "until prdp ledger show second; do sleep 3; done"
    assert "settled" in box.as_one("submit", ready).stdout


def shown(box: Box, release: str) -> dict[str, object]:
    done = box.as_one("submit", f"prdp ledger show {release} --json")
    return next(each for each in json.loads(done.stdout) if "attempts" in each)


def secrets() -> list[str]:
    folder = ROOT / ".work" / "box" / "secrets"
    return [path.read_text() for path in folder.iterdir() if not path.name.endswith(("_ca", "_certificate"))]
