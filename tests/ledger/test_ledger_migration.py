"""Older schemas become new ones, on either database, and no entry is touched."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.errors import StateError
from pipeline.ledger import database
from pipeline.ledger.address import database_at
from pipeline.ledger.database import SCHEMA_VERSION, WRITERS
from pipeline.ledger.entries import Act, Entry, next_entry
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger
from tests.jobs.test_cli import run_json
from tests.support.ledgers import append, entries, raw, reservation

VERSION_1 = (Path(__file__).parents[1] / "support" / "ledger_v1.sql").read_text()
HEAD = (7, "88b8b15c4868c3904764f2a4b8f65bc51f893620910984d6a4cfc59aeda36217")
# Version 1 let an entry follow another than the last one.
APPENDED_1 = f"""CREATE OR REPLACE FUNCTION prdp.entries_appended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({WRITERS});
    IF NEW.seq IS DISTINCT FROM (SELECT coalesce(max(seq), 0) + 1 FROM prdp.entries) THEN
        RAISE EXCEPTION 'entries are appended in order';
    END IF;
    RETURN NEW;
END $$"""


@pytest.fixture
def old(address: str) -> str:
    """The address of a ledger of version 1."""
    if not address.startswith("postgresql"):
        Path(address).parent.mkdir(mode=0o700)
        with closing(sqlite3.connect(address)) as connection:
            connection.executescript(VERSION_1)
        Path(address).chmod(0o600)
        return address
    ledger = create_ledger(address)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(VERSION_1)
        for row in connection.execute("SELECT * FROM entries ORDER BY seq"):
            append(ledger, Entry(**dict(zip(Entry.__dataclass_fields__, row, strict=True))))
    with closing(raw(ledger)) as connection:
        connection.execute(APPENDED_1)
        connection.execute("UPDATE meta SET schema_version = 1")
    return address


def beside_the_last(ledger: Ledger) -> Entry:
    """An entry in its place, but linked to none that is there."""
    return next_entry(ledger.head()[0], "f" * 64, Act("aborted", "d", "s", None, {}))


def test_version_1_becomes_this_version_and_its_chain_stays(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StateError, match=f"version 1, and this prdp knows {SCHEMA_VERSION}: run prdp ledger migrate"):
        create_ledger(old)
    told = run_json(capsys, "ledger", "migrate", "--ledger", old)
    assert told == {"from": 1, "to": SCHEMA_VERSION, "entries": HEAD[0], "head": HEAD[1]}
    ledger = create_ledger(old)
    assert ledger.verify() == HEAD
    assert [state.status for state in ledger.states()] == ["settled", "reserved"]
    with pytest.raises(Exception, match="entries are appended in order"):
        append(ledger, beside_the_last(ledger))
    ledger.draw("s", "sha256:pin")
    assert ledger.verify()[0] == HEAD[0] + 1
    # Again: there is nothing to do, and nothing is done.
    assert run_json(capsys, "ledger", "migrate", "--ledger", old)["from"] == SCHEMA_VERSION


def test_version_1_is_what_it_says(old: str) -> None:
    """The twin of the test above: what version 2 adds was not there."""
    ledger = Ledger(database_at(old, 1, make=False))
    append(ledger, beside_the_last(ledger))
    assert len(entries(ledger)) == HEAD[0] + 1


def test_a_newer_schema_is_left_alone(address: str) -> None:
    ledger = create_ledger(address)
    with closing(raw(ledger)) as connection:
        connection.execute(f"UPDATE meta SET schema_version = {SCHEMA_VERSION + 1}")
        for use in (create_ledger, migrate_ledger):
            with pytest.raises(StateError, match="use the prdp that made it"):
                use(address)
        found = connection.execute("SELECT schema_version FROM meta").fetchall()
        assert found == [(SCHEMA_VERSION + 1,)]


def test_a_migration_that_fails_changes_nothing(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {1: {name: (*steps, "SELECT nothing FROM nowhere") for name, steps in database.MIGRATIONS[1].items()}}
    monkeypatch.setattr(database, "MIGRATIONS", broken)
    with pytest.raises(StateError):
        migrate_ledger(old)
    monkeypatch.undo()
    with pytest.raises(StateError, match="version 1"):
        create_ledger(old)
    test_version_1_is_what_it_says(old)


def test_a_changed_chain_is_not_migrated(old: str) -> None:
    ledger = Ledger(database_at(old, 1, make=False))
    append(ledger, next_entry(*ledger.head(), Act("settled", "d", "s", "0" * 16, {})))
    with pytest.raises(StateError, match="its own rules at entry 8"):
        migrate_ledger(old)
    with pytest.raises(StateError, match="version 1"):
        create_ledger(old)


def test_a_release_goes_on_after_a_migration(old: str) -> None:
    _, ledger = migrate_ledger(old)
    attempt = ledger.draw("s", "sha256:pin")
    ledger.publish("s", attempt, "sha256:contents")
    with pytest.raises(StateError, match="is settled"):
        ledger.abort("r")
    assert ledger.reserve(reservation("r")).status == "settled"
