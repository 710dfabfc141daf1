"""Sealed files give back what was written, to the holder of the seal alone, and show nothing."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

from pipeline.storage.paths import locate
from pipeline.storage.sealing import Seal, pack
from tests.support.leaks import forms, found

COLUMNS = {"cell": np.arange(1000), "total": np.full(1000, int.from_bytes(b"CANARY!!", "little"))}


def test_what_was_written_is_read_by_a_copy_of_the_seal(tmp_path: Path) -> None:
    seal = Seal.fresh()
    for columns in (COLUMNS, {"cell": np.zeros(0, dtype=np.int64)}):
        seal.write(locate(tmp_path / "sums-1"), columns)
        read = pickle.loads(pickle.dumps(seal)).read(locate(tmp_path / "sums-1"))
        assert read.keys() == columns.keys()
        assert all(np.array_equal(read[name], column) for name, column in columns.items())
    assert [path.name for path in tmp_path.iterdir()] == ["sums-1"]
    assert (tmp_path / "sums-1").stat().st_mode & 0o777 == 0o600


def test_nothing_stands_in_the_clear(tmp_path: Path) -> None:
    seal = Seal.fresh()
    seal.write(locate(tmp_path / "a"), COLUMNS)
    seal.write(locate(tmp_path / "b"), COLUMNS)
    first, second = ((tmp_path / name).read_bytes() for name in "ab")
    assert b"CANARY!!" in pack(COLUMNS)
    assert b"CANARY" not in first + second
    assert b"total" not in first + second
    assert first[12:40] != second[12:40]
    assert not found(f"{seal} {seal!r}", forms(seal._key))


def test_another_seal_another_place_and_a_changed_file_are_refused(tmp_path: Path) -> None:
    seal = Seal.fresh()
    seal.write(locate(tmp_path / "totals-1"), COLUMNS)
    with pytest.raises(InvalidTag):
        Seal.fresh().read(locate(tmp_path / "totals-1"))
    data = (tmp_path / "totals-1").read_bytes()
    (tmp_path / "totals-2").write_bytes(data)
    with pytest.raises(InvalidTag):
        seal.read(locate(tmp_path / "totals-2"))
    for place in (0, 20, len(data) - 1):
        (tmp_path / "totals-1").write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(InvalidTag):
            seal.read(locate(tmp_path / "totals-1"))
