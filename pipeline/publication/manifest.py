"""Manifests: the last file of a published folder, which names every other with its digest; for everyone.

One way to write, sign, read and verify them, of releases, reconciled tables and products, without a ledger.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pipeline.base.canonical import readable_json
from pipeline.base.errors import StateError, file_errors
from pipeline.base.log import counted
from pipeline.base.plain import is_plain, plain_json
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.staging import MANIFEST, SIGNED, STRUCTURE

if TYPE_CHECKING:
    from pipeline.publication.signing import PublicKey, SigningKey

NOTE, FRONT = "withdrawn.json", "index.html"
File = Mapping[str, Any]  # path, sha256 and bytes, as a manifest names it


@dataclass(frozen=True)
class Kind:
    """A kind of manifest: its file's `name`, what it is `of`, and whether facts hold what every such one has.

    `absent` says what a folder without it lacks; the files `beside` it are in no manifest. `holds` may raise KeyError
    and TypeError.
    """

    name: str
    of: str
    absent: str
    holds: Callable[[Mapping[str, Any]], bool]
    beside: tuple[str, ...] = ()


def _is_release(facts: Mapping[str, Any]) -> bool:
    texts = [facts[key] for key in ("release", "attempt", "plan_digest", "date", "ledger_head")]
    return (
        all(isinstance(text, str) and text and is_plain(text) for text in texts)
        and facts["attempt"].isalnum()
        and bool(facts["tables"])
        and all(table["files"] for table in facts["tables"])
    )


def _is_reconciled(facts: Mapping[str, Any]) -> bool:
    grouped = sorted(name for group in facts["groups"] for name in group["tables"])
    return (
        grouped == sorted(facts["tables"])
        and isinstance(facts["dataset"], str)
        and all(isinstance(one["release"], str) for one in facts["releases"])
        and all(group["unit"] > 0 for group in facts["groups"])
        and any(file["path"] == STRUCTURE for file in facts["files"])
    )


def _is_product(facts: Mapping[str, Any]) -> bool:
    names = [one[key] for one in facts["releases"] for key in ("manifest_sha256", "release")]
    return all(isinstance(text, str) for text in (*names, facts["title"]))


RELEASE: Final = Kind(MANIFEST, "the release", "nothing is published in this folder", _is_release, (FRONT, NOTE))
RECONCILED: Final = Kind(
    "reconciled.json", "the reconciled tables", "no reconciled tables are in this folder", _is_reconciled
)
PRODUCT: Final = Kind("product.json", "the product", "no product is in this folder", _is_product)


@dataclass(frozen=True, eq=False)
class Manifest(Mapping[str, Any]):
    """The facts of a folder's manifest; `signed_by`: the fingerprint of the key that was checked, None for none."""

    kind: Kind
    folder: Location
    facts: dict[str, Any]
    sha256: str
    signed_by: str | None = None

    @classmethod
    def read(cls, folder: Location, kind: Kind = RELEASE, key: "PublicKey | None" = None) -> "Manifest":
        """Return the manifest in a folder; StateError where there is none, or `key` is given and did not sign it."""
        path = folder / kind.name
        try:
            data = path.read()
        except (FileNotFoundError, NotADirectoryError):
            note = read_note(folder) if kind is RELEASE else None
            if note is not None:
                raise StateError(f"{folder}: this release was withdrawn on {note.get('withdrawn')}") from None
            raise StateError(f"{path} is not there: {kind.absent}") from None
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}") from None
        if key is not None:
            key.require_signed(folder, data, kind.name)
        try:
            facts = plain_json(data)
        except ValueError:
            raise StateError(f"{path} is no JSON of plain text: it is no manifest of prdp") from None
        try:
            complete = kind.holds(facts) and all(
                isinstance(file["path"], str) and isinstance(file["sha256"], str) and isinstance(file["bytes"], int)
                for file in _listed(kind, facts)
            )
        except (KeyError, TypeError):
            complete = False
        if not complete:
            raise StateError(f"{path} lacks what every manifest of prdp has: it was changed or is not one")
        signed_by = None if key is None else key.fingerprint
        return cls(kind, folder, facts, hashlib.sha256(data).hexdigest(), signed_by)

    @classmethod
    def verified(cls, folder: Location, kind: Kind = RELEASE, key: "PublicKey | None" = None) -> "Manifest":
        """Return the manifest of a folder that holds each of its files, unchanged, and no other; raises StateError.

        It shows that the files fit the manifest, and with `key` who wrote the manifest. Beside the files of a release
        lie its front page, which changes when the release is corrected, and hidden files, which are no figures.
        """
        manifest = cls.read(folder, kind, key)
        listed = {file["path"]: file for file in _listed(kind, manifest)}
        for path, file in counted("checking files", listed.items(), len(listed)):
            # A manifest from outside must not lead the comparison to files elsewhere.
            if ".." in PurePosixPath(path).parts or not path.startswith(manifest.home) or path.startswith("/"):
                inside = f"the attempt {manifest['attempt']}" if kind is RELEASE else "the folder"
                raise StateError(f"{folder / kind.name}: the path {path!r} is not inside {inside}")
            manifest._compare(file)
        with file_errors(f"{folder} cannot be read: "):
            present = sorted(file.relative_to(folder) for file in folder.files())
        for name in present:
            beside = name in (kind.name, f"{kind.name}{SIGNED}", *kind.beside)
            if name not in listed and not beside and not (kind is RELEASE and name.startswith(".")):
                raise StateError(f"{folder / name} is not in the manifest: it is no part of {kind.of}")
        return manifest

    def _compare(self, file: File) -> None:
        path = self.folder / file["path"]
        try:
            if not path.is_plain_file():
                raise StateError(f"{path} is no ordinary file")
            digest = path.digest()
        except (FileNotFoundError, NotADirectoryError):
            raise StateError(f"{path} is missing") from None
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}") from None
        if digest != FileDigest(file["sha256"], file["bytes"]):
            raise StateError(f"{path} differs from the manifest: its contents were changed")

    @property
    def home(self) -> str:
        """What the paths of a release's files begin with: its attempt's folder."""
        return f"{self['attempt']}/" if self.kind is RELEASE else ""

    @cached_property
    def files(self) -> dict[str, File]:
        """All files by their paths in `home`, those of a release's tables first."""
        return {file["path"].removeprefix(self.home): file for file in _listed(self.kind, self)}

    @property
    def size(self) -> tuple[int, int]:
        """How many files are named, and their bytes."""
        return len(self.files), sum(file["bytes"] for file in self.files.values())

    def contents(self, path: str) -> bytes:
        """Return the contents of a file in `home`; StateError where they changed since it was verified."""
        return published_bytes(self.folder, self.files[path])

    def __getitem__(self, key: str) -> Any:
        return self.facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)


