"""How a ledger comes to be: by `prdp ledger create` or the default place's first use, never by another command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.store import create_ledger, open_ledger
from tests.support.ledgers import ledger_file, reservation
from tests.support.postgres import PostgresServer
from tests.support.world import budget_file, records, write_world


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_world(tmp_path, records(30))
    return tmp_path


@pytest.mark.parametrize(
    "act",
    [
        ["release", "PLAN"],
        ["prepare", "RAW", "--plan", "PLAN", "--out", "NEW"],
        ["diagnose", "PLAN", "--out", "NEW"],
        ["ledger", "init", "small-world", "--budget", "BUDGET"],
        ["ledger", "check", "PLAN"],
        ["ledger", "show"],
        ["ledger", "verify"],
        ["ledger", "migrate"],
        ["ledger", "export"],
        ["ledger", "approve", "r"],
        ["ledger", "staging", "purge"],
    ],
    ids=lambda act: " ".join(act[:2]),
)
def test_no_command_makes_the_ledger_that_it_is_given(
    act: list[str], world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger_file(world / "state" / "ledger.sqlite")
    named = {"PLAN": "plan.yaml", "RAW": "microdata", "NEW": "new"}
    paths = {word: str(world / name) for word, name in named.items()} | {"BUDGET": str(budget_file(world))}
    before = sorted(world.rglob("*"))
    for mistyped in (world / "state" / "lgder.sqlite", world / "sate" / "ledger.sqlite"):
        assert main([*(paths.get(word, word) for word in act), "--ledger", str(mistyped)]) == 5
        told = capsys.readouterr()
        assert f"the ledger {mistyped} is not there" in told.err
        assert ("nearest file in that folder: ledger.sqlite" in told.err) == (mistyped.parent.name == "state")
        assert told.out == ""
    assert sorted(world.rglob("*")) == before


def test_python_makes_no_ledger_that_it_is_given(world: Path) -> None:
    absent = world / "state" / "ledger.sqlite"
    plan = prdp.load_plan(world / "plan.yaml")
    for use in (prdp.open_ledger, lambda ledger: plan.release(ledger=ledger), lambda ledger: plan.check(ledger=ledger)):
        with pytest.raises(StateError, match="is not there"):
            use(absent)
    assert prdp.create_ledger(absent).address == str(absent)
    assert prdp.create_ledger(absent).verify()["entries"] == 0  # what is there is left as it is
    assert plan.check(ledger=absent)["state"] is None


def test_create_makes_a_ledger_once_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    assert main(["ledger", "create", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ledger": str(path), "entries": 0, "head": "0" * 64}
    open_ledger(str(path)).reserve(reservation("r"))
    assert main(["ledger", "create", str(path)]) == 0
    assert f"ledger {path}: is there, with 1 entries" in capsys.readouterr().out


def test_the_default_place_is_made_by_its_first_use(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world / "state"))
    at = world / "state" / "prdp" / "ledger.sqlite"
    assert main(["release", str(world / "plan.yaml")]) == 0
    assert f"] ledger {at}\n" in capsys.readouterr().err
    for act in (["show"], ["verify"], ["check", str(world / "plan.yaml")], ["show", "--json"]):
        assert main(["ledger", *act]) == 0
        assert f"] ledger {at}\n" in capsys.readouterr().err


def test_a_folder_is_told_as_one(tmp_path: Path) -> None:
    for use in (open_ledger, create_ledger):
        with pytest.raises(StateError, match="is a folder: name a file"):
            use(str(tmp_path))


def test_an_empty_database_is_not_made_into_a_ledger(
    postgres: PostgresServer, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world / "state"))
    url = postgres.url(postgres.database())
    assert main(["release", str(world / "plan.yaml"), "--ledger", url]) == 5
    assert "holds no prdp ledger: correct the address" in capsys.readouterr().err
    with pytest.raises(StateError, match="holds no prdp ledger"):
        open_ledger(url)
    assert main(["ledger", "create", url]) == 0
    assert main(["ledger", "check", str(world / "plan.yaml"), "--ledger", url]) == 0


# Names that a ledger does not hold


Unknown = Callable[..., str]


@pytest.fixture
def unknown(world: Path, capsys: pytest.CaptureFixture[str]) -> Unknown:
    ledger = ledger_file(world / "state" / "ledger.sqlite")
    assert main(["release", str(world / "plan.yaml"), "--ledger", ledger]) == 0
    capsys.readouterr()

    def told(*act: str, code: int = 5) -> str:
        assert main(["ledger", *act, "--ledger", ledger]) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return told


def test_an_unknown_name_is_refused_with_the_nearest(unknown: Unknown) -> None:
    release = "release small-relase: is not in the ledger; nearest known release: small-release"
    acts = ("show", "approve", "abort")
    for act in (*([act, "small-relase"] for act in acts), ["staging", "purge", "small-relase"]):
        assert release in unknown(*act)
    for act in ("reject", "withdraw"):
        assert release in unknown(act, "small-relase", "--reason", "x")
    assert release in unknown("show", "small-relase", "--at", "employment=10,payroll=500")
    dataset = "dataset smal-world: is not in the ledger; nearest known dataset: small-world"
    assert dataset in unknown("show", "--dataset", "smal-world")
    assert dataset in unknown("show", "--dataset", "smal-world", "--at", "employment=10,payroll=500")
    assert dataset in unknown("show", "small-release", "--dataset", "smal-world")
    assert "--at employmnt: unknown measure of the dataset; nearest known: employment" in unknown(
        "show", "--at", "employmnt=10,payroll=500"
    )
    assert "must also name payroll" in unknown("show", "--at", "employment=11", code=2)  # which no limit covers


def test_an_empty_ledger_spends_nothing_at_no_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ledger_file(tmp_path / "state" / "ledger.sqlite")
    assert main(["ledger", "show", "--at", "employmnt=10", "--ledger", ledger]) == 5
    assert "holds no dataset" in capsys.readouterr().err
    assert main(["ledger", "show", "--ledger", ledger]) == 0  # a list of nothing is what it holds


def test_where_all_was_refunded_nothing_is_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = ledger_file(tmp_path / "state" / "ledger.sqlite")
    ledger = open_ledger(address)
    ledger.reserve(reservation("r"))
    ledger.abort("r")
    for named in ([], ["r"], ["--dataset", "d"]):
        assert main(["ledger", "show", *named, "--at", "payroll=1", "--ledger", address]) == 5
        assert "nothing is spent: all releases of d were refunded, and no limit is" in capsys.readouterr().err
    assert main(["ledger", "show", "--dataset", "e", "--at", "payroll=1", "--ledger", address]) == 5
    assert "dataset e: is not in the ledger" in capsys.readouterr().err
