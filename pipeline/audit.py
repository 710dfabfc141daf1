"""Whether what was published is what the ledger says: the head in a manifest shows entries that were cut or changed."""

from collections.abc import Iterator
from typing import Any

from pipeline.errors import StateError
from pipeline.facts import Facts, StagedFile
from pipeline.ledger.entries import Entry
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.officers import out_of
from pipeline.publish import MANIFEST
from pipeline.storage import Place
from pipeline.verify import read_manifest, verify_release
from pipeline.withdrawn import NOTE, note_of, withdrawn_note


def require_in_chain(ledger: Ledger, folder: Place) -> str:
    """Return the release whose manifest and files in `folder` are those of its published entry.

    Of a withdrawn release the note is held against its entry. Raises StateError naming what differs: a head that no
    entry has shows that the ledger was cut or rewritten since, or is another one.
    """
    note = withdrawn_note(folder)
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
    if state.status == "withdrawn":
        raise StateError(f"{at}: the release was withdrawn on {state.withdrawn_on}: run prdp ledger withdraw again")
    return verified.release


def published_folders(ledger: Ledger) -> Iterator[Place]:
    """Yield the folder of every release that is settled or withdrawn, where the ledger says it was published."""
    for state in ledger.states():
        if state.status in ("settled", "withdrawn"):
            yield out_of(state) / state.release


def _require_note(ledger: Ledger, folder: Place, note: dict[str, Any]) -> str:
    release = str(note.get("release"))
    _entry(ledger, release, str(note.get("ledger_head")), "withdrawn", folder / NOTE)
    if note != note_of(_state(ledger, release)):
        raise StateError(f"{folder / NOTE}: it differs from what the ledger says: it was changed")
    return release


def _entry(ledger: Ledger, release: str, head: str, event: str, at: Place) -> Entry:
    found = next((entry for entry in ledger.entries(release) if entry.hash == head), None)
    if found is None:
        raise StateError(
            f"{at}: the ledger has no entry with its head {head}: the ledger was cut or rewritten after that, or it is "
            "another one: restore it from a backup"
        )
    if found.event != event:
        raise StateError(f"{at}: its head is that of entry {found.seq}, which is {found.event}, not {event}")
    return found


def _state(ledger: Ledger, release: str) -> ReleaseState:
    state = ledger.state(release)
    if state is None:
        raise StateError(f"release {release}: is not in the ledger")
    return state


def _contents(manifest: dict[str, Any]) -> str:
    """Return the digest of the staged files, as the ledger recorded it, from what the manifest says of them."""
    home = f"{manifest['attempt']}/"
    listed = [*(file for table in manifest["tables"] for file in table["files"]), *manifest["files"]]
    files = {file["path"].removeprefix(home): StagedFile(file["sha256"], file["bytes"]) for file in listed}
    tables = [{"query": table["query"], "rows": table["rows"]} for table in manifest["tables"]]
    return Facts({"engine": manifest["engine"], "tables": tables}, files).digest
