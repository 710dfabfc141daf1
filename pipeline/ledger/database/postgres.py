"""The ledger in a PostgreSQL database: its transactions and its locks."""

import hashlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import platformdirs
import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from pipeline.base.errors import PrdpError, StateError
from pipeline.ledger.database import (
    SCHEMA,
    WRITERS,
    Connection,
    Database,
    Fill,
    create,
    kept_from_children,
    server,
    under_way,
)

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # the first message of PostgreSQL's protocol, section SSLRequest
_AGAIN = 0.2  # seconds, until a server that is away is tried again

# A writer that stands still inside a step, a matter of milliseconds, is ended by the server, so that others go on.
_STANDSTILL = "60s"
_WRITING = """SELECT pg_catalog.set_config('lock_timeout', ?, true), pg_catalog.set_config('synchronous_commit', 'on',
true), pg_catalog.set_config('idle_in_transaction_session_timeout', ?, true)"""

# A session that keeps a lock idles for as long as a release takes. A dead machine is noticed after two minutes; a
# paused process is not dead: its machine answers for it.
_KEEPING = {"tcp_keepalives_idle": "60", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "6"}
_KEEPING |= {"idle_session_timeout": "0"}
_CONNECT: dict[str, object] = {"application_name": "prdp", "client_encoding": "utf8", "prepare_threshold": None}
_CONNECT |= {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 6, "tcp_user_timeout": 120_000}

_HOLDS = """SELECT pg_catalog.count(*) = 1 FROM pg_catalog.pg_locks
JOIN pg_catalog.pg_stat_activity AS activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = ? AND backend_start = ?
AND ((classid::bigint << 32) | objid::bigint) = ? AND activity.datname = pg_catalog.current_database()"""


# The last event of a release of which nothing is drawn that could still be published.
_UNDRAWN = (None, "reserved", "tested", "charged", "destroyed", "refused", "aborted")


@dataclass
class _Held:
    """A lock that a session of the server keeps: the key, and which session, by its process and its beginning.

    `last`: the number and event of the release's last entry when this process last read it under the lock. `sessions`
    ends with the lock.
    """

    release: str
    key: int
    sessions: ExitStack
    pid: int = 0
    since: datetime | None = None
    last: tuple[int, str | None] = (0, None)

    @property
    def undrawn(self) -> bool:
        """Whether nothing is drawn that could still be published."""
        return self.last[1] in _UNDRAWN


