"""Withdrawn releases: what stands in the output place instead of the manifest and the files."""

import json
import shutil
from typing import Any

from pipeline.durable import sync_folder, write_whole
from pipeline.errors import StateError
from pipeline.ledger.fold import ReleaseState
from pipeline.publish import MANIFEST, published_attempt
from pipeline.storage import Place, Stored

NOTE = "withdrawn.json"


def note_of(state: ReleaseState) -> dict[str, Any]:
    """Return withdrawn.json of a withdrawn release: public, so the reason must hold nothing confidential."""
    return {
        "release": state.release,
        "attempt": state.attempt,
        "plan_digest": state.digest,
        "published": state.date,
        "withdrawn": state.withdrawn_on,
        "reason": state.reason,
        "note": "This release was withdrawn by its publisher: do not use its tables. What was published stays counted "
        "in the losses of the records.",
        "ledger_head": state.withdrawal,
    }


def retract(out: Place, state: ReleaseState) -> None:
    """Put withdrawn.json in place of release.json under out/<release>, and remove the attempt's files.

    Call it for a release that the ledger says is withdrawn; a crash anywhere is finished by calling it again. Raises
    StateError where the place holds another attempt or cannot be written.
    """
    folder = out / state.release
    present = published_attempt(folder)
    if present not in (None, state.attempt):
        raise StateError(f"{folder / MANIFEST} names another attempt, {present}: nothing was removed")
    text = (json.dumps(note_of(state), ensure_ascii=False, indent=2, allow_nan=False) + "\n").encode()
    try:
        if isinstance(folder, Stored):
            (folder / NOTE).write(text)
            (folder / MANIFEST).delete()
            (folder / str(state.attempt)).delete_below()
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / NOTE, text, 0o644)  # first: readers never find nothing at all
        (folder / MANIFEST).unlink(missing_ok=True)
        if (folder / str(state.attempt)).is_dir():
            shutil.rmtree(folder / str(state.attempt))
        sync_folder(folder)
    except OSError as error:
        raise StateError(
            f"the withdrawal is recorded, but {folder} cannot be changed: {error.strerror}: run again"
        ) from None


def withdrawn_note(folder: Place) -> dict[str, Any] | None:
    """Return the note in a release's folder; None where there is none to be read."""
    at = folder / NOTE
    try:
        note = json.loads(at.read() if isinstance(at, Stored) else at.read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
