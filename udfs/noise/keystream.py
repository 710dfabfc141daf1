"""Random bits addressed by (query, cell, draw): AES-256 of a counter under a secret key.

Guarantee: for distinct addresses the blocks are those of a keyed permutation, so independent and uniform up to AES-256
being a pseudo-random permutation (gap n²/2¹²⁹ for n blocks). Nothing else decides them: not the order of cells, nor the
partition, the engine, a retry or a second evaluation (docs/architecture.md, rule 4, docs/mathematics.md, section 6).
"""

import os
import secrets
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from udfs.numbers.arrays import UInt64s

KEY_BYTES = 32
MAX_QUERIES = 1 << 16
MAX_DRAWS = 1 << 32  # a draw is rejected with probability under ¾: 2³² in a row never happen
MAX_PARTS = 1 << 16
SECOND = MAX_DRAWS // 2  # where the draws of a cell's second noise begin: the first never gets there
WORDS = 4  # 64-bit words of the first two blocks of a draw: bucket, place, acceptance, sign
FAST_PARTS = 2  # those two blocks; later parts hold the further digits that the slow path asks for


class SecretKey:
    """An attempt's key: 32 bytes that no repr, log, token or comparison shows. It travels by pickle alone."""

    __slots__ = ("_bytes", "label")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._bytes = raw
        self.label = secrets.token_hex(8)  # tells keys apart in task names; unrelated to the bytes

    @classmethod
    def fresh(cls) -> "SecretKey":
        """Return a key of the operating system's entropy."""
        return cls(os.urandom(KEY_BYTES))

    def encrypt(self, blocks: UInt64s) -> UInt64s:
        """Return AES-256 of `blocks`, shape (n, 2) of little-endian words, block by block."""
        plain = np.ascontiguousarray(blocks, dtype="<u8")
        out = np.empty(plain.nbytes + 15, dtype=np.uint8)
        cipher = Cipher(algorithms.AES(self._bytes), modes.ECB()).encryptor()
        written = cipher.update_into(plain.view(np.uint8).ravel().data, out.data)
        return out[:written].view("<u8").reshape(-1, 2).astype(np.uint64, copy=False)

    def __repr__(self) -> str:
        return "SecretKey(redacted)"

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("SecretKey", self.label)

    def __reduce__(self) -> tuple[object, tuple[bytes, str]]:
        return _restore, (self._bytes, self.label)


def _restore(raw: bytes, label: str) -> SecretKey:
    key = SecretKey(raw)
    key.label = label
    return key


class Bits(Protocol):
    """Random bits for the cells of one query, as the sampler asks for them; tests inject their own."""

    def words(self, rows: NDArray[np.intp], draw: int) -> UInt64s:
        """Return the first WORDS random words of the given draw, shape (len(rows), WORDS)."""

    def more(self, row: int, draw: int, part: int) -> int:
        """Return 128 further random bits of the given draw as an integer; parts count from 0."""


@dataclass(frozen=True, kw_only=True)
class CellBits:
    """The keystream at the given cells of one query: row i speaks for `cells[i]` (uint64 cell numbers)."""

    key: SecretKey
    query: int
    cells: UInt64s

    def __post_init__(self) -> None:
        if not 0 <= self.query < MAX_QUERIES:
            raise ValueError(f"a query number lies between 0 and {MAX_QUERIES - 1}")

    def words(self, rows: NDArray[np.intp], draw: int) -> UInt64s:
        """Return the first two blocks of the given draw at `rows`, shape (len(rows), 4)."""
        blocks = np.empty((len(rows), FAST_PARTS, 2), dtype=np.uint64)
        blocks[:, :, 0] = self.cells[rows][:, None]
        for part in range(FAST_PARTS):
            blocks[:, part, 1] = self._address(draw, part)
        return self.key.encrypt(blocks.reshape(-1, 2)).reshape(-1, WORDS)

    def more(self, row: int, draw: int, part: int) -> int:
        """Return the block of a later part of the given draw, as an integer of 128 bits."""
        if not part >= 0:
            raise ValueError("parts count from 0")
        block = np.array([[self.cells[row], self._address(draw, FAST_PARTS + part)]], dtype=np.uint64)
        high, low = self.key.encrypt(block)[0]
        return int(high) << 64 | int(low)

    def _address(self, draw: int, part: int) -> int:
        if not (0 <= draw < MAX_DRAWS and 0 <= part < MAX_PARTS):
            raise OverflowError("a cell's keystream is used up")
        return self.query << 48 | draw << 16 | part


@dataclass(frozen=True)
class SecondNoise:
    """The keystream of a second noise of the same cells: `bits` from draw 2³¹ on, which the first never reaches."""

    bits: Bits

    def words(self, rows: NDArray[np.intp], draw: int) -> UInt64s:
        """Return the words of the given draw of the second noise."""
        return self.bits.words(rows, self._later(draw))

    def more(self, row: int, draw: int, part: int) -> int:
        """Return further bits of the given draw of the second noise."""
        return self.bits.more(row, self._later(draw), part)

    @staticmethod
    def _later(draw: int) -> int:
        if not 0 <= draw < SECOND:
            raise OverflowError("a cell's keystream is used up")
        return SECOND + draw


# Random bits from a seed, for errors that studies and estimates draw: the noise of releases never comes from them.


@dataclass(frozen=True)
class SeededBits:
    """Bits for `size` cells of which every seed and `stream` has its own; no secret, and no SecretKey."""

    size: int
    seed: int
    stream: int

    def words(self, rows: NDArray[np.intp], draw: int) -> UInt64s:
        """Return the words of the given draw, shape (len(rows), WORDS)."""
        every = self._random(draw).integers(0, 2**64, (self.size, WORDS), dtype=np.uint64)
        return np.ascontiguousarray(every[rows])

    def more(self, row: int, draw: int, part: int) -> int:
        """Return 128 further bits of the given draw."""
        return int.from_bytes(self._random(draw, row, 1 + part).bytes(16))

    def _random(self, *address: int) -> "np.random.Generator":  # a module that releases do not load
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.stream, *address)))
