"""Releases that wait for an officer: nothing is seen before an approval, nothing is drawn after a rejection."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.errors import StateError
from pipeline.engines.dask import DaskEngine
from pipeline.operations.ledger_health import published_folders, require_in_chain
from pipeline.plan.load import load_plan
from pipeline.publication.manifest import NOTE, verify_release
from pipeline.release.officers import approve, purge, reject, withdraw
from pipeline.release.request import Job, reservation_of
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST, Staging
from tests.support.submit import EVERY, Place, officer_in_child, submit, submit_in_child
from tests.support.world import records, tree, write_world

RELEASE = "small-release"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"), records(300))


@pytest.fixture
def place(plan: Path, tmp_path: Path) -> Place:
    return Place(plan, tmp_path)


def staged(place: Place) -> dict[str, bytes]:
    return {path: data for path, data in tree(place.ledger().staging_root).items() if "/" in path}


def held(place: Place) -> str:
    return submit(place, key=None, hold=True).attempt


def test_a_held_release_waits_whole_and_private(place: Place) -> None:
    outcome = submit(place, key=None, hold=True)
    assert outcome.to_json()["state"] == "held"
    assert not place.out.exists()
    state = place.state()
    assert (state.status, state.attempt, state.draws, state.charges) == ("held", outcome.attempt, 1, 1)
    assert all(path.startswith(f"{RELEASE}/{outcome.attempt}/") for path in staged(place))
    for table in outcome.tables.values():
        assert Path(table["path"]).is_dir()
    before = staged(place)
    for hold in (True, False):  # once held, leaving the option out lets nothing out
        assert submit(place, key=None, hold=hold) == replace(outcome, already=True)
    assert (staged(place), place.out.exists()) == (before, False)
    place.ledger().verify()


def test_an_approval_publishes_what_was_held(place: Place) -> None:
    attempt = held(place)
    before = {path.split("/", 2)[2]: data for path, data in staged(place).items() if not path.endswith("attempt.json")}
    state = approve(place.ledger().signed("officer"), RELEASE)
    assert (state.status, state.attempt, state.charges) == ("settled", attempt, 1)
    assert tree(place.out / RELEASE / attempt) == before
    assert not staged(place)
    assert verify_release(locate(place.out / RELEASE)).attempt == attempt
    assert approve(place.ledger(), RELEASE).status == "settled"
    assert submit(place, key=None, hold=True).state == "settled"
    events = [(entry.event, entry.facts.get("operator")) for entry in place.ledger().entries(RELEASE)]
    assert ("approved", "officer") in events
    place.ledger().verify()


def test_an_approval_that_is_recorded_alone_is_published_by_the_next_run(place: Place) -> None:
    attempt = held(place)
    assert approve(place.ledger(), RELEASE, record_only=True).status == "held"
    assert not place.out.exists()
    assert submit(place, key=None).state == "settled"
    assert verify_release(locate(place.out / RELEASE)).attempt == attempt


def test_a_rejection_keeps_the_charge_and_forbids_another_draw(place: Place) -> None:
    held(place)
    state = reject(place.ledger(), RELEASE, "cells too thin")
    assert (state.status, state.charges, state.attempt, state.reason) == ("rejected", 1, None, "cells too thin")
    assert not staged(place)
    for hold in (True, False):
        with pytest.raises(StateError, match="rejected by an officer and stays charged: nothing more is drawn"):
            submit(place, key=None, hold=hold)
    for act in (lambda: approve(place.ledger(), RELEASE), lambda: place.ledger().draw(RELEASE, "sha256:pin")):
        with pytest.raises(StateError, match="is rejected"):
            act()
    assert not place.out.exists()
    assert reject(place.ledger(), RELEASE, "again").reason == "cells too thin"
    place.ledger().verify()


def test_held_files_that_were_changed_are_not_approved(place: Place) -> None:
    held(place)
    (file,) = place.ledger().staging_root.rglob("policy.json")
    file.write_text("{}")
    with pytest.raises(StateError, match="are incomplete"):
        approve(place.ledger(), RELEASE)
    assert not place.state().approved
    ledger = place.ledger()
    ledger.approve(RELEASE, place.state().attempt)
    with pytest.raises(StateError, match="not those that were held"):
        ledger.publish(RELEASE, place.state().attempt, "sha256:other")


def test_only_what_is_held_is_approved_or_rejected(place: Place) -> None:
    for act in (approve, lambda *of: reject(*of, "why")):
        with pytest.raises(StateError, match="not in the ledger"):
            act(place.ledger(), RELEASE)
    submit(place, key=None)
    for act in (approve, lambda *of: reject(*of, "why")):
        with pytest.raises(StateError, match="is settled, and not held"):
            act(place.ledger(), RELEASE)


def test_nobody_acts_while_a_run_is_alive(place: Place) -> None:
    held(place)
    with place.ledger().lock(RELEASE):
        for act in (approve, lambda *of: reject(*of, "why"), lambda *of: withdraw(*of, "why")):
            with pytest.raises(StateError, match="under way"):
                act(place.ledger(), RELEASE)
    assert place.state().status == "held"


def test_what_another_build_reserved_to_be_held_is_still_held(place: Place) -> None:
    plan = load_plan(place.plan)
    engine = DaskEngine(workers=1)
    job = Job(
        plan=plan, microdata=plan.dataset.path, out=locate(place.out), ledger=place.ledger(), engine=engine, hold=True
    )
    place.ledger().reserve(replace(reservation_of(job), code="sha256:another build"))
    assert submit(place, key=None).state == "held"


# Withdrawing


def test_a_withdrawn_release_is_gone_says_so_and_stays_charged(place: Place) -> None:
    attempt = submit(place, key=None).attempt
    state = withdraw(place.ledger(), RELEASE, "industry codes were mixed up")
    assert (state.status, state.charges) == ("withdrawn", 1)
    folder = place.out / RELEASE
    assert {path.name for path in folder.iterdir()} == {NOTE, "index.html"}
    note = json.loads((folder / NOTE).read_text())
    assert (note["release"], note["attempt"], note["reason"]) == (RELEASE, attempt, "industry codes were mixed up")
    assert note["ledger_head"] == place.ledger().head()[1]
    with pytest.raises(StateError, match="was withdrawn on"):
        verify_release(locate(folder))
    with pytest.raises(StateError, match="withdrawn and stays charged"):
        submit(place, key=None)
    assert require_in_chain(place.ledger(), locate(folder)) == RELEASE
    assert [*published_folders(place.ledger())] == [locate(folder)]
    (folder / NOTE).write_text((folder / NOTE).read_text().replace("mixed up", "fine"))
    with pytest.raises(StateError, match="differs from what the ledger says"):
        require_in_chain(place.ledger(), locate(folder))
    place.ledger().verify()


def test_a_correction_may_supersede_a_withdrawn_release(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(20)), tmp_path)
    submit(place, key=None)
    withdraw(place.ledger(), RELEASE, "wrong")
    write_world(tmp_path, None, release="corrected", supersedes=RELEASE)
    assert submit(place, key=None).state == "settled"


def test_what_is_not_published_cannot_be_withdrawn(place: Place) -> None:
    held(place)
    with pytest.raises(StateError, match="is held: what is not published"):
        withdraw(place.ledger(), RELEASE, "why")
    assert staged(place)


# The ledger and what is published


def test_a_manifest_shows_that_the_ledger_was_cut_or_is_another_one(place: Place, plan: Path, tmp_path: Path) -> None:
    ledger = place.ledger()
    submit(place, key=None)
    folder = place.out / RELEASE
    assert require_in_chain(ledger, locate(folder)) == RELEASE
    other = Place(plan, tmp_path / "other")
    submit(other, key=None)
    with pytest.raises(StateError, match="cut or rewritten"):
        require_in_chain(other.ledger(), locate(folder))
    manifest = json.loads((folder / MANIFEST).read_text())
    for key, told in (("plan_digest", "attempt or plan digest"), ("engine", "not those that the ledger published")):
        (folder / MANIFEST).write_text(json.dumps(manifest | {key: "sha256:other"}))
        with pytest.raises(StateError, match=told):
            require_in_chain(ledger, locate(folder))
    settled = ledger.head()[1]
    (folder / MANIFEST).write_text(json.dumps(manifest | {"ledger_head": settled}))
    with pytest.raises(StateError, match="which is settled, not published"):
        require_in_chain(ledger, locate(folder))


# Purging


def test_a_purge_removes_rests_and_records_it_and_leaves_live_attempts(place: Place) -> None:
    attempt = held(place)
    ledger = place.ledger()
    rest = Staging(locate(ledger.staging_root), RELEASE, "totals-of-a-killed-run")
    rest.create()
    rest.write_text("sums", "sealed")
    (purged,) = purge(ledger)
    assert (purged.release, purged.names) == (RELEASE, ("totals-of-a-killed-run",))
    assert {path.split("/")[1] for path in staged(place)} == {attempt}
    entry = ledger.entries(RELEASE)[-1]
    assert (entry.event, entry.facts["names"]) == ("purged", ["totals-of-a-killed-run"])
    assert purge(ledger) == []
    with pytest.raises(StateError, match="cannot be purged"):
        ledger.purged(RELEASE, None, [attempt])
    with ledger.lock(RELEASE):
        rest.create()
        with pytest.raises(StateError, match="under way"):
            purge(ledger)
    ledger.verify()


# Killed


def acted(place: Place, act: str, *arguments: str) -> None:
    {"approve": approve, "reject": reject, "withdraw": withdraw}[act](place.ledger(), RELEASE, *arguments)


def check_approved(place: Place, attempt: str) -> None:
    assert verify_release(locate(place.out / RELEASE)).attempt == attempt
    assert (place.state().status, place.state().charges) == ("settled", 1)


def check_rejected(place: Place, attempt: str) -> None:
    assert not (place.out / RELEASE).exists()
    assert (place.state().status, place.state().charges) == ("rejected", 1)


def check_withdrawn(place: Place, attempt: str) -> None:
    assert {path.name for path in (place.out / RELEASE).iterdir()} == {NOTE, "index.html"}
    assert (place.state().status, place.state().attempt) == ("withdrawn", attempt)


@EVERY
@pytest.mark.parametrize(
    ("act", "check"), [("approve", check_approved), ("reject", check_rejected), ("withdraw", check_withdrawn)]
)
def test_an_officers_act_that_was_killed_anywhere_is_finished_by_doing_it_again(
    plan: Path, tmp_path: Path, act: str, check: Callable[[Place, str], None], every: int
) -> None:
    arguments = () if act == "approve" else ("why",)

    def begun(name: str) -> tuple[Place, str]:
        place = Place(plan, tmp_path / name)
        return place, submit(place, key=None, hold=act != "withdraw").attempt

    whole, attempt = begun("whole")
    code, events = officer_in_child(whole, None, act, RELEASE, *arguments)
    assert code == 0
    assert events.count("s") == 2 * {"approve": 3, "reject": 1, "withdraw": 1}[act]
    check(whole, attempt)
    for event, letter in enumerate(events, start=1):
        if letter == "s" or event % every == 0:
            place, attempt = begun(f"at-{event}")
            assert officer_in_child(place, event, act, RELEASE, *arguments)[0] == -signal.SIGKILL
            published = (place.out / RELEASE / MANIFEST).exists()
            if published and act == "approve":
                assert verify_release(locate(place.out / RELEASE)).attempt == attempt
            acted(place, act, *arguments)
            check(place, attempt)
            assert not staged(place)
            place.ledger().verify()


@EVERY
def test_a_held_run_that_was_killed_anywhere_is_held_by_the_next_one(plan: Path, tmp_path: Path, every: int) -> None:
    """Also by one that forgets --hold: the reservation says so."""
    code, events = submit_in_child(Place(plan, tmp_path / "whole"), None, key=None, hold=True)
    assert code == 0
    assert events.count("s") == 2 * len({"reserve", "test", "draw", "hold"})
    for event, letter in enumerate(events, start=1):
        if (letter == "s" and event > 1) or event % every == 0:
            place = Place(plan, tmp_path / f"at-{event}")
            code, _ = submit_in_child(place, event, key=None, hold=True)
            assert code == -signal.SIGKILL
            reserved = place.ledger().state(RELEASE) is not None
            assert submit(place, key=None, hold=not reserved).state == "held"
            assert not place.out.exists()
            assert approve(place.ledger(), RELEASE).charges == 1
            verify_release(locate(place.out / RELEASE))


def test_an_approval_that_was_killed_is_finished_by_the_next_run_of_the_release(plan: Path, tmp_path: Path) -> None:
    whole, place = Place(plan, tmp_path / "whole"), Place(plan, tmp_path / "killed")
    held(whole)
    _, events = officer_in_child(whole, None, "approve", RELEASE)
    steps = [event for event, letter in enumerate(events, start=1) if letter == "s"]
    attempt = held(place)
    code, _ = officer_in_child(place, steps[2], "approve", RELEASE)  # before `publish`, after `approve`
    assert code == -signal.SIGKILL
    assert (place.state().status, place.state().approved) == ("held", True)
    assert submit(place, key=None).state == "settled"
    check_approved(place, attempt)
