"""The ledger's rows: never changed, and whoever changes them is found out."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.entries import GENESIS, Act, next_entry
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import append, drawn_and_destroyed, entries, raw, reservation


@pytest.fixture
def ledger(address: str) -> Ledger:
    return create_ledger(address)


WITHOUT_TRIGGERS = {
    "sqlite": ["DROP TRIGGER entries_not_updated", "DROP TRIGGER entries_not_deleted"],
    "postgresql": ["DROP TRIGGER entries_kept ON entries"],
}


def tampered(ledger: Ledger, *statements: str) -> None:
    """Change the database as somebody would who goes around the triggers."""
    with closing(raw(ledger)) as connection:
        for statement in (*WITHOUT_TRIGGERS["sqlite" if ledger.path else "postgresql"], *statements):
            connection.execute(statement)


COLUMNS = "time, event, dataset, release, attempt, payload, salt"
BEHIND_THE_TRIGGERS = {
    "sqlite": [
        f"INSERT OR REPLACE INTO entries SELECT seq, {COLUMNS}, previous, hash || 'x' FROM entries WHERE seq = 1"
    ],
    "postgresql": [
        "TRUNCATE entries",
        f"INSERT INTO entries SELECT seq, {COLUMNS}, previous, hash || 'x' FROM entries WHERE seq = 1"
        " ON CONFLICT (seq) DO UPDATE SET hash = 'x'",
        "SET session_replication_role = replica; UPDATE entries SET dataset = 'other'",
    ],
}


def test_rows_are_never_changed_removed_or_put_in_between(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.draw("r", "sha256:pin")
    query = "SELECT seq, hash FROM entries ORDER BY seq"
    with closing(raw(ledger)) as connection:
        before = connection.execute(query).fetchall()
        for statement in (
            "UPDATE entries SET dataset = 'other'",
            "DELETE FROM entries",
            # At its end, but after another than the last; and after the last, but not next to it.
            f"INSERT INTO entries SELECT 3, {COLUMNS}, 'other', hash || 'x' FROM entries WHERE seq = 2",
            f"INSERT INTO entries SELECT 9, {COLUMNS}, hash, hash || 'x' FROM entries WHERE seq = 2",
            *BEHIND_THE_TRIGGERS["sqlite" if ledger.path else "postgresql"],
        ):
            with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match="entries are"):
                connection.execute(statement)
        assert connection.execute(query).fetchall() == before
        connection.execute(f"INSERT INTO entries SELECT 3, {COLUMNS}, hash, 'x' FROM entries WHERE seq = 2")


def test_the_database_itself_holds_one_publication_of_a_release(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.publish("r", ledger.draw("r", "sha256:pin"), "sha256:contents")
    with (
        closing(raw(ledger)) as connection,
        pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match=r"entries\.release|one_publication"),
    ):
        connection.execute(f"INSERT INTO entries SELECT 4, {COLUMNS}, hash, 'x' FROM entries WHERE seq = 3")


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
        Act("held", "d", "r", "0" * 16, {"contents": "c"}),
        Act("approved", "d", "r", "0" * 16, {}),
        Act("rejected", "d", "r", "0" * 16, {"reason": "why"}),
        Act("withdrawn", "d", "r", "0" * 16, {"reason": "why"}),
        Act("budgeted", "d", "", None, {"act": "raise", "kind": "dataset", "limits": []}),
        Act("budgeted", "d", "", None, {"act": "init", "limits": []}),
    ],
)
def test_a_well_chained_history_that_breaks_the_rules_is_found(ledger: Ledger, act: Act) -> None:
    ledger.reserve(reservation("r"))
    entry = next_entry(*ledger.head(), act)
    append(ledger, entry)
    with pytest.raises(StateError, match="its own rules at entry 2"):
        ledger.verify()


def test_the_hash_covers_every_column_and_needs_the_salt() -> None:
    act = Act("drawn", "d", "r", "0" * 16, {"pin": "sha256:guess", "draw": 1})
    entry = next_entry(6, GENESIS, act)
    changed = [replace(entry, **{name: 8 if name == "seq" else "other"}) for name in entry.columns if name != "hash"]
    assert len({entry.hash_due(), *(other.hash_due() for other in changed)}) == 1 + len(changed)
    # Whoever guesses every fact right cannot tell so from the head: it takes 128 bits that stay in the ledger.
    assert len(bytes.fromhex(entry.salt)) == 16
    assert entry.salt != next_entry(6, GENESIS, act).salt
