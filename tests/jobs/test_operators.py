"""PrdpReleaseOperator and its trigger with a stand-in for Airflow; tests/jobs/test_airflow.py has the real one."""

import asyncio
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from jobs.cli import main
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

DAGS = Path(__file__).parents[2] / "jobs" / "dags"
MONTH = {"month": "2026-11"}


class Deferred(BaseException):
    """What Airflow raises where a task gives its worker back."""


class Operator:
    def __init__(self, task_id: str = "release", outlets: Any = ()) -> None:
        self.task_id, self.outlets = task_id, outlets

    def defer(self, **given: Any) -> None:
        raise Deferred(given)


class Named(SimpleNamespace):
    def __hash__(self) -> int:
        return hash(self.name)


class Asset(Named):
    pass


class AssetAlias(Named):
    pass


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """prdp_operators over a stand-in for Airflow; commands of prdp run in this process."""
    errors = {name: type(name, (Exception,), {}) for name in ("AirflowException", "AirflowFailException")}
    errors |= {name: type(name, (Exception,), {}) for name in ("AirflowNotFoundException", "AirflowSkipException")}
    classes = {"BaseOperator": Operator, "Asset": Asset, "AssetAlias": AssetAlias, "Connection": None}
    variables = SimpleNamespace(get=lambda name, default: default)
    modules = {
        "airflow": {},
        "airflow.sdk": classes | {"Variable": variables},
        "airflow.sdk.exceptions": errors,
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": object, "TriggerEvent": str},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(DAGS)
    ours = [importlib.import_module(name) for name in ("prdp_steps", "prdp_operators")]
    monkeypatch.setattr(ours[0], "run", here)
    monkeypatch.setattr(ours[1], "run", here)
    yield ours[1]
    for module in ours:
        del sys.modules[module.__name__]


def here(command: Any, *_: Any, **__: Any) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(command[1:])
    steps = sys.modules["prdp_steps"]
    return steps.Done(code, out.getvalue(), steps.relay(err.getvalue().splitlines(), lambda line: None))


class World:
    """A template of a plan, its family's budget, and a task about it."""

    def __init__(self, folder: Path, operators: Any) -> None:
        data = yaml.safe_load(write_world(folder, records(40)).read_text())
        data["variables"] = {"month": {"pattern": "20[0-9]{2}-[01][0-9]", "about": "The month"}}
        data["release"] = "jobs-{{ month }}"
        data["dataset"] |= {"name": "jobs-{{ month }}", "family": "jobs"}
        (folder / "jobs.yaml").write_text(yaml.safe_dump(data))
        self.ledger = ["--ledger", ledger_file(folder / "state" / "ledger.sqlite")]
        limits = [{"at": {"employment": 10, "payroll": 500}, "rho": 1000}]
        (folder / "family.yaml").write_text(yaml.safe_dump({"unit": "record", "limits": limits}))
        assert main(["ledger", "init", "jobs", "--budget", str(folder / "family.yaml"), *self.ledger]) == 0
        self.site = {f"prdp_{name}": str(folder) for name in ("plans", "home")}
        self.site |= {"prdp_bin": str(Path(sys.executable).parent), "prdp_ledger": self.ledger[1]}
        self.operators, self.folder = operators, folder

    def task(self, kind: str = "PrdpReleaseOperator", **changes: Any) -> Any:
        given = {"plan": "jobs.yaml", "set": MONTH, "site": self.site} | changes
        return getattr(self.operators, kind)(**given)

    def decide(self, *act: str) -> None:
        assert main(["ledger", act[0], "jobs-2026-11", *act[1:], *self.ledger]) == 0


@pytest.fixture
def world(tmp_path: Path, operators: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("PRDP_OPERATOR", raising=False)
    return World(tmp_path, operators)


def context(outlet: Any = None) -> Any:
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="release", try_number=1)
    events = {
        outlet: SimpleNamespace(extra=None, added=[], add=lambda a, extra: events[outlet].added.append((a, extra)))
    }
    return {"ti": ti, "dag_run": SimpleNamespace(triggering_user_name=None), "outlet_events": events}


def test_a_release_in_one_task_is_an_asset(world: World) -> None:
    for outlet in (Asset(name="county"), AssetAlias(name="prdp_releases")):
        run = context(outlet)
        assert world.task(outlets=[outlet]).execute(run) == "jobs-2026-11"  # the second time nothing is drawn
        event = run["outlet_events"][outlet]
        extra = event.extra or event.added[0][1]
        assert set(extra) == {"release", "dataset", "attempt", "plan_digest", "path"}
        assert (extra["release"], Path(extra["path"]).is_dir()) == ("jobs-2026-11", True)
    asset, _ = event.added[0]
    assert (asset.name, asset.uri) == ("prdp/jobs-2026-11", Path(extra["path"]).as_uri())


def test_a_held_release_waits_without_a_worker_until_the_ledger_says_so(world: World) -> None:
    task, run = world.task(hold="True"), context()
    with pytest.raises(Deferred) as deferred:
        task.execute(run)
    given = deferred.value.args[0]
    assert (given["method_name"], given["kwargs"]) == ("resume", {"held": "jobs-2026-11"})
    trigger = given["trigger"]
    path, made = trigger.serialize()
    assert path == "prdp_operators.ApprovalTrigger"
    assert vars(world.operators.ApprovalTrigger(**made)) == vars(trigger)
    assert asyncio.run(trigger._waits())
    with pytest.raises(Deferred):  # an event proves nothing: whoever wakes the task waits again
        task.resume(run, held="jobs-2026-11", event="decided")
    assert not (world.folder / "releases").exists()
    world.decide("approve", "--record-only")
    assert asyncio.run(anext(trigger.run())) == "decided"
    assert task.resume(run, held="jobs-2026-11", event="decided") == "jobs-2026-11"
    assert (world.folder / "releases" / "jobs-2026-11" / "release.json").exists()


def test_a_rejected_release_ends_the_wait_and_fails_the_task(world: World) -> None:
    task = world.task(hold=True)
    with pytest.raises(Deferred) as deferred:
        task.execute(context())
    world.decide("reject", "--reason", "cells too thin")
    assert asyncio.run(anext(deferred.value.args[0]["trigger"].run())) == "decided"
    with pytest.raises(sys.modules["airflow.sdk.exceptions"].AirflowFailException) as failed:
        task.resume(context(), held="jobs-2026-11")
    assert "thin" not in str(failed.value)


def test_what_prdp_refuses_is_not_tried_again(world: World) -> None:
    refused = sys.modules["airflow.sdk.exceptions"].AirflowFailException
    for changes, said in (
        ({"set": {}}, "has no value"),
        ({"set": '{"month": 202611}'}, "as text"),
        ({"plan": "../jobs.yaml"}, "below the folder of plans"),
        ({"hold": "maybe"}, "True or False"),
        ({"release": "jobs-2026-10"}, "names another release now"),
    ):
        with pytest.raises(refused, match=said):
            world.task(**changes).execute(context())
    with pytest.raises(ValueError, match="dask, spark"):
        world.task(engine="ray")
    with pytest.raises(sys.modules["airflow.sdk.exceptions"].AirflowException, match="is not there"):
        world.task(site=world.site | {"prdp_ledger": str(world.folder / "none.sqlite")}).execute(context())
