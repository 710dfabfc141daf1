"""Files of confidential numbers that only the holder of a run's seal can read."""

import os
import uuid
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from pipeline.storage import Place, Stored

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
