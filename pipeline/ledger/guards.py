"""What each database itself enforces on entries, whatever the code above it does, and how older schemas become new.

Entries are appended at the end, each linked to the one before it, and never changed or removed. On PostgreSQL whoever
appends waits for the writer before it; who may append what is for conf/ledger/roles.sql.
"""

from collections.abc import Mapping, Sequence

SCHEMA = "prdp"  # where a PostgreSQL database holds the ledger
WRITERS = 0x70726470_6C656467  # the advisory lock of writers: "prdpledg"

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
BEGIN
    PERFORM pg_advisory_xact_lock({WRITERS});
    SELECT seq, hash INTO last FROM {SCHEMA}.entries ORDER BY seq DESC LIMIT 1;
    IF NEW.seq IS DISTINCT FROM coalesce(last.seq, 0) + 1
        OR NEW.previous IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
        RAISE EXCEPTION 'entries are appended in order' USING ERRCODE = 'integrity_constraint_violation';
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
MIGRATIONS: Mapping[int, Mapping[str, Sequence[str]]] = {
    1: {"sqlite": ("DROP TRIGGER entries_appended", _SQLITE_APPENDED), "postgresql": (_POSTGRES_APPENDED,)},
}
