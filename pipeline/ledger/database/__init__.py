"""The ledger's database: its tables, what the database itself enforces on them, and what the ledger needs of it.

Entries are appended at the end, each linked to the one before it, and never changed or removed, whatever the code above
does. On PostgreSQL whoever appends waits for the writer before it; who may append what is for conf/ledger/roles.sql.
"""

import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from pipeline.base.errors import StateError, file_errors

SCHEMA_VERSION = 4  # MIGRATIONS says what changed
BUSY = "is locked by another process for too long: try again later"
REFUSED = "refused an entry that would change or fork its history: nothing was written"

SCHEMA = "prdp"  # where a PostgreSQL database holds the ledger
WRITERS = 0x70726470_6C656467  # the advisory lock of writers: "prdpledg"

_SUMMARIES = "(dataset TEXT NOT NULL PRIMARY KEY, content TEXT NOT NULL)"
_BY_EVENT = f"CREATE INDEX entries_by_event ON {SCHEMA}.entries (event, seq)"

# `previous` has one entry after it: the chain has no branches. `summaries` is what summaries.py keeps of each dataset:
# no guard is on it, for only what the chain vouches for is used. Whatever the code above it does, the database holds
# one publication of a release at most.
TABLES = (
    f"""CREATE TABLE {SCHEMA}.meta (
    one INTEGER NOT NULL PRIMARY KEY, schema_version INTEGER NOT NULL, CONSTRAINT one_row CHECK (one = 1)
)""",
    f"""CREATE TABLE {SCHEMA}.entries (
    seq {{seq}} NOT NULL PRIMARY KEY, time TEXT NOT NULL, event TEXT NOT NULL, dataset TEXT NOT NULL,
    release TEXT NOT NULL, attempt TEXT, payload TEXT NOT NULL, salt TEXT NOT NULL,
    previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE
)""",
    f"CREATE INDEX entries_by_release ON {SCHEMA}.entries (release)",
    f"CREATE INDEX entries_by_dataset ON {SCHEMA}.entries (dataset)",
    _BY_EVENT,
    f"CREATE UNIQUE INDEX one_publication ON {SCHEMA}.entries (release) WHERE event = 'published'",
    f"CREATE TABLE {SCHEMA}.summaries {_SUMMARIES}",
)
# SQLite makes only a column of type INTEGER the row's own number.
_SEQ = {"sqlite": "INTEGER", "postgresql": "BIGINT"}

# The third trigger also stops INSERT OR REPLACE, which removes a row without firing a DELETE trigger.
_SQLITE_APPENDED = """CREATE TRIGGER entries_appended BEFORE INSERT ON entries
WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries)
OR NEW.previous IS NOT coalesce((SELECT hash FROM entries ORDER BY seq DESC LIMIT 1), printf('%064d', 0))
BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END"""

_SQLITE = (
    """CREATE TRIGGER entries_not_updated BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END""",
    """CREATE TRIGGER entries_not_deleted BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END""",
    _SQLITE_APPENDED,
)

_FUNCTION = "LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp"

_POSTGRES_APPENDED = f"""CREATE OR REPLACE FUNCTION {SCHEMA}.entries_appended() RETURNS trigger {_FUNCTION} AS $$
DECLARE
    last record;
    facts json := NEW.payload::json;
    owner oid := (SELECT relowner FROM pg_class WHERE oid = TG_RELID);
BEGIN
    PERFORM pg_advisory_xact_lock({WRITERS});
    SELECT seq, hash INTO last FROM {SCHEMA}.entries ORDER BY seq DESC LIMIT 1;
    IF NEW.seq IS DISTINCT FROM coalesce(last.seq, 0) + 1
        OR NEW.previous IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
        RAISE EXCEPTION 'entries are appended in order' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (facts -> 'role')::jsonb IS DISTINCT FROM to_jsonb(session_user::text)
        AND NOT pg_has_role(session_user, owner, 'MEMBER') THEN
        RAISE EXCEPTION 'an entry names the role that appends it' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.event = 'reserved' AND (facts -> 'approvals')::jsonb IS DISTINCT FROM (
        SELECT (payload::json -> 'approvals')::jsonb FROM {SCHEMA}.entries
        WHERE event = 'required' ORDER BY seq DESC LIMIT 1) THEN
        RAISE EXCEPTION 'a release takes the approvals asked for' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$"""

