"""A real Airflow for tests, in its own environment (`make airflow`): its scheduler and API, and what runs come to."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engines.spark_session import java_home

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("PRDP_AIRFLOW", ROOT / ".work" / "airflow")) / "bin"
DONE = ("success", "failed")
Json = dict[str, Any]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def site_dags(folder: Path) -> Path:
    """Write a site's own folder of DAGs: ours, and the examples of docs/airflow.md."""
    blocks = (ROOT / "docs" / "airflow.md").read_text().split("```python\n")[1:]
    code = "from prdp_release import prdp_release, prdp_release_dask\n" + "".join(b.split("```")[0] for b in blocks)
    (folder / "dags").mkdir(exist_ok=True)
    (folder / "dags" / "site.py").write_text(code)
    return folder / "dags"


def settings(folder: Path, port: int, **variables: str) -> dict[str, str]:
    """The environment of an Airflow whose DAGs are ours and whose variables name this prdp and places in `folder`."""
    site = {
        "bin": str(Path(sys.executable).parent),
        "home": str(ROOT),
        "plans": str(folder / "plans"),
        "out": str(folder / "out"),
        "ledger": str(folder / "state" / "ledger.sqlite"),
        "diagnostics": str(folder / "diagnostics"),
    } | variables
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PRDP_"))}
    return inherited | {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "PYTHONPATH": str(ROOT / "jobs" / "dags"),  # for the triggerer
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "jobs" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "3",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW_CONN_PRDP_SPARK": '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}',
        "JAVA_HOME": str(java_home(os.environ, folder)),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        **{f"AIRFLOW_VAR_PRDP_{name.upper()}": value for name, value in site.items()},
    }


def waited(for_what: str, found: Callable[[], Any], seconds: float = 600, pause: float = 1) -> Any:
    """Return what is found in the end; AssertionError where it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(pause)
    raise AssertionError(f"waited {seconds} s for {for_what}")


@dataclass(frozen=True)
class Airflow:
    """A running Airflow, by its API."""

    url: str
    folder: Path
    token: str

    def call(self, path: str, data: Json | None = None, method: str | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def trigger(self, dag: str, **params: Any) -> "Run":
        started = self.call(f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": params})
        return Run(self, dag, started["dag_run_id"])


@dataclass(frozen=True)
class Run:
    """One run of a DAG."""

    airflow: Airflow
    dag: str
    name: str

    @property
    def at(self) -> str:
        return f"/api/v2/dags/{self.dag}/dagRuns/{urllib.request.quote(self.name)}"

    def task(self, name: str) -> Json:
        return dict(self.airflow.call(f"{self.at}/taskInstances/{name}"))

    def states(self) -> dict[str, str]:
        found = self.airflow.call(f"{self.at}/taskInstances")["task_instances"]
        return {each["task_id"]: each["state"] for each in found}

    def ended(self) -> str:
        return str(waited(f"the end of {self.name}", self._end, seconds=900))

    def _end(self) -> str | None:
        state = self.airflow.call(self.at)["state"]
        return str(state) if state in DONE else None

    def clear(self, task: str) -> None:
        wanted = {"dry_run": False, "dag_run_id": self.name, "task_ids": [task], "include_downstream": True}
        self.airflow.call(
            f"/api/v2/dags/{self.dag}/clearTaskInstances", wanted | {"only_failed": False, "reset_dag_runs": True}
        )

    def mark(self, task: str, state: str) -> None:
        self.airflow.call(f"{self.at}/taskInstances/{task}", {"new_state": state}, "PATCH")

    def logs(self) -> str:
        """All that the run's tasks logged, in every try."""
        folder = self.airflow.folder / "airflow" / "logs" / f"dag_id={self.dag}" / f"run_id={self.name}"
        return "".join(path.read_text() for path in sorted(folder.rglob("*.log")))

    def pushed(self) -> dict[str, Any]:
        """What the run's tasks left for one another, by task."""
        listed = self.airflow.call(f"{self.at}/taskInstances/~/xcomEntries")["xcom_entries"]
        at = f"{self.at}/taskInstances"
        return {
            each["task_id"]: self.airflow.call(f"{at}/{each['task_id']}/xcomEntries/{each['key']}")["value"]
            for each in listed
        }


@contextmanager
def standalone(folder: Path, **variables: str) -> Iterator[Airflow]:
    """Run Airflow's scheduler, DAG processor and API server for a block."""
    port = free_port()
    environment = settings(folder, port, **variables) | {"AIRFLOW__CORE__DAGS_FOLDER": str(site_dags(folder))}
    with (folder / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [BIN / "airflow", "standalone"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        token = waited("Airflow's API", lambda: _token(url))
        airflow = Airflow(url, folder, token)
        waited("the DAGs", lambda: len(airflow.call("/api/v2/dags")["dags"]) == 5)
        yield airflow
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            _end_group(process.pid)


def _token(url: str) -> str | None:
    try:
        with urllib.request.urlopen(f"{url}/auth/token", timeout=10) as answer:
            return str(json.load(answer)["access_token"])
    except OSError:
        return None


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def processes_with(text: str) -> list[int]:
    """The processes whose command line holds `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
