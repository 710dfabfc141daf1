#!/opt/airflow/bin/python
"""Has Airflow run a DAG and waits for its end: trigger-release PLAN [DAG]; PLAN by its path below the folder of plans.

Exit code 0: the run succeeded; 1: it failed, or Airflow did not answer. Standard library alone.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

API = "http://127.0.0.1:8080"
PASSWORD = Path("/run/secrets/airflow_password")
START_SECONDS, RUN_SECONDS = 300, 1800


def ask(method: str, path: str, body: Any = None, token: str | None = None) -> Any:
    """Return the answer of Airflow's API."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(API + path, data, headers, method=method), timeout=60) as answer:
        return json.load(answer)


def admitted(dag: str) -> str:
    """Return a token, once Airflow answers and knows the DAG, which is then switched on."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            token = ask("POST", "/auth/token", {"username": "admin", "password": PASSWORD.read_text().strip()})
            ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False}, token["access_token"])
            return str(token["access_token"])
        except (URLError, ConnectionError, TimeoutError) as error:  # HTTPError is one: the DAG is not read yet
            if time.monotonic() > end:
                sys.exit(f"error: Airflow does not answer, or does not know {dag}: {error}")
            time.sleep(3)


def main(plan: str, dag: str = "prdp_release") -> None:
    """Run the DAG, and show how its tasks ended."""
    token = admitted(dag)
    runs = f"/api/v2/dags/{dag}/dagRuns"
    try:
        run = ask("POST", runs, {"logical_date": None, "conf": {"plan": plan}}, token)["dag_run_id"]
    except HTTPError as error:
        sys.exit(f"error: {dag} is not run: {error}")
    print(f"{dag}: {run}", flush=True)
    end = time.monotonic() + RUN_SECONDS
    while (state := ask("GET", f"{runs}/{run}", token=token)["state"]) in ("queued", "running"):
        if time.monotonic() > end:
            sys.exit(f"error: {dag} is {state} after {RUN_SECONDS} s")
        time.sleep(3)
    for each in ask("GET", f"{runs}/{run}/taskInstances", token=token)["task_instances"]:
        print(f"{each['task_id']}: {each['state']}")
    sys.exit(0 if state == "success" else f"error: {dag}: {state}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