# ALWAYS: a session in the role of a replica fires them too.
_POSTGRES = (
    f"""CREATE FUNCTION {SCHEMA}.entries_kept() RETURNS trigger {_FUNCTION} AS $$
BEGIN
    RAISE EXCEPTION 'entries are never changed or removed' USING ERRCODE = 'integrity_constraint_violation';
END $$""",
    _POSTGRES_APPENDED,
    f"""CREATE TRIGGER entries_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {SCHEMA}.entries
FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.entries_kept()""",
    f"""CREATE TRIGGER entries_appended BEFORE INSERT ON {SCHEMA}.entries
FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.entries_appended()""",
    f"ALTER TABLE {SCHEMA}.entries ENABLE ALWAYS TRIGGER entries_kept",
    f"ALTER TABLE {SCHEMA}.entries ENABLE ALWAYS TRIGGER entries_appended",
)

GUARDS: Mapping[str, Sequence[str]] = {"sqlite": _SQLITE, "postgresql": _POSTGRES}

# From each version to the next, by dialect. Entries are never touched: their hashes outlive every schema.
# 1 → 2: an entry is linked to the last one, by the database too.
# 2 → 3: summaries of datasets are kept; on PostgreSQL for the owner and the roles that use the entries.
# 3 → 4: PostgreSQL refuses an entry that names another role than the session's, and releases approve nothing.
MIGRATIONS: Mapping[int, Mapping[str, Sequence[str]]] = {
    1: {"sqlite": ("DROP TRIGGER entries_appended", _SQLITE_APPENDED), "postgresql": (_POSTGRES_APPENDED,)},
    2: {
        "sqlite": (TABLES[-1], _BY_EVENT),
        "postgresql": (
            TABLES[-1],
            _BY_EVENT,
            f"""DO $$
DECLARE
    name text;
BEGIN
    SELECT tableowner INTO name FROM pg_catalog.pg_tables WHERE schemaname = '{SCHEMA}' AND tablename = 'entries';
    EXECUTE 'ALTER TABLE {SCHEMA}.summaries OWNER TO ' || quote_ident(name);
    FOR name IN SELECT rolname FROM pg_catalog.pg_roles
        WHERE rolname IN ('prdp_release', 'prdp_officer', 'prdp_reader') LOOP
        EXECUTE 'GRANT SELECT ON {SCHEMA}.summaries TO ' || quote_ident(name);
        IF name = 'prdp_release' THEN
            EXECUTE 'GRANT INSERT, DELETE ON {SCHEMA}.summaries TO prdp_release';
        END IF;
    END LOOP;
END $$""",
        ),
    },
    3: {
        "sqlite": (),
        "postgresql": (
            _POSTGRES_APPENDED,
            f"""DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_policies
        WHERE schemaname = '{SCHEMA}' AND policyname = 'releases_decide_nothing') THEN
        ALTER POLICY releases_decide_nothing ON {SCHEMA}.entries WITH CHECK (event NOT IN
            ('approved', 'budgeted', 'closed', 'rejected', 'reopened', 'required', 'revoked', 'withdrawn'));
    END IF;
END $$""",
        ),
    },
}


def among(values: Collection[object]) -> str:
    """Return the text of a list of so many values in a statement: (?, ?, ?)."""
    return f"({', '.join('?' * len(values))})"


