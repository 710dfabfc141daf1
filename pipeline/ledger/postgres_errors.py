"""PostgreSQL's errors in plain words, without statements, parameters and passwords."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from sqlalchemy import exc

from pipeline.errors import StateError

_LOST = "cannot be reached any more: run again once the server answers, and it goes on from what was committed"
_BUSY = "is locked by another process for too long: try again later"
_REFUSED = "refused an entry that would change or fork its history: nothing was written"
_DENIED = (
    "does not let this user do that: use a user with the role it takes (prdp_release to release, prdp_officer to "
    "approve, prdp_reader to read, prdp_owner to make or migrate)"
)
_READ_ONLY = "is read-only: give the address of the server that takes writes"
_ABSENT = "is no prdp ledger: check the address, or restore it from a backup"

# By SQLSTATE, or by its class: its first two characters.
_PLAIN: Mapping[str, str] = {
    "08": _LOST,
    "57": _LOST,
    "57014": "stopped the step, which took too long: see the server's statement_timeout",
    "25P03": "ended the step, which paused for too long: run again",
    "25P04": "ended the step, which took too long: run again",
    "55P03": _BUSY,
    "40": _BUSY,
    "25006": _READ_ONLY,
    "23": _REFUSED,
    "42501": _DENIED,
    "42P01": _ABSENT,
    "3F": _ABSENT,
    "53100": "cannot be written, the server's disk is full: make room and try again",
    "53": "has no room for another connection or step: try again later",
    "58": "cannot be read or written: the server's disk is faulty or full: see its log",
    "XX": "is damaged: see the server's log, and restore it from a backup",
}


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Turn the database's errors inside the block into a StateError of one plain line about the ledger `name`."""
    try:
        yield
    except (psycopg.Error, exc.DBAPIError) as error:
        raise StateError(f"the ledger {name} {_told(error)}") from None


def _told(error: psycopg.Error | exc.DBAPIError) -> str:
    state = _state(error)
    if state is not None:
        told = _PLAIN.get(state, _PLAIN.get(state[:2]))
        return told or f"cannot be used: the server's error is {state}: see its log"
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    # libpq's own words on a connection that could not be made name host, port and user, and never a password.
    reason = next(iter(str(original).splitlines()), "")
    if reason.startswith("connection "):
        return f"cannot be opened: {reason}"
    return _LOST if isinstance(original, psycopg.OperationalError) else "cannot be opened: check the address's options"


def _state(error: psycopg.Error | exc.DBAPIError) -> str | None:
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    return getattr(original, "sqlstate", None)
