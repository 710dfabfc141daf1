"""What goes wrong with a ledger's server, in plain words: no statement, parameter or password is told."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from sqlalchemy import exc

from pipeline.errors import PrdpError, StateError

LOST = "cannot be reached any more: run again once the server answers, and it goes on from what was committed"
_UNREACHED = "cannot be opened: "
# A server refused, for a reason that stays; not because it is starting or stopping.
_ANSWERED = re.compile("FATAL: (?! the database system is)|password|certificate|SSL(?! SYSCALL| error: unexpected eof)")
_BUSY = "is locked by another process for too long: try again later"
_REFUSED = "refused an entry that would change or fork its history: nothing was written"
_DENIED = (
    "does not let this user do that: use a user with the role it takes (prdp_release to release, prdp_officer to "
    "approve, prdp_reader to read, prdp_owner to make or migrate)"
)
_READ_ONLY = "is read-only: give the address of the server that takes writes"
_ABSENT = "is no prdp ledger: check the address, or restore it from a backup"

# Plain words, without statements, parameters and passwords, by SQLSTATE, or by its class: its first two characters.
_PLAIN: Mapping[str, str] = {
    "08": LOST,
    "57": LOST,
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
    """Turn the database's errors inside the block into one plain line about the ledger `name`.

    It is a StateError, or a PrdpError where there is no server that answers: that is no state of the ledger.
    """
    try:
        yield
    except (psycopg.Error, exc.DBAPIError) as error:
        words = _in_words(error)
        gone = words == LOST or (words.startswith(f"{_UNREACHED}connection ") and not _ANSWERED.search(words))
        raise (PrdpError if gone else StateError)(f"the ledger {name} {words}") from None


def _in_words(error: psycopg.Error | exc.DBAPIError) -> str:
    original = error.orig if isinstance(error, exc.DBAPIError) else error
    state = getattr(original, "sqlstate", None)
    if state is not None:
        known = _PLAIN.get(state, _PLAIN.get(state[:2]))
        return known or f"cannot be used: the server's error is {state}: see its log"
    # libpq's own words on a connection that could not be made name host, port and user, and never a password.
    reason = next(iter(str(original).splitlines()), "")
    if reason.startswith("connection "):
        return f"{_UNREACHED}{reason}"
    return LOST if isinstance(original, psycopg.OperationalError) else "cannot be opened: check the address's options"
