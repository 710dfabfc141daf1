"""A release's manifest, and whether the files beside it are those that it names: for everyone, without a ledger."""

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pipeline.errors import StateError
from pipeline.log import counted
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.staging import MANIFEST, SIGNATURE, SIGNED

if TYPE_CHECKING:
    from pipeline.release.signing import PublicKey

NOTE, FRONT = "withdrawn.json", "index.html"
BESIDE = (MANIFEST, SIGNATURE, FRONT, NOTE)  # the files that no manifest names


@dataclass(frozen=True)
class Verified:
    """A release whose every file matches its manifest; `files` and `bytes` count what was compared.

    `signed_by`: the fingerprint of the key whose signature was checked, None where none was asked for.
    """

    release: str
    attempt: str
    plan_digest: str
    date: str
    ledger_head: str
    files: int
    bytes: int
    signed_by: str | None = None


def verify_release(folder: Location, key: "PublicKey | None" = None) -> Verified:
    """Return what was verified: each file of the manifest in `folder` is there, unchanged, no other is.

    Beside the attempt's lie manifest, signature and front page alone, which changes when the release is corrected and
    so is not in the manifest; hidden files are no figures.

    Raises StateError naming the first file that is missing, changed or too many, or what the manifest lacks;
    with `key` also where the manifest is not signed by it. Without, it shows that the files fit the manifest, not who
    wrote the manifest: compare `ledger_head` with its publisher's.
    """
    data = _manifest_bytes(folder)
    if key is not None:
        key.require_signed(folder, data)
    manifest = _checked(folder / MANIFEST, data)
    attempt = manifest["attempt"]
    listed = {file["path"]: file for file in listed_files(manifest)}
    for path, file in counted("checking files", listed.items(), len(listed)):
        # A manifest from outside must not lead the comparison to files elsewhere.
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or parts[0] != attempt or ".." in parts:
            raise StateError(f"{folder / MANIFEST}: the path {path!r} is not inside the attempt {attempt}")
        _compare(folder, path, file)
    for name in sorted(_present(folder)):
        if name not in listed and name not in BESIDE and not name.startswith("."):
            raise StateError(f"{folder / name} is not in the manifest: it is no part of the release")
    return Verified(
        release=manifest["release"],
        attempt=attempt,
        plan_digest=manifest["plan_digest"],
        date=manifest["date"],
        ledger_head=manifest["ledger_head"],
        files=len(listed),
        bytes=sum(file["bytes"] for file in listed.values()),
        signed_by=None if key is None else key.fingerprint,
    )


def read_manifest(folder: Location) -> dict[str, Any]:
    """Return the manifest in `folder`; raises StateError where there is none, or it lacks what every one has."""
    return _checked(folder / MANIFEST, _manifest_bytes(folder))


def named_signer(folder: Location, manifest: str = MANIFEST) -> str | None:
    """Return the fingerprint of the key that a manifest's signature names, unchecked; None where there is none."""
    try:
        return str(json.loads((folder / f"{manifest}{SIGNED}").read())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _manifest_bytes(folder: Location) -> bytes:
    """Return the manifest as it is; raises as `read_manifest` does."""
    path = folder / MANIFEST
    try:
        return path.read()
    except (FileNotFoundError, NotADirectoryError):
        note = read_note(folder)
        if note is not None:
            raise StateError(f"{folder}: this release was withdrawn on {note.get('withdrawn')}") from None
        raise StateError(f"{path} is not there: nothing is published in this folder") from None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from None


def _checked(path: Location, data: bytes) -> dict[str, Any]:
    """Return the manifest of these bytes; raises as `read_manifest` does."""
    try:
        manifest = json.loads(data)
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
                for file in listed_files(manifest)
            )
            and all(table["files"] for table in manifest["tables"])
        )
    except (KeyError, TypeError):
        complete = False
    if not complete:
        raise StateError(f"{path} lacks what every manifest of prdp has: it was changed or is not one")
    checked: dict[str, Any] = manifest
    return checked


def listed_files(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all files that a manifest names, those of tables first."""
    return [*(file for table in manifest["tables"] for file in table["files"]), *manifest["files"]]


def _present(folder: Location) -> list[str]:
    """Return the paths of all that lies in the folder, except folders."""
    try:
        return [file.relative_to(folder) for file in folder.files()]
    except OSError as error:
        raise StateError(f"{folder} cannot be read: {error.strerror}") from None


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


def read_note(folder: Location) -> dict[str, Any] | None:
    """Return the note in a withdrawn release's folder; None where there is none to be read."""
    try:
        note = json.loads((folder / NOTE).read())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None
