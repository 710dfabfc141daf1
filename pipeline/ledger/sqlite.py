"""The ledger in one SQLite file: where it lies, how it is made, opened and protected, and its errors in plain words."""

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, exc, insert, inspect, select
from sqlalchemy.pool import NullPool

from pipeline.durable import sync_folder
from pipeline.errors import StateError
from pipeline.ledger.schema import META, METADATA, SCHEMA_VERSION

# Entries are appended at the end and never changed. The third trigger also stops INSERT OR REPLACE, which removes
# a row without firing a DELETE trigger.
_TRIGGERS = (
    """CREATE TRIGGER entries_not_updated BEFORE UPDATE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END""",
    """CREATE TRIGGER entries_not_deleted BEFORE DELETE ON entries
       BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END""",
    """CREATE TRIGGER entries_appended BEFORE INSERT ON entries
       WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entries)
       BEGIN SELECT RAISE(ABORT, 'entries are appended in order'); END""",
)

_PLAIN = {
    sqlite3.SQLITE_BUSY: "is locked by another process for too long: try again later",
    sqlite3.SQLITE_LOCKED: "is locked by another process for too long: try again later",
    sqlite3.SQLITE_READONLY: "is read-only: make the file and its folder writable for you alone",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check the file's and its folder's permissions",
    sqlite3.SQLITE_PERM: "cannot be opened: check the file's and its folder's permissions",
    sqlite3.SQLITE_FULL: "cannot be written, the disk is full: make room and try again",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk is full or faulty: check it and try again",
    sqlite3.SQLITE_NOTADB: "is no SQLite database: check the path, or restore the file from a backup",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore the file from a backup",
    sqlite3.SQLITE_CONSTRAINT: "refused an entry that would change or fork its history: nothing was written",
}


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn the database's errors inside the block into a StateError of one plain line about the ledger at `path`."""
    try:
        yield
    except (sqlite3.Error, exc.DBAPIError) as error:
        original = error.orig if isinstance(error, exc.DBAPIError) else error
        code = getattr(original, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        told = _PLAIN.get(code, f"cannot be used: {original}")
        raise StateError(f"the ledger {path} {told}") from None


def open_file(path: Path, wait: float) -> Engine:
    """Return an engine on the ledger file at `path`, made with mode 0600 in a folder of mode 0700 where absent.

    A transaction begun with the execution option `begin="IMMEDIATE"` is alone from its first statement on, so what
    it reads holds until it commits; it waits up to `wait` seconds for its turn. Raises StateError where group or
    others can write the file or its folder, and where the file is no ledger, or one of another version.
    """
    with plain_errors(path):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_shared(path.parent)
            if not path.exists():
                _make(path, wait)
            _refuse_shared(path)
        except OSError as error:
            raise StateError(f"the ledger {path} cannot be opened: {error.strerror}") from None
        engine = _engine(path, wait)
        with engine.connect() as connection:
            _require_schema(connection, path)
    return engine


def _refuse_shared(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateError(f"{path} can be written by others, who could rewrite the ledger: run chmod go-w on it")


def _make(path: Path, wait: float) -> None:
    # Made aside and linked in whole: an empty or half-made file at `path` is never taken for a new ledger.
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    os.close(handle)
    try:
        engine = _engine(Path(name), wait)
        with engine.execution_options(begin="IMMEDIATE").begin() as connection:
            METADATA.create_all(connection)
            for trigger in _TRIGGERS:
                connection.exec_driver_sql(trigger)
            connection.execute(insert(META).values(one=1, schema_version=SCHEMA_VERSION))
        try:
            os.link(name, path)
        except FileExistsError:
            return  # another process was first
    finally:
        os.unlink(name)
        sync_folder(path.parent)


def _engine(path: Path, wait: float) -> Engine:
    def connect() -> sqlite3.Connection:
        # mode=rw never makes a file; isolation_level=None leaves BEGIN to the listener below.
        address = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None)
        # One file that can be copied and backed up alone, and few writes: the rollback journal, not WAL. With it
        # only EXTRA also makes the journal's removal durable; after FULL a power cut could undo a commit.
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    # A connection lives as long as its transaction: nothing to share between threads or to inherit by fork.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")

    return engine


def _require_schema(connection: Connection, path: Path) -> None:
    if not inspect(connection).has_table(META.name):
        raise StateError(f"{path} is no prdp ledger: check the path, or restore the file from a backup")
    version = connection.execute(select(META.c.schema_version)).scalar_one_or_none()
    if version != SCHEMA_VERSION:
        raise StateError(
            f"the ledger {path} has schema version {version}, and this prdp knows {SCHEMA_VERSION}: "
            "use the prdp that made it"
        )
