"""Rows of which some share a row id, what they are as records by a plain loop, and what the pipeline makes of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.engines.dask import DaskEngine
from pipeline.engines.totals import layout_of
from pipeline.microdata.read import read
from pipeline.microdata.source import chunks, find
from pipeline.plan.model import Plan
from pipeline.release import input_records as duplicates
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.world import COUNTIES, NAICS
from udfs.records.contract import RULE_TEXT, Rule

MOST = 2**63 - 1
TWICE, DIFFERS = "holds a row id that stands more than once", RULE_TEXT[Rule.DIFFERS]
SCHEMA = pa.schema(
    [
        ("establishment_id", pa.string()),
        ("naics", pa.string()),
        ("county", pa.string()),
        ("employment", pa.int64()),
        ("payroll", pa.int64()),
        ("firm_id", pa.string()),
    ]
)
SUMMED_UP = [  # employment must not be negative, payroll may be
    {"name": "jobs", "sum": "employment", "by": ["naics6"], "mechanism": {"kind": "log", "a": 50, "sigma": 0.5}},
    {"name": "pay", "sum": "payroll", "by": ["county"], "mechanism": {"kind": "laplace", "sigma": 3}},
    {"name": "all", "count": "records", "by": ["nation"], "mechanism": {"kind": "gaussian", "sigma": 2}},
]
Row = tuple[str | None, str | None, str | None, int | None, int | None, str | None]  # in the schema's order
Record = tuple[Any, ...]


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({field.name: [row[i] for row in rows] for i, field in enumerate(SCHEMA)}, SCHEMA)


def write(folder: Path, rows: Sequence[Row], cuts: Sequence[int], form: str = "parquet") -> Path:
    """Write the rows in files, cut where `cuts` say."""
    folder.mkdir(parents=True)
    edges = [0, *sorted(cuts), len(rows)]
    for i, (first, end) in enumerate(pairwise(edges)):
        part = table(rows[first:end])
        if form == "csv":
            pa.csv.write_csv(part, folder / f"part-{i}.csv")
        else:
            pq.write_table(part, folder / f"part-{i}.parquet", row_group_size=3)
    return folder


@dataclass(frozen=True)
class Found:
    """The good records (id, naics, county, employment, payroll, and owner if units are firms), and broken rules."""

    records: list[Record]
    broken: set[tuple[str, str]]


def by_hand(rows: Sequence[Row], kind: str, owned: bool, drop: bool) -> Found:
    """What the rules say, row by row and id by id."""
    broken: set[tuple[str, str]] = set()
    groups: dict[Any, list[tuple[Row, bool]]] = defaultdict(list)
    for row in rows:
        faults = set(_faults(row, owned))
        broken |= faults
        if row[0] is not None and row[0].strip():
            groups[(row[0], row[5] if owned and drop else None)].append((row, not faults))
    good = []
    for (name, _), group in groups.items():
        members = [row for row, _ in group]
        sums = [sum(row[i] if ok_value(row, i) else 0 for row in members) for i in (3, 4)]
        found = set()
        if kind == "reject" and len(group) > 1:
            found.add(("establishment_id", TWICE))
        if kind == "combine":
            columns = ((1, "naics"), (2, "county"), *([(5, "firm_id")] if owned else []))
            found |= {(column, DIFFERS) for i, column in columns if len({row[i] for row in members}) > 1}
            told = "adds up to more than 63 bits over the rows of one id"
            found |= {(c, told) for c, s in zip(("employment", "payroll"), sums, strict=True) if abs(s) > MOST}
        broken |= found
        if not found and all(alone for _, alone in group):
            good.append((name, *members[0][1:3], *sums, *([members[0][5]] if owned else [])))
    return Found(sorted(good), broken)


def ok_value(row: Row, i: int) -> bool:
    value = row[i]
    return value is not None and abs(value) <= MOST


def _faults(row: Row, owned: bool) -> list[tuple[str, str]]:
    name, naics, county, employment, payroll, owner = row
    rules = [
        (
            "establishment_id",
            "names no record: it is empty (null or blank), or not UTF-8",
            name is None or not name.strip(),
        ),
        ("naics", "holds a code that is empty or malformed", naics not in NAICS),
        ("county", "holds a code that is empty or malformed", county not in COUNTIES),
        ("employment", "is empty (null)", employment is None),
        ("employment", "is below zero, which a mechanism or class of the plan does not allow", (employment or 0) < 0),
        ("payroll", "is empty (null)", payroll is None),
        (
            "firm_id",
            "names no owner: it is empty (null or blank), or not UTF-8",
            owned and (owner is None or not owner.strip()),
        ),
    ]
    return [(column, rule) for column, rule, holds in rules if holds]


def made(microdata: Path, plan: Plan, folder: Path) -> Found:
    """What the pipeline makes of the rows: the good ones of the sealed records, and all broken rules."""
    spec = layout_of(plan).spec
    kept = Staging(locate(folder), "r", "records")
    kept.create()
    found = duplicates.grouped_records(
        list(chunks(find(locate(microdata)))), plan.dataset, spec, DaskEngine(workers=1), kept
    )
    read_as = duplicates.in_steps(spec)
    codes = duplicates.code_columns(spec)
    names = [duplicates.RECORD, codes["naics"], codes["county"], "employment", "payroll"]
    names += [duplicates.OWNER] if spec.owner is not None else []
    rows = [
        tuple(row[name] for name in names)
        for chunk in found.chunks
        for batch in read(chunk, read_as)
        for row in batch.to_pylist()
        if row[codes["naics"]] is not None
    ]
    return Found(sorted(rows), {spec.broken_rule(cell) for cell in found.broken})
