import io
import logging
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.bits import cell_bits
from udfs.noise.keystream import FAST_PARTS, MAX_DRAWS, MAX_PARTS, MAX_QUERIES, CellBits, SecretKey

RAW = bytes(range(200, 232))
Address = tuple[int, int, int, int]  # cell, query, draw, part
deterministic = settings(derandomize=True)

# (key, plain, cipher): FIPS-197 appendix C.3, then NIST SP 800-38A F.1.5 (ECB-AES256), four blocks under one key.
VECTORS = [
    (
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        ["00112233445566778899aabbccddeeff"],
        ["8ea2b7ca516745bfeafc49904b496089"],
    ),
    (
        "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4",
        [
            "6bc1bee22e409f96e93d7e117393172a",
            "ae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52ef",
            "f69f2445df4f9b17ad2b417be66c3710",
        ],
        [
            "f3eed1bdb5d2a03c064b5a7e3db181f8",
            "591ccb10d410ed26dc5ba74a31362870",
            "b6ed21b99ca6f4f9f153e7b1beafed1d",
            "23304b7a39f9f3ff067d8d8f9e24ecc7",
        ],
    ),
]


@pytest.mark.parametrize(("key", "plain", "cipher"), VECTORS)
def test_the_published_vectors_of_aes_256(key: str, plain: list[str], cipher: list[str]) -> None:
    blocks = np.frombuffer(bytes.fromhex("".join(plain)), dtype="<u8").reshape(-1, 2)
    found = SecretKey(bytes.fromhex(key)).encrypt(blocks)
    assert found.astype("<u8").tobytes().hex() == "".join(cipher)


def plain_blocks(bits: CellBits, row: int, draw: int, part: int) -> list[bytes]:
    """The counter blocks behind what `bits` answers, by decryption: those of the words, and that of a later part."""
    high, low = divmod(bits.more(row, draw, part), 1 << 64)
    answered = np.append(bits.words(np.array([row]), draw).ravel(), np.array([high, low], dtype=np.uint64))
    decryptor = Cipher(algorithms.AES(RAW), modes.ECB()).decryptor()
    text = decryptor.update(answered.astype("<u8").tobytes())
    return [text[i : i + 16] for i in range(0, len(text), 16)]


def collide(one: Address, other: Address, kind: type[CellBits] = CellBits) -> bool:
    """Whether two different addresses share a counter block (blocks that the two address alike do not count)."""
    key = SecretKey(RAW)
    seen: dict[bytes, Address] = {}
    for cell, query, draw, part in (one, other):
        bits = kind(key=key, query=query, cells=np.array([7, cell], dtype=np.uint64))
        addresses = [(cell, query, draw, p) for p in (*range(FAST_PARTS), FAST_PARTS + part)]
        for block, address in zip(plain_blocks(bits, 1, draw, part), addresses, strict=True):
            if seen.setdefault(block, address) != address:
                return True
    return False


def addresses() -> st.SearchStrategy[Address]:
    def edge(limit: int) -> st.SearchStrategy[int]:
        return st.one_of(st.integers(0, 3), st.integers(0, limit - 1), st.integers(limit - 4, limit - 1))

    return st.tuples(edge(1 << 64), edge(MAX_QUERIES), edge(MAX_DRAWS), edge(MAX_PARTS - FAST_PARTS))


@deterministic
@given(addresses(), addresses())
def test_distinct_addresses_have_distinct_blocks(one: Address, other: Address) -> None:
    assert not collide(one, other)


@deterministic
@given(addresses(), st.integers(0, 3), st.integers(0, 63))
def test_addresses_that_differ_in_one_bit_have_distinct_blocks(one: Address, place: int, bit: int) -> None:
    limits = (64, 16, 32, 15)
    other = list(one)
    other[place] ^= 1 << bit % limits[place]
    if other[3] < MAX_PARTS - FAST_PARTS:
        assert not collide(one, (other[0], other[1], other[2], other[3]))


class WithoutQuery(CellBits):
    def _address(self, draw: int, part: int) -> int:
        return draw << 16 | part


class WithoutDraw(CellBits):
    def _address(self, draw: int, part: int) -> int:
        return self.query << 48 | part


class OverlappingDraw(CellBits):
    def _address(self, draw: int, part: int) -> int:
        return self.query << 48 | draw + part


