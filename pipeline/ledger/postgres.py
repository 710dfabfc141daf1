"""The ledger in a PostgreSQL database: how it is opened and made, written by one at a time, and its locks."""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import platformdirs
from sqlalchemy import URL, Connection, create_engine, func, select, text
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from pipeline.errors import StateError
from pipeline.ledger.address import on_this_machine, server_url, shown, unverified
from pipeline.ledger.database import Database, create, under_way
from pipeline.ledger.guards import SCHEMA, WRITERS
from pipeline.ledger.lock import keep, let_go
from pipeline.ledger.postgres_errors import plain_errors

# A writer that stands still inside a step, a matter of milliseconds, is ended by the server, so that others go on.
_STANDSTILL = "60s"

# A session that keeps a lock idles for as long as a release takes. A dead machine is noticed after two minutes; a
# paused process is not dead: its machine answers for it.
_KEEPING = {
    "idle_session_timeout": "0",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "6",
}
_CONNECT = {
    "application_name": "prdp",
    "client_encoding": "utf8",
    "prepare_threshold": None,
    "keepalives_idle": 60,
    "keepalives_interval": 10,
    "keepalives_count": 6,
    "tcp_user_timeout": 120_000,
}

_Isolation = Literal["READ COMMITTED", "REPEATABLE READ"]

_HOLDS = text(
    """SELECT count(*) = 1 FROM pg_locks JOIN pg_stat_activity AS activity USING (pid)
       WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = :pid AND backend_start = :since
       AND ((classid::bigint << 32) | objid::bigint) = :key AND activity.datname = current_database()"""
)


@dataclass(frozen=True)
class _Held:
    """A lock that a session of the server keeps: the key, and which session, by its process and its beginning."""

    release: str
    key: int
    pid: int
    since: datetime


class PostgresDatabase(Database):
    """The ledger in the schema `prdp` of one database.

    Writers follow one another by an advisory lock of their transactions, which the trigger that appends takes as
    well: no user of the database, whatever it runs, adds an entry between what a step reads and what it appends.
    """

    def __init__(self, url: URL, wait: float) -> None:
        self.name = shown(url)
        self._wait = f"{max(1, round(wait * 1000))}ms"
        # A connection lives as long as its transaction: nothing to share between threads or to inherit by fork.
        self._engine = create_engine(
            url,
            poolclass=NullPool,
            pool_reset_on_return=None,
            hide_parameters=True,
            connect_args=_CONNECT,
        ).execution_options(schema_translate_map={None: SCHEMA})
        self._held: list[_Held] = []
        self._place = ""

    @property
    def path(self) -> None:
        """None: no file holds the ledger."""

    @property
    def staging_root(self) -> Path:
        """A folder in the user's state directory, of its own for each server and database."""
        state = platformdirs.user_state_path("prdp", appauthor=False)
        return state / "staging" / hashlib.sha256(self._place.encode()).hexdigest()[:16]

    def open(self) -> None:
        """Check the server, and make the ledger where the database has none."""
        with plain_errors(self.name), self._transaction("READ COMMITTED") as connection:
            self._inspect(connection)
            present = _present(connection)
        if not present:
            self._make()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that reads, on one snapshot."""
        with plain_errors(self.name), self._transaction("REPEATABLE READ", postgresql_readonly=True) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Begin a transaction that is alone; StateError where a lock that was given out is not held any more."""
        with plain_errors(self.name), self._transaction("READ COMMITTED") as connection:
            # READ COMMITTED: what is read after the wait is what the one before committed. A commit is durable
            # before it is told, whatever the server's default.
            self._set(connection, lock_timeout=self._wait, synchronous_commit="on")
            self._set(connection, idle_in_transaction_session_timeout=_STANDSTILL)
            connection.execute(select(func.pg_advisory_xact_lock(WRITERS)))
            for held in tuple(self._held):
                _require_held(connection, held)
            yield connection

    @contextmanager
    def lock(self, release: str) -> Iterator[None]:
        """Hold an advisory lock on `release`, kept by a connection that dies with this process."""
        key = int.from_bytes(hashlib.sha256(f"prdp release {release}".encode()).digest()[:8], signed=True)
        with plain_errors(self.name):
            connection = self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()
            descriptor = connection.connection.dbapi_connection.pgconn.socket  # type: ignore[union-attr]
            keep(descriptor)
        try:
            with plain_errors(self.name):
                held = _acquire(connection, release, key)
            self._held.append(held)
            try:
                yield
            finally:
                self._held.remove(held)
        finally:
            if let_go(descriptor):
                connection.close()

    def _transaction(self, isolation: _Isolation, **options: bool) -> AbstractContextManager[Connection]:
        return self._engine.execution_options(isolation_level=isolation, **options).begin()

    def _set(self, connection: Connection, **settings: str) -> None:
        """Set the server's settings for the transaction."""
        connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))

    def _inspect(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        info = driver.info
        verified = info.get_parameters().get("sslmode") == "verify-full"
        if not (on_this_machine(info.host.split(",")) or verified):  # a service file may name another host
            raise unverified(self.name)
        if connection.execute(select(func.current_setting("fsync"))).scalar_one() != "on":
            raise StateError(f"the ledger {self.name} could lose what it committed: turn the server's fsync on")
        self._place = f"{info.host}:{info.port}/{info.dbname}"

    def _make(self) -> None:
        with self.writing() as connection:
            if _present(connection):
                return  # another process was first
            here = func.current_database()
            if not connection.execute(select(func.has_database_privilege(here, "CREATE"))).scalar_one():
                raise StateError(
                    f"the database of {self.name} holds no prdp ledger, and this user may not make one: check the "
                    "address, or let the database's owner make it"
                )
            connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
            create(connection)


def open_server(url: str, wait: float) -> PostgresDatabase:
    """Return the ledger in the database at `url`, made where it is absent; raises as `open_ledger` does."""
    database = PostgresDatabase(server_url(url), wait)
    database.open()
    return database


def _present(connection: Connection) -> bool:
    return connection.execute(select(func.to_regclass(f"{SCHEMA}.entries"))).scalar_one() is not None


def _acquire(connection: Connection, release: str, key: int) -> _Held:
    for name, value in _KEEPING.items():
        connection.execute(select(func.set_config(name, value, False)))
    if not connection.execute(select(func.pg_try_advisory_lock(key))).scalar_one():
        raise under_way(release)
    session = text("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
    pid, since = connection.execute(session).one()
    return _Held(release, key, pid, since)


def _require_held(connection: Connection, held: _Held) -> None:
    asked = {"key": held.key, "pid": held.pid, "since": held.since}
    if not connection.execute(_HOLDS, asked).scalar_one():
        raise StateError(
            f"release {held.release}: the connection that kept its lock was lost, so another attempt may be under "
            "way: nothing was written; run again"
        )
