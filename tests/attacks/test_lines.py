"""Attack: any record, whatever its bytes, alone and among any others: no record changes how another is read.

The microdata's totals are those of each record read by itself, added up, with `bad_records: drop`: lines of CSV with
bytes at random (marks, quotes, NULs, control bytes, what is not UTF-8), first, last and in the middle; rows of Parquet
across row groups and files. On Dask always, on Spark in the drill.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.microdata import read
from tests.support.cases import cases, sizes
from tests.support.spark import PYSPARKS_OWN
from tests.support.totals import totals_of
from tests.support.world import COUNTIES, NAICS, write_world

QUERIES = [
    {"name": "count", "count": "records", "by": ["naics6", "county"], "mechanism": {"kind": "gaussian", "sigma": 9}},
    {"name": "sum", "sum": "employment", "by": ["state"], "mechanism": {"kind": "gaussian", "sigma": 9}},
]
HEADER = b"establishment_id,naics,county,employment,payroll"
GOOD = b"E0,311111,01001,1,1"
ODD = [b"\xef\xbb\xbf", b'"', b'""', *(bytes([odd]) for odd in b",\r\x00\x01\x1a\xff\xc3\x85 -#")]
Records = Sequence[Any]
Write = Callable[[Path, Records, Random], None]


def a_line(random: Random) -> bytes:
    """A good record, or one into which odd bytes were put, or bytes at random."""
    size = random.choice([random.randrange(100), random.randrange(10**6), 10**18])
    fields = [f"E{random.randrange(99)}", random.choice(NAICS), random.choice(COUNTIES), str(size), "7"]
    line = ",".join(f'"{field}"' if random.random() < 0.1 else field for field in fields).encode()
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        at = random.choice([0, len(line), random.randrange(len(line) + 1)])
        line = line[:at] + random.choice([*ODD, random.randbytes(1)]) + line[at + random.choice([0, 0, 1]) :]
    line = random.randbytes(random.randrange(30)) if random.random() < 0.1 else line
    return line.replace(b"\n", b"")


def as_csv(folder: Path, records: Records, random: Random) -> None:
    """Write lines, in one file or two; the first record is good, so that there is one."""
    cut = random.choice([len(records), random.randint(1, len(records))])
    for name, part in (("a.csv", records[:cut]), ("b.csv", records[cut:])):
        if part:
            end = b"\n" * random.randint(0, 1)
            (folder / name).write_bytes(b"\n".join([HEADER, *part]) + end)


def a_row(random: Random) -> tuple[Any, ...]:
    def one(*odd: Any, good: Any) -> Any:
        return random.choice(odd) if random.random() < 0.15 else good

    return (
        one(None, "", b"\xff".decode("latin-1"), good=f"E{random.randrange(99)}"),
        one(None, "", "3111", "999999", "\ufeff311111", "311111\x00", good=random.choice(NAICS)),
        one(None, " 01001", "1001", good=random.choice(COUNTIES)),
        one(None, -1, 2**60, good=random.randrange(10**6)),
        one(None, good=7),
    )


def as_parquet(folder: Path, records: Records, random: Random) -> None:
    """Write rows as some files of some row groups."""
    names = HEADER.decode().split(",")
    types = [pa.string()] * 3 + [pa.int64()] * 2
    columns = [pa.array([row[i] for row in records], kind) for i, kind in enumerate(types)]
    table = pa.table(dict(zip(names, columns, strict=True)))
    cut = random.choice([len(table), random.randint(1, len(table))])
    for name, part in (("a.parquet", table[:cut]), ("b.parquet", table[cut:])):
        if len(part):
            pq.write_table(part, folder / name, row_group_size=random.choice([1, 2, 100]))


def differing(folder: Path, engine: Engine, kind: str, random: Random) -> list[str]:
    """Return the queries whose totals are not those of the records one by one, in several orders of the records."""
    a_record, good, write = FORMATS[kind]
    records = [a_record(random) for _ in range(random.randint(2, 6))]
    plan = write_world(folder, None, queries=QUERIES, dataset={"bad_records": "drop"})
    number = iter(range(1000))

    def totals(*given: Any) -> dict[str, Any]:
        place = folder / f"microdata-{next(number)}"
        place.mkdir()
        write(place, given, random)
        return totals_of(plan, place, engine, folder / "scratch")

    base = totals(good)
    alone = [totals(good, each) for each in records]
    found = []
    for order in ([good, *records], [*records, good], random.sample([good, *records], len(records) + 1)):
        together = totals(*order)
        for name, cells in together.items():
            if not np.array_equal(cells - base[name], sum(each[name] - base[name] for each in alone)):
                found.append(f"{name} of {order!r}")
    return found


FORMATS: dict[str, tuple[Callable[[Random], Any], Any, Write]] = {
    "csv": (a_line, GOOD, as_csv),
    "parquet": (a_row, ("E0", "311111", "01001", 1, 1), as_parquet),
}


@pytest.fixture(params=["dask", pytest.param("spark", marks=[pytest.mark.drill, PYSPARKS_OWN])])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue("spark") if request.param == "spark" else DaskEngine(workers=1)


def attack(folder: Path, engine: Engine, kind: str, tried: Iterable[tuple[str, Random]]) -> Iterator[str]:
    for case, random in tried:
        (folder / case).mkdir(parents=True)
        yield from (f"{case}: {text}" for text in differing(folder / case, engine, kind, random))


@sizes(few=8, many=150)
@pytest.mark.parametrize("half", [0, 1])  # of the cases: all on Spark would take longer than a part of the drill
@pytest.mark.parametrize("kind", FORMATS)
def test_records_are_read_the_same_alone_and_among_others(
    kind: str, half: int, engine: Engine, tmp_path: Path, count: int
) -> None:
    assert list(attack(tmp_path, engine, kind, islice(cases(count), half, None, 2))) == []


def test_a_reader_that_treats_the_first_line_of_a_block_otherwise_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin: as a reader that takes a mark away from the first line."""
    records = read.csv_records

    def first_otherwise(location: Any, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
        for batch, others in records(location, columns):
            yield (batch.slice(1) if batch is not None and batch.num_rows > 2 else batch), others

    monkeypatch.setattr(read, "csv_records", first_otherwise)
    assert list(attack(tmp_path, DaskEngine(workers=1), "csv", cases(3)))
