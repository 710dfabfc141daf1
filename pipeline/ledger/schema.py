"""The tables of the ledger, in the SQL that SQLite and PostgreSQL share."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

SCHEMA_VERSION = 2  # see `guards` for what changed

METADATA = MetaData()

META = Table(
    "meta",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("schema_version", Integer, nullable=False),
    CheckConstraint("one = 1", name="one_row"),
)

# SQLite makes only a column of type INTEGER the row's own number.
_Seq = BigInteger().with_variant(Integer(), "sqlite")

ENTRIES = Table(
    "entries",
    METADATA,
    Column("seq", _Seq, primary_key=True, autoincrement=False),
    Column("time", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("release", Text, nullable=False),
    Column("attempt", Text, nullable=True),
    Column("payload", Text, nullable=False),
    Column("salt", Text, nullable=False),
    Column("previous", Text, nullable=False, unique=True),  # the chain has no branches
    Column("hash", Text, nullable=False, unique=True),
    Index("entries_by_release", "release"),
    Index("entries_by_dataset", "dataset"),
)

# Whatever the code above it does, the database holds one publication of a release at most.
_PUBLISHED = text("event = 'published'")
Index(
    "one_publication",
    ENTRIES.c.release,
    unique=True,
    sqlite_where=_PUBLISHED,
    postgresql_where=_PUBLISHED,
)
