"""What `prdp ledger show --at` promises: a limit that was fixed in advance, which records it binds, rounded up."""

from fractions import Fraction
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.accounting.convert import DELTA, approximate_epsilon
from pipeline.accounting.references import Limit, Reference
from pipeline.ledger.datasets import Budget
from pipeline.ledger.spending import spendings
from pipeline.ledger.store import Ledger
from tests.support.ledgers import FACTS, UNIT, reservation
from tests.support.world import budget_file, records, write_world
from udfs.numbers.exact import exact, up_text


def budget(rho: Fraction, name: str = "d", **changes: object) -> Budget:
    facts = {"unit": "record", "limits": [Limit(Reference.of({}), rho)], "facts": FACTS, "source": f"/{name}"}
    return Budget(name=name, **(facts | changes))


def promised(ledger: Ledger) -> Fraction | None:
    (spending,) = spendings(ledger, "payroll=1", "d")
    means = spending.to_json()["means"]
    if means is None:
        return None
    assert means["epsilon"] == approximate_epsilon(float(means["limit"]["rho"]), DELTA)
    return exact(means["limit"]["rho"])


def test_a_registered_limit_is_promised_whatever_is_spent(ledger: Ledger) -> None:
    ledger.register(budget(20 * UNIT))
    assert promised(ledger) == 20 * UNIT
    for name in "abc":
        ledger.reserve(reservation(name, source="/d"))
        assert promised(ledger) == 20 * UNIT  # not what was spent: a later release may depend on an earlier one


def test_a_limit_stated_after_a_release_is_not_promised(ledger: Ledger) -> None:
    ledger.register(budget(20 * UNIT))
    ledger.raise_limits(budget(10 * UNIT), "before the first release")
    assert promised(ledger) == 10 * UNIT
    ledger.reserve(reservation("a", source="/d"))
    assert promised(ledger) == 10 * UNIT
    for rho in (30, 5):
        ledger.raise_limits(budget(rho * UNIT), "after it")
        assert promised(ledger) is None


def test_of_plans_the_first_limit_is_promised_alone(ledger: Ledger) -> None:
    ledger.reserve(reservation("a", draws=50, source="/d"))
    ledger.reserve(reservation("b", draws=3, source="/d"))  # chosen after a was seen, perhaps because of it
    assert promised(ledger) == 50 * UNIT
    ledger.register(budget(4 * UNIT))
    assert promised(ledger) == 50 * UNIT
    ledger.raise_limits(budget(60 * UNIT), "it lifts the first")
    assert promised(ledger) is None


def test_a_familys_limit_counts_all_its_releases(ledger: Ledger) -> None:
    ledger.register(budget(9 * UNIT, "f", facts=None, source=None))
    ledger.register(budget(20 * UNIT, family="f"))
    assert promised(ledger) == 9 * UNIT
    ledger.register(budget(20 * UNIT, "e", family="f"))
    ledger.reserve(reservation("a", dataset="e", source="/e"))
    ledger.raise_limits(budget(8 * UNIT, "f", facts=None, source=None), "a release of another of its datasets")
    assert promised(ledger) == 20 * UNIT


def limit(**at: int) -> Limit:
    return Limit(Reference.of(at), Fraction(1))


@pytest.mark.parametrize("payroll", [0, 1, 2, 10**12])
def test_a_limit_binds_by_the_measures_that_it_names(payroll: int) -> None:
    record = Reference.of({"employment": 10, "payroll": payroll})
    assert limit(employment=10).at.covers(record)
    assert limit().at.covers(record)
    assert not limit(employment=9).at.covers(record)
    assert not limit(employment=10, sales=5).at.covers(record)  # its sales may be anything


def test_the_command_says_what_it_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = write_world(tmp_path, records(20), budget=[])
    assert main(["ledger", "init", "small-world", "--budget", str(budget_file(tmp_path))]) == 0
    assert main(["release", str(plan)]) == 0
    capsys.readouterr()
    show = ["ledger", "show", "--at", "employment=10,payroll=500"]
    assert main(show) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "was fixed before the first release: all releases, however each is chosen" in told
    assert f"(ε, δ) = ({up_text(approximate_epsilon(20.0, DELTA))}, 1e-9)" in told
    assert "which implies" not in told
    raised = str(budget_file(tmp_path, 30))
    assert main(["ledger", "raise", "small-world", "--budget", raised, "--reason", "a second table"]) == 0
    assert main(show) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "no (ε, δ): no limit that binds it was fixed before the first release" in told
    assert "(ε, δ) =" not in told
