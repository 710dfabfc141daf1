"""What a complete attempt is: its files and what is told of them, and the names that files may have."""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.canonical import canonical_json, digest
from pipeline.errors import PlanError, StateError
from pipeline.storage.files import contents_of, fingerprint, sync_file, sync_folder, write_whole
from pipeline.storage.location import Place, Stored

MANIFEST = "release.json"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class StagedFile:
    """A file of an attempt: `sha256` in hexadecimal, and its size in `bytes`."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Facts:
    """What a complete attempt is: the `about` given to `complete`, and every file by its path in the attempt."""

    about: Mapping[str, Any]
    files: Mapping[str, StagedFile]

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON, as attempt.json holds them."""
        files = {path: {"sha256": file.sha256, "bytes": file.bytes} for path, file in self.files.items()}
        return {"about": dict(self.about), "files": files}

    @property
    def digest(self) -> str:
        """The digest over the contents of all files and what is told of them: what the ledger publishes."""
        return digest(self.to_json())


def safe_name(kind: str, name: str) -> str:
    """Return `name` where it can name a file or folder everywhere; raises PlanError otherwise."""
    if not _NAME.fullmatch(name):
        raise PlanError(f"{kind} {name!r}: use letters, digits, '.', '_' and '-', at most 128, a letter or digit first")
    return name


# Private staging of one attempt: what is drawn lies here, unseen, until the ledger chooses it or it is destroyed.
#
# In a folder that is seen to: modes, owner and durability are made and checked. In an object store that is left to the
# bucket: a put is durable and whole, and who may read, also older versions of what was removed, is for its operator.


_FACTS = "attempt.json"  # written last: with it an attempt is complete


def prepare_root(root: Place) -> None:
    """Make the staging root ready; raises StateError where it is not ours, or others could see into it.

    A folder is made with mode 0700 where absent; in a store an object is put and removed. Call it before a draw is
    recorded: an attempt that others may have seen costs a charge.
    """
    if isinstance(root, Stored):
        _try(root)
        return
    try:
        _make_private(root)
        private = _is_private(root)
        with tempfile.TemporaryFile(dir=root):  # written and gone: permission bits alone do not tell
            pass
    except OSError as error:
        raise StateError(f"the staging folder {root} cannot be made or written: {error.strerror}") from None
    if not private:
        raise StateError(f"the staging folder {root} is open to others: make it yours alone, chmod 700")


def staging_at(root: Place, release: str, attempt: str) -> "Staging":
    """Return the staging root/<release>/<attempt>, whatever is there; raises PlanError for names that name no file."""
    if isinstance(root, Stored):
        return StoreStaging(root, release, attempt)
    return FolderStaging(root, release, attempt)


def strays(root: Place, release: str, attempt: str | None) -> list["Staging"]:
    """Return what is staged of `release` under `root` beside the live `attempt`."""
    folder = root / safe_name("release", release)
    if isinstance(folder, Stored):
        names = sorted({at.relative_to(folder).partition("/")[0] for at in _objects(folder)})
    else:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [staging_at(root, release, name) for name in names if name != attempt]


