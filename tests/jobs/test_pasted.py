"""Commands that are printed can be pasted: they name the ledger of the call, quoted, and their arguments."""

import shlex
from pathlib import Path

import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.base.errors import BudgetRefused
from pipeline.base.plain import with_ledger
from tests.support.world import budget_file, records, write_world

RAISED = "have an officer raise it: prdp ledger raise {} --budget FILE --reason TEXT"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("run prdp ledger abort r, or", "run prdp ledger abort --ledger 'a b' r, or"),
        ("prdp ledger admin staging purge", "prdp ledger admin staging purge --ledger 'a b'"),
        ("run prdp check PLAN, and", "run prdp check --ledger 'a b' PLAN, and"),
        *[
            (text, text)
            for text in ("prdp ledger create X", "prdp ledger show --ledger x", "no prdp ledger: see", "prdp export x")
        ],
    ],
)
def test_a_command_names_the_ledger_of_the_call(text: str, named: str) -> None:
    assert with_ledger(text, "a b") == named
    assert with_ledger(named, "a b") == named
    assert with_ledger(text, None) == text


def test_no_password_is_repeated() -> None:
    assert with_ledger("prdp ledger show", "postgresql://me:secret@host/db?sslmode=verify-full") == (
        "prdp ledger show --ledger 'postgresql://me@host/db?sslmode=verify-full'"
    )


def test_commands_of_a_run_act_on_its_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "my ledger" / "l.sqlite")
    assert main(["ledger", "create", "--ledger", address]) == 0
    assert main(["ledger", "create", address, "--ledger", address]) == 0
    assert main(["ledger", "create", f"{address}2", "--ledger", address]) == 2
    plan = write_world(tmp_path, records(20), budget=[])
    assert main(["release", str(plan), "--hold", "--ledger", address]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("prdp ledger approve"))
    assert main(shlex.split(told)[1:]) == 0


def test_a_family_that_is_not_registered_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "state" / "l.sqlite")
    assert main(["ledger", "create", address]) == 0
    plan = write_world(tmp_path, records(20), budget=[], dataset={"family": "kin"})
    assert main(["release", str(plan), "--ledger", address]) == 5
    told = capsys.readouterr().err
    assert f"prdp ledger init --ledger {address} kin --budget FILE" in told
    assert "the keys unit (record) and limits" in told


@pytest.mark.parametrize(
    ("own", "of_dataset", "whose", "remedy"),
    [
        (5, 20, "(the plan's own budget)", "raise the limit in the plan's budget"),
        (20, 5, "(the limit of dataset small-world)", RAISED.format("small-world")),
        (5, 5, "(the limit of dataset small-world)", RAISED.format("small-world")),
        (20, None, "(the limit of family kin)", RAISED.format("kin")),
    ],
)
def test_a_refusal_says_whose_limit_it_is_and_what_raises_it(
    own: float, of_dataset: float | None, whose: str, remedy: str, tmp_path: Path
) -> None:
    address = str(tmp_path / "state" / "l.sqlite")
    limits = [{"at": {"employment": 10, "payroll": 500}, "rho": own}]
    family = {} if of_dataset else {"family": "kin"}
    plan = write_world(tmp_path, records(20), budget=limits, dataset=family)
    assert main(["ledger", "create", address]) == 0
    file = budget_file(tmp_path, of_dataset or 0)
    if of_dataset is None:
        file.write_text(yaml.safe_dump({"unit": "record", "limits": [limits[0] | {"rho": 5}]}))
    name = "small-world" if of_dataset else "kin"
    assert main(["ledger", "init", name, "--budget", str(file), "--ledger", address]) == 0
    with pytest.raises(BudgetRefused) as refused:
        prdp.load_plan(plan).release(ledger=address)
    told = str(refused.value)
    assert f"refused by the budget at employment=10, payroll=500 {whose}: requested" in told
    assert told.endswith(f"; ask for less loss (more noise), or {remedy}")
