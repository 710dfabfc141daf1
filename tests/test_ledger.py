import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.ledgers import FACTS, UNIT, policy, reservation

from pipeline.errors import BudgetRefused, PlanError, StateError
from pipeline.ledger.entries import GENESIS, Act, Entry, next_entry
from pipeline.ledger.fold import MAX_DRAWS, fold
from pipeline.ledger.reservation import limits_of
from pipeline.ledger.store import Ledger, open_ledger

TESTS = Path(__file__).parent
NOBODY = 65534


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(str(tmp_path / "state" / "ledger.sqlite"))


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"support.{script}", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def raw(ledger: Ledger) -> sqlite3.Connection:
    return sqlite3.connect(ledger.path, isolation_level=None)


def tampered(ledger: Ledger, *statements: str) -> None:
    """Change the file as somebody would who goes around the triggers."""
    connection = raw(ledger)
    for trigger in ("updated", "deleted"):
        connection.execute(f"DROP TRIGGER entries_not_{trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.close()


def entries(ledger: Ledger) -> list[Entry]:
    connection = raw(ledger)
    names = [field.name for field in fields(Entry)]
    rows = connection.execute(f"SELECT {', '.join(names)} FROM entries ORDER BY seq").fetchall()
    connection.close()
    return [Entry(**dict(zip(names, row, strict=True))) for row in rows]


def drawn_and_destroyed(ledger: Ledger, release: str, times: int, exposed: bool = False) -> None:
    for _ in range(times):
        ledger.destroyed(release, ledger.draw(release, "sha256:pin"), "incomplete", exposed)


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


def test_the_state_is_the_fold_of_the_rows_and_outlives_the_process(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    drawn_and_destroyed(ledger, "r", 2)
    again = open_ledger(f"sqlite:///{ledger.path}")
    assert again.state("r") == ledger.state("r") == fold(entries(ledger))
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
        ({"out": "/elsewhere"}, "another output place: /out, not /elsewhere"),
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


def test_the_budget_is_the_datasets(ledger: Ledger) -> None:
    for release in ("a", "b"):
        ledger.reserve(reservation(release, draws=2))
    ledger.reserve(reservation("c", draws=1, dataset="e"))
    head = ledger.head()
    with pytest.raises(BudgetRefused, match="by a, b"):
        ledger.reserve(reservation("d", draws=2))
    assert ledger.head() == head


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
    ledger.reserve(reservation("s", draws=5))
    ledger.verify()


def test_a_draw_that_the_budget_does_not_fit_leaves_no_trace(ledger: Ledger) -> None:
    ledger.reserve(reservation("r", draws=4))
    ledger.reserve(reservation("s", draws=4))
    drawn_and_destroyed(ledger, "r", MAX_DRAWS)
    head = ledger.head()
    with pytest.raises(BudgetRefused):
        ledger.draw("r", "sha256:pin")
    assert ledger.head() == head
    ledger.abort("s")
    ledger.draw("r", "sha256:pin")


def test_every_draw_is_charged_once_staging_was_exposed(ledger: Ledger) -> None:
    ledger.reserve(reservation("r", draws=3))
    drawn_and_destroyed(ledger, "r", 1, exposed=True)
    assert ledger.state("r").charges == 1
    drawn_and_destroyed(ledger, "r", 1)
    assert ledger.state("r").charges == 2
    drawn_and_destroyed(ledger, "r", 1)
    assert ledger.state("r").charges == 3
    with pytest.raises(BudgetRefused):
        ledger.draw("r", "sha256:pin")


def test_only_the_live_attempt_is_published_and_only_once(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    first = ledger.draw("r", "sha256:pin")
    with pytest.raises(StateError, match=f"attempt {first} is drawn"):
        ledger.draw("r", "sha256:pin")
    ledger.destroyed("r", first, "incomplete", False)
    second = ledger.draw("r", "sha256:pin")
    # A process that was paused since the first draw wakes up:
    for step in (ledger.settle, lambda r, a: ledger.publish(r, a, "c"), lambda r, a: ledger.destroyed(r, a, "", False)):
        with pytest.raises(StateError, match="not the live one|is drawn"):
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


def test_nothing_happens_to_a_release_that_is_not_reserved(ledger: Ledger) -> None:
    ledger.reserve(reservation("gone"))
    ledger.abort("gone")
    for release in ("unknown", "gone"):
        for step in (lambda r: ledger.draw(r, "p"), lambda r: ledger.publish(r, "0" * 16, "c"), ledger.abort):
            with pytest.raises(StateError, match=release):
                step(release)
    assert ledger.head()[0] == 2


# The chain


def test_rows_are_never_changed_removed_or_put_in_between(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.draw("r", "sha256:pin")
    connection = raw(ledger)
    row = dict(connection.execute("SELECT seq, hash FROM entries WHERE seq = 1").fetchall())
    columns = "time, event, dataset, release, attempt, payload, salt"
    for statement in (
        "UPDATE entries SET dataset = 'other'",
        "DELETE FROM entries",
        f"INSERT OR REPLACE INTO entries SELECT seq, {columns}, previous, hash || 'x' FROM entries WHERE seq = 1",
        f"INSERT INTO entries SELECT 9, {columns}, hash, hash || 'x' FROM entries WHERE seq = 2",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="entries are"):
            connection.execute(statement)
    assert dict(connection.execute("SELECT seq, hash FROM entries WHERE seq = 1").fetchall()) == row
    connection.close()
    ledger.verify()


def test_the_database_itself_holds_one_publication_of_a_release(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.publish("r", ledger.draw("r", "sha256:pin"), "sha256:contents")
    connection = raw(ledger)
    columns = "time, event, dataset, release, attempt, payload, salt"
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: entries\.release"):
        connection.execute(f"INSERT INTO entries SELECT 4, {columns}, hash, 'x' FROM entries WHERE seq = 3")
    connection.close()


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE entries SET payload = replace(payload, 'pin', 'nip') WHERE seq = 2", 2),
        ("UPDATE entries SET time = '2020-01-01T00:00:00+00:00' WHERE seq = 3", 3),
        ("DELETE FROM entries WHERE seq = 2", 2),
        ("DELETE FROM entries WHERE seq = 1", 1),
        ("UPDATE entries SET seq = 7 WHERE seq = 4", 7),
    ],
)
def test_a_changed_or_cut_chain_is_found(ledger: Ledger, statement: str, seq: int) -> None:
    ledger.reserve(reservation("r"))
    drawn_and_destroyed(ledger, "r", 1)
    ledger.draw("r", "sha256:pin")
    ledger.verify()
    tampered(ledger, statement)
    with pytest.raises(StateError, match=f"entry {seq}"):
        ledger.verify()


def test_an_entry_rewritten_with_its_hash_breaks_the_link_after_it(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.draw("r", "sha256:pin")
    forged = replace(entries(ledger)[0], dataset="other")
    tampered(ledger, f"UPDATE entries SET dataset = 'other', hash = '{forged.hash_due()}' WHERE seq = 1")
    with pytest.raises(StateError, match="entry 2"):
        ledger.verify()


def test_a_chain_cut_at_its_end_shows_against_a_published_head(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    head = ledger.publish("r", ledger.draw("r", "sha256:pin"), "sha256:contents").head
    tampered(ledger, "DELETE FROM entries WHERE seq = 3")
    assert ledger.verify()[1] != head


@pytest.mark.parametrize(
    "act",
    [
        Act("published", "d", "r", "0" * 16, {"contents": "c"}),
        Act("settled", "d", "r", None, {}),
        Act("drawn", "d", "r", "0" * 16, {"pin": "p", "draw": 2}),
        Act("drawn", "other", "r", "0" * 16, {"pin": "p", "draw": 1}),
        Act("drawn", "d", "r", "0" * 16, {"pin": "p"}),
        Act("reserved", "d", "r", None, {}),
        Act("aborted", "d", "unknown", None, {}),
        Act("forgiven", "d", "r", None, {}),
    ],
)
def test_a_well_chained_history_that_breaks_the_rules_is_found(ledger: Ledger, act: Act) -> None:
    ledger.reserve(reservation("r"))
    entry = next_entry(*ledger.head(), act)
    connection = raw(ledger)
    marks = ", ".join("?" * len(entry.columns))
    connection.execute(f"INSERT INTO entries ({', '.join(entry.columns)}) VALUES ({marks})", [*entry.columns.values()])
    connection.close()
    with pytest.raises(StateError, match="its own rules at entry 2"):
        ledger.verify()


def test_the_hash_covers_every_column_and_needs_the_salt() -> None:
    act = Act("drawn", "d", "r", "0" * 16, {"pin": "sha256:guess", "draw": 1})
    entry = next_entry(6, GENESIS, act)
    changed = [
        replace(entry, **{name: 8 if name == "seq" else "other"}) for name in entry.columns if name != "hash"
    ]
    assert len({entry.hash_due(), *(other.hash_due() for other in changed)}) == 1 + len(changed)
    # Whoever guesses every fact right cannot tell so from the head: it takes 128 bits that stay in the ledger.
    assert len(bytes.fromhex(entry.salt)) == 16
    assert entry.salt != next_entry(6, GENESIS, act).salt


# Where it lies, and what can be wrong with the file


def test_the_users_own_ledger_lies_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        own = open_ledger()
    finally:
        os.umask(before)
    assert own.path == tmp_path.resolve() / "prdp" / "ledger.sqlite"
    assert stat.S_IMODE(own.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(own.path.stat().st_mode) == 0o600
    assert own.staging_root == own.path.parent / "staging"
    assert [path.name for path in own.path.parent.iterdir()] == ["ledger.sqlite"]


def test_a_relative_address_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_ledger("sqlite:///one/a.sqlite").path == tmp_path.resolve() / "one" / "a.sqlite"
    assert open_ledger("b ?#%.sqlite").path == tmp_path.resolve() / "b ?#%.sqlite"


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/db", "sqlite://", "sqlite:///", "mysql+x://h", ""])
def test_another_kind_of_database_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(PlanError, match="sqlite:///path") as told:
        open_ledger(url)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o777])
def test_a_ledger_that_others_can_write_is_refused(ledger: Ledger, mode: int) -> None:
    for path, own in ((ledger.path.parent, 0o700), (ledger.path, 0o600)):
        path.chmod(mode)
        with pytest.raises(StateError, match="chmod go-w"):
            open_ledger(str(ledger.path))
        path.chmod(own)
    open_ledger(str(ledger.path))


def no_database(path: Path) -> None:
    path.write_bytes(b"no database at all, whatever its name says" * 100)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def other_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (a)")
    connection.close()


def newer_schema(path: Path) -> None:
    open_ledger(str(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE meta SET schema_version = 2")
    connection.close()


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (no_database, "no SQLite database"),
        (empty_file, "no prdp ledger"),
        (other_database, "no prdp ledger"),
        (newer_schema, "schema version 2, and this prdp knows 1"),
        (a_folder, "cannot be opened"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_line(tmp_path: Path, make: Callable[[Path], None], told: str) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    with pytest.raises(StateError, match=told) as error:
        open_ledger(str(path))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_locked_ledger_is_waited_for_and_then_told(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    impatient = open_ledger(str(ledger.path), wait=0.2)
    connection = raw(ledger)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StateError, match="locked by another process"):
        impatient.draw("r", "sha256:pin")
    connection.execute("ROLLBACK")
    connection.close()
    impatient.draw("r", "sha256:pin")


def test_a_full_disk_refuses_the_draw_and_changes_nothing(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    head = ledger.head()
    process = child("full_disk", ledger.path, "r")
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "disk is full" in told
    assert ledger.verify() == head
    ledger.draw("r", "sha256:pin")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_ledger_refuses_the_draw(open_folder: Path) -> None:
    ledger = open_ledger(str(open_folder / "ledger.sqlite"))
    ledger.reserve(reservation("r"))
    head = ledger.head()
    # Root writes to everything, so the child becomes a user who may only read.
    ledger.path.chmod(0o444)
    open_folder.chmod(0o555)
    process = child("read_only", ledger.path, "r", NOBODY)
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "read-only" in told
    assert ledger.verify() == head


# Several processes


def test_eight_processes_race_for_a_budget_that_fits_three(ledger: Ledger, tmp_path: Path) -> None:
    racers = [child("reserve_at_once", ledger.path, f"r{i}", tmp_path / "go") for i in range(8)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    for racer in racers:
        racer.communicate(timeout=60)
    assert sorted(racer.returncode for racer in racers) == [0] * 3 + [3] * 5
    spent = [ledger.state(f"r{i}") for i in range(8)]
    assert sum(state.charges * UNIT for state in spent if state is not None) == 3 * UNIT
    ledger.verify()


def test_processes_that_make_the_ledger_at_once_make_one(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    racers = [child("reserve_at_once", path, f"r{i}", tmp_path / "go") for i in range(4)]
    for racer in racers:
        racer.stdout.readline()
    (tmp_path / "go").touch()
    for racer in racers:
        racer.communicate(timeout=60)
    assert sorted(racer.returncode for racer in racers) == [0, 0, 0, 3]
    assert open_ledger(str(path)).head()[0] == 3
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_one_attempt_at_a_release_at_a_time(ledger: Ledger) -> None:
    with ledger.lock("r"):
        with pytest.raises(StateError, match="another attempt at release r is under way"), ledger.lock("r"):
            pass
        with ledger.lock("s"):
            pass
    with ledger.lock("r"):
        pass
    folder = ledger.path.parent / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize("leaving", ["nothing", "exec", "fork"])
def test_the_lock_dies_with_its_process_whatever_children_live_on(ledger: Ledger, leaving: str) -> None:
    holder = child("hold_lock", ledger.path.parent / "locks", "r", leaving)
    left = int(holder.stdout.readline())
    try:
        with pytest.raises(StateError, match="under way"), ledger.lock("r"):
            pass
        holder.send_signal(signal.SIGKILL)
        assert holder.wait(timeout=10) == -signal.SIGKILL
        deadline = time.monotonic() + 5  # the kernel closes a killed process's files on its own time
        while True:
            try:
                with ledger.lock("r"):
                    break
            except StateError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        if left:
            os.kill(left, 0)  # the child does live on
    finally:
        holder.kill()
        holder.stdout.close()
        holder.wait()
        if left:
            os.kill(left, signal.SIGKILL)
