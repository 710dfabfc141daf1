"""The way of a release through the ledger, and what it costs."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

import pytest

from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger import fold
from pipeline.ledger.entries import GENESIS
from pipeline.ledger.fold import MAX_DRAWS
from pipeline.ledger.reservation import limits_of
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from tests.support.ledgers import FACTS, drawn_and_destroyed, entries, policy, reservation

EVERY_DATABASE = True


@pytest.fixture
def ledger(address: str) -> Ledger:
    return create_ledger(address)


# The way of a release


def test_a_release_goes_from_reserved_to_settled(ledger: Ledger) -> None:
    assert ledger.state("r") is None
    assert ledger.head() == (0, GENESIS)
    state = ledger.reserve(reservation("r"))
    assert (state.status, state.draws, state.charges, state.attempt) == ("reserved", 0, 1, None)
    attempt = ledger.draw("r", "sha256:pin")
    assert len(bytes.fromhex(attempt)) == 8
    state = ledger.state("r")
    assert (state.status, state.draws, state.charges, state.attempt) == ("drawn", 1, 1, attempt)
    state = ledger.publish("r", attempt, "sha256:contents")
    assert (state.status, state.contents, state.head) == ("published", "sha256:contents", ledger.head()[1])
    assert state.date == datetime.now(UTC).date().isoformat()
    settled = ledger.settle("r", attempt)
    assert settled == replace(state, status="settled")
    assert settled.head != ledger.head()[1]
    assert ledger.state("r") == settled
    assert ledger.verify() == ledger.head()
    assert [entry.event for entry in entries(ledger)] == ["reserved", "drawn", "published", "settled"]


def test_the_state_is_the_fold_of_the_rows_and_outlives_the_process(ledger: Ledger, address: str) -> None:
    ledger.reserve(reservation("r"))
    drawn_and_destroyed(ledger, "r", 2)
    again = create_ledger(address)
    assert again.state("r") == ledger.state("r") == reduce(fold.step, entries(ledger), None)
    assert limits_of(again.state("r")) == tuple(reservation("r").limits)


def test_the_same_reservation_again_changes_nothing(ledger: Ledger) -> None:
    first = ledger.reserve(reservation("r"))
    head = ledger.head()
    assert ledger.reserve(reservation("r")) == first
    attempt = ledger.draw("r", "sha256:pin")
    assert ledger.reserve(reservation("r")).attempt == attempt
    ledger.publish("r", attempt, "sha256:contents")
    ledger.settle("r", attempt)
    # Published is published, whatever budget or policy a later version would ask for.
    assert ledger.reserve(reservation("r", draws=0, policy=policy(3))).status == "settled"
    assert ledger.head()[0] == head[0] + 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"digest": "sha256:other"}, "another plan"),
        ({"out": "/elsewhere"}, "another output location: /out, not /elsewhere"),
        ({"policy": policy(3)}, "another policy"),
    ],
)
def test_the_name_of_a_release_is_taken_by_its_digest_place_and_policy(
    ledger: Ledger, changes: dict[str, object], told: str
) -> None:
    ledger.reserve(reservation("r"))
    head = ledger.head()
    with pytest.raises(StateError, match=told):
        ledger.reserve(reservation("r", **changes))
    assert ledger.head() == head


def test_an_abort_refunds_before_a_draw_only(ledger: Ledger) -> None:
    ledger.reserve(reservation("a", draws=1))
    assert ledger.abort("a").charges == 0
    ledger.reserve(reservation("b", draws=1))
    ledger.draw("b", "sha256:pin")
    state = ledger.abort("b")
    assert (state.status, state.charges, state.attempt) == ("aborted", 1, None)
    with pytest.raises(BudgetRefused):
        ledger.reserve(reservation("c", draws=1))
    with pytest.raises(StateError, match="aborted after a draw"):
        ledger.reserve(reservation("b", draws=9))
    # The undrawn name is free again, also for another plan, place and dataset.
    again = ledger.reserve(reservation("a", dataset="e", digest="sha256:new", out="/new"))
    assert (again.status, again.dataset, again.digest, again.out) == ("reserved", "e", "sha256:new", "/new")
    ledger.verify()


def test_a_correction_supersedes_a_published_release_of_its_dataset(ledger: Ledger) -> None:
    ledger.reserve(reservation("a"))
    for dataset, supersedes in (("d", "a"), ("d", "nothing"), ("d", "b")):
        with pytest.raises(StateError, match=f"supersedes {supersedes}, which is no published release"):
            ledger.reserve(reservation("b", dataset=dataset, supersedes=supersedes))
    ledger.publish("a", ledger.draw("a", "sha256:pin"), "sha256:contents")
    with pytest.raises(StateError, match="of dataset e"):
        ledger.reserve(reservation("b", dataset="e", supersedes="a"))
    # It is a new draw, and fully charged.
    with pytest.raises(BudgetRefused):
        ledger.reserve(reservation("b", supersedes="a", draws=1))
    assert ledger.reserve(reservation("b", supersedes="a", draws=2)).status == "reserved"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (FACTS | {"unit": "firm_id"}, "unit is record in the ledger, but firm_id"),
        (FACTS | {"measures": {"payroll": {"type": "decimal", "step": 1}}}, r"measures\.payroll\.step is 0\.1"),
        (FACTS | {"measures": {}}, r"measures\.payroll is present in the ledger, but absent"),
        (FACTS | {"more": 1}, "more is absent in the ledger, but 1"),
    ],
)
def test_the_first_reservation_fixes_the_facts_of_the_dataset(
    ledger: Ledger, facts: dict[str, object], told: str
) -> None:
    ledger.reserve(reservation("wrong", dataset_facts={"unit": "mistaken"}))
    ledger.abort("wrong")  # refunded: it fixes nothing
    ledger.reserve(reservation("a"))
    with pytest.raises(StateError, match=told):
        ledger.reserve(reservation("b", dataset_facts=facts))
    ledger.reserve(reservation("b", dataset="other", dataset_facts=facts))


# Budget and draws


def test_three_draws_cost_one_charge_and_a_fourth_charges_all(ledger: Ledger) -> None:
    ledger.reserve(reservation("r", draws=4))
    drawn_and_destroyed(ledger, "r", MAX_DRAWS)
    assert ledger.state("r").charges == 1
    ledger.draw("r", "sha256:pin")
    state = ledger.state("r")
    assert (state.draws, state.charges) == (4, 4)
    assert [entry.event for entry in entries(ledger)[-2:]] == ["charged", "drawn"]
    with pytest.raises(BudgetRefused):
        ledger.reserve(reservation("s", draws=4))
    ledger.verify()


def test_the_limits_of_earlier_releases_bind_later_plans(ledger: Ledger) -> None:
    ledger.reserve(reservation("r", draws=2))
    ledger.reserve(reservation("s", draws=5))
    with pytest.raises(BudgetRefused, match="a limit of release r"):
        ledger.reserve(reservation("t", draws=5))
    with pytest.raises(BudgetRefused, match="a limit of release r"):
        ledger.reserve(replace(reservation("t", draws=5), limits=()))
    ledger.abort("s")
    ledger.reserve(reservation("t", draws=5))


def test_only_the_live_attempt_is_published_and_only_once(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    first = ledger.draw("r", "sha256:pin")
    with pytest.raises(StateError, match=f"attempt {first} is drawn"):
        ledger.draw("r", "sha256:pin")
    ledger.destroyed("r", first, "incomplete", False)
    second = ledger.draw("r", "sha256:pin")
    # A process that was paused since the first draw wakes up:
    for step in (ledger.settle, lambda r, a: ledger.publish(r, a, "c"), lambda r, a: ledger.destroyed(r, a, "", False)):
        with pytest.raises(StateError, match=r"not the live one|is drawn"):
            step("r", first)
    ledger.publish("r", second, "sha256:contents")
    with pytest.raises(StateError, match="is published"):
        ledger.publish("r", second, "sha256:contents")
    for step in (lambda: ledger.abort("r"), lambda: ledger.draw("r", "sha256:pin")):
        with pytest.raises(StateError, match="is published"):
            step()
    ledger.settle("r", second)
    with pytest.raises(StateError, match="is settled"):
        ledger.settle("r", second)


def test_an_attempt_that_another_process_destroyed_is_live_no_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was just seen to be live; while nothing is added to the ledger its entries are not read again."""
    other = open_ledger(ledger.address)
    ledger.reserve(reservation("r"))
    first = ledger.draw("r", "sha256:pin")
    ledger.require_live("r", first)
    with monkeypatch.context() as unread:
        unread.setattr(fold, "states_of", None)
        ledger.require_live("r", first)
    other.reserve(reservation("s"))
    ledger.require_live("r", first)
    other.destroyed("r", first, "incomplete", False)
    with pytest.raises(StateError, match="was destroyed by another run"):
        ledger.require_live("r", first)
    second = other.draw("r", "sha256:pin")
    ledger.require_live("r", second)
    with pytest.raises(StateError, match="was destroyed by another run"):
        ledger.require_live("r", first)


def test_the_ledger_says_where_each_draw_was_staged(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.reserve(reservation("s", staging="s3://bucket/staging"))
    for staging in (None, "s3://bucket/staging"):
        ledger.destroyed("r", ledger.draw("r", "sha256:pin", staging), "incomplete", False)
    assert ledger.state("r").stagings == (None, "s3://bucket/staging")
    assert "staging" not in ledger.state("r").reservation
    assert ledger.state("s").reservation["staging"] == "s3://bucket/staging"
    drawn = [entry.facts for entry in entries(ledger) if entry.event == "drawn"]
    assert [facts.get("staging") for facts in drawn] == [None, "s3://bucket/staging"]
    assert "staging" not in drawn[0]  # as in entries of older builds, which mean the folder beside the ledger
    ledger.verify()
