"""The DAGs in a real Airflow: refused, killed, held and cleared runs, each of which publishes one draw at most.

`make drill` alone runs these; `make airflow` installs the Airflow. tests/jobs/test_dags.py needs none.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
import yaml

from jobs.cli import main
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.airflow import BIN, Airflow, Run, processes_with, settings, standalone, waited
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (BIN / "airflow").exists(), reason="no Airflow here: make airflow installs one"),
]
CANARY = "E-canary-4711"
DASK, SPARK = "prdp_release_dask", "prdp_release"


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("airflow")
    ledger_file(folder / "state" / "ledger.sqlite")
    with standalone(folder) as running:
        yield running


def plan(airflow: Airflow, name: str, microdata: pa.Table | None = None, **changes: Any) -> str:
    """Write a world of its own below the folder of plans; return its plan as the DAGs take it."""
    wanted: dict[str, Any] = {"release": name, "dataset": {"name": name}}
    mine = records(200, seed=crc32(name.encode())) if microdata is None else microdata  # no copy of another dataset
    write_world(airflow.folder / "plans" / name, mine, **wanted | changes)
    return f"{name}/plan.yaml"


def ledger_of(airflow: Airflow) -> Ledger:
    return create_ledger(str(airflow.folder / "state" / "ledger.sqlite"))


def shown(airflow: Airflow, capsys: pytest.CaptureFixture[str], name: str) -> Any:
    capsys.readouterr()
    ledger = str(airflow.folder / "state" / "ledger.sqlite")
    assert main(["ledger", "show", name, "--json", "--ledger", ledger]) == 0
    return next(iter(json.loads(capsys.readouterr().out)), None)


def published_once(airflow: Airflow, capsys: pytest.CaptureFixture[str], name: str) -> Any:
    """What the ledger says of a release that is published, of one charge, and whose files alone are in its place."""
    story = shown(airflow, capsys, name)
    assert (story["state"], story["charges"]) == ("settled", 1)
    folder = airflow.folder / "out" / name
    assert main(["verify", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempt"] == story["attempt"]
    assert {path.name for path in folder.iterdir()} == {"release.json", "index.html", story["attempt"]}
    assert [each["attempt"] for each in story["attempts"] if each["stage"] == "settled"] == [story["attempt"]]
    return story


def test_a_run_without_a_scheduler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Airflow("", tmp_path, "")
    environment = settings(tmp_path, 1)
    ledger_file(tmp_path / "state" / "ledger.sqlite")
    conf = json.dumps({"plan": plan(here, "tested"), "csv": True})
    for words in (["db", "migrate"], ["dags", "test", DASK, "--conf", conf]):
        subprocess.run([BIN / "airflow", *words], env=environment, check=True, capture_output=True)
    assert len(published_once(here, capsys, "tested")["attempts"]) == 1
    assert list((tmp_path / "out").rglob("*.csv"))


def test_a_release_on_spark_and_again_when_it_is_cleared(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time nothing is started, and nothing of Spark's own output is ever logged."""
    run = airflow.trigger(SPARK, plan=plan(airflow, "cleared"), diagnostics=True)
    assert (run.ended(), set(run.states().values())) == ("success", {"success"})
    first = published_once(airflow, capsys, "cleared")
    head = ledger_of(airflow).head()
    assert ledger_of(airflow).diagnoses()
    run.clear("check_plan")
    waited("the release's second try", lambda: run.task("release")["try_number"] == 2)
    assert (run.ended(), run.task("release")["state"]) == ("success", "success")
    again = published_once(airflow, capsys, "cleared")
    assert (again["attempts"], again["draws"]) == (first["attempts"], 1)
    assert ledger_of(airflow).head()[0] == head[0] + 1  # diagnostics, asked for again
    assert run.pushed() == {"check_budget": "cleared"}
    logs = run.logs()
    assert "drawing establishments" in logs
    assert "is published already" in logs
    for word in ("SparkContext", "TaskSetManager", "DAGScheduler", "numRecords"):
        assert word not in logs


def test_a_refusal_by_the_budget_is_not_tried_again(airflow: Airflow) -> None:
    budget = [{"at": {"employment": 10, "payroll": 500}, "rho": 0.001}]
    run = airflow.trigger(DASK, plan=plan(airflow, "refused", budget=budget))
    assert run.ended() == "failed"
    task = run.task("check_plan")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert run.task("release")["state"] == "upstream_failed"
    assert "breaks its plan's budget at employment=10" in run.logs()
    assert ledger_of(airflow).state("refused") is None


