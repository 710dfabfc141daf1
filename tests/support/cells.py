"""A small domain for tests of sums: its codes, its bases in the kernel's form, and microdata to read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.canonical import code_digest
from pipeline.engines.tasks import SumTask
from pipeline.engines.writers import Block
from pipeline.microdata.source import chunks, find
from pipeline.storage.paths import locate
from udfs.mechanisms.additive_kinds import Gaussian
from udfs.records.codes import NOWHERE
from udfs.records.contract import MeasureColumn
from udfs.records.decoding import KEPT, LEFT_OUT, BaseCells, CodeColumn, SumSpec
from udfs.records.statistics import Count
from udfs.records.sums import CELL, HIGH, Frame, add_frames

RECORDS = Count().addend

NAICS = ("311111", "311112", "311811", "441110", "541110")
COUNTIES = ("01001", "01003", "02020", "36061")
MEASURES = (
    MeasureColumn("employment", "emp", Fraction(1), nonnegative=True),
    MeasureColumn("payroll", "pay", Fraction("0.25"), nonnegative=False),
)


HEADER = "naics,county,emp,pay\n"
GOOD = {"naics": ["311111", "541110"], "county": ["01001", "02020"], "emp": [5, 7], "pay": ["1.25", "2"]}
SUMS = {0: (1, 5, 5), 18: (1, 7, 8)}  # of GOOD by finest cells 0·4 + 0 and 4·4 + 2; payroll in quarters


@dataclass(frozen=True)
class Cells:
    """Cells of one base: `of` names a record's cell; `listed` (finest codes) restricts them, None: all pairs."""

    of: Callable[[str, str], tuple[str, str]]
    addends: tuple[str, ...] = (RECORDS, "employment", "payroll")
    listed: tuple[tuple[str, str], ...] | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        """The cells in the order of their numbers."""
        if self.listed is not None:
            return sorted({self.of(*pair) for pair in self.listed})
        rows, columns = self._axes
        return [(row, column) for row in rows for column in columns]

    @property
    def base(self) -> BaseCells:
        """The same cells as the kernel takes them."""
        rows, columns = self._axes
        stride = len(columns)
        listed = [rows.index(row) * stride + columns.index(column) for row, column in self.names]
        return BaseCells(
            size=len(listed),
            parts={
                0: np.array([*(rows.index(self.of(c, COUNTIES[0])[0]) * stride for c in NAICS), NOWHERE]),
                1: np.array([*(columns.index(self.of(NAICS[0], code)[1]) for code in COUNTIES), NOWHERE]),
            },
            addends=self.addends,
            listed=None if self.listed is None else np.array(listed, dtype=np.int64),
        )

    @property
    def _axes(self) -> tuple[list[str], list[str]]:
        return (
            sorted({self.of(code, COUNTIES[0])[0] for code in NAICS}),
            sorted({self.of(NAICS[0], code)[1] for code in COUNTIES}),
        )


FINEST = Cells(lambda naics, county: (naics, county))
COARSE = Cells(lambda naics, county: (naics[:3], county[:2]), addends=("employment",))
NATION = Cells(lambda naics, county: ("", ""), addends=("payroll", RECORDS))
BY_STATE = Cells(lambda naics, county: ("", county[:2]))
LISTED = Cells(
    lambda naics, county: (naics, county),
    listed=(("311111", "01001"), ("311811", "02020"), ("441110", "36061"), ("541110", "01003")),
)
ONE_LISTED = Cells(lambda naics, county: (naics, county), listed=(("311112", "01003"),))


def keys(naics: str = "naics", county: str = "county") -> tuple[CodeColumn, ...]:
    """Return the keys of the small domain, in columns of these names."""
    return (
        CodeColumn(naics, "naics6", "naics6", {code: i for i, code in enumerate(NAICS)}),
        CodeColumn(county, "county", "county", {code: i for i, code in enumerate(COUNTIES)}),
    )


def spec(
    bases: Sequence[Cells | BaseCells] = (FINEST,), bad: Literal["refuse", "drop"] = "refuse", **changes: Any
) -> SumSpec:
    """Return the spec of a scan that sums the small domain's records by `bases`."""
    facts: dict[str, Any] = {
        "keys": keys(),
        "measures": MEASURES,
        "bases": tuple(cells.base if isinstance(cells, Cells) else cells for cells in bases),
        "bad_records": bad,
    }
    return SumSpec(**facts | changes)


def records(count: int, seed: int = 1) -> pa.Table:
    """Return random records in the small domain."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "id": [f"E{i}" for i in range(count)],
            "naics": np.array(NAICS)[random.integers(0, len(NAICS), count)],
            "county": np.array(COUNTIES)[random.integers(0, len(COUNTIES), count)],
            "emp": random.integers(0, 300, count),
            "pay": random.integers(0, 20_000, count) / 4,
        }
    )


def write(folder: Path, tables: Iterable[pa.Table], rows: int = 100) -> Path:
    """Write each table as a Parquet file of row groups of `rows`."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=rows)
    return folder


def blocks(folder: Path, count: int, size: int = 50, total: int = 1000) -> list[Block]:
    """Return `count` blocks of `size` cells of one query; cell i has `total` + i, and its file is in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        Block(
            query="employment",
            number=3,
            first=first,
            keys={"naics6": (NAICS, np.arange(first, first + size, dtype=np.int32) % len(NAICS))},
            totals=total + np.arange(first, first + size),
            mechanisms=(Gaussian(sigma=Fraction(20)),),
            part_of=None,
            interval=Fraction("0.95"),
            integer=True,
            path=str(folder / f"part-{first // size:05d}.parquet"),
        )
        for first in range(0, count * size, size)
    ]


def as_dict(frame: Frame) -> dict[int, tuple[int, ...]]:
    """Return a frame of sums as cell → sums in Python's integers, in its order, without its counts of records."""
    assert all(words.dtype == np.int64 for words in frame.values())
    addends = [name for name in list(frame)[1:] if not name.startswith(HIGH)]
    words = {name: frame[name].tolist() for name in frame}
    sums = [
        [
            low + 2**64 * high
            for low, high in zip(words[name], words.get(HIGH + name, [0] * len(frame[CELL])), strict=True)
        ]
        for name in addends
    ]
    assert next(iter(frame)) == CELL
    assert (np.diff(frame[CELL]) > 0).all()
    rows = zip(words[CELL], *sums, strict=True)
    return {cell: tuple(row) for cell, *row in rows if cell not in (KEPT, LEFT_OUT)}


def same(one: Frame, other: Frame) -> bool:
    """Return whether two frames of sums are equal, column by column."""
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def summed(path: Path, given: SumSpec | None = None) -> dict[int, tuple[int, ...]]:
    """Return the sums of all chunks of microdata, as the engine's workers read them."""
    given = given or spec()
    parts = [SumTask(given, code_digest())(chunk) for chunk in chunks(find(locate(path)))]
    return as_dict(add_frames(parts, given.offsets[-1]))


def csv(path: Path, text: str | bytes) -> Path:
    """Write a CSV file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """Write a Parquet file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path
