"""A release killed (SIGKILL) at any step, then run again: one published release, one draw seen, no repair by hand."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pipeline.publication.manifest import verify_release
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST
from tests.support.cases import cases, sizes
from tests.support.ledgers import staged_files
from tests.support.parity import owners
from tests.support.submit import MOST_EVENTS, Place, submit, submit_in_child
from tests.support.world import records, tree, write_world

RELEASE = "small-release"
AT = [range(24, MOST_EVENTS, 24), *(pytest.param(range(r, MOST_EVENTS, 4), marks=pytest.mark.drill) for r in range(4))]
HELD = (
    "FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = current_database()"
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(tmp_path_factory.mktemp("world"), records(500))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.drill)])
def place_in(request: pytest.FixtureRequest, plan: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Place]:
    """Makes a place for a release with a ledger of its own, in a file or on a server; use one after the other."""

    def place_in(folder: Path) -> Place:
        if request.param == "sqlite":
            return Place(plan, folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        server = request.getfixturevalue("postgres")
        return Place(plan, folder, address=server.url(server.database()))

    return place_in


def attempts_seen(place: Place) -> set[str]:
    """The attempts of which anything lies in the output place."""
    folder = place.out / RELEASE
    return {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()


def check_after_kill(place: Place) -> None:
    """What outsiders may meet while nobody has run it again: at most one attempt, a whole manifest or none."""
    if place.address is not None:  # a server may notice the end of a session later than this process does
        with psycopg.connect(place.address, options="-c lock_timeout=900s") as connection:
            connection.execute(f"SELECT pg_advisory_xact_lock(classid::int8 << 32 | objid::int8) {HELD}")
    assert len(attempts_seen(place)) <= 1
    if (place.out / RELEASE / MANIFEST).exists():
        verify_release(locate(place.out / RELEASE))


def check_published(place: Place) -> None:
    verified = verify_release(locate(place.out / RELEASE))
    assert attempts_seen(place) == {verified.attempt}
    ledger = place.ledger()
    ledger.verify()
    state = place.state()
    assert (state.status, state.attempt, state.charges) == ("settled", verified.attempt, 1)
    assert staged_files(ledger.staging_root) == []
    assert [path for path in place.out.rglob("*") if "partial" in path.name] == []


def events_of(place: Place) -> str:
    code, events = submit_in_child(place, None, key=None)
    assert code == 0
    assert events.count("s") == 2 * len({"reserve", "test", "draw", "publish", "settle"})
    assert events.count("f") > 50
    return events


def kill_then_run_again(place: Place, event: int) -> None:
    code, _ = submit_in_child(place, event, key=None)
    assert code == -signal.SIGKILL, f"event {event}"
    check_after_kill(place)
    seen = attempts_seen(place)
    submit(place, key=None)
    check_published(place)
    assert seen <= attempts_seen(place), f"event {event}: another draw became visible"


@pytest.mark.parametrize("at", AT)
def test_killed_at_each_step_then_run_again(place_in: Callable[[Path], Place], tmp_path: Path, at: range) -> None:
    """Before and after each step of the ledger, and at a sample of the changes of files between them."""
    for event, letter in enumerate(events_of(place_in(tmp_path / "whole")), start=1):
        if letter == "s" or event in at:
            kill_then_run_again(place_in(tmp_path / f"at-{event}"), event)


@sizes(few=3, many=40)
def test_a_release_of_owners_killed_at_random_events_then_run_again(tmp_path: Path, count: int) -> None:
    """Rows are sealed by id and by owner before they are summed: none of them stays, and the figures are the same."""
    plan = owners(tmp_path)
    whole = Place(plan, tmp_path / "whole")
    code, events = submit_in_child(whole, None)
    assert code == 0
    expected = tree(whole.out / RELEASE / whole.state().attempt)
    for case, random in cases(count):
        place = Place(plan, tmp_path / case)
        for _ in range(random.randint(1, 2)):
            code, _ = submit_in_child(place, random.randint(1, len(events)))
            assert code in (-signal.SIGKILL, 0), case
            check_after_kill(place)
        submit(place)
        check_published(place)
        assert tree(place.out / RELEASE / place.state().attempt) == expected, case


def test_killed_twice_in_a_row_then_run_again(place_in: Callable[[Path], Place], tmp_path: Path) -> None:
    for first, second in ((9, 4), (25, 11), (40, 2)):
        place = place_in(tmp_path / f"at-{first}-{second}")
        for event in (first, second):
            code, _ = submit_in_child(place, event, key=None)
            assert code == -signal.SIGKILL
            check_after_kill(place)
        submit(place, key=None)
        check_published(place)


def test_a_complete_staged_attempt_is_published_and_not_drawn_again(
    place_in: Callable[[Path], Place], tmp_path: Path
) -> None:
    steps = [event for event, letter in enumerate(events_of(place_in(tmp_path / "whole")), start=1) if letter == "s"]
    place = place_in(tmp_path / "killed")
    code, _ = submit_in_child(place, steps[6], key=None)  # before `publish`, after `reserve`, `test` and `draw`
    assert code == -signal.SIGKILL
    check_after_kill(place)
    state = place.state()
    assert (state.status, state.draws) == ("drawn", 1)
    assert list(place.ledger().staging_root.rglob("attempt.json"))
    published = submit(place, key=None)
    assert published.attempt == state.attempt
    assert place.state().draws == 1


def test_the_checks_reject_a_second_visible_draw(plan: Path, tmp_path: Path) -> None:
    place = Place(plan, tmp_path)
    published = submit(place)
    folder = place.out / RELEASE
    shutil.copytree(folder / published.attempt, folder / "0123456789abcdef")
    with pytest.raises(AssertionError):
        check_after_kill(place)
    shutil.rmtree(folder / "0123456789abcdef")
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / manifest["tables"][0]["files"][0]["path"]).write_bytes(b"another draw")
    with pytest.raises(Exception, match="differs from the manifest"):
        check_published(place)


# --- the command itself, killed at random events of the file system


def command_in_child(place: Place, event: int) -> tuple[int, str]:
    """Run `prdp release`, killed at an event in the place's folder (0: never); return its code and its messages."""
    arguments = ["release", place.plan, "--out", place.out, "--ledger", place.ledger_path]
    command = [sys.executable, "-m", "tests.support.kill_at", str(event), str(place.folder), *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    return child.returncode, child.stderr


@sizes(few=1, many=40)
def test_the_command_killed_at_random_events_then_run_again(plan: Path, tmp_path: Path, count: int) -> None:
    whole = Place(plan, tmp_path / "whole")
    whole.ledger()
    code, told = command_in_child(whole, 0)
    assert code == 0, told
    check_published(whole)
    events = int(told.split()[-1])
    assert events > 100
    for case, random in cases(count):
        place = Place(plan, tmp_path / case)
        place.ledger()
        seen: set[str] = set()
        for _ in range(random.randint(1, 2)):
            event = random.randint(1, events)
            code, told = command_in_child(place, event)
            assert code in (-signal.SIGKILL, 0), f"{case}, event {event}: {told}"
            check_after_kill(place)
            seen |= attempts_seen(place)
        code, told = command_in_child(place, 0)
        assert code == 0, f"{case}: {told}"
        check_published(place)
        assert seen <= attempts_seen(place), f"{case}: another draw became visible"
