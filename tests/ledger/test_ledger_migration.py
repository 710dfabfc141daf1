"""Older schemas become new ones, on either database, and no entry is touched."""

import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.accounting.references import Reference
from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger import database
from pipeline.ledger.database import SCHEMA_VERSION, WRITERS
from pipeline.ledger.database.address import database_at
from pipeline.ledger.entries import Act, Entry, next_entry
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger
from pipeline.ledger.summaries import counted
from tests.jobs.test_cli import run_json
from tests.support.ledgers import UNIT, append, entries, raw, reservation

SUPPORT = Path(__file__).parents[1] / "support"
# Of each version what its own build left: the number of entries, and the states of the releases.
ENDED = {"settled": "settled", "aborted": "aborted", "given_up": "aborted"}
OPEN = {"reserved": "reserved", "drawn": "drawn", "published": "published", "destroyed": "drawn"}
LEFT: dict[int, tuple[int, dict[str, str]]] = {
    1: (22, ENDED | OPEN | {"withdrawn": "settled"}),
    2: (
        40,
        ENDED
        | OPEN
        | {"withdrawn": "withdrawn", "rejected": "rejected", "held": "held", "approved": "held"}
        | {"refused": "refused", "tested": "reserved", "failed": "refused"},
    ),
}
# Version 1 let an entry follow another than the last one.
APPENDED_1 = f"""CREATE OR REPLACE FUNCTION prdp.entries_appended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({WRITERS});
    IF NEW.seq IS DISTINCT FROM (SELECT coalesce(max(seq), 0) + 1 FROM prdp.entries) THEN
        RAISE EXCEPTION 'entries are appended in order';
    END IF;
    RETURN NEW;
END $$"""


@pytest.fixture(params=LEFT)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def old(address: str, version: int) -> str:
    """The address of a ledger of an older version."""
    dump = (SUPPORT / f"ledger_v{version}.sql").read_text()
    if not address.startswith("postgresql"):
        Path(address).parent.mkdir(mode=0o700)
        with closing(sqlite3.connect(address)) as connection:
            connection.executescript(dump)
        Path(address).chmod(0o600)
        return address
    ledger = create_ledger(address)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(dump)
        for row in connection.execute("SELECT * FROM entries ORDER BY seq"):
            append(ledger, Entry(**dict(zip(Entry.__dataclass_fields__, row, strict=True))))
    with closing(raw(ledger)) as connection:
        connection.execute("DROP TABLE summaries")
        connection.execute("DROP INDEX entries_by_event")
        if version == 1:
            connection.execute(APPENDED_1)
        connection.execute(f"UPDATE meta SET schema_version = {version}")
    return address


def beside_the_last(ledger: Ledger) -> Entry:
    """An entry in its place, but linked to none that is there."""
    return next_entry(ledger.head()[0], "f" * 64, Act("aborted", "d", "reserved", None, {}))


def limited(release: str) -> Reservation:
    """A reservation under the limit that the older build stated."""
    return reservation(release, draws=20)


def test_an_older_version_becomes_this_one_and_its_chain_stays(
    old: str, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StateError, match=f"version {version}, and this prdp knows {SCHEMA_VERSION}: run prdp ledger"):
        create_ledger(old)
    number, states = LEFT[version]
    assert main(["ledger", "migrate", "--ledger", old]) == 5
    assert "drawn, destroyed is drawn, and another build of prdp may not finish it" in capsys.readouterr().err
    told = run_json(capsys, "ledger", "migrate", "--leave-drawn", "--ledger", old)
    assert (told["from"], told["to"], told["entries"]) == (version, SCHEMA_VERSION, number)
    ledger = create_ledger(old)
    assert ledger.verify() == (number, told["head"])
    assert {state.release: state.status for state in ledger.states()} == states
    with pytest.raises(Exception, match="entries are appended in order"):
        append(ledger, beside_the_last(ledger))
    # Again: there is nothing to do, and nothing is done.
    assert run_json(capsys, "ledger", "migrate", "--ledger", old)["from"] == SCHEMA_VERSION


def test_releases_of_an_older_version_go_on_from_every_state(old: str) -> None:
    _, ledger = migrate_ledger(old, leave_drawn=True)
    for state in ledger.states():
        attempt = state.attempt
        if state.test is not None and state.status == "reserved":
            attempt = ledger.draw(state.release, "sha256:pin")
        elif state.test is None and (state.refunded or state.status in ("reserved", "drawn")) and attempt is None:
            ledger.reserve(limited(state.release))
            attempt = ledger.draw(state.release, "sha256:pin")
        if attempt is None:
            with pytest.raises(StateError):
                ledger.draw(state.release, "sha256:pin")
            continue
        if state.status == "held" and not state.approved:
            ledger.approve(state.release, attempt)
        if state.status not in ("published", "settled", "withdrawn"):
            ledger.publish(state.release, attempt, "sha256:contents")
        if state.status not in ("settled", "withdrawn"):
            ledger.settle(state.release, attempt)
        if state.status != "withdrawn":
            ledger.withdraw(state.release, attempt, "why")
    ledger.verify()


def test_what_an_older_version_charged_is_charged(old: str) -> None:
    """The limit of 20 draws binds what follows, whether summaries are kept already or not."""
    _, ledger = migrate_ledger(old, leave_drawn=True)
    spent = sum((counted(state).loss_at(Reference.of({})) for state in ledger.states() if state.counts), Fraction(0))
    room = int(20 - spent / UNIT)
    for number in range(room):
        ledger.reserve(limited(f"new {number}"))
        ledger.draw(f"new {number}", "sha256:pin")
    with pytest.raises(BudgetRefused, match="refused by the budget"):
        ledger.reserve(limited("one more"))
    ledger.verify()


def test_an_older_version_is_what_it_says(old: str, version: int) -> None:
    """The twin of the first test: what later versions add was not there."""
    ledger = Ledger(database_at(old, 1, make=False))
    number = LEFT[version][0]
    if version == 1:
        append(ledger, beside_the_last(ledger))
        assert len(entries(ledger)) == number + 1
    with closing(raw(ledger)) as connection, pytest.raises(Exception, match="summaries"):
        connection.execute("SELECT * FROM summaries")


def test_a_newer_schema_is_left_alone(address: str) -> None:
    ledger = create_ledger(address)
    with closing(raw(ledger)) as connection:
        connection.execute(f"UPDATE meta SET schema_version = {SCHEMA_VERSION + 1}")
        for use in (create_ledger, migrate_ledger):
            with pytest.raises(StateError, match="use the prdp that made it"):
                use(address)
        found = connection.execute("SELECT schema_version FROM meta").fetchall()
        assert found == [(SCHEMA_VERSION + 1,)]


def test_a_migration_that_fails_changes_nothing(old: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    last = {name: (*steps, "SELECT nothing FROM nowhere") for name, steps in database.MIGRATIONS[2].items()}
    monkeypatch.setattr(database, "MIGRATIONS", {**database.MIGRATIONS, 2: last})
    with pytest.raises(StateError):
        migrate_ledger(old)
    monkeypatch.undo()
    with pytest.raises(StateError, match=f"version {version}"):
        create_ledger(old)
    test_an_older_version_is_what_it_says(old, version)


def test_a_changed_chain_is_not_migrated(old: str, version: int) -> None:
    ledger = Ledger(database_at(old, 1, make=False))
    append(ledger, next_entry(*ledger.head(), Act("settled", "d", "reserved", "0" * 16, {})))
    with pytest.raises(StateError, match="its own rules at entry"):
        migrate_ledger(old)
    with pytest.raises(StateError, match=f"version {version}"):
        create_ledger(old)
