"""Summaries beside the chain: they say what the chain says, and nobody is admitted by changing them."""

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.accounting.accountant import LeftOutTest, with_left_out_test
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger import summaries
from pipeline.ledger.database import Connection
from pipeline.ledger.datasets import Budget
from pipeline.ledger.reservation import charged
from pipeline.ledger.spending import Spending, spendings, spendings_of
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from pipeline.ledger.summaries import Kept, Row, Summaries, Summary, counted
from tests.support.ledgers import FACTS, MEMORY, UNIT, drawn_and_destroyed, policy, raw, reservation

FITS = 4
REFERENCES = (Reference.of({}), Reference.of({"payroll": 3}), Reference.of([{"payroll": 3}] * 2))
TEST = LeftOutTest(sigma=Fraction(1))


def full(address: str) -> Ledger:
    """A ledger whose dataset has spent its whole limit."""
    ledger = create_ledger(address)
    for number in range(FITS):
        ledger.reserve(reservation(f"r{number}", draws=FITS))
    return ledger


def no_rows(kept: dict[str, Any]) -> dict[str, Any]:
    return kept | {"rows": []}


def no_losses(kept: dict[str, Any]) -> dict[str, Any]:
    return kept | {"policies": [[digest, ["0"]] for digest, _ in kept["policies"]]}


def no_charges(kept: dict[str, Any]) -> dict[str, Any]:
    place = Row._fields.index("charges")
    return kept | {"rows": [[*row[:place], 0, *row[place + 1 :]] for row in kept["rows"]]}


def no_limits(kept: dict[str, Any]) -> dict[str, Any]:
    return kept | {"about": [about | {"limits": []} for about in kept["about"]]}


EDITS = (no_rows, no_losses, no_charges, no_limits)


