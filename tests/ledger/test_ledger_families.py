"""What a record loses over a family: shown with each member, spent and left."""

from pathlib import Path

import pytest
import yaml

import prdp
from jobs.cli import main
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

AT = "employment=10,payroll=500"
LOSS = 11.9938  # of a release of the small world there, rounded up


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """A ledger with a release of each of two datasets, which are of one family and have no limits of their own."""
    address = ledger_file(tmp_path / "my ledgers" / "ledger.sqlite")
    kin = tmp_path / "family.yaml"
    limits = [
        {"at": {"employment": 10, "payroll": 500}, "rho": 30},
        {"at": {"employment": 90, "payroll": 900}, "rho": 900},
    ]
    kin.write_text(yaml.safe_dump({"unit": "record", "limits": limits}))
    assert main(["ledger", "init", "economy", "--budget", str(kin), "--ledger", address]) == 0
    for number, name in enumerate(("east", "west")):
        dataset = {"name": name, "family": "economy"}
        plan = write_world(tmp_path / name, records(20 + number), release=f"{name}-2023", budget=[], dataset=dataset)
        assert main(["release", str(plan), "--ledger", address]) == 0
    return address


def test_a_member_states_what_is_spent_and_left_over_its_family(ledger: str) -> None:
    opened = prdp.open_ledger(ledger)
    (east,) = opened.spent(AT, "east")
    (both,) = opened.spent(AT, "economy")
    assert east["spent"] == pytest.approx(LOSS, abs=1e-3)
    assert (both["spent"], both["left"]) == (pytest.approx(2 * LOSS, abs=1e-3), pytest.approx(30 - 2 * LOSS, abs=1e-3))
    keys = ("spent", "years", "limit", "left", "limits")
    assert east["family"] == {"family": "economy", **{key: both[key] for key in keys}}
    (account,) = opened.spent(dataset="west")
    (limit, _) = account["family"]["limits"]
    assert (account["limits"], limit["spent"], limit["left"]) == ([], both["spent"], both["left"])


@pytest.mark.parametrize("name", ["east", "economy"])
def test_show_takes_a_family_or_a_member_and_knows_its_limits(
    name: str, ledger: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["ledger", "show", name, "--ledger", ledger]) == 0
    shown = capsys.readouterr().out
    assert ("west-2023" in shown) == (name == "economy")
    assert "23.987" in shown
    assert "without bound" not in shown
    assert main(["ledger", "show", name, "--at", AT, "--ledger", ledger]) == 0
    assert "23.987" in capsys.readouterr().out
    page = prdp.open_ledger(ledger).page(Path(ledger).parent / "page.html").read_text()
    assert "over its family at employment=10, payroll=500: 23.987" in page
    assert "without bound" not in page


@pytest.mark.parametrize(("asked", "payroll"), [("employment=10", 500), ("employment=7", 500), ("employment=11", 900)])
def test_a_measure_that_is_not_named_has_the_value_of_the_smallest_limit(asked: str, payroll: int, ledger: str) -> None:
    for dataset in ("east", "economy"):
        (known,) = prdp.open_ledger(ledger).spent(asked, dataset)
        (full,) = prdp.open_ledger(ledger).spent(f"{asked},payroll={payroll}", dataset)
        assert known["assumed"] == {"payroll": payroll}
        assert known == full | {"assumed": known["assumed"]}
    with pytest.raises(prdp.PlanError, match="must also name payroll"):
        prdp.open_ledger(ledger).spent("employment=91", "east")
