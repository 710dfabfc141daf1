"""Whether published files and manifests are those of the ledger: entries that were cut or changed are found so."""

from collections.abc import Iterator
from typing import Any

from pipeline.errors import StateError
from pipeline.ledger.entries import Entry, unknown
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.release.manifest import NOTE, listed_files, read_manifest, read_note, verify_release
from pipeline.release.officers import out_of
from pipeline.release.publish import approvals_named, withdrawal_note
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.staging import MANIFEST, AttemptContents


def require_in_chain(ledger: Ledger, folder: Location) -> str:
    """Return the release whose manifest and files in `folder` are those of its published entry.

    Of a withdrawn release the note is held against its entry. Raises StateError naming what differs: a head that no
    entry has shows that the ledger was cut or rewritten since, or is another one.
    """
    note = read_note(folder)
    if note is not None:
        return _require_note(ledger, folder, note)
    verified = verify_release(folder)
    at = folder / MANIFEST
    entry = _entry(ledger, verified.release, verified.ledger_head, "published", at)
    state = _state(ledger, verified.release)
    if (entry.attempt, state.digest) != (verified.attempt, verified.plan_digest):
        raise StateError(f"{at}: its attempt or plan digest is not that of entry {entry.seq}: it was changed")
    if _contents(read_manifest(folder)) != entry.facts["contents"]:
        raise StateError(f"{at}: its files are not those that the ledger published at entry {entry.seq}")
    if read_manifest(folder).get("approvals") != approvals_named(state).get("approvals"):
        raise StateError(f"{at}: its approvals are not those of the ledger: it was changed")
    if state.status == "withdrawn":
        raise StateError(f"{at}: the release was withdrawn on {state.withdrawn_on}: run prdp ledger withdraw again")
    return verified.release


def published_folders(ledger: Ledger) -> Iterator[Location]:
    """Yield the folder of every release that is settled or withdrawn, where the ledger says it was published."""
    for state in ledger.states():
        if state.status in ("settled", "withdrawn"):
            yield out_of(state) / state.release


def _require_note(ledger: Ledger, folder: Location, note: dict[str, Any]) -> str:
    release = str(note.get("release"))
    _entry(ledger, release, str(note.get("ledger_head")), "withdrawn", folder / NOTE)
    if note != withdrawal_note(_state(ledger, release)):
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


def _state(ledger: Ledger, release: str) -> ReleaseState:
    state = ledger.state(release)
    if state is None:
        raise unknown("release", release, (state.release for state in ledger.states()))
    return state


def _contents(manifest: dict[str, Any]) -> str:
    """Return the digest of the staged files, as the ledger recorded it, from what the manifest says of them."""
    home = f"{manifest['attempt']}/"
    files = {
        file["path"].removeprefix(home): FileDigest(file["sha256"], file["bytes"]) for file in listed_files(manifest)
    }
    tables = [{"query": table["query"], "rows": table["rows"]} for table in manifest["tables"]]
    return AttemptContents({"engine": manifest["engine"], "tables": tables}, files).digest