def edit(ledger: Ledger, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    mark = "?" if ledger.path else "%s"
    with closing(raw(ledger)) as connection:
        ((text,),) = connection.execute("SELECT content FROM summaries").fetchall()
        connection.execute(f"UPDATE summaries SET content = {mark}", [json.dumps(change(json.loads(text)))])


@pytest.mark.parametrize("change", EDITS)
def test_nobody_is_admitted_by_changing_what_is_kept(address: str, change: Callable[..., dict[str, Any]]) -> None:
    ledger = full(address)
    ledger.verify()
    edit(ledger, change)
    more = reservation("more", draws=100 * FITS)
    with pytest.raises(BudgetRefused, match=f"spent {FITS * UNIT}"):
        ledger.check(more)
    with pytest.raises(BudgetRefused, match=f"spent {FITS * UNIT}"):
        ledger.reserve(more)
    with pytest.raises(StateError, match=f"not those that entry {FITS} vouches for: somebody changed them"):
        ledger.verify()
    ledger.abort("r0")
    ledger.reserve(reservation("r0", draws=FITS))  # keeps new ones
    ledger.verify()


def trusting(connection: Connection) -> Kept | None:
    return summaries.what_is_kept(connection)[0]


def test_the_edits_would_admit_where_they_are_trusted(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    ledger = full(address)
    edit(ledger, no_rows)
    monkeypatch.setattr(summaries, "_kept", trusting)
    ledger.reserve(reservation("more", draws=FITS))


def test_summaries_of_an_earlier_head_are_not_used(address: str) -> None:
    ledger = create_ledger(address)
    for number in range(FITS):
        ledger.reserve(reservation(f"r{number}", draws=FITS))
        if number == 1:
            with closing(raw(ledger)) as connection:
                ((early,),) = connection.execute("SELECT content FROM summaries").fetchall()
    edit(ledger, lambda kept: json.loads(early))
    with pytest.raises(BudgetRefused):
        ledger.reserve(reservation("more", draws=FITS))


def test_an_entry_that_vouches_for_what_the_chain_does_not_say_is_found(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a changed prdp might write it."""
    content = Summary.content
    with monkeypatch.context() as patch:
        patch.setattr(Summary, "content", lambda self: json.dumps(no_losses(json.loads(content(self)))))
        ledger = full(address)
    ledger.reserve(reservation("more", draws=100 * FITS, limits=[Limit(REFERENCES[1], 100 * UNIT)]))
    with pytest.raises(StateError, match="summary of dataset d that entry 5 vouches for is not what the chain says"):
        ledger.verify()


@pytest.mark.parametrize("most_bits", [summaries.MOST_BITS, 0])
def test_losses_are_those_of_a_full_evaluation(address: str, monkeypatch: pytest.MonkeyPatch, most_bits: int) -> None:
    """Also of releases that were charged twice, refused after a test, aborted; and with losses too long to be kept."""
    monkeypatch.setattr(summaries, "MOST_BITS", most_bits)
    ledger = create_ledger(address)
    limits = [Limit(at, 1000 * UNIT) for at in REFERENCES]
    tested = {"test": TEST, "policy": with_left_out_test(policy(), TEST)}
    for number in range(4):
        ledger.reserve(reservation(f"r{number}", limits=limits, policy=policy(0.3 + number / 7)))
    drawn_and_destroyed(ledger, "r1", 3)
    ledger.draw("r1", "sha256:pin")
    for name, left_out in (("kept", 0), ("failed", 5000)):
        ledger.reserve(reservation(name, limits=limits, **tested))
        ledger.test(name, "sha256:pin", 5000 - left_out, left_out)
    ledger.abort("r2")
    ledger.draw("kept", "sha256:pin")
    ledger.reserve(reservation("last", limits=limits))
    assert [state.charges for state in ledger.states()] == [1, 4, 0, 1, 1, 0, 1]
    with ledger._reading() as connection:
        known = Summaries(connection)
        assert known.vouched
        brief = {state.release: state for state in known.states()}
        for state in ledger.states():
            for at in REFERENCES:
                assert counted(brief[state.release]).loss_at(at) == charged(state, state.charges).loss_at(at)
            assert brief[state.release].counts == state.counts
    assert ledger.verify()[0] == len(ledger.entries())


def test_an_overview_says_what_the_states_say(address: str) -> None:
    ledger = full(address)
    attempt = ledger.signed("olga").draw("r1", "sha256:pin")
    ledger.signed("olga").hold("r1", attempt, "sha256:contents")
    rows, (account,) = ledger.overview()
    for (dataset, row), state in zip(rows, ledger.states(), strict=True):
        shown = (row.release, dataset, row.status, row.draws, row.charges, row.approved)
        assert shown == (state.release, state.dataset, state.status, state.draws, state.charges, state.approved)
        assert (row.time, row.operator) == (
            (entry := ledger.entries(state.release)[-1]).time,
            entry.facts.get("operator"),
        )
    assert account.limits[0].total == FITS * UNIT
    assert ledger.sources() == {("d", None)}


POLICIES = {"little": policy(), "more": policy(0.3), "tested": with_left_out_test(policy(), TEST)}
FATES = ("reserved", "settled", "aborted", "redrawn", "failed")
RELEASES = st.lists(
    st.tuples(st.sampled_from(["east", "west", "alone"]), st.sampled_from(sorted(POLICIES)), st.sampled_from(FATES)),
    min_size=1,
    max_size=10,
)


def lived(address: str, releases: list[tuple[str, str, str]]) -> Ledger:
    """A ledger of two datasets of a family, and one that is not registered, after these releases."""
    ledger, limits = create_ledger(address), [Limit(REFERENCES[1], 1000 * UNIT)]
    ledger.register(Budget(name="kin", unit="record", limits=limits))
    for name in ("east", "west"):
        own: dict[str, Any] = {"facts": FACTS, "source": f"/{name}", "family": "kin"}
        ledger.register(Budget(name=name, unit="record", limits=limits, **own))
    for number, (dataset, cost, fate) in enumerate(releases):
        name = f"r{number}"
        test = TEST if cost == "tested" else None
        own = {"dataset": dataset, "source": f"/{dataset}", "test": test, "policy": POLICIES[cost], "limits": limits}
        ledger.reserve(reservation(name, **own))
        if test is not None and fate != "reserved":
            ledger.test(name, "sha256:pin", 0 if fate == "failed" else 5000, 5000 if fate == "failed" else 0)
        if fate == "aborted":
            ledger.abort(name)
        elif fate == "redrawn":
            drawn_and_destroyed(ledger, name, 2, exposed=True)
        elif fate == "settled":
            attempt = ledger.draw(name, "sha256:pin")
            ledger.publish(name, attempt, "sha256:contents")
            ledger.settle(name, attempt)
    return ledger


def exactly(spent: list[Spending]) -> list[Any]:
    return [
        (
            *(
                s.dataset,
                s.total,
                s.epsilon,
                s.left,
                s.limits,
                s.excess,
                s.least,
                s.pure,
                s.tests,
                s.charges,
                s.promised,
            ),
            [(state.release, state.status, state.charges, loss) for state, loss in s.spent],
            exactly([s.family]) if s.family else [],
        )
        for s in spent
    ]


def summed(releases: list[tuple[str, str, str]]) -> tuple[list[Any], list[list[Any]]]:
    """What a reference that no limit has lost by all releases: from the whole chain, and from summaries, both ways."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        address = f"{folder}/state/ledger.sqlite"
        ledger = lived(address, releases)
        chain = exactly(spendings_of(ledger.budgets(), ledger.states(), "payroll=2"))
        return chain, [exactly(spendings(each, "payroll=2")) for each in (ledger, ledger, open_ledger(address))]


@settings(max_examples=6)
@given(RELEASES)
def test_what_is_spent_is_to_the_bit_what_the_whole_chain_says(releases: list[tuple[str, str, str]]) -> None:
    chain, fast = summed(releases)
    assert fast == [chain] * len(fast)


def test_policies_that_are_taken_for_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(summaries, "cost_digest", lambda reservation: "sha256:same")
    chain, fast = summed([("east", "more", "settled"), ("east", "little", "settled")])
    assert chain not in fast
