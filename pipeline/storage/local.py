"""Files and folders of this machine: complete or absent, durable after a power cut, private where asked for.

Durability: a file is synced before its final name appears, and the folder after that.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from pipeline.base.errors import PlanError, file_errors
from pipeline.storage.location import FileDigest, Location

_PARTIAL = ".partial"  # ends the name of a file that is being written


@final
@dataclass(frozen=True, order=True)
class LocalPath(Location):
    """A file or folder of this machine."""

    path: Path

    remote: ClassVar[bool] = False
    conditional: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> "LocalPath":
        return LocalPath(self.path / name)

    @property
    def root(self) -> str:
        return "file"

    @property
    def key(self) -> str:
        return self.path.as_posix()

    def resolve(self, what: str = "the location") -> "LocalPath":
        try:
            return LocalPath(self.path.resolve())
        except (OSError, RuntimeError):  # Python 3.13 raises the first, older ones the second
            raise PlanError(f"{what} {self}: its links lead in a circle; give another path") from None

    def as_path(self) -> Path:
        return self.path

    def above(self) -> list["LocalPath"]:
        return [LocalPath(path) for path in self.path.parents]

    def exists(self) -> bool:
        return os.path.lexists(self.path)  # also of a link that leads nowhere

    def is_file(self) -> bool:
        return self.path.is_file()

    def is_plain_file(self) -> bool:
        return stat.S_ISREG(self.path.lstat().st_mode)

    def is_link(self) -> bool:
        return self.path.is_symlink()

    def is_partial(self) -> bool:
        return self.name.startswith(".") and self.name.endswith(_PARTIAL)

    def is_exposed(self) -> bool:
        if not self.exists():
            return False
        facts = self.path.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
        return not (ours and not stat.S_IMODE(facts.st_mode) & 0o077)

    def files(self) -> list["LocalPath"]:
        if not self.exists():
            return []
        files = []
        for folder, folders, names in os.walk(self.path, onerror=_raise):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            files += [LocalPath(Path(folder, name)) for name in (*links, *names)]
        return sorted(files)

    def children(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, names in os.walk(self.path, onerror=_raise):
            yield os.path.relpath(folder, self.path), folders, names

    def size(self) -> int:
        return self.path.stat().st_size

    def fingerprint(self) -> list[object]:
        facts = self.path.stat()
        return [facts.st_size, facts.st_mtime_ns]

    def digest(self) -> FileDigest:
        with self.path.open("rb") as file:
            return FileDigest(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())

    def open(self) -> Any:
        import pyarrow as pa  # noqa: PLC0415 — `explain` knows locations too, and reads none

        return pa.OSFile(str(self.path), "rb")

    def read(self) -> bytes:
        return self.path.read_bytes()

    def write(self, *parts: Any) -> None:
        aside = self.path.with_name(f".{self.name}.{uuid.uuid4().hex}")
        with os.fdopen(_new_file(aside, 0o600), "wb") as file:
            file.writelines(parts)
            file.flush()
            _let_go(file)  # on its way to the disk already when it is synced
        os.replace(aside, self.path)

    def write_durably(self, data: bytes, *, private: bool = True) -> None:
        os.replace(write_partial(self.path, data, 0o600 if private else 0o644), self.path)
        if private:
            self.path.chmod(0o600)  # the umask may have taken our own rights
        sync_folder(self.path.parent)

    def writing(self) -> Any:
        import pyarrow as pa  # noqa: PLC0415

        return pa.OSFile(str(self.path), "wb")

    def create(self, data: bytes, writer: str, *, private: bool = False) -> bool:
        """Write a file where there is none, by a link, which is atomic and replaces nothing."""
        # No other writer writes to this name before it is linked.
        aside = write_partial(self.path.with_name(f"{self.name}.{writer}"), data, 0o600 if private else 0o644)
        try:
            os.link(aside, self.path)
            created = True
        except FileExistsError:
            created = False
        finally:
            aside.unlink()
        sync_folder(self.path.parent)
        return created

    def require_create(self, what: str) -> None:
        nearest = next(path for path in (self.path, *self.path.parents) if os.path.lexists(path))
        with file_errors(f"{what} {self} cannot be written ({nearest}: ", ")"):
            LocalPath(nearest).try_writing()

    def copy_from(self, source: Location, digest: FileDigest) -> bool:
        """Write a new file, whose times tell nothing of the source's, under another name: it appears complete."""
        make_folder(self.path.parent, 0o755)
        aside = partial(self.path)
        with os.fdopen(_new_file(aside, 0o644), "wb") as writer:
            if isinstance(source, LocalPath):
                with source.path.open("rb") as reader:
                    shutil.copyfileobj(reader, writer, 1 << 20)
                    _let_go(reader)  # what was staged is read no more: its memory serves the next copy
            else:
                writer.write(source.read())
        sync_file(aside)
        if LocalPath(aside).digest() != digest:
            aside.unlink()
            return False
        os.rename(aside, self.path)
        return True

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def delete_tree(self) -> None:
        if self.path.is_symlink():
            self.path.unlink()  # the link alone
        elif self.path.is_dir():
            shutil.rmtree(self.path)

    def make_folder(self) -> None:
        make_folder(self.path, 0o755)

    def make_private(self) -> None:
        if not self.path.is_dir():
            LocalPath(self.path.parent).make_private()
            try:
                self.path.mkdir(mode=0o700)
            except FileExistsError:
                if self.path.is_dir():  # another process was first
                    return
                raise
            self.path.chmod(0o700)  # the umask may have taken our own rights
            sync_folder(self.path.parent)

    def try_writing(self) -> None:
        """Write a file without a name: that fails on read-only and network file systems whatever the bits say."""
        with tempfile.TemporaryFile(dir=self.path):
            pass

    def secure_file(self) -> None:
        self.path.chmod(0o600)
        sync_file(self.path)

    def secure_folders(self) -> None:
        for folder in self._folders():
            folder.chmod(0o700)
            sync_folder(folder)

    def sync_folders(self) -> None:
        for folder in self._folders():
            sync_folder(folder)

    def delete_if_empty(self) -> None:
        if self.path.is_dir():
            sync_folder(self.path)
            if not any(self.path.iterdir()):
                self.path.rmdir()

    def _folders(self) -> list[Path]:
        return [Path(folder) for folder, _, _ in os.walk(self.path, onerror=_raise)]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_file(path: Path) -> None:
    """Make the contents of the file at `path` durable."""
    _sync(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int) -> None:
    """Make `folder` and what is missing above it, each with `mode` less the umask; present ones are left alone."""
    if not folder.is_dir():
        make_folder(folder.parent, mode)
        folder.mkdir(mode=mode, exist_ok=True)
        sync_folder(folder.parent)


def partial(path: Path) -> Path:
    """Return the path beside `path` under which its contents are written before they are complete."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def write_partial(path: Path, data: bytes, mode: int) -> Path:
    """Write `data` durably to `partial(path)`, with `mode` less the umask, and return that path."""
    aside = partial(path)
    aside.unlink(missing_ok=True)
    with os.fdopen(_new_file(aside, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return aside


def _let_go(file: Any) -> None:
    """Let the disk take what was written, and the memory of what is on it serve others."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _new_file(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _raise(error: OSError) -> None:
    raise error