def test_broken_microdata_are_not_read_again_and_not_told(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    broken = records(50).to_pylist()
    broken[7] |= {"establishment_id": CANARY, "payroll": -4711}
    run = airflow.trigger(SPARK, plan=plan(airflow, "broken", pa.Table.from_pylist(broken)))
    assert run.ended() == "failed"
    task = run.task("release")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert (shown(airflow, capsys, "broken")["state"], shown(airflow, capsys, "broken")["charges"]) == ("refused", 0)
    logs = run.logs()
    assert "the reason is confidential" in logs
    for words in ("4711", "payroll", "SparkContext", "Traceback"):
        assert words not in logs


def kill_group(found: list[int]) -> None:
    """Kill Java, Python and Airflow's own process of the task, which make one process group."""
    groups = {os.getpgid(pid) for pid in found}
    assert len(groups) == 1
    assert os.getpgid(0) not in groups
    os.killpg(groups.pop(), signal.SIGKILL)


def kill_java(found: list[int]) -> None:
    """Kill spark-submit alone; the Python that it started notices by itself."""
    for pid in found:
        if Path(f"/proc/{pid}/exe").resolve().name == "java":
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_group, kill_java])
def test_a_driver_that_is_killed_after_its_draw_is_tried_again(
    airflow: Airflow, capsys: pytest.CaptureFixture[str], kill: Callable[[list[int]], None]
) -> None:
    name = kill.__name__.replace("_", "-")
    run = airflow.trigger(SPARK, plan=plan(airflow, name))
    ledger = ledger_of(airflow)

    def drawn() -> bool:
        state = ledger.state(name)
        return state is not None and state.status == "drawn"

    waited("a draw", drawn, pause=0.01)
    kill(processes_with(f"{airflow.folder}/plans/{name}/plan.yaml"))
    assert not (airflow.folder / "out" / name / "release.json").exists()
    assert run.ended() == "success"
    assert run.task("release")["try_number"] >= 2
    story = published_once(airflow, capsys, name)
    assert 1 <= len(story["attempts"]) <= 2
    assert [each["stage"] for each in story["attempts"][:-1]] in ([], ["destroyed"])