class WithoutCell(CellBits):
    def words(self, rows: Any, draw: int) -> Any:
        return super().words(np.zeros_like(rows), draw)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (WithoutQuery, (5, 2, 1, 0)),
        (WithoutDraw, (5, 1, 2, 0)),
        (OverlappingDraw, (5, 1, 2, 0)),
        (WithoutCell, (6, 1, 1, 0)),
    ],
)
def test_a_layout_that_drops_or_mixes_a_field_is_caught(kind: type[CellBits], other: Address) -> None:
    assert not collide((5, 1, 1, 0), other)
    assert collide((5, 1, 1, 0), other, kind)


def test_bits_depend_on_the_cell_alone_whatever_the_order_and_partition() -> None:
    key, cells = SecretKey(RAW), np.arange(1000, dtype=np.uint64) ** 3
    whole = CellBits(key=key, query=3, cells=cells)
    rows = np.arange(1000)
    expected = whole.words(rows, 2)
    shuffled = np.random.default_rng(0).permutation(1000)
    np.testing.assert_array_equal(whole.words(shuffled, 2), expected[shuffled])
    np.testing.assert_array_equal(CellBits(key=key, query=3, cells=cells[shuffled]).words(rows, 2), expected[shuffled])
    for start in range(0, 1000, 170):
        part = CellBits(key=key, query=3, cells=cells[start : start + 170])
        np.testing.assert_array_equal(part.words(np.arange(len(part.cells)), 2), expected[start : start + 170])
        assert part.more(0, 2, 5) == whole.more(start, 2, 5)
    assert whole.words(rows[:0], 0).shape == (0, 4)


@pytest.mark.parametrize("query", [-1, MAX_QUERIES])
def test_query_numbers_beyond_the_address_are_refused(query: int) -> None:
    with pytest.raises(ValueError, match="query number"):
        CellBits(key=SecretKey(RAW), query=query, cells=np.zeros(1, dtype=np.uint64))


@pytest.mark.parametrize(("draw", "part"), [(MAX_DRAWS, 0), (-1, 0), (0, MAX_PARTS - FAST_PARTS)])
def test_a_keystream_never_runs_into_the_next_address(draw: int, part: int) -> None:
    with pytest.raises(OverflowError, match="used up"):
        cell_bits(1).more(0, draw, part)


@dataclass
class Holder:
    key: SecretKey


def renderings(key: SecretKey) -> str:
    """Everything that commonly shows an object: repr, str, format, logging, an assertion, a traceback with locals."""
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("%s %r", key, {"key": key})
    try:
        raise RuntimeError(key, Holder(key))
    except RuntimeError as error:
        stream.write("".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()))
    bits = CellBits(key=key, query=0, cells=np.zeros(1, dtype=np.uint64))
    return f"{key} {key!r} {key!s} {[key]} {bits} {Holder(key)} {key.__dask_tokenize__()}" + stream.getvalue()


def shows_bytes(text: str) -> bool:
    shown = (RAW.hex(), RAW.hex(" "), repr(RAW)[2:-1], str(list(RAW))[1:-1], RAW[:8].hex(), repr(RAW[:4])[2:-1])
    return any(form in text for form in shown)


class LeakyKey(SecretKey):
    def __repr__(self) -> str:
        return f"SecretKey({self._bytes!r})"


def test_no_rendering_shows_the_key() -> None:
    text = renderings(SecretKey(RAW))
    assert "redacted" in text
    assert not shows_bytes(text)
    assert shows_bytes(renderings(LeakyKey(RAW)))


def test_a_key_travels_by_pickle_and_keeps_its_label() -> None:
    key = SecretKey(RAW)
    again = pickle.loads(pickle.dumps(key))
    blocks = np.arange(8, dtype=np.uint64).reshape(-1, 2)
    np.testing.assert_array_equal(again.encrypt(blocks), key.encrypt(blocks))
    assert again.label == key.label
    assert not shows_bytes(repr(again))


def test_tokens_and_comparisons_say_nothing_about_the_bytes() -> None:
    from dask.base import tokenize

    one, same, other = SecretKey(RAW), SecretKey(RAW), SecretKey(bytes(32))
    assert one == one  # noqa: PLR0124 — identity alone
    assert one != same
    assert len({one, same, other}) == 3
    assert len({tokenize(one), tokenize(same), tokenize(other)}) == 3
    assert tokenize(one) == tokenize(pickle.loads(pickle.dumps(one)))
    assert RAW.hex() not in repr(one.__dask_tokenize__())


def test_fresh_keys_differ() -> None:
    blocks = np.zeros((1, 2), dtype=np.uint64)
    assert len({SecretKey.fresh().encrypt(blocks).tobytes() for _ in range(20)}) == 20


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33, 64])
def test_another_length_is_refused_without_showing_it(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes") as caught:
        SecretKey(b"\xab" * size)
    assert "ab" not in str(caught.value)