class Connection:
    """One transaction of a ledger's database, through its driver: sqlite3's or psycopg's.

    A statement is text of this package: its tables are named in their schema (`prdp.entries`; a file has no other), and
    a question mark stands for each value, which never becomes a part of the text.
    """

    def __init__(self, driver: Any, dialect: str) -> None:
        self.driver = driver
        self.dialect = dialect
        self._cursors = WeakSet[Any]()

    def execute(self, statement: str, *values: object) -> Iterable[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        if self.dialect == "sqlite":
            cursor = self.driver.execute(statement.replace(f"{SCHEMA}.", ""), values)
        else:
            cursor = self.driver.execute(statement.replace("?", "%s"), values or None)
        self._cursors.add(cursor)
        return cast("Iterable[tuple[Any, ...]]", cursor)

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row; None where there is none."""
        return next(iter(self.execute(statement, *values)), None)

    def value(self, statement: str, *values: object) -> Any:
        """Return the first column of the first row; None where there is none."""
        return (self.row(statement, *values) or (None,))[0]

    def close(self) -> None:
        """Let go of what was read half: in a file it would keep others from writing for as long as anybody has it."""
        for cursor in tuple(self._cursors):
            cursor.close()


class Database(ABC):
    """One ledger's database: transactions to read in, transactions that write one at a time, and locks.

    `name` is what messages call it, and holds no password. Everything below raises StateError, of one line, where the
    database cannot be used: never with a statement's text, its parameters or a password.
    """

    name: str

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The file that holds the ledger; None for a server."""

    @property
    def role(self) -> str | None:
        """As whom the server knows this session, whatever its user says; None for a file, which knows nobody."""
        return None

    @property
    @abstractmethod
    def staging_root(self) -> Path:
        """The folder of this machine under which attempts are staged unless a run names another."""

    def connection_files(self) -> Mapping[str, Path]:
        """The files that a connection reads, by the names of its settings: certificates, key, password file."""
        return {}

    def served_certificate(self) -> bytes | None:
        """The certificate, in DER, that the ledger's server shows; None where there is no server, or it shows none."""
        return None

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that reads one state of the ledger throughout, and ends with the block."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Connection]:
        """Begin a transaction that no other writer enters from its first statement on; it commits at the block's end.

        What it reads holds until it commits; where the block raises, nothing was written.
        """

    @abstractmethod
    def lock(self, release: str) -> AbstractContextManager[None]:
        """Hold the lock on `release` for a block, alone among processes and threads; it dies with its process.

        It never waits: raises StateError at once where another holds it.
        """

    def is_current(self) -> bool:
        """Return whether the ledger has the schema that this prdp reads and writes.

        An older version that nothing of this kind of database differs from is as good as the present one.
        """
        with self.reading() as connection:
            same = _version(connection)
            while same in MIGRATIONS and not MIGRATIONS[same][connection.dialect]:
                same += 1
        return same == SCHEMA_VERSION

    def require_version(self) -> None:
        """Raise StateError unless the ledger's schema is current."""
        if not self.is_current():
            with self.reading() as connection:
                version = _version(connection)
            known = f"the ledger {self.name} has schema version {version}, and this prdp knows {SCHEMA_VERSION}"
            older = version in MIGRATIONS
            raise StateError(f"{known}: {'run prdp ledger admin migrate' if older else 'use the prdp that made it'}")

    def migrate(self) -> int:
        """Bring the schema to this prdp's version in one transaction; return the version it had.

        No entry is touched. A version that this prdp cannot bring forward, such as a newer one, is left as it is.
        """
        with self.writing() as connection:
            before = version = _version(connection)
            while version in MIGRATIONS:
                for statement in MIGRATIONS[version][connection.dialect]:
                    connection.execute(statement)
                version += 1
            connection.execute(f"UPDATE {SCHEMA}.meta SET schema_version = ?", version)
        return before


Fill = Callable[[Connection], object]  # what a new ledger begins with


def create(connection: Connection, fill: Fill) -> None:
    """Make a ledger: its tables, what the database enforces on them, and what it begins with."""
    for statement in (*TABLES, *GUARDS[connection.dialect]):
        connection.execute(statement.replace("{seq}", _SEQ[connection.dialect]))
    connection.execute(f"INSERT INTO {SCHEMA}.meta VALUES (1, ?)", SCHEMA_VERSION)
    fill(connection)


def under_way(release: str) -> StateError:
    """Return the error where another process or thread holds the lock on a release."""
    return StateError(f"another attempt at release {release} is under way: wait until it ends")


def _version(connection: Connection) -> int:
    return connection.value(f"SELECT schema_version FROM {SCHEMA}.meta") or 0


# Descriptors that keep a lock of this process, which dies with it, so that a crash leaves nothing to repair by hand. A
# lock belongs to the open file or connection, which fork shares: a forked child closes its copies, or it would keep
# the lock after its parent has died. (exec closes them: they are close-on-exec.)
_lock_descriptors: set[int] = set()


def _close_in_child() -> None:
    while _lock_descriptors:
        os.close(_lock_descriptors.pop())


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def kept_from_children(descriptor: int, close: Callable[[], object]) -> Iterator[None]:
    """Let no process that is forked in the block inherit `descriptor`, which keeps a lock; `close` it at the end.

    In a forked child, where it is closed already, nothing is closed.
    """
    _lock_descriptors.add(descriptor)
    try:
        yield
    finally:
        own = descriptor in _lock_descriptors
        _lock_descriptors.discard(descriptor)
        if own:
            close()


@contextmanager
def release_lock(folder: Path, release: str) -> Iterator[None]:
    """Hold the lock on `release` in `folder` for the length of the block, alone among processes and threads.

    It never waits: raises StateError at once where another process or thread holds it. The file is removed at the end,
    while it is locked; one that was removed after it was opened here is no lock, and the next one is taken.
    """
    path = folder / f"{hashlib.sha256(release.encode()).hexdigest()}.lock"
    with ExitStack() as held:
        locked = False
        while not locked:
            held.close()
            with file_errors(f"the lock file {path} cannot be opened: "):
                folder.mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            held.enter_context(kept_from_children(descriptor, partial(os.close, descriptor)))
            with file_errors(f"the lock file {path} cannot be locked: "):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise under_way(release) from None
            locked = _names(path, descriptor)
        try:
            yield
        finally:
            # In a forked child, which does not hold the lock, the descriptor is closed. A folder that was made
            # read-only keeps the file: it is a lock as before.
            if descriptor in _lock_descriptors and _names(path, descriptor):
                with suppress(OSError):
                    path.unlink()


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False