class Staging(ABC):
    """The place root/<release>/<attempt> of one attempt, and of no other."""

    root: Place
    path: Place

    def __init__(self, release: str, attempt: str) -> None:
        self.release = safe_name("release", release)
        self.attempt = safe_name("attempt", attempt)

    @abstractmethod
    def create(self) -> None:
        """Make the empty place; raises StateError where it exists already or others could see into it."""

    @abstractmethod
    def table_folder(self, query: str) -> Place:
        """Return the folder tables/<query>, made where absent, for the files of one table."""

    @abstractmethod
    def complete(self, about: Mapping[str, Any], needed: Collection[str] = ()) -> Facts:
        """Make every file durable, then write attempt.json, with which the attempt is complete; return its facts.

        `about` is JSON. Raises StateError where something else than files and folders lies in the attempt, and where
        one of the files `needed` does not.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the contents of the file at `name`, a path in the attempt; raises OSError."""

    @abstractmethod
    def copy(self, name: str, writer: BinaryIO) -> None:
        """Write the contents of the file at `name` to `writer`, piece by piece; raises OSError."""

    @abstractmethod
    def exposed(self) -> bool:
        """Whether it is seen that another user could have looked in."""

    @abstractmethod
    def destroy(self) -> None:
        """Remove the attempt and all its files; nothing happens where there are none."""

    @abstractmethod
    def _found(self) -> dict[str, StagedFile]:
        """Return every file by its path in the attempt."""

    @abstractmethod
    def _write(self, name: str, text: str) -> None:
        """Write a file durably, whole or not at all."""

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` durably, in UTF-8."""
        self._write(safe_name("file", name), text)

    def _whole(self, about: Mapping[str, Any], files: Mapping[str, StagedFile], needed: Collection[str]) -> Facts:
        if not set(needed) <= files.keys():
            raise StateError(
                f"{self.path}: files vanished while they were staged: if another ledger stages release {self.release} "
                "there too, give another --staging"
            )
        return Facts(about, files)

    def read_complete(self) -> Facts | None:
        """Return the facts of a complete attempt whose every file is as it was staged; None for any other.

        Raises StateError where a store does not tell: the attempt may be whole, and must not be drawn again.
        """
        try:
            read = json.loads(self.read(_FACTS))
            listed = {path: StagedFile(**file) for path, file in read["files"].items()}
            found = self._found()
            facts = Facts(read["about"], listed)
        except _Unusable:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StateError):
            return None
        del found[_FACTS]
        return facts if found == listed else None


class FolderStaging(Staging):
    """A folder that is seen by this user alone: folders 0700, files 0600, whatever the umask."""

    def __init__(self, root: Path, release: str, attempt: str) -> None:
        super().__init__(release, attempt)
        self.root: Path = root
        self.path: Path = root / self.release / self.attempt

    def create(self) -> None:
        """Make the empty folder; raises StateError where it exists already or others could see into it."""
        prepare_root(self.root)
        try:
            if os.path.lexists(self.path):
                raise FileExistsError(errno.EEXIST, "it exists already")
            _make_private(self.path)
        except OSError as error:
            raise StateError(f"the staging folder {self.path} cannot be made: {error.strerror}") from None
        if self.exposed():
            raise StateError(f"the staging folder {self.path} is open to others: make it yours alone, chmod 700")

    def table_folder(self, query: str) -> Path:
        """Return the folder tables/<query>, made where absent, for the files of one table."""
        folder = self.path / "tables" / safe_name("query", query)
        _make_private(folder)
        return folder

    def complete(self, about: Mapping[str, Any], needed: Collection[str] = ()) -> Facts:
        """Make every file durable, then write attempt.json, with which the attempt is complete; return its facts.

        `about` is JSON. Raises StateError where something else than files and folders lies in the attempt, and where
        one of the files `needed` does not.
        """
        for path in self._files():
            path.chmod(0o600)
            sync_file(path)
        files = self._found()
        for folder in (self.path, *(path for path in self.path.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
            sync_folder(folder)
        facts = self._whole(about, files, needed)
        self._write(_FACTS, canonical_json(facts.to_json()))
        return facts

    def read(self, name: str) -> bytes:
        """Return the contents of the file at `name`, a path in the attempt."""
        return (self.path / name).read_bytes()

    def copy(self, name: str, writer: BinaryIO) -> None:
        """Write the contents of the file at `name` to `writer`, piece by piece."""
        with (self.path / name).open("rb") as reader:
            shutil.copyfileobj(reader, writer)

    def exposed(self) -> bool:
        """Whether another user could have looked in: a folder above the files is not ours alone."""
        folders = (self.root, self.path.parent, self.path)
        return not all(_is_private(folder) for folder in folders if os.path.lexists(folder))

    def destroy(self) -> None:
        """Remove the attempt and all its files; nothing happens where there are none."""
        if self.path.is_symlink():
            self.path.unlink()
        elif self.path.is_dir():
            shutil.rmtree(self.path)
        if self.path.parent.is_dir():
            sync_folder(self.path.parent)
            if not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()

    def _write(self, name: str, text: str) -> None:
        write_whole(self.path / name, text.encode(), 0o600)
        (self.path / name).chmod(0o600)  # the umask may have taken our own rights

    def _found(self) -> dict[str, StagedFile]:
        return {path.relative_to(self.path).as_posix(): StagedFile(*fingerprint(path)) for path in self._files()}

    def _files(self) -> list[Path]:
        # Names with a dot are rests of tasks that were killed, or of ones that a worker still runs in vain.
        every = (path for path in self.path.rglob("*") if not path.name.startswith("."))
        paths = sorted(path for path in every if path.is_symlink() or not path.is_dir())
        for path in paths:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StateError(f"{path} is no ordinary file")
        return paths


class StoreStaging(Staging):
    """A prefix of an object store, as private as its bucket."""

    def __init__(self, root: Stored, release: str, attempt: str) -> None:
        super().__init__(release, attempt)
        self.root: Stored = root
        self.path: Stored = root / self.release / self.attempt

    def create(self) -> None:
        """Make sure that nothing is there yet."""
        prepare_root(self.root)
        if _objects(self.path):
            raise StateError(f"the staging place {self.path} cannot be made: it exists already")

    def table_folder(self, query: str) -> Stored:
        """Return the prefix of one table's files."""
        return self.path / "tables" / safe_name("query", query)

    def complete(self, about: Mapping[str, Any], needed: Collection[str] = ()) -> Facts:
        """Read every object back, then put attempt.json, with which the attempt is complete; return its facts."""
        facts = self._whole(about, self._found(), needed)
        self._write(_FACTS, canonical_json(facts.to_json()))
        return facts

    def read(self, name: str) -> bytes:
        """Return the contents of the object at `name`, a path in the attempt; FileNotFoundError where it is none."""
        with _told(self.path):
            return (self.path / name).read()

    def copy(self, name: str, writer: BinaryIO) -> None:
        """Write the contents of the object at `name` to `writer`."""
        writer.write(self.read(name))

    def exposed(self) -> bool:
        """Return False: who could look in is for the bucket's policy, and is not seen here."""
        return False

    def destroy(self) -> None:
        """Remove every object of the attempt; StateError where the store does not let it."""
        with _told(self.path):
            self.path.delete_below()

    def _write(self, name: str, text: str) -> None:
        with _told(self.path):
            (self.path / name).write(text.encode())

    def _found(self) -> dict[str, StagedFile]:
        with _told(self.path):
            return {at.relative_to(self.path): StagedFile(*contents_of(at.read())) for at in self.path.objects()}


class _Unusable(StateError):
    """A store that does not tell what is staged in it."""


@contextmanager
def _told(at: Stored) -> Iterator[None]:
    """Raise StateError for what a store cannot do in the block; FileNotFoundError as it is."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _Unusable(f"the staging place {at} cannot be used: {error.strerror}") from None


def _try(root: Stored) -> None:
    probe = root / f"probe-{uuid.uuid4().hex}"
    try:
        probe.write(b"1")
        probe.delete()
    except OSError as error:
        raise StateError(f"the staging place {root} cannot be used: {error.strerror}") from None


def _objects(folder: Stored) -> list[Stored]:
    with _told(folder):
        return folder.objects()


def _make_private(folder: Path) -> None:
    """Make `folder` and what is missing above it with mode 0700 exactly; present ones are left as they are."""
    if not folder.is_dir():
        _make_private(folder.parent)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if folder.is_dir():  # another process was first
                return
            raise
        folder.chmod(0o700)  # the umask may have taken our own rights
        sync_folder(folder.parent)


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077
