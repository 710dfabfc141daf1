"""A ledger of many entries: each reference is evaluated once for each release, and nothing is lost by that."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.accounting.accountant import Charged, check, tightest
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit, Reference, ReferenceRecord
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import BudgetRefused
from pipeline.ledger import summaries
from pipeline.ledger.entries import Act, next_entry, write
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import UNIT, policy, reservation

ENTRIES_OF_A_RELEASE = 4

TWO = FrozenMap.of({"payroll": Fraction(2)})
REFERENCES = st.sampled_from(
    [
        Reference.of({}),
        Reference.of({"payroll": 1}),
        Reference.of({"payroll": 2}),
        Reference((ReferenceRecord(TWO, query_sets=(frozenset({0}),)),)),
        Reference.of([{"payroll": 1}]),
        Reference.of([{"payroll": 1}] * 2),
        Reference((ReferenceRecord(TWO, cells=((0, 7),)),) * 2, listed=True),
    ]
)
LIMITS = st.builds(lambda at, units: Limit(at, units * UNIT, str(units)), REFERENCES, st.integers(0, 12))


def refuses(limits: list[Limit], spent: int) -> bool:
    try:
        check(limits, [Charged("a", policy(), spent)], Charged("b", policy(), 1))
    except BudgetRefused:
        return True
    return False


@settings(derandomize=True, database=None)
@given(limits=st.lists(LIMITS, max_size=8), spent=st.integers(0, 11))
def test_the_tightest_limits_refuse_what_all_limits_refuse(limits: list[Limit], spent: int) -> None:
    kept = tightest(limits)
    assert refuses(list(kept), spent) == refuses(limits, spent)
    assert len({str(limit.at) for limit in kept}) == len(kept)


def test_the_check_sees_that_a_looser_limit_was_kept() -> None:
    low, high = (Limit(Reference.of({}), units * UNIT, str(units)) for units in (1, 10))
    assert refuses([low, high], 5)
    assert tightest([high, low]) == [low]
    assert not refuses([high], 5)


def fill(ledger: Ledger, releases: int) -> None:
    """Append settled releases of one dataset, all at once, each with a reservation and limits of its own."""
    seq, head = ledger.head()
    rows = []
    for number in range(releases):
        name = f"r{number}"
        facts = reservation(name, draws=10 * releases, policy=policy(1 + number / releases)).facts()
        for event, told in (
            ("reserved", facts),
            ("drawn", {"draw": 1, "pin": "p"}),
            ("published", {"contents": "c"}),
            ("settled", {}),
        ):
            entry = next_entry(seq, head, Act(event, "d", name, None if event == "reserved" else "0" * 16, told))
            rows.append(entry)
            seq, head = entry.seq, entry.hash
    with ledger._writing() as connection:
        for entry in rows:
            write(connection, entry)


def evaluated(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, releases: int) -> int:
    """How often a policy is evaluated to reserve one more release."""
    calls, number = 0, ledger.head()[0]
    loss_at = PolicySum.loss_at

    def counted(*arguments: object) -> Fraction:
        nonlocal calls
        calls += 1
        return loss_at(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PolicySum, "loss_at", counted)
        ledger.reserve(reservation(f"after {number}", draws=10 * releases))
    return calls


@pytest.mark.parametrize("releases", [50, pytest.param(2500, marks=pytest.mark.drill)])
def test_each_release_is_evaluated_once_for_each_reference_and_its_loss_is_kept(
    address: str, monkeypatch: pytest.MonkeyPatch, releases: int
) -> None:
    ledger = create_ledger(address)
    fill(ledger, releases)
    assert ledger.verify()[0] == releases * ENTRIES_OF_A_RELEASE
    few = 5  # of the release itself: each limit, and what is kept of it; the last one's
    assert releases < evaluated(ledger, monkeypatch, releases) <= releases + few
    for _ in range(3):
        assert 0 < evaluated(ledger, monkeypatch, releases) <= few
    assert ledger.verify()[0] == releases * ENTRIES_OF_A_RELEASE + 4


def test_nothing_is_kept_of_what_other_code_computed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = create_ledger(address)
    fill(ledger, 50)
    evaluated(ledger, monkeypatch, 50)
    monkeypatch.setattr(summaries, "code_digest", lambda: "sha256:other")
    assert evaluated(create_ledger(address), monkeypatch, 50) > 50
