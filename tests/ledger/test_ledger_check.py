"""`prdp ledger afford`: what a release would be told before it reads a record, and nothing is reserved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger.store import create_ledger
from tests.support.ledgers import ledger_file, reservation
from tests.support.world import BUDGET, records, write_world

Told = tuple[int, Any]
Prdp = Callable[..., Told]


@pytest.fixture
def prdp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Prdp:
    """Run the command; return its exit code, and its JSON or its last line of errors."""

    def run(*arguments: object) -> Told:
        ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite"), "--json"]
        code = main([*map(str, arguments), *ledger])
        told = capsys.readouterr()
        return code, json.loads(told.out) if code == 0 else told.err.splitlines()[-1]

    return run


def head(folder: Path) -> tuple[int, str]:
    return create_ledger(str(folder / "state" / "ledger.sqlite")).head()


def test_a_plan_that_fits_is_told_so_and_nothing_is_reserved(prdp: Prdp, tmp_path: Path) -> None:
    plan = write_world(tmp_path, None)  # no microdata are needed
    code, told = prdp("ledger", "check", plan)
    assert (code, told["release"], told["dataset"], told["state"]) == (0, "small-release", "small-world", None)
    assert head(tmp_path)[0] == 0
    assert not (tmp_path / "releases").exists()


def test_it_refuses_what_a_release_would_be_refused_in_the_same_words(prdp: Prdp, tmp_path: Path) -> None:
    plan = write_world(tmp_path, records(20), budget=[BUDGET[0] | {"rho": 11.9}])
    checked = prdp("ledger", "check", plan)
    assert checked == prdp("release", plan)
    assert checked[0] == 3
    assert (
        "refused by the budget at employment=10, payroll=500 (the plan's own budget): requested rho 11.9938"
        in checked[1]
    )
    assert prdp("ledger", "check", write_world(tmp_path, None, budget=[BUDGET[0] | {"rho": 12}]))[0] == 0


def test_what_is_spent_counts_and_what_is_reserved_already_is_told(prdp: Prdp, tmp_path: Path) -> None:
    budget = [BUDGET[0] | {"rho": 20}]
    plan = write_world(tmp_path, records(20), budget=budget)
    assert prdp("release", plan)[0] == 0
    spent = head(tmp_path)
    code, told = prdp("ledger", "check", plan)
    assert (code, told["state"]) == (0, "settled")
    code, line = prdp("ledger", "check", write_world(tmp_path, None, budget=budget, release="second"))
    assert code == 3
    assert "spent 11.9938 by small-release" in line
    assert head(tmp_path) == spent


def test_it_refuses_what_the_state_the_place_or_the_plan_forbid(prdp: Prdp, tmp_path: Path) -> None:
    plan = write_world(tmp_path, records(20))
    assert prdp("release", plan, "--hold")[0] == 0
    assert prdp("ledger", "check", plan)[1]["state"] == "held"
    code, line = prdp("ledger", "check", plan, "--out", tmp_path / "elsewhere")
    assert (code, "another output location" in line) == (5, True)
    assert prdp("ledger", "reject", "small-release", "--reason", "thin")[0] == 0
    code, line = prdp("ledger", "check", plan)
    assert (code, "rejected by an officer" in line) == (5, True)
    folder = tmp_path / "releases" / "other"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text('{"attempt": "0123456789abcdef"}')
    code, line = prdp("ledger", "check", write_world(tmp_path, None, release="other"))
    assert (code, "not by this ledger" in line) == (5, True)
    code, line = prdp("ledger", "check", write_world(tmp_path, None, release="staged"), "--staging", folder.parent)
    assert (code, "overlap" in line) == (5, True)
    assert prdp("ledger", "check", write_world(tmp_path, None, queries=[]))[0] == 2


def test_the_ledger_alone_answers_as_it_would_reserve(address: str) -> None:
    ledger = create_ledger(address)
    wanted = reservation("r")
    assert ledger.check(wanted) is None
    with pytest.raises(StateError, match="not registered"):
        ledger.check(wanted, registered_only=True)
    assert ledger.head()[0] == 0
    ledger.reserve(wanted)
    state = ledger.check(wanted)
    assert state is not None
    assert state.status == "reserved"
    with pytest.raises(BudgetRefused):
        ledger.check(reservation("s", draws=1))
    ledger.abort("r")
    assert ledger.check(wanted) is None  # what was given back is free again
    ledger.verify()
