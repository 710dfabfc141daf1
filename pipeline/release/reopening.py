"""Opening a ledger that was closed because it was restored or moved: only where it knows all that was published.

A ledger that was put back from an older copy has forgotten losses, and would let them be spent again.
"""

import re
from collections.abc import Collection, Iterable, Iterator

from pipeline.errors import StateError
from pipeline.ledger.store import Ledger
from pipeline.release.attempts import names_of_roots, root_of_name
from pipeline.release.manifest import NOTE, read_manifest, read_note
from pipeline.storage.location import Location
from pipeline.storage.staging import MANIFEST
from pipeline.storage.uri import locate

_ATTEMPT = re.compile(r"[0-9a-f]{16}")


def reopen(ledger: Ledger, outs: Iterable[Location]) -> list[str]:
    """Open the closed `ledger` again; return the releases whose heads were found in its chain.

    Guarantee: the chain is whole; it has the head of every manifest and note of withdrawal in the folders `outs` and in
    those where its own releases were published, and every attempt that is staged on this machine where its releases
    were. Raises StateError naming the first that it does not know: then the ledger forgot what it cost; and where a
    folder cannot be looked at, or holds nothing though its releases were published there.
    """
    ledger.verify()
    entries = ledger.entries()
    heads = {entry.hash for entry in entries}
    states = ledger.states()
    known = {locate(state.out, what="the ledger's output location") for state in states}
    named = list(outs)
    published = [state for state in states if state.status in ("settled", "withdrawn")]
    found: set[str] = set()
    for out in {*known, *named}:
        folders = [folder for folder in (out, *(out / name for name in _names(out))) if _knows(heads, folder)]
        if out in named and not folders and (published or not _names(out)):
            raise StateError(f"--out {out}: no release is there: name the folder that holds the folders of releases")
        found |= {folder.name for folder in folders}
    for state in published:
        if state.release not in found:
            _require_something(locate(state.out, what="the ledger's output location"), state.release)
    drawn = {entry.attempt for entry in entries if entry.event == "drawn"}
    for root in {root_of_name(ledger, name) for state in states for name in names_of_roots(state)}:
        for attempt in _staged(root):
            if attempt.name not in drawn:
                raise StateError(
                    f"{attempt}: the ledger does not know this attempt: it has forgotten a draw: restore a newer copy; "
                    "it stays closed"
                )
    if not found and not named:
        raise StateError("no published release was found: name the folders that hold releases by --out")
    ledger.reopen(sorted(found))
    return sorted(found)


def _require_something(out: Location, release: str) -> None:
    if not _names(out):
        raise StateError(
            f"{out}: nothing is there, though {release} was published there, so that later releases may be unseen: "
            "mount it, or name by --out where its folders of releases lie now; the ledger stays closed"
        )


def _names(folder: Location) -> list[str]:
    """Return what lies in a folder, nothing where it is absent."""
    try:
        return folder.children()
    except OSError as error:
        raise StateError(f"{folder}: cannot be looked at: {error.strerror}; the ledger stays closed") from None


def _knows(heads: Collection[str], folder: Location) -> bool:
    """Return whether a release's folder names one of the heads, False for any other; StateError where it does not."""
    head = _head(folder)
    if head is not None and head not in heads:
        raise StateError(
            f"{folder}: the ledger has no entry with the head {head} that is published there: it has forgotten "
            "what was lost since: restore a newer copy; it stays closed (or, where another ledger published that, "
            "move it to a folder of its own)"
        )
    return head is not None


def _head(folder: Location) -> str | None:
    """Return the head that a published or withdrawn release's folder names; None for any other folder."""
    note = read_note(folder)
    if note is not None or (folder / NOTE).is_file():
        return str((note or {}).get("ledger_head"))
    return str(read_manifest(folder)["ledger_head"]) if (folder / MANIFEST).is_file() else None


def _staged(root: Location) -> Iterator[Location]:
    for release in _names(root):
        for name in _names(root / release):
            if _ATTEMPT.fullmatch(name):
                yield root / release / name
