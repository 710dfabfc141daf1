"""Files of confidential numbers that only the holder of a run's seal can read."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from pipeline.base.errors import arg, file_errors
from pipeline.storage.location import Location

KEY_BITS = 256
NONCE_BYTES = 12

Columns = Mapping[str, NDArray[np.int64]]


def staging_errors(what: str) -> AbstractContextManager[None]:
    """Raise the failure of a task to write `what` to staging, in the block, as StateError."""
    return file_errors(
        f"{what}: writing to staging failed (", f"): make room, or give another {arg('staging')}; run again"
    )


class Seal:
    """A key that lives in memory and ends with its run: what a killed run leaves on a disk, nobody can read.

    It travels by pickle alone and shows in no repr. A file is bound to its name: another file under that name is
    refused.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def fresh(cls) -> "Seal":
        """Return a seal of the operating system's entropy."""
        return cls(AESGCM.generate_key(KEY_BITS))

    def encrypt(self, name: str, data: bytes) -> bytes:
        """Return `data` encrypted and bound to `name`; longer by as many bytes whatever the data."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, data, name.encode())

    def decrypt(self, name: str, data: bytes) -> bytes:
        """Return what was encrypted under `name`; raises cryptography's InvalidTag where it is anything else."""
        return AESGCM(self._key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name.encode())

    def write(self, file: Location, columns: Columns) -> None:
        """Write columns of equal length; a repetition replaces the file by one of the same contents."""
        self.write_batch(file, pa.record_batch(dict(columns)))

    def read(self, file: Location) -> dict[str, NDArray[np.int64]]:
        """Return the columns of a file; raises cryptography's InvalidTag where it is not as it was written."""
        return unpack(self.decrypt(file.name, file.read()))

    def write_batch(self, file: Location, batch: pa.RecordBatch) -> None:
        """Write a record batch of any columns, as `write` does; StateError where its place does not take it."""
        with staging_errors("what is summed"):
            file.write(self.encrypt(file.name, pack_batch(batch)))

    def read_batch(self, file: Location) -> pa.RecordBatch:
        """Return the record batch of a file, as `read` does."""
        return unpack_batch(self.decrypt(file.name, file.read()))

    def __repr__(self) -> str:
        return "Seal(redacted)"

    def __reduce__(self) -> tuple[type["Seal"], tuple[bytes]]:
        return Seal, (self._key,)


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
