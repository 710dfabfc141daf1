"""What the ledger needs of a database: transactions to read in, transactions that are alone, and locks."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from pipeline.errors import StateError
from pipeline.ledger.guards import GUARDS, MIGRATIONS
from pipeline.ledger.schema import META, METADATA, SCHEMA_VERSION


class Database(ABC):
    """One ledger's database, however it is reached; `name` is how messages call it, and holds no password.

    Everything below raises StateError, of one line, where the database cannot be used: never with a statement's text,
    its parameters or a password.
    """

    name: str

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The file that holds the ledger; None for a server."""

    @property
    @abstractmethod
    def staging_root(self) -> Path:
        """The folder of this machine under which attempts are staged unless a run names another place."""

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

    def require_version(self) -> None:
        """Raise StateError unless the ledger has the schema version that this prdp reads and writes."""
        with self.reading() as connection:
            version = _version(connection)
        if version != SCHEMA_VERSION:
            known = f"the ledger {self.name} has schema version {version}, and this prdp knows {SCHEMA_VERSION}"
            older = version in MIGRATIONS
            raise StateError(f"{known}: {'run prdp ledger migrate' if older else 'use the prdp that made it'}")

    def migrate(self) -> int:
        """Bring the schema to this prdp's version in one transaction; return the version it had.

        No entry is touched. A version that this prdp cannot bring forward, such as a newer one, is left as it is.
        """
        with self.writing() as connection:
            before = version = _version(connection)
            while version in MIGRATIONS:
                for statement in MIGRATIONS[version][connection.dialect.name]:
                    connection.exec_driver_sql(statement)
                version += 1
            connection.execute(update(META).values(schema_version=version))
        return before


def create(connection: Connection) -> None:
    """Make an empty ledger: its tables, and what the database enforces on them."""
    METADATA.create_all(connection)
    for statement in GUARDS[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    connection.execute(insert(META).values(one=1, schema_version=SCHEMA_VERSION))


def under_way(release: str) -> StateError:
    """The refusal where another holds the lock on a release."""
    return StateError(f"another attempt at release {release} is under way: wait until it ends")


def _version(connection: Connection) -> int:
    return connection.execute(select(META.c.schema_version)).scalar_one_or_none() or 0
