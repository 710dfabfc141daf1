import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import StateError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.writers import Block
from pipeline.microdata.source import Chunk, Piece, chunks, find
from pipeline.storage.paths import locate
from tests.support.cells import COARSE, FINEST, LISTED, as_dict, blocks, records, same, spec, write
from tests.support.dask_cluster import local_cluster
from udfs.noise.keystream import SecretKey
from udfs.records.statistics import Count
from udfs.records.sums import CELL, Frame, broken_of, sum_batches

KEY = SecretKey(bytes(range(32)))
SPEC = spec((FINEST, COARSE, LISTED))
FILES, RECORDS_A_FILE, GROUP = 5, 2000, 250


@pytest.fixture(scope="module")
def microdata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("microdata"), [records(RECORDS_A_FILE, i) for i in range(FILES)], GROUP)


@pytest.fixture(scope="module")
def sums(microdata: Path) -> Frame:
    """The sums of all records, by the kernel alone and in one batch."""
    whole = pa.concat_tables([pq.read_table(file) for file in find(locate(microdata)).files])
    return sum_batches(whole.combine_chunks().to_batches(), SPEC)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with local_cluster() as address:
        yield address


def cuttings(microdata: Path) -> list[list[Chunk]]:
    """Return the same records as one chunk, as files, as row groups, in any order, and unevenly."""
    paths = [str(file) for file in find(locate(microdata)).files]
    groups = [Piece(path, (group,)) for path in paths for group in range(RECORDS_A_FILE // GROUP)]
    random = np.random.default_rng(5)
    shuffled = [groups[i] for i in random.permutation(len(groups))]
    files: list[Chunk] = [(Piece(path, tuple(range(RECORDS_A_FILE // GROUP))),) for path in paths]
    uneven = [tuple(shuffled[:30]), (shuffled[30],), *((piece,) for piece in shuffled[31:])]
    found = list(chunks(find(locate(microdata))))
    return [found, [tuple(groups)], files, files[::-1], [(piece,) for piece in groups], uneven]


# -- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_sums_on_threads(microdata: Path, sums: Frame, workers: int) -> None:
    engine = DaskEngine(workers=workers)
    assert as_dict(sums)[0][0] > 0
    for cut in cuttings(microdata):
        assert same(engine.sums(cut, SPEC), sums)
    assert same(engine.sums(cut, SPEC), sums)  # evaluated twice


def test_sums_on_processes(microdata: Path, sums: Frame, cluster: str) -> None:
    engine = DaskEngine(cluster)
    for cut in cuttings(microdata)[-2:]:
        assert same(engine.sums(cut, SPEC), sums)
    assert same(engine.sums(cut, SPEC), sums)


def test_no_chunks_at_all() -> None:
    frame = DaskEngine(workers=1).sums([], SPEC)
    assert as_dict(frame) == {}
    assert list(frame)[1:] == [Count().addend, "employment", "payroll"]


def test_broken_rules_are_the_same_ones_however_data_are_cut(tmp_path: Path, cluster: str) -> None:
    bad = {"naics": ["3111", "311111"], "county": ["01001", None], "emp": [-1, 2], "pay": [0.1, None]}
    good = records(300).select(list(bad))
    bad_table = pa.table(bad)
    write(tmp_path, [good, bad_table[:1], good, bad_table[1:], good])
    pieces = [Piece(str(file), (0,)) for file in find(locate(tmp_path)).files]
    frames = [
        engine.sums(cut, SPEC)
        for engine in (DaskEngine(workers=1), DaskEngine(workers=4), DaskEngine(cluster))
        for cut in ([tuple(pieces)], [(piece,) for piece in pieces], [(piece,) for piece in pieces[::-1]])
    ]
    broken = [SPEC.broken_rule(cell)[0] for cell in broken_of(frames[0][CELL])]
    assert sorted(broken) == ["county", "emp", "naics", "pay", "pay"]
    assert all(same(frame, frames[0]) for frame in frames)


# -- staging ---------------------------------------------------------------------------------------------------------


def staged(engine: DaskEngine, work: Sequence[Block]) -> dict[str, bytes]:
    """Stage the blocks; return their files' bytes by name."""
    engine.stage(work, KEY)
    return {Path(block.path).name: Path(block.path).read_bytes() for block in work}


def test_the_same_key_gives_the_same_bytes(tmp_path: Path, cluster: str) -> None:
    expected = staged(DaskEngine(workers=1), blocks(tmp_path / "0", 8))
    assert len(set(expected.values())) == 8
    for workers in (1, 2, 4):
        folder = tmp_path / str(workers)
        assert staged(DaskEngine(workers=workers), blocks(folder, 8)[::-1]) == expected
        assert staged(DaskEngine(workers=workers), blocks(folder, 8)) == expected  # over the files that are there
        assert {path.name for path in folder.iterdir()} == set(expected)
    engine = DaskEngine(cluster)
    assert staged(engine, blocks(tmp_path / "cluster", 8)) == expected
    assert staged(engine, blocks(tmp_path / "cluster", 8)[::-1]) == expected
    other = SecretKey(bytes(32))
    DaskEngine(workers=2).stage(blocks(tmp_path / "other", 8), other)
    assert not any((tmp_path / "other" / name).read_bytes() == content for name, content in expected.items())


def test_an_unwritable_place_is_told_in_a_plain_error(tmp_path: Path, cluster: str) -> None:
    for engine in (DaskEngine(workers=2), DaskEngine(cluster)):
        work = blocks(tmp_path / "gone", 2)
        shutil.rmtree(tmp_path / "gone")
        with pytest.raises(StateError, match="table employment: writing to staging failed"):
            engine.stage(work, KEY)


def test_a_failure_is_told_once_no_task_goes_on(tmp_path: Path) -> None:
    def task(number: int) -> None:
        (tmp_path / f"begun {number}").touch()
        while not (tmp_path / f"begun {1 - number}").exists():
            time.sleep(0.01)
        if number == 0:
            raise StateError("full")
        time.sleep(0.5)
        (tmp_path / "ended").touch()

    with pytest.raises(StateError, match="full"):
        DaskEngine(workers=2).each(task, [0, 1])
    assert (tmp_path / "ended").exists()
