"""The ledger in a PostgreSQL database: its transactions and its locks."""

import hashlib
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import platformdirs
from sqlalchemy import URL, Connection, create_engine, exc, func, select, text
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema

from pipeline.base.errors import PrdpError, StateError
from pipeline.ledger.database import ENTRIES, SCHEMA, WRITERS, Database, Fill, create, kept_from_children, under_way
from pipeline.ledger.database.server import (
    CONNECT_SECONDS,
    LOST,
    connection_files,
    on_this_machine,
    passing,
    plain_errors,
    server_url,
    shown,
    unverified,
)

_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # the first message of PostgreSQL's protocol, section SSLRequest
_AGAIN = 0.2  # seconds, until a server that is away is tried again

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

    def __init__(self, url: URL, wait: float) -> None:
        self.name = shown(url)
        self._wait = f"{max(1, round(wait * 1000))}ms"
        self._patience = wait
        # A connection lives as long as its transaction: nothing to share between threads or to inherit by fork.
        self._engine = create_engine(
            url, poolclass=NullPool, pool_reset_on_return=None, hide_parameters=True, connect_args=_CONNECT
        ).execution_options(schema_translate_map={None: SCHEMA})
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
        return connection_files(self._engine.url)

    def served_certificate(self) -> bytes | None:
        """The certificate, in DER, by which the server shows who it is; None where the connection is not encrypted."""
        with plain_errors(self.name), self._transaction("READ COMMITTED") as connection:
            driver: Any = connection.connection.dbapi_connection
            server, encrypted = (driver.info.hostaddr or driver.info.host, driver.info.port), driver.pgconn.ssl_in_use
        try:
            return _shown_certificate(server) if encrypted else None
        except OSError:
            raise PrdpError(f"the ledger {self.name} {LOST}") from None

    def open(self, make: bool, fill: Fill = bool) -> None:
        """Check the server; where its database has no ledger, `make` it, or raise StateError."""
        with plain_errors(self.name), self._transaction("READ COMMITTED") as connection:
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
        with plain_errors(self.name), self._transaction("REPEATABLE READ", postgresql_readonly=True) as connection:
            self._opened = True
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with plain_errors(self.name), self._transaction("READ COMMITTED") as connection:
            # READ COMMITTED: what is read after the wait is what the one before committed. A commit returns when it
            # is durable, whatever the server's default.
            self._set(connection, lock_timeout=self._wait, synchronous_commit="on")
            self._set(connection, idle_in_transaction_session_timeout=_STANDSTILL)
            connection.execute(select(func.pg_advisory_xact_lock(WRITERS)))
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
        with plain_errors(self.name):
            connection = self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()
            descriptor = connection.connection.dbapi_connection.pgconn.socket  # type: ignore[union-attr]
        held.sessions.enter_context(kept_from_children(descriptor, partial(_let_go, connection, held.key)))
        with plain_errors(self.name):
            held.pid, held.since = _acquire(connection, held.release, held.key)

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

    @contextmanager
    def _transaction(self, isolation: _Isolation, **options: bool) -> Iterator[Connection]:
        """Begin a transaction; an opening and a run before its draw wait for a server as long as for other writers."""
        engine = self._engine.execution_options(isolation_level=isolation, **options)
        deadline = time.monotonic() + self._patience
        while True:
            try:
                connection = engine.connect()
                break
            except exc.OperationalError as error:
                waits = all(held.undrawn for held in self._held) if self._held else not self._opened and passing(error)
                if not waits or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN)
        with connection, connection.begin():
            yield connection

    def _set(self, connection: Connection, **settings: str) -> None:
        connection.execute(select(*(func.set_config(name, value, True) for name, value in settings.items())))

    def _inspect(self, connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        info = driver.info
        verified = info.get_parameters().get("sslmode") == "verify-full"
        if not (on_this_machine(info.host.split(",")) or verified):  # a service file may name another host
            raise unverified(self.name)
        if connection.execute(select(func.current_setting("fsync"))).scalar_one() != "on":
            raise StateError(f"the ledger {self.name} could lose what it committed: turn the server's fsync on")
        self._role = connection.execute(select(func.session_user())).scalar_one()
        self._server = f"{info.host}:{info.port}/{info.dbname}"

    def _make(self, fill: Fill) -> None:
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
            create(connection, fill)


def open_server(url: str, wait: float, make: bool, fill: Fill = bool) -> PostgresDatabase:
    """Return the ledger in the database at `url`; with `make`, made and filled where absent; raises as others."""
    database = PostgresDatabase(server_url(url), wait)
    database.open(make, fill)
    return database


def _shown_certificate(server: tuple[str, int]) -> bytes | None:
    """Return what a server shows in a handshake of TLS that nothing follows; whether it is right, libpq checks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(server, CONNECT_SECONDS) as plain:
        plain.sendall(_SSL_REQUEST)
        if plain.recv(1) != b"S":
            return None
        with context.wrap_socket(plain) as inside:
            return inside.getpeercert(binary_form=True)


def _present(connection: Connection) -> bool:
    return connection.execute(select(func.to_regclass(f"{SCHEMA}.entries"))).scalar_one() is not None


def _acquire(connection: Connection, release: str, key: int) -> tuple[int, datetime]:
    for name, value in _KEEPING.items():
        connection.execute(select(func.set_config(name, value, False)))
    if not connection.execute(select(func.pg_try_advisory_lock(key))).scalar_one():
        raise under_way(release)
    session = text("SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()")
    pid, since = connection.execute(session).one()
    return pid, since


def _let_go(connection: Connection, key: int) -> None:
    """Give the lock back and close: a server may notice the end of a session after the next run asked for the lock.

    An answer is waited for as long as for a connection: over a dead link none ever comes.
    """
    driver: Any = connection.connection.dbapi_connection
    with suppress(driver.OperationalError):  # a session that was lost holds nothing
        driver.pgconn.send_query(f"SELECT pg_advisory_unlock({key})".encode())
        wait([driver.pgconn.socket], CONNECT_SECONDS)
    connection.invalidate()
    connection.close()


def _is_held(connection: Connection, held: _Held) -> bool:
    return bool(connection.execute(_HOLDS, {"key": held.key, "pid": held.pid, "since": held.since}).scalar_one())


def _last(connection: Connection, release: str) -> tuple[int, str | None]:
    of_release = select(ENTRIES.c.seq, ENTRIES.c.event).where(ENTRIES.c.release == release)
    last = connection.execute(of_release.order_by(ENTRIES.c.seq.desc()).limit(1)).one_or_none()
    return (0, None) if last is None else (last.seq, last.event)
