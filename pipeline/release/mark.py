"""Whose a staging location is: a private file in it names one ledger, and no other reserves, stages or removes there.

    root/.ledger    the hash of the ledger's first entry, which stays the same wherever the ledger is moved or restored

The mark is made right after a reservation, since an empty ledger has no entry to name it, and before anything is drawn:
of two ledgers that come to one place at the same moment, one is refused and its charge is given back.
"""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import StateError
from pipeline.ledger.store import Ledger
from pipeline.preparation.pinned import FOLDER
from pipeline.storage.location import Location

MARK = ".ledger"  # no release's name
NOBODYS = (f"{FOLDER}-", "check-")  # sealed rests of killed runs, also of releases that were never reserved
_ATTEMPT = re.compile(r"[0-9a-f]{16}")


def is_own(ledger: Ledger, root: Location) -> bool:
    """Return whether `root` is marked as this ledger's, or has no mark and nothing that is not this ledger's.

    True also for a folder that this user may not read: nothing in it can be removed. Raises StateError where the
    location cannot be used.
    """
    with _plain_errors(root):
        try:
            mark = _read(root)
            return _holds_nothing_else(ledger, root) if mark is None else mark == ledger.identity()
        except PermissionError:
            if root.remote:  # who may not read objects may remove them all the same
                raise
            return True


def require_own(ledger: Ledger, root: Location) -> None:
    """Return if `is_own`; raises StateError otherwise, and changes nothing."""
    if not is_own(ledger, root):
        raise StateError(
            f"the staging location {root} is another ledger's: give --staging of its own; if that ledger is no more, "
            f"remove what lies there, {MARK} too"
        )


def require_markable(root: Location) -> None:
    """Return if `root` can be marked; raises StateError, before anything is charged, where it cannot."""
    if root.conditional:
        root.require_create("the staging location")


def mark(ledger: Ledger, root: Location) -> None:
    """Mark `root` as this ledger's, which has an entry; raises StateError where it is, or becomes, another's.

    Guarantee: of several ledgers at once one succeeds, except in a store without conditional puts, where the others are
    refused by their next step.
    """
    require_own(ledger, root)
    identity = ledger.identity() or ""
    with _plain_errors(root):
        if _read(root) is None:
            root.make_private()
            if root.conditional:
                (root / MARK).create(identity.encode(), uuid.uuid4().hex, private=True)
            else:
                (root / MARK).write_durably(identity.encode())
    require_own(ledger, root)  # another ledger may have been first


def _read(root: Location) -> str | None:
    try:
        return (root / MARK).read().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _holds_nothing_else(ledger: Ledger, root: Location) -> bool:
    """Whether all that is staged in a place without a mark, such as earlier versions left, is this ledger's."""
    names = [
        (release, name)
        for release in root.children()
        if not release.startswith(".")
        for name in (root / release).children()
        if not name.startswith(NOBODYS)
    ]
    if not names:
        return True
    attempts = {(entry.release, entry.attempt) for entry in ledger.entries()}
    releases = {release for release, _ in attempts}
    return all(
        release in releases and (not _ATTEMPT.fullmatch(name) or (release, name) in attempts) for release, name in names
    )


@contextmanager
def _plain_errors(root: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateError(f"the staging location {root} cannot be used: {error.strerror}") from None
