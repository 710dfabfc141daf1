"""Private staging of one attempt: what is drawn lies here, unseen, until the ledger chooses it or it is destroyed."""

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.canonical import canonical_json, digest
from pipeline.durable import fingerprint, sync_file, sync_folder, write_whole
from pipeline.errors import PlanError, StateError

_FACTS = "attempt.json"  # written last: with it an attempt is complete
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


def prepare_root(root: Path) -> None:
    """Make the staging root with mode 0700 where absent; raises StateError where others could see into it.

    Call it before a draw is recorded: an attempt that others may have seen costs a charge.
    """
    try:
        _make_private(root)
        private = _is_private(root)
    except OSError as error:
        raise StateError(f"the staging folder {root} cannot be made: {error.strerror}") from None
    if not private:
        raise StateError(f"the staging folder {root} is open to others: make it yours alone, chmod 700")


class Staging:
    """The folder root/<release>/<attempt>, seen by this user alone: folders 0700, files 0600, whatever the umask."""

    def __init__(self, root: Path, release: str, attempt: str) -> None:
        self.root = root
        self.release = safe_name("release", release)
        self.attempt = safe_name("attempt", attempt)
        self.path = root / self.release / self.attempt

    @classmethod
    def strays(cls, root: Path, release: str, attempt: str | None) -> list["Staging"]:
        """Return what is staged of `release` beside the live `attempt`."""
        folder = root / safe_name("release", release)
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [cls(root, release, name) for name in names if name != attempt]

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

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` durably, in UTF-8."""
        self._write(safe_name("file", name), text)

    def complete(self, about: Mapping[str, Any]) -> Facts:
        """Make every file durable, then write attempt.json, with which the attempt is complete; return its facts.

        `about` is JSON. Raises StateError where something else than files and folders lies in the attempt.
        """
        files = {}
        for path in self._files():
            path.chmod(0o600)
            sync_file(path)
            files[path.relative_to(self.path).as_posix()] = StagedFile(*fingerprint(path))
        for folder in (self.path, *(path for path in self.path.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
            sync_folder(folder)
        facts = Facts(about, files)
        self._write(_FACTS, canonical_json(facts.to_json()))
        return facts

    def read_complete(self) -> Facts | None:
        """Return the facts of a complete attempt whose every file is as it was staged; None for any other."""
        try:
            read = json.loads((self.path / _FACTS).read_bytes())
            listed = {path: StagedFile(**file) for path, file in read["files"].items()}
            found = {path.relative_to(self.path).as_posix(): StagedFile(*fingerprint(path)) for path in self._files()}
            facts = Facts(read["about"], listed)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StateError):
            return None
        del found[_FACTS]
        return facts if found == listed else None

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

    def _files(self) -> list[Path]:
        # Names with a dot are rests of tasks that were killed, or of ones that a worker still runs in vain.
        every = (path for path in self.path.rglob("*") if not path.name.startswith("."))
        paths = sorted(path for path in every if path.is_symlink() or not path.is_dir())
        for path in paths:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StateError(f"{path} is no ordinary file")
        return paths


def _make_private(folder: Path) -> None:
    """Make `folder` and what is missing above it with mode 0700 exactly; present ones are left as they are."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)  # the umask may have taken our own rights
        sync_folder(folder.parent)


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077
