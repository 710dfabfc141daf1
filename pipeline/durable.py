"""Files and folders that are whole or absent, and still there after a power cut."""

import hashlib
import os
from pathlib import Path

_PARTIAL = ".partial"  # ends the name of a file that is being written


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the contents of the file at `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
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
    """Return the path beside `path` under which its contents are written before they are whole."""
    return path.with_name(f".{path.name}{_PARTIAL}")


def is_partial(path: Path) -> bool:
    """Whether `path` is one that `partial` returns: what a crash may leave, to be removed."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def write_partial(path: Path, data: bytes, mode: int) -> Path:
    """Write `data` durably to `partial(path)`, with `mode` less the umask, and return that path."""
    aside = partial(path)
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return aside


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Write `data` to `path` durably: readers see the old contents, or none, or all of the new."""
    os.replace(write_partial(path, data, mode), path)
    sync_folder(path.parent)


def fingerprint(path: Path) -> tuple[str, int]:
    """Return the SHA-256, in hexadecimal, and the size in bytes of the file at `path`."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        return found, file.tell()


def contents_of(data: bytes) -> tuple[str, int]:
    """Return what `fingerprint` returns, of the contents themselves."""
    return hashlib.sha256(data).hexdigest(), len(data)
