"""Whose staging is: no ledger reserves, stages or removes in a place that another ledger has marked."""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.release.attempts import MARK, give_up, is_own, mark, require_own
from pipeline.release.officers import approve, purge, reject
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.ledgers import ATTEMPT, ledger_file, reservation, stage, staged_files
from tests.support.store import upload
from tests.support.submit import Place, submit, submit_at_once
from tests.support.world import records, write_world

RELEASE = "small-release"
OTHERS = "f" * 64  # the mark of some other ledger


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"), records(60))


def named(plan: Path, release: str) -> Path:
    path = plan.with_name(f"{release}.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"release": release}))
    return path


def small(path: Path, name: str = "r") -> Ledger:
    ledger = create_ledger(str(path))
    ledger.reserve(reservation(name))
    return ledger


# The mark


def test_the_mark_is_private_and_names_the_ledger_wherever_it_is_moved(plan: Path, tmp_path: Path) -> None:
    place = Place(plan, tmp_path / "one")
    submit(place, key=None)
    held = (place.ledger().staging_root / MARK).lstat()
    assert (stat.S_ISREG(held.st_mode), stat.S_IMODE(held.st_mode)) == (True, 0o600)
    first = place.ledger().entries()[0].hash
    assert (place.ledger().staging_root / MARK).read_text() == first == place.ledger().identity()
    shutil.move(place.folder / "state", tmp_path / "moved" / "state")
    moved = Place(named(plan, "second"), tmp_path / "moved")
    submit(moved, key=None)
    assert (moved.ledger().staging_root / MARK).read_text() == first


def test_an_empty_ledger_marks_nothing_and_has_no_place_that_is_marked(tmp_path: Path) -> None:
    root, empty = LocalPath(tmp_path / "staging"), create_ledger(str(tmp_path / "empty" / "ledger.sqlite"))
    assert empty.identity() is None
    require_own(empty, root)
    assert not root.exists()
    root.make_private()
    mark(small(tmp_path / "used" / "ledger.sqlite"), root)
    with pytest.raises(StateError, match="is another ledger's: give staging= of its own"):
        require_own(empty, root)


# Another ledger's


def test_a_release_into_another_ledgers_staging_reserves_nothing(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Place(plan, tmp_path / "mine", staged_at=tmp_path / "staging")
    attempt = submit(mine, key=None, hold=True).attempt
    before = sorted(staged_files(tmp_path / "staging"))
    theirs = ledger_file(tmp_path / "theirs" / "ledger.sqlite")
    places = ["--ledger", theirs, "--staging", str(tmp_path / "staging"), "--out", str(tmp_path / "out")]
    for command in (["release", str(plan)], ["ledger", "check", str(plan)]):
        assert main([*command, *places]) == 5
        told = capsys.readouterr().err
        assert "is another ledger's: give --staging of its own" in told
        assert "Traceback" not in told
    assert create_ledger(theirs).entries() == []
    assert sorted(staged_files(tmp_path / "staging")) == before
    places[3] = str(tmp_path / "own")
    assert main(["release", str(plan), *places]) == 0  # as it was told to
    approve(mine.ledger(), RELEASE)
    state = mine.state()
    assert (state.status, state.attempt) == ("settled", attempt)


ACTS: dict[str, Callable[[Place], object]] = {
    "release": lambda place: submit(place, key=None),
    "approve": lambda place: approve(place.ledger(), RELEASE),
    "reject": lambda place: reject(place.ledger(), RELEASE, "not now"),
    "abort": lambda place: give_up(place.ledger(), RELEASE),
    "purge": lambda place: purge(place.ledger()),
}


@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_recorded_and_removed_where_the_mark_is_anothers(plan: Path, tmp_path: Path, act: str) -> None:
    place = Place(plan, tmp_path)
    ledger = place.ledger()
    if act in ("approve", "reject"):
        submit(place, key=None, hold=True)
    else:  # drawn, and staged in part
        with pytest.raises(RuntimeError):
            submit(place, key=None, say=fail_at("hold" if act == "hold" else "publishing"))
    if act == "purge":
        rest = Staging(locate(ledger.staging_root), RELEASE, "totals-of-a-killed-run")
        rest.create()
        rest.write_text("sums", "sealed")
    before, entries = sorted(staged_files(ledger.staging_root)), ledger.entries()
    assert before
    own = (ledger.staging_root / MARK).read_text()
    (ledger.staging_root / MARK).write_text(OTHERS)
    with pytest.raises(StateError, match="is another ledger's"):
        ACTS[act](place)
    assert sorted(staged_files(ledger.staging_root)) == before
    assert ledger.entries() == entries
    (ledger.staging_root / MARK).write_text(own)
    ACTS[act](place)
    assert len(ledger.entries()) > len(entries)


def fail_at(stage: str) -> Callable[[str], None]:
    def say(said: str) -> None:
        if said == stage:
            raise RuntimeError

    return say


def test_a_settled_release_stays_so_where_its_staging_became_anothers(plan: Path, tmp_path: Path) -> None:
    place = Place(plan, tmp_path)
    submit(place, key=None)
    root = place.ledger().staging_root
    (root / MARK).write_text(OTHERS)
    kept = root / RELEASE / ATTEMPT / "file"
    kept.parent.mkdir(parents=True)
    kept.write_text("another ledger's")
    assert submit(place, key=None).already
    assert kept.exists()


# Staging of earlier versions


def test_staging_without_a_mark_is_adopted_where_all_in_it_is_this_ledgers(tmp_path: Path) -> None:
    ledger = small(tmp_path / "mine" / "ledger.sqlite")
    root = LocalPath(ledger.staging_root)
    attempt = ledger.draw("r", "sha256:pin")
    stage(ledger, "r", attempt)
    for rest in (f"r/totals-{ATTEMPT}", "never-reserved/frame-of-a-killed-run", "r/check-of-a-killed-run"):
        (ledger.staging_root / rest).mkdir(parents=True, mode=0o700)
    assert is_own(ledger, root)
    other = small(tmp_path / "other" / "ledger.sqlite")  # it has a release of that name, and not this attempt
    assert not is_own(other, root)
    stray = ledger.staging_root / "r" / ATTEMPT
    for foreign in (stray, ledger.staging_root / "of-another" / "totals-0"):
        foreign.mkdir(parents=True)
        with pytest.raises(StateError, match="is another ledger's"):
            mark(ledger, root)
        assert not (root / MARK).exists()
        foreign.rmdir()
    mark(ledger, root)
    assert is_own(ledger, root)
    assert not is_own(other, root)


# Races


@pytest.fixture(params=["local", "store"])
def shared(request: pytest.FixtureRequest, plan: Path, tmp_path: Path) -> Callable[[Path, str], Place]:
    """A place of its own for each ledger, with one staging location for all."""
    if request.param == "local":
        return lambda plan, name: Place(plan, tmp_path / name, staged_at=tmp_path / "staging")
    at = request.getfixturevalue("store").bucket()
    upload(plan.parent / "microdata", at / "microdata")
    return lambda plan, name: Place(plan, tmp_path / name, at)


def test_of_two_ledgers_that_race_for_one_place_one_is_refused(
    plan: Path, shared: Callable[[Path, str], Place]
) -> None:
    places = [shared(plan, name) for name in ("one", "two")]
    assert sorted(submit_at_once(places)) == [0, 5]  # type: ignore[type-var]
    states = [place.ledger().state(RELEASE) for place in places]
    (won,) = [state for state in states if state is not None and state.status == "settled"]
    (lost,) = [state for state in states if state is not won]
    assert won.draws == 1
    assert lost is None or (lost.refunded and lost.draws == 0)  # refused before, or given back


def test_two_racing_runs_of_one_ledger_both_succeed(plan: Path, shared: Callable[[Path, str], Place]) -> None:
    places = [shared(named(plan, release), "one") for release in ("first", "second")]
    assert submit_at_once(places) == [0, 0]


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("kind", ["local", "store"])
def test_a_mark_that_comes_in_between_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: str, atomic: bool
) -> None:
    mine, theirs = (small(tmp_path / name / "ledger.sqlite") for name in ("mine", "theirs"))
    root: Location = LocalPath(tmp_path / "staging") if kind == "local" else request.getfixturevalue("store").bucket()
    root.make_private()
    create = type(root).create

    def late(at: Any, data: bytes, writer: str, **named: Any) -> bool:
        monkeypatch.setattr(type(root), "create", create)
        mark(theirs, root)
        if atomic:
            return create(at, data, writer, **named)
        at.write_durably(data)  # the broken twin
        return True

    monkeypatch.setattr(type(root), "create", late)
    if atomic:
        with pytest.raises(StateError, match="is another ledger's"):
            mark(mine, root)
        assert is_own(theirs, root)
    else:
        mark(mine, root)
        assert not is_own(theirs, root)  # although it was told so