class PostgresDatabase(Database):
    """The ledger in the schema `prdp` of one database.

    Writers follow one another by an advisory lock of their transactions, which the trigger that appends takes as
    well: no user of the database, whatever it runs, adds an entry between what a step reads and what it appends.
    """

    def __init__(self, address: server.Address, wait: float) -> None:
        self.name = server.shown(address)
        self._address = address
        self._wait = f"{max(1, round(wait * 1000))}ms"
        self._patience = wait
        self._held: list[_Held] = []
        self._opened = False  # whether the ledger was read: until then a server that is away, or full, is waited for
        self._server, self._role = "", ""  # host, port and database that were reached, and as whom

    @property
    def path(self) -> None:
        return None

    @property
    def role(self) -> str:
        return self._role  # the session's user: what SET ROLE, or a function of another's, does not change

    @property
    def staging_root(self) -> Path:
        state = platformdirs.user_state_path("prdp", appauthor=False)
        return state / "staging" / hashlib.sha256(self._server.encode()).hexdigest()[:16]

    def connection_files(self) -> Mapping[str, Path]:
        return server.connection_files(self._address)

    def served_certificate(self) -> bytes | None:
        """The certificate, in DER, by which the server shows who it is; None where the connection is not encrypted."""
        with server.plain_errors(self.name), self._transaction() as connection:
            info, encrypted = connection.driver.info, connection.driver.pgconn.ssl_in_use
            reached = info.hostaddr or info.host, info.port
        try:
            return _shown_certificate(reached) if encrypted else None
        except OSError:
            raise PrdpError(f"the ledger {self.name} {server.LOST}") from None

    def open(self, make: bool, fill: Fill = bool) -> None:
        """Check the server; where its database has no ledger, `make` it, or raise StateError."""
        with server.plain_errors(self.name), self._transaction() as connection:
            self._inspect(connection)
            present = _present(connection)
        if not present and not make:
            raise StateError(
                f"the database of {self.name} holds no prdp ledger: correct the address; the database's owner "
                "makes a site's first one with prdp ledger create"
            )
        if not present:
            self._make(fill)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with server.plain_errors(self.name), self._transaction(reads=True) as connection:
            self._opened = True
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with server.plain_errors(self.name), self._transaction() as connection:
            # READ COMMITTED: what is read after the wait is what the one before committed. A commit returns when it
            # is durable, whatever the server's default.
            connection.execute(_WRITING, self._wait, _STANDSTILL)
            connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(?::bigint)", WRITERS)
            for held in tuple(self._held):
                if not _is_held(connection, held):
                    self._take_again(connection, held)
            yield connection
            for held in tuple(self._held):
                held.last = _last(connection, held.release)

    @contextmanager
    def lock(self, release: str) -> Iterator[None]:
        key = int.from_bytes(hashlib.sha256(f"prdp release {release}".encode()).digest()[:8], signed=True)
        with ExitStack() as sessions:
            held = _Held(release, key, sessions)
            self._take(held)
            with self.reading() as connection:
                held.last = _last(connection, release)
            self._held.append(held)
            try:
                yield
            finally:
                self._held.remove(held)

    def _take(self, held: _Held) -> None:
        with server.plain_errors(self.name):
            driver = self._connect(autocommit=True)
        held.sessions.enter_context(kept_from_children(driver.pgconn.socket, partial(_let_go, driver, held.key)))
        with server.plain_errors(self.name):
            held.pid, held.since = _acquire(Connection(driver, "postgresql"), held.release, held.key)

    def _take_again(self, connection: Connection, held: _Held) -> None:
        """Take a lock that was lost again where nobody used it: nothing is drawn, and no entry followed ours.

        Whoever had it meanwhile is gone. What it removed from staging is missed by whoever reads it, and nothing else
        of a run before its draw is in another one's hands.
        """
        if not held.undrawn or _last(connection, held.release) != held.last:
            raise StateError(
                f"release {held.release}: the connection that kept its lock was lost, so another attempt may be under "
                "way: nothing was written; run again"
            )
        self._take(held)

    def _connect(self, **options: bool) -> psycopg.Connection[Any]:
        settings: dict[str, Any] = {**self._address, **_CONNECT, **options}
        return psycopg.connect(**settings)

    @contextmanager
    def _transaction(self, *, reads: bool = False) -> Iterator[Connection]:
        """Begin a transaction, on a connection that no other shares, nor a fork inherits.

        Where it `reads`, it sees one state throughout, and else each time what was committed. An opening and a run
        before its draw wait for a server as long as for other writers.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                driver = self._connect()
                break
            except psycopg.OperationalError as error:
                waits = not self._opened and server.passing(error)
                if self._held:
                    waits = all(held.undrawn for held in self._held)
                if not waits or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN)
        driver.isolation_level = IsolationLevel.REPEATABLE_READ if reads else IsolationLevel.READ_COMMITTED
        driver.read_only = reads or None
        with closing(driver):  # where the block raises, the server takes back what it did
            yield Connection(driver, "postgresql")
            if driver.info.transaction_status == TransactionStatus.INERROR:  # its COMMIT would say nothing
                raise psycopg.errors.InFailedSqlTransaction
            driver.commit()

    def _inspect(self, connection: Connection) -> None:
        info = connection.driver.info
        if connection.value("SELECT pg_catalog.current_setting('fsync')") != "on":
            raise StateError(f"the ledger {self.name} could lose what it committed: turn the server's fsync on")
        self._role = connection.value("SELECT session_user::text")
        self._server = f"{info.host}:{info.port}/{info.dbname}"

    def _make(self, fill: Fill) -> None:
        with self.writing() as connection:
            if _present(connection):
                return  # another process was first
            may = "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"
            if not connection.value(may):
                raise StateError(
                    f"the database of {self.name} holds no prdp ledger, and this user may not make one: check the "
                    "address, or let the database's owner make it"
                )
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            create(connection, fill)


def open_server(url: str, wait: float, make: bool, fill: Fill = bool) -> PostgresDatabase:
    """Return the ledger in the database at `url`; with `make`, made and filled where absent; raises as others."""
    database = PostgresDatabase(server.server_url(url), wait)
    database.open(make, fill)
    return database


def _shown_certificate(reached: tuple[str, int]) -> bytes | None:
    """Return what a server shows in a handshake of TLS that nothing follows; whether it is right, libpq checks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(reached, server.CONNECT_SECONDS) as plain:
        plain.sendall(_SSL_REQUEST)
        if plain.recv(1) != b"S":
            return None
        with context.wrap_socket(plain) as inside:
            return inside.getpeercert(binary_form=True)


def _present(connection: Connection) -> bool:
    return connection.value(f"SELECT pg_catalog.to_regclass('{SCHEMA}.entries')") is not None


def _acquire(connection: Connection, release: str, key: int) -> tuple[int, datetime]:
    for name, value in _KEEPING.items():
        connection.execute("SELECT pg_catalog.set_config(?, ?, false)", name, value)
    if not connection.value("SELECT pg_catalog.pg_try_advisory_lock(?::bigint)", key):
        raise under_way(release)
    session = "SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
    ((pid, since),) = connection.execute(session)
    return pid, since


def _let_go(driver: psycopg.Connection[Any], key: int) -> None:
    """Give the lock back and close: a server may notice the end of a session after the next run asked for the lock.

    An answer is waited for as long as for a connection: over a dead link none ever comes.
    """
    with suppress(psycopg.OperationalError):  # a session that was lost holds nothing
        driver.pgconn.send_query(f"SELECT pg_catalog.pg_advisory_unlock({key})".encode())
        wait([driver.pgconn.socket], server.CONNECT_SECONDS)
    driver.close()


def _is_held(connection: Connection, held: _Held) -> bool:
    return bool(connection.value(_HOLDS, held.pid, held.since, held.key))


def _last(connection: Connection, release: str) -> tuple[int, str | None]:
    of_release = f"SELECT seq, event FROM {SCHEMA}.entries WHERE release = ? ORDER BY seq DESC LIMIT 1"
    seq, event = connection.row(of_release, release) or (0, None)
    return seq, event
