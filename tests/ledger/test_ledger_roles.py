"""The roles of conf/ledger/roles.sql on a real server: who may append, decide and read, and nobody more."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.entries import Act, next_entry
from pipeline.ledger.fold import _EVENTS
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger
from tests.support.ledgers import append, reservation
from tests.support.postgres import PostgresServer

ROLES = Path(__file__).parents[2] / "conf" / "ledger" / "roles.sql"
DECISIONS = {"approved", "budgeted", "rejected", "required", "revoked", "withdrawn"}
DRAWS = {"reserved", "charged", "drawn", "tested", "refused"}
USERS = ("owner", "release", "officer", "reader", "nobody")
DENIED = "does not let this user do that"


@pytest.fixture
def database(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a ledger and its roles, and a user for each and one with none."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    name = postgres.database()
    create_ledger(postgres.url(name))
    for _ in range(2):
        postgres.execute(name, ROLES.read_text())
    for user in USERS:
        has = f"IN ROLE prdp_{user}" if user != "nobody" else ""
        postgres.execute(name, f"DROP ROLE IF EXISTS a_{user}", f"CREATE ROLE a_{user} LOGIN {has}")
    return name


def ledger_of(postgres: PostgresServer, database: str, user: str) -> Ledger:
    return create_ledger(postgres.url(database, f"a_{user}"))


@contextmanager
def refused(words: str = DENIED) -> Iterator[None]:
    with pytest.raises(StateError, match=words) as told:
        yield
    assert "\n" not in str(told.value)
    assert "SELECT" not in str(told.value)


def test_releases_release(postgres: PostgresServer, database: str) -> None:
    ledger = ledger_of(postgres, database, "release")
    with ledger.lock("r"):
        ledger.reserve(reservation("r"))
        attempt = ledger.draw("r", "sha256:pin")
        ledger.publish("r", attempt, "sha256:contents")
        ledger.settle("r", attempt)
    reader = ledger_of(postgres, database, "reader")
    assert reader.verify()[0] == ledger.verify()[0] == 4
    assert reader.states() == ledger.states()


def test_readers_only_read_and_others_do_not_even(postgres: PostgresServer, database: str) -> None:
    ledger_of(postgres, database, "release").reserve(reservation("r"))
    reader = ledger_of(postgres, database, "reader")
    for step in (lambda: reader.draw("r", "sha256:pin"), lambda: reader.abort("r")):
        with refused():
            step()
    with refused():
        ledger_of(postgres, database, "nobody")
    assert reader.verify()[0] == 1


@pytest.mark.parametrize(("user", "refuses"), [("release", DECISIONS), ("officer", DRAWS)])
def test_the_database_refuses_each_role_what_is_another_ones(
    postgres: PostgresServer, database: str, user: str, refuses: set[str]
) -> None:
    """Also where the statement does not come from prdp."""
    ledger = ledger_of(postgres, database, user)
    for number, event in enumerate(sorted(DECISIONS | DRAWS | set(_EVENTS) | {"diagnosed"})):
        act = Act(event, "d", f"{user} {number}", None, {"role": f"a_{user}"})
        if event in refuses:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                append(ledger, next_entry(*ledger.head(), act))
        else:
            append(ledger, next_entry(*ledger.head(), act))


CHANGES = (
    "UPDATE prdp.entries SET dataset = 'other'",
    "DELETE FROM prdp.entries",
    "TRUNCATE prdp.entries",
    "UPDATE prdp.meta SET schema_version = 1",
    "UPDATE prdp.summaries SET content = ''",
    "ALTER TABLE prdp.entries DISABLE TRIGGER ALL",
    "DROP POLICY releases_decide_nothing ON prdp.entries",
    "SET session_replication_role = replica",
    "CREATE TABLE prdp.other (a int)",
    "SET ROLE prdp_owner",
)


@pytest.mark.parametrize("user", ["release", "officer", "reader"])
def test_no_role_changes_history_or_rules(postgres: PostgresServer, database: str, user: str) -> None:
    ledger_of(postgres, database, "release").reserve(reservation("r"))
    for statement in CHANGES:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue)):
            postgres.execute(database, statement, user=f"a_{user}")


def test_the_owner_migrates_and_others_do_not(postgres: PostgresServer, database: str) -> None:
    steps = ("DROP TABLE prdp.summaries", "DROP INDEX prdp.entries_by_event", "UPDATE prdp.meta SET schema_version = 1")
    postgres.execute(database, *steps)
    for user in ("release", "officer", "reader"):
        with refused():
            migrate_ledger(postgres.url(database, f"a_{user}"))
    before, ledger = migrate_ledger(postgres.url(database, "a_owner"))
    assert before == 1
    ledger.verify()
    ledger_of(postgres, database, "release").reserve(reservation("r"))
    assert ledger_of(postgres, database, "reader").verify()[0] == 1


def test_who_may_not_make_a_ledger_is_told(postgres: PostgresServer, database: str) -> None:
    empty = postgres.database()
    with refused("holds no prdp ledger, and this user may not make one"):
        create_ledger(postgres.url(empty, "a_release"))


OWNER_AND_ACCESS = """SELECT datdba::regrole::text, ARRAY(SELECT item::text FROM unnest(datacl) AS item ORDER BY 1)
FROM pg_database WHERE datname = '{}'"""


def test_a_restored_ledger_belongs_to_whom_it_did_and_lets_in_whom_it_did(postgres: PostgresServer) -> None:
    """By the words of docs/operations.md."""
    name, keeper = postgres.database(), f"keeper_{secrets.token_hex(4)}"
    postgres.execute(
        "postgres",
        f"CREATE ROLE {keeper} LOGIN",
        f"ALTER DATABASE {name} OWNER TO {keeper}",
        f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC",
    )
    ledger = create_ledger(postgres.url(name))
    ledger.reserve(reservation("r"))

    def facts() -> tuple[object, ...]:
        with psycopg.connect(postgres.conninfo()) as session:
            return session.execute(OWNER_AND_ACCESS.format(name)).fetchone() or ()

    before, head = facts(), ledger.head()
    assert before[0] == keeper
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    dump, restore = (re.search(rf"^{program} (.*?)  +#", text, re.MULTILINE) for program in ("pg_dump", "pg_restore"))
    assert dump
    assert restore
    file, servers = str(postgres.folder / "ledger.dump"), (postgres.conninfo(), postgres.conninfo(name))
    places = {"ledger.dump": file, "postgres": servers[0], "ledger": servers[1]}
    for program, line in (("pg_dump", dump[1]), ("pg_restore", restore[1])):
        postgres._run(program, *(places.get(word, word) for word in line.split()))
        if program == "pg_dump":
            postgres.execute("postgres", f"DROP DATABASE {name}")
    assert facts() == before
    assert create_ledger(postgres.url(name)).verify() == head
