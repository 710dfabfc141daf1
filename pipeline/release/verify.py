"""Whether a release's files are those that its manifest names, and its manifest the one that the ledger published.

The first is for outsiders; the second shows ledger entries that were cut or changed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.errors import StateError
from pipeline.ledger.entries import Entry, unknown
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.release.officers import out_of
from pipeline.release.publish import NOTE, read_note, withdrawal_note
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.staging import MANIFEST, AttemptContents


@dataclass(frozen=True)
class Verified:
    """A release whose every file matches its manifest; `files` and `bytes` count what was compared."""

    release: str
    attempt: str
    plan_digest: str
    date: str
    ledger_head: str
    files: int
    bytes: int


def verify_release(folder: Location) -> Verified:
    """Return what was verified: each file of the manifest in `folder` is there, unchanged, no other is.

    Raises StateError naming the first file that is missing, changed or too many, or what the manifest lacks. It
    shows that the files fit the manifest, not who wrote the manifest: compare `ledger_head` with its publisher's.
    """
    manifest = read_manifest(folder)
    attempt = manifest["attempt"]
    listed = {file["path"]: file for file in _files(manifest)}
    for path, file in listed.items():
        # A manifest from outside must not lead the comparison to files elsewhere.
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or parts[0] != attempt or ".." in parts:
            raise StateError(f"{folder / MANIFEST}: the path {path!r} is not inside the attempt {attempt}")
        _compare(folder, path, file)
    for name in sorted(_present(folder, attempt)):
        if name not in listed:
            raise StateError(f"{folder / name} is not in the manifest: it is no part of the release")
    return Verified(
        release=manifest["release"],
        attempt=attempt,
        plan_digest=manifest["plan_digest"],
        date=manifest["date"],
        ledger_head=manifest["ledger_head"],
        files=len(listed),
        bytes=sum(file["bytes"] for file in listed.values()),
    )


def read_manifest(folder: Location) -> dict[str, Any]:
    """Return the manifest in `folder`; raises StateError where there is none, or it lacks what every one has."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read())
    except (FileNotFoundError, NotADirectoryError):
        note = read_note(folder)
        if note is not None:
            raise StateError(f"{folder}: this release was withdrawn on {note.get('withdrawn')}") from None
        raise StateError(f"{path} is not there: nothing is published in this folder") from None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise StateError(f"{path} is no JSON: it is no manifest of prdp") from None
    try:
        texts = [manifest[key] for key in ("release", "attempt", "plan_digest", "date", "ledger_head")]
        complete = (
            all(isinstance(text, str) and text for text in texts)
            and manifest["attempt"].isalnum()
            and bool(manifest["tables"])
            and all(
                isinstance(file["path"], str) and isinstance(file["sha256"], str) and isinstance(file["bytes"], int)
                for file in _files(manifest)
            )
            and all(table["files"] for table in manifest["tables"])
        )
    except (KeyError, TypeError):
        complete = False
    if not complete:
        raise StateError(f"{path} lacks what every manifest of prdp has: it was changed or is not one")
    checked: dict[str, Any] = manifest
    return checked


def _files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(file for table in manifest["tables"] for file in table["files"]), *manifest["files"]]


def _present(folder: Location, attempt: str) -> list[str]:
    """Return the paths of all that lies in the attempt's folder, except folders."""
    try:
        return [file.relative_to(folder) for file in (folder / attempt).files()]
    except OSError as error:
        raise StateError(f"{folder / attempt} cannot be read: {error.strerror}") from None


def _compare(folder: Location, path: str, file: dict[str, Any]) -> None:
    listed = folder / path
    try:
        if not listed.is_plain_file():
            raise StateError(f"{listed} is no ordinary file")
        digest = listed.digest()
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(f"{listed} is missing") from None
    except OSError as error:
        raise StateError(f"{listed} cannot be read: {error.strerror}") from None
    if digest != FileDigest(file["sha256"], file["bytes"]):
        raise StateError(f"{listed} differs from the manifest: its contents were changed")


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
    listed = [*(file for table in manifest["tables"] for file in table["files"]), *manifest["files"]]
    files = {file["path"].removeprefix(home): FileDigest(file["sha256"], file["bytes"]) for file in listed}
    tables = [{"query": table["query"], "rows": table["rows"]} for table in manifest["tables"]]
    return AttemptContents({"engine": manifest["engine"], "tables": tables}, files).digest
