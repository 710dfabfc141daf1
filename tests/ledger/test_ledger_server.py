"""A ledger on a server: what can be wrong with it, and what is left when it or a connection to it dies."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from jobs.cli import main
from pipeline.base.errors import PrdpError, StateError
from pipeline.ledger.database import WRITERS, Connection
from pipeline.ledger.database import postgres as postgres_module
from pipeline.ledger.store import create_ledger, open_ledger
from pipeline.storage.local import LocalPath
from tests.ledger.test_ledger_processes import paused, take_lock_away, woken
from tests.support.ledgers import drawn_and_destroyed, entries, raw, reservation, staged_files
from tests.support.link import link_to
from tests.support.postgres import OWNER, PASSWORD, PostgresServer
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

RELEASE = "small-release"


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return postgres.url(postgres.database())


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server that a test may crash."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = PostgresServer()
    yield server
    server.stop()


def database_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@contextmanager
def told(words: str, code: int = StateError.exit_code) -> Iterator[None]:
    with pytest.raises(PrdpError, match=words) as error:
        yield
    assert error.value.exit_code == code
    assert "\n" not in str(error.value)
    assert not {"SELECT", "INSERT", "sha256:pin", "%("} & set(str(error.value).split())


# What can be wrong


def test_a_release_runs_from_the_command_and_its_password_is_nowhere(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = write_world(tmp_path / "world", records(50))
    database = postgres.database()
    url = f"postgresql://{OWNER}:{PASSWORD}@127.0.0.1:{postgres.port}/{database}"
    create_ledger(url)
    assert main(["release", str(plan), "--out", str(tmp_path / "out"), "--ledger", url, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "settled"
    assert main(["release", str(plan), "--out", str(tmp_path / "elsewhere"), "--ledger", url]) == 5
    for act in (["show"], ["verify"], ["abort", RELEASE], ["migrate"]):
        main(["ledger", *act, "--ledger", url, "--debug"])
    said = capfd.readouterr()
    assert PASSWORD not in said.out + said.err
    written = staged_files(tmp_path)
    assert any(path.name == "release.json" for path in written)
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]
    ledger = create_ledger(postgres.url(database))
    assert ledger.verify()[0] == 5
    assert [entry for entry in entries(ledger) if PASSWORD in entry.payload] == []


def sets(setting: str) -> Callable[[PostgresServer, str], None]:
    def spoil(server: PostgresServer, database: str) -> None:
        server.execute("postgres", f"ALTER DATABASE {database} SET {setting}")

    return spoil


def fails(state: str, when: str = "") -> Callable[[PostgresServer, str], None]:
    """Whatever is appended, or by a condition, the server fails with an error of its own kind."""

    def spoil(server: PostgresServer, database: str) -> None:
        server.execute(
            database,
            f"""CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'sha256:pin' USING ERRCODE = '{state}'; END $$""",
            f"CREATE TRIGGER a_failure BEFORE INSERT ON prdp.entries FOR EACH ROW {when} EXECUTE FUNCTION fail()",
        )

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (sets("default_transaction_read_only = on"), "is read-only"),
        (fails("53100"), "disk is full"),
        (fails("53200"), "has no room"),
        (fails("58030"), "faulty or full"),
        (fails("XX001"), "is damaged"),
        (fails("57014"), "took too long"),
        (fails("22000"), "the server's error is 22000"),
    ],
)
def test_a_database_that_takes_nothing_refuses_the_draw_and_changes_nothing(
    postgres: PostgresServer, url: str, spoil: Callable[[PostgresServer, str], None], words: str
) -> None:
    ledger = create_ledger(url)
    ledger.reserve(reservation("r"))
    head = ledger.head()
    spoil(postgres, database_of(url))
    with told(words):
        ledger.draw("r", "sha256:pin")
    assert create_ledger(url).verify() == head


def test_no_key_is_made_where_the_draw_cannot_be_recorded(postgres: PostgresServer, url: str, tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(20)), tmp_path, address=url)
    place.ledger()
    fails("53100", "WHEN (NEW.event = 'drawn')")(postgres, database_of(url))
    said: list[str] = []
    with told("disk is full"):
        submit(place, say=said.append)
    assert [line for line in said if line.startswith("drawing")] == []
    assert staged_files(place.ledger().staging_root) == []
    postgres.execute(database_of(url), "DROP TRIGGER a_failure ON prdp.entries")
    submit(place)
    assert place.ledger().state(RELEASE).draws == 1


@pytest.mark.parametrize(
    ("database", "words"), [("absent", "cannot be opened: .*does not exist"), ("other", "is no prdp ledger")]
)
def test_what_is_no_ledger_is_told(postgres: PostgresServer, url: str, database: str, words: str) -> None:
    if database == "other":
        database = postgres.database()
        postgres.execute(database, "CREATE SCHEMA prdp", "CREATE TABLE prdp.entries (a int)")
    with told(words):
        create_ledger(postgres.url(database))


def test_a_locked_ledger_is_waited_for_and_then_told(url: str) -> None:
    ledger = create_ledger(url)
    ledger.reserve(reservation("r"))
    impatient = create_ledger(url, wait=0.2)
    with raw(ledger) as other:
        other.execute(f"SELECT pg_advisory_lock({WRITERS})")
        with told("locked by another process"):
            impatient.draw("r", "sha256:pin")
    other.close()
    impatient.draw("r", "sha256:pin")


def test_who_goes_around_prdp_waits_as_well(url: str) -> None:
    """The database itself keeps others from appending between what a step reads and what it appends."""
    ledger = create_ledger(url)
    with ledger._writing(), raw(ledger) as other:
        other.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("INSERT INTO entries VALUES (1, '', 'e', 'd', 'r', NULL, '{}', '', repeat('0', 64), 'h')")
    other.close()


def test_a_writer_that_stands_still_inside_a_step_is_ended_and_others_go_on(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "_STANDSTILL", "200ms")
    ledger = create_ledger(url)
    with told("paused for too long"), ledger._writing() as connection:
        connection.execute("DELETE FROM prdp.meta")
        create_ledger(url).reserve(reservation("r"))
        connection.execute("SELECT 1")
    assert create_ledger(url).verify()[0] == 1


def test_an_error_that_a_step_keeps_to_itself_is_no_success(url: str) -> None:
    """The server answers the COMMIT of a failed transaction as one that it takes, and writes nothing."""
    ledger = create_ledger(url)
    with told("the server's error is 25P02"), ledger._writing() as connection:
        connection.execute("UPDATE prdp.meta SET schema_version = 5")
        with suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")
    assert create_ledger(url).head() == (0, "0" * 64)


def test_a_server_that_could_lose_what_it_committed_is_refused(own: PostgresServer) -> None:
    create_ledger(own.url("postgres"))
    own.crash()
    own.settings = {"fsync": "off"}
    own.start()
    with told("turn the server's fsync on"):
        create_ledger(own.url("postgres"))


# What is left when the server or a connection dies


def break_at(patch: pytest.MonkeyPatch, where: str, crash: Callable[[], None]) -> None:
    """Crash the server when an entry is next appended."""
    execute = Connection.execute

    def executed(connection: Connection, statement: str, *values: object) -> Any:
        appends = statement.startswith("INSERT")
        if appends and where == "before the entry":
            crash()
        rows = execute(connection, statement, *values)
        if appends and where == "after the entry":
            crash()
        if appends and where == "as it commits":
            commit = connection.driver.commit
            connection.driver.commit = lambda: (crash(), commit())
        return rows

    patch.setattr(Connection, "execute", executed)


@pytest.mark.parametrize("where", ["before the entry", "after the entry", "as it commits"])
def test_a_server_that_dies_while_it_publishes_leaves_all_or_nothing(
    own: PostgresServer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = own.url("postgres")
    ledger = create_ledger(url)
    with ledger.lock("r"):
        ledger.reserve(reservation("r"))
        attempt = ledger.draw("r", "sha256:pin")
        head = ledger.head()
        with monkeypatch.context() as patch, told("cannot be reached any more", 1):
            break_at(patch, where, own.crash)
            ledger.publish("r", attempt, "sha256:contents")
    with told("cannot be opened: connection", 1):
        create_ledger(url, wait=0.1)
    own.start()
    again = create_ledger(url)
    assert again.verify() == head
    assert again.state("r").status == "drawn"
    with again.lock("r"):
        assert again.publish("r", attempt, "sha256:contents").status == "published"


# A lock that was lost


def test_who_lost_the_lock_cannot_publish_even_before_another_wrote(postgres: PostgresServer, url: str) -> None:
    ledger = create_ledger(url)
    for broken, words in (([], "the connection that kept its lock was lost"), (["without-lock-check"], "published\n")):
        release = f"r{len(broken)}"
        with paused(url, release, *broken) as (process, attempt):
            take_lock_away(ledger, url, postgres)
            with ledger.lock(release):  # another has it, and still reads
                assert words in woken(process)
        assert ledger.state(release).attempt == attempt
    assert [entry.event for entry in entries(ledger)].count("published") == 1


def test_a_lock_that_is_lost_before_the_draw_is_taken_again_and_after_it_every_step_is_refused(
    postgres: PostgresServer, url: str
) -> None:
    ledger, other = create_ledger(url), create_ledger(url)
    with ledger.lock("r"):
        take_lock_away(ledger, url, postgres)
        ledger.reserve(reservation("r"))
        take_lock_away(ledger, url, postgres)
        attempt = ledger.draw("r", "sha256:pin")
        with told("another attempt at release r is under way"), other.lock("r"):
            pass
        take_lock_away(ledger, url, postgres)
        for step in (
            lambda: ledger.publish("r", attempt, "sha256:contents"),
            lambda: ledger.destroyed("r", attempt, "incomplete", False),
            lambda: ledger.abort("r"),
        ):
            with told("the connection that kept its lock was lost"):
                step()
        assert ledger.state("r").status == "drawn"
    with ledger.lock("r"):
        ledger.publish("r", attempt, "sha256:contents")


def test_a_lock_is_not_taken_again_where_another_has_or_had_it(postgres: PostgresServer, url: str) -> None:
    ledger, other = create_ledger(url), create_ledger(url)
    ledger.reserve(reservation("r"))
    with ledger.lock("r"):
        take_lock_away(ledger, url, postgres)
        with other.lock("r"), told("another attempt at release r is under way"):
            ledger.draw("r", "sha256:pin")
        with other.lock("r"):  # which reserves another plan under the name, and is gone
            other.abort("r")
            other.reserve(reservation("r", digest="sha256:other"))
        with told("the connection that kept its lock was lost"):
            ledger.draw("r", "sha256:pin")
    assert ledger.state("r").draws == 0


def test_a_lock_is_let_go_over_a_link_on_which_nothing_arrives_any_more(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module.server, "CONNECT_SECONDS", 0.5)
    with link_to(postgres.port) as link:
        ledger = create_ledger(f"postgresql://{OWNER}:{PASSWORD}@127.0.0.1:{link.own_port}/{database_of(url)}")
        with ledger.lock("r"):
            link.still = True
        link.mend()


def test_a_run_before_its_draw_waits_for_a_server_that_starts_again(own: PostgresServer) -> None:
    ledger = create_ledger(own.url("postgres"))
    with ledger.lock("r"):
        ledger.reserve(reservation("r"))
        own.crash()
        starting = Thread(target=lambda: (time.sleep(0.5), own.start()))
        starting.start()
        try:
            attempt = ledger.draw("r", "sha256:pin")
        finally:
            starting.join()
        own.crash()
        with told("cannot be opened: connection", 1):  # at once: the next run finishes what was drawn
            ledger.publish("r", attempt, "sha256:contents")


clock = partial(SimpleNamespace, monotonic=time.monotonic)


def full(server: PostgresServer) -> Callable[[], None]:
    """Take all connections of a server; return what gives them back."""
    taken = ExitStack()
    with suppress(psycopg.OperationalError):
        while True:
            taken.enter_context(closing(psycopg.connect(server.conninfo())))
    return taken.close


def away(server: PostgresServer) -> Callable[[], None]:
    """Crash a server; return what starts it."""
    server.crash()
    return server.start


@pytest.mark.parametrize("trouble", [full, away])
def test_an_opening_waits_for_a_server_that_is_full_or_starts_again(
    trouble: Callable[[PostgresServer], Callable[[], None]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = PostgresServer(max_connections="5", superuser_reserved_connections="1", max_wal_senders="0")
    try:
        create_ledger(server.url("postgres")).reserve(reservation("r"))
        end = trouble(server)
        with monkeypatch.context() as patch:
            patch.setattr(postgres_module, "time", clock(sleep=lambda seconds: end()))
            ledger = open_ledger(server.url("postgres"))
        assert ledger.state("r") is not None
        monkeypatch.setattr(postgres_module, "time", clock(sleep=lambda seconds: pytest.fail("nothing to wait for")))
        with told("cannot be opened: .*does not exist"):
            open_ledger(server.url("absent"))
    finally:
        server.stop()


@pytest.mark.parametrize("at", ["drawing", "inside a table", "making the public site"])
def test_who_stood_still_while_its_draw_was_destroyed_leaves_nothing_of_it(
    postgres: PostgresServer, url: str, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that is frozen and cut off while it stages, and thaws after another host drew and settled."""
    place = Place(write_world(tmp_path / "world", records(50)), tmp_path, address=url)
    ledger, stood = place.ledger(), []
    staged = ledger.staging_root / RELEASE

    def others_go_on(stage: str) -> None:
        if stage.startswith(at) and not stood:
            stood.append(stage)
            take_lock_away(ledger, url, postgres)
            submit(place, key=None)
            assert not staged.exists()

    def written_by_workers(folder: LocalPath, names: set[str]) -> None:
        if not stood:
            others_go_on("inside a table")
            folder.make_private()
            (folder / min(names)).write(b"noise that was drawn and destroyed")

    if at == "inside a table":
        monkeypatch.setattr("pipeline.release.publish.sweep", written_by_workers)
    with told("the connection that kept its lock was lost"):
        submit(place, key=None, say=others_go_on)
    assert stood
    assert not staged.exists()
    (destroyed,) = [entry for entry in entries(ledger) if entry.event == "destroyed"]
    monkeypatch.undo()
    if at == "drawing":
        left = LocalPath(staged / str(destroyed.attempt))  # by a worker that was cut off for longer than its driver
        left.make_private()
        (left / "part-00000.parquet").write(b"noise that was drawn and destroyed")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert submit(place, key=None).already
        assert not staged.exists()


def test_a_lock_is_kept_however_long_a_release_takes(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = create_ledger(url)
    ledger.reserve(reservation("r"))
    sets("idle_session_timeout = '1s'")(postgres, database_of(url))
    with ledger.lock("r"):
        time.sleep(1.5)
        drawn_and_destroyed(ledger, "r", 1)
    monkeypatch.delitem(postgres_module._KEEPING, "idle_session_timeout")
    with ledger.lock("r"):
        attempt = ledger.draw("r", "sha256:pin")
        time.sleep(1.5)
        with told("the connection that kept its lock was lost"):
            ledger.publish("r", attempt, "sha256:contents")