def _listed(kind: Kind, facts: Mapping[str, Any]) -> list[File]:
    """Return all files that a manifest names; those of a release stand by table, too."""
    tables = facts["tables"] if kind is RELEASE else ()
    return [*(file for table in tables for file in table["files"]), *facts["files"]]


def manifest_file(data: bytes, path: str) -> dict[str, Any]:
    """Return what a manifest says of a file with these contents."""
    return {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_manifest(home: Path, name: str, facts: Mapping[str, Any], signing: "SigningKey | None" = None) -> None:
    """Write the manifest `name` of a folder, and beside it what signs it."""
    data = readable_json(facts).encode()
    if signing is not None:
        (home / f"{name}{SIGNED}").write_bytes(signing.signature(data, name))
    (home / name).write_bytes(data)


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

    @classmethod
    def of(cls, manifest: Manifest) -> "Verified":
        """Return what was verified of a manifest and its files."""
        names = ("release", "attempt", "plan_digest", "date", "ledger_head")
        files, size = manifest.size
        facts = {name: manifest[name] for name in names}
        return cls(**facts, files=files, bytes=size, signed_by=manifest.signed_by)


def verify_release(folder: Location, key: "PublicKey | None" = None) -> Verified:
    """Return what was verified of a release, as `Manifest.verified`: compare `ledger_head` with its publisher's."""
    return Verified.of(Manifest.verified(folder, key=key))


def published_head(folder: Location) -> str | None:
    """Return the head that a published or withdrawn release's folder names; None for any other folder."""
    note = read_note(folder)
    if note is not None or (folder / NOTE).is_file():
        return str((note or {}).get("ledger_head"))
    return str(Manifest.read(folder)["ledger_head"]) if (folder / MANIFEST).is_file() else None


def named_signer(folder: Location, manifest: str = MANIFEST) -> str | None:
    """Return the fingerprint of the key that a manifest's signature names, unchecked; None where it names none."""
    try:
        named = str(plain_json((folder / f"{manifest}{SIGNED}").read())["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return named if re.fullmatch("[0-9a-f]{64}", named) else None


def read_note(folder: Location) -> dict[str, Any] | None:
    """Return the note in a withdrawn release's folder; None where there is none to be read."""
    try:
        note = plain_json((folder / NOTE).read())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def published_bytes(folder: Location, file: File) -> bytes:
    """Return the contents of a file of a manifest; StateError where they changed since it was verified."""
    path = folder / file["path"]
    with file_errors(f"{path} cannot be read: "):
        data: bytes = path.read()
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise StateError(f"{path} differs from the manifest: its contents were changed")
    return data
