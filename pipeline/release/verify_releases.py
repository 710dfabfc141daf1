"""Whether published files and manifests are those of the ledger: entries that were cut or changed are found so."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pipeline.base.errors import StateError, arg, file_errors
from pipeline.ledger.entries import Entry
from pipeline.ledger.store import Ledger
from pipeline.publication.manifest import NOTE, Manifest, published_head, read_note
from pipeline.release.attempts import names_of_roots, root_of_name
from pipeline.release.officers import known_state, out_of
from pipeline.release.publish import approvals_named, withdrawal_note
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST, AttemptContents


def require_in_chain(ledger: Ledger, folder: Location) -> str:
    """Return the release whose manifest and files in `folder` are those of its published entry.

    Of a withdrawn release the note is held against its entry. Raises StateError naming what differs: a head that no
    entry has shows that the ledger was cut or rewritten since, or is another one.
    """
    note = read_note(folder)
    if note is not None:
        return _require_note(ledger, folder, note)
    manifest = Manifest.verified(folder)
    release = str(manifest["release"])
    path = folder / MANIFEST
    entry = _entry(ledger, release, manifest["ledger_head"], "published", path)
    state = known_state(ledger, release)
    if (entry.attempt, state.digest) != (manifest["attempt"], manifest["plan_digest"]):
        raise StateError(f"{path}: its attempt or plan digest is not that of entry {entry.seq}: it was changed")
    if _contents(manifest) != entry.facts["contents"]:
        raise StateError(f"{path}: its files are not those that the ledger published at entry {entry.seq}")
    if manifest.get("approvals") != approvals_named(state).get("approvals"):
        raise StateError(f"{path}: its approvals are not those of the ledger: it was changed")
    if state.status == "withdrawn":
        raise StateError(f"{path}: the release was withdrawn on {state.withdrawn_on}: run prdp ledger withdraw again")
    return release


def published_folders(ledger: Ledger) -> Iterator[Location]:
    """Yield the folder of every release that is settled or withdrawn, where the ledger says it was published."""
    for state in ledger.states():
        if state.status in ("settled", "withdrawn"):
            yield out_of(state) / state.release


def require_no_others(ledger: Ledger) -> None:
    """Return if the chain has the head of every release's folder in the outputs that the ledger's releases name.

    Raises StateError with a line for each folder of which it has not: the ledger forgot what that cost, or another
    ledger published it.
    """
    outs = sorted({out_of(state) for state in ledger.states()}, key=str)
    with file_errors("an output of the ledger's releases cannot be looked at: "):
        folders = {folder: _head_in(folder) for out in outs for folder in (out / name for name in out.children())}
    heads = {entry.hash for entry in ledger.entries()} | {None}  # read last: releases go on
    lines = [
        f"{folder}: its head is in no entry: the ledger was cut or rewritten after that, or another one published it: "
        "restore the ledger from a backup, or move the folder to an output of that ledger's own"
        for folder, head in folders.items()
        if head not in heads
    ]
    if lines:
        raise StateError(*lines)


def _head_in(folder: Location) -> str | None:
    try:
        return published_head(folder)
    except StateError:
        return ""


def _require_note(ledger: Ledger, folder: Location, note: dict[str, Any]) -> str:
    release = str(note.get("release"))
    _entry(ledger, release, str(note.get("ledger_head")), "withdrawn", folder / NOTE)
    if note != withdrawal_note(known_state(ledger, release)):
        raise StateError(f"{folder / NOTE}: it differs from what the ledger says: it was changed")
    return release


def _entry(ledger: Ledger, release: str, head: str, event: str, at: Location) -> Entry:
    entry = next((entry for entry in ledger.entries(release) if entry.hash == head), None)
    if entry is None:
        raise StateError(
            f"{at}: the ledger has no entry with its head {head}: the ledger was cut or rewritten after that, or it is "
            "another one: restore it from a backup"
        )
    if entry.event != event:
        raise StateError(f"{at}: its head is that of entry {entry.seq}, which is {entry.event}, not {event}")
    return entry


def _contents(manifest: Manifest) -> str:
    files = {path: FileDigest(file["sha256"], file["bytes"]) for path, file in manifest.files.items()}
    tables = [{"query": table["query"], "rows": table["rows"]} for table in manifest["tables"]]
    return AttemptContents({"engine": manifest["engine"], "tables": tables}, files).digest


# Opening a ledger that was closed because it was restored or moved: only where it knows all that was published.

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
    known_names: set[str] = set()
    for out in {*known, *named}:
        folders = [folder for folder in (out, *(out / name for name in _names(out))) if _knows(heads, folder)]
        if out in named and not folders and (published or not _names(out)):
            raise StateError(
                f"{arg('out', out)}: no release is there: name the folder that holds the folders of releases"
            )
        known_names |= {folder.name for folder in folders}
    for state in published:
        if state.release not in known_names:
            _require_something(locate(state.out, what="the ledger's output location"), state.release)
    drawn = {entry.attempt for entry in entries if entry.event == "drawn"}
    for root in {root_of_name(ledger, name) for state in states for name in names_of_roots(state)}:
        for attempt in _staged(root):
            if attempt.name not in drawn:
                raise StateError(
                    f"{attempt}: the ledger does not know this attempt: it has forgotten a draw: restore a newer copy; "
                    "it stays closed"
                )
    if not known_names and not named:
        raise StateError(f"no published release was found: name the folders that hold releases by {arg('out')}")
    ledger.reopen(sorted(known_names))
    return sorted(known_names)


def _require_something(out: Location, release: str) -> None:
    if not _names(out):
        raise StateError(
            f"{out}: nothing is there, though {release} was published there, so that later releases may be unseen: "
            f"mount it, or name by {arg('out')} where its folders of releases lie now; the ledger stays closed"
        )


def _names(folder: Location) -> list[str]:
    with file_errors(f"{folder}: cannot be looked at: ", "; the ledger stays closed"):
        return folder.children()


def _knows(heads: Collection[str], folder: Location) -> bool:
    """Return whether a release's folder names one of the heads, False for any other; StateError where it does not."""
    head = published_head(folder)
    if head is not None and head not in heads:
        raise StateError(
            f"{folder}: the ledger has no entry with the head {head} that is published there: it has forgotten "
            "what was lost since: restore a newer copy; it stays closed (or, where another ledger published that, "
            "move it to a folder of its own)"
        )
    return head is not None


def _staged(root: Location) -> Iterator[Location]:
    for release in _names(root):
        for name in _names(root / release):
            if _ATTEMPT.fullmatch(name):
                yield root / release / name
