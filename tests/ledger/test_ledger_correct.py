"""`prdp ledger correct`: what was registered can be mended until something was released under it."""

from pathlib import Path

import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import StateError
from tests.support.ledgers import ledger_file
from tests.support.world import budget_file, records, write_world


@pytest.fixture
def address(tmp_path: Path) -> str:
    write_world(tmp_path, records(30))
    return ledger_file(tmp_path / "state" / "ledger.sqlite")


def test_a_mistyped_path_is_told_and_corrected_until_the_first_release(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    act = ["small-world", "--ledger", address, "--budget"]
    mistyped = str(budget_file(tmp_path, dataset={"path": "micordata"}))
    assert main(["ledger", "correct", *act, mistyped]) == 5
    assert "is not registered: begin with prdp ledger init" in capsys.readouterr().err
    assert main(["ledger", "init", *act, mistyped]) == 0
    told = capsys.readouterr()
    assert "warning: dataset.path:" in told.err
    assert "micordata is not there, as far as this user sees" in told.err
    limit = "over all releases employment=10, payroll=500 and every smaller one lose at most rho 20"
    assert limit in " ".join(told.out.split())
    release = ["release", str(tmp_path / "plan.yaml"), "--ledger", address]
    assert main(release) == 5
    right = str(budget_file(tmp_path, 30))
    assert main(["ledger", "correct", *act, right]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(release) == 0
    assert main(["ledger", "correct", *act, right]) == 5
    assert (
        "has a release, small-release: only its limits are stated anew, by prdp ledger raise --ledger"
        in capsys.readouterr().err
    )
    ledger = prdp.open_ledger(address)
    assert ledger.budgets()["small-world"]["limits"][0]["rho"] == 30
    assert ledger.verify()["entries"] == len(ledger.entries())
    with pytest.raises(StateError, match="has a release"):
        ledger.correct("small-world", right)
