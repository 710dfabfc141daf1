"""Files and folders that are whole or absent, and still there after a power cut."""

import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from pipeline.storage.location import Place, Stored

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


# Files of confidential numbers that only the holder of a run's seal can read.


KEY_BITS = 256
NONCE_BYTES = 12

Columns = Mapping[str, NDArray[np.int64]]


class Seal:
    """A key that lives in memory and ends with its run: what a killed run leaves on a disk, nobody can read.

    It travels by pickle alone and shows in no repr. A file is bound to its name: another one in its place is refused.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def fresh(cls) -> "Seal":
        """Return a seal of the operating system's entropy."""
        return cls(AESGCM.generate_key(KEY_BITS))

    def write(self, path: Place, columns: Columns) -> None:
        """Write columns of equal length; a repetition replaces the file by one of the same contents."""
        self.write_batch(path, pa.record_batch(dict(columns)))

    def read(self, path: Place) -> dict[str, NDArray[np.int64]]:
        """Return the columns of a file; raises cryptography's InvalidTag where it is not as it was written."""
        return unpack(self._opened(path))

    def write_batch(self, path: Place, batch: pa.RecordBatch) -> None:
        """Write a record batch of any columns, as `write` does."""
        put(path, [self.closed(path.name, pack_batch(batch))])

    def read_batch(self, path: Place) -> pa.RecordBatch:
        """Return the record batch of a file, as `read` does."""
        return unpack_batch(self._opened(path))

    def _opened(self, path: Place) -> bytes:
        return self.opened(path.name, path.read() if isinstance(path, Stored) else path.read_bytes())

    def closed(self, name: str, data: bytes) -> bytes:
        """Return `data` encrypted and bound to `name`; longer by as many bytes whatever the data."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, data, name.encode())

    def opened(self, name: str, data: bytes) -> bytes:
        """Return what `closed` closed under `name`; raises cryptography's InvalidTag where it is anything else."""
        return AESGCM(self._key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name.encode())

    def __repr__(self) -> str:
        return "Seal(redacted)"

    def __reduce__(self) -> tuple[type["Seal"], tuple[bytes]]:
        return Seal, (self._key,)


def put(path: Place, parts: Iterable[bytes]) -> None:
    """Write a file of this user alone, or an object, at once: a repetition replaces it whole."""
    if isinstance(path, Stored):
        path.write(b"".join(parts))
        return
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.writelines(parts)
    os.replace(aside, path)


def pack(columns: Columns) -> bytes:
    """Return columns of equal length as bytes, in Arrow's form."""
    return pack_batch(pa.record_batch(dict(columns)))


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Return a record batch as bytes, in Arrow's form."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> dict[str, NDArray[np.int64]]:
    """Return the columns that `pack` packed; they cannot be written to."""
    batch = unpack_batch(packed)
    return {name: np.asarray(batch.column(name)) for name in batch.schema.names}


def unpack_batch(packed: bytes) -> pa.RecordBatch:
    """Return the record batch that `pack_batch` packed."""
    (batch,) = pa.ipc.open_stream(packed)
    return batch