def test_a_held_release_waits_for_an_officer_whom_airflow_cannot_replace(
    airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "held"
    run = airflow.trigger(DASK, plan=plan(airflow, name), hold=True)
    waited("the wait", lambda: run.task("wait_for_approval")["state"] == "deferred")
    assert shown(airflow, capsys, name)["state"] == "held"
    run.mark("wait_for_approval", "success")  # somebody with rights in Airflow alone
    assert run.ended() == "failed"
    assert run.task("publish")["state"] == "failed"
    assert run.task("publish")["try_number"] == 1
    assert not (airflow.folder / "out").joinpath(name).exists()
    run.clear("wait_for_approval")
    waited("the wait", lambda: run.task("wait_for_approval")["state"] == "deferred")
    ledger = ["--ledger", ledger_file(airflow.folder / "state" / "ledger.sqlite"), "--operator", "officer"]
    assert main(["ledger", "approve", name, "--record-only", *ledger]) == 0
    assert run.ended() == "success"
    story = published_once(airflow, capsys, name)
    assert len(story["attempts"]) == 1
    by = {act["event"]: act["operator"] for act in story["acts"]}
    assert by["approved"] == "officer"
    assert by["published"].startswith(f"airflow {DASK} manual__")


def test_a_rejected_release_fails_the_wait(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    name = "rejected"
    run = airflow.trigger(DASK, plan=plan(airflow, name), hold=True)
    waited("the wait", lambda: run.task("wait_for_approval")["state"] == "deferred")
    seen = f"task_id='wait_for_approval', run_id='{run.name}'"  # that the task is deferred: else Airflow tries again
    waited("the executor", lambda: seen in (airflow.folder / "airflow.log").read_text())
    ledger = ["--ledger", ledger_file(airflow.folder / "state" / "ledger.sqlite")]
    assert main(["ledger", "reject", name, "--reason", "cells too thin", *ledger]) == 0
    assert run.ended() == "failed"
    assert run.task("wait_for_approval")["try_number"] == 1
    assert "cells too thin" not in run.logs()
    assert shown(airflow, capsys, name)["state"] == "rejected"
    assert not (airflow.folder / "out" / name).exists()


def asset_event(airflow: Airflow, name: str, **extra: str) -> None:
    (asset,) = airflow.call(f"/api/v2/assets?name_pattern={name}")["assets"]
    airflow.call("/api/v2/assets/events", {"asset_id": asset["id"], "extra": extra})


def events_of(airflow: Airflow, name: str) -> Any:
    # no DAG names an asset that an alias made, so it need not be active
    (asset,) = airflow.call(f"/api/v2/assets?name_pattern={name}&only_active=false")["assets"]
    return airflow.call(f"/api/v2/assets/events?asset_id={asset['id']}")["asset_events"]


def every_month(airflow: Airflow, name: str, seed: int) -> list[str]:
    """Write the plan NAME.yaml of a family, as docs/airflow.md has it; return the options of the ledger."""
    plans = airflow.folder / "plans"
    data = yaml.safe_load(write_world(plans / f"of-{name}", records(200, seed=seed)).read_text())
    data |= {
        "variables": {"month": {"pattern": "20[0-9]{2}-[01][0-9]", "about": "The month"}},
        "release": f"{name}-{{{{ month }}}}",
        "domain": {key: f"of-{name}/{path}" for key, path in data["domain"].items()},
    }
    data["dataset"] |= {"name": f"{name}-{{{{ month }}}}", "family": name, "path": f"of-{name}/microdata"}
    (plans / f"{name}.yaml").write_text(yaml.safe_dump(data))
    limits = [{"at": {"employment": 10, "payroll": 500}, "rho": 1000}]
    budget = airflow.folder / f"{name}.yaml"
    budget.write_text(yaml.safe_dump({"unit": "record", "limits": limits}))
    ledger = ["--ledger", str(airflow.folder / "state" / "ledger.sqlite"), "--operator", "officer"]
    assert main(["ledger", "init", name, "--budget", str(budget), *ledger]) == 0
    airflow.call("/api/v2/pools", {"name": name, "slots": 1, "description": f"releases of {name}"})
    return ledger


def told(story: Any, airflow: Airflow) -> Any:
    """What an asset's event says of a release."""
    facts = {key: story[key] for key in ("release", "dataset", "attempt", "plan_digest")}
    return facts | {"path": f"{airflow.folder}/out/{story['release']}"}


def test_an_event_of_the_microdata_releases_their_month(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/airflow.md: one plan for every month, held, and an asset once it is published."""
    ledger = every_month(airflow, "jobs", seed=11)
    asset_event(airflow, "jobs_microdata", month="2026-11")
    (started,) = waited("the run", lambda: airflow.call("/api/v2/dags/jobs_by_microdata/dagRuns")["dag_runs"])
    run = Run(airflow, "jobs_by_microdata", started["dag_run_id"])
    waited("the wait", lambda: run.task("wait_for_approval")["state"] == "deferred")
    assert shown(airflow, capsys, "jobs-2026-11")["state"] == "held"
    assert main(["ledger", "approve", "jobs-2026-11", "--record-only", *ledger]) == 0
    assert run.ended() == "success"
    (event,) = events_of(airflow, "prdp/jobs-2026-11")
    assert event["extra"] == told(published_once(airflow, capsys, "jobs-2026-11"), airflow)


def test_the_operator_makes_a_whole_release_in_a_dag_of_others(
    airflow: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = every_month(airflow, "county", seed=12)
    run = airflow.trigger("county_tables")
    month = airflow.call(run.at)["run_after"][:7]
    waited("the wait", lambda: run.task("release")["state"] == "deferred")
    assert main(["ledger", "approve", f"county-{month}", "--record-only", *ledger]) == 0
    assert run.ended() == "success"
    (event,) = events_of(airflow, "county_tables")
    assert event["extra"] == told(published_once(airflow, capsys, f"county-{month}"), airflow)
    assert run.pushed() == {"release": f"county-{month}"}


def test_a_task_that_is_ended_ends_prdp(airflow: Airflow, capsys: pytest.CaptureFixture[str]) -> None:
    name = "ended"
    run = airflow.trigger(DASK, plan=plan(airflow, name, records(20_000)))
    text = f"{airflow.folder}/plans/{name}/plan.yaml"
    waited("the release", lambda: run.task("release")["state"] == "running" and processes_with(text), pause=0.2)
    run.mark("release", "failed")
    waited("the end of prdp", lambda: not processes_with(text), seconds=90)
    assert run.ended() == "failed"
    run.clear("release")
    assert run.ended() == "success"
    published_once(airflow, capsys, name)
