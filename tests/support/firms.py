"""A world whose unit is the firm: a small domain, queries that meet and exclude each other, records with owners."""

from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from tests.support.world import records, write_world

NAICS = ("311111", "321113", "441110", "722511")
COUNTIES = ("01001", "06037", "06075")
CELLS = list(product(NAICS, COUNTIES))
WITH_OTHER = list(product((*NAICS, "other"), (*COUNTIES, "other")))  # the cells where both keys declare `other`
GAUSSIAN = {"kind": "gaussian", "sigma": 4}
NATION = {"kind": "laplace", "sigma": 5, "policy": "paper"}
PARTED = {
    "by": "naics2",
    "parts": {"31-33": {"kind": "gaussian", "sigma": 2}},
    "others": {"kind": "log", "a": 3, "sigma": 1},
}
QUERIES = [
    {"name": "count", "count": "records", "by": ["naics6", "county"], "mechanism": GAUSSIAN},
    {"name": "parted", "sum": "employment", "by": ["naics3", "state"], "mechanism": PARTED},
    {"name": "food", "sum": "employment", "by": ["state"], "where": {"naics2": ["31-33"]}, "mechanism": GAUSSIAN},
    {"name": "trade", "sum": "employment", "by": ["county"], "where": {"naics2": ["44-45"]}, "mechanism": GAUSSIAN},
    {"name": "all", "sum": "employment", "by": ["nation"], "mechanism": NATION},
]
SECTORS = {
    "by": "naics2",
    "parts": {"31-33": GAUSSIAN, "72": {"kind": "gaussian", "sigma": 20}},
    "others": {"kind": "laplace", "sigma": 30},
}
COARSE = [  # of which each part, each filter, has one cell only
    {"name": "sectors", "sum": "employment", "by": ["naics2"], "mechanism": SECTORS},
    {"name": "west", "count": "records", "by": ["nation"], "where": {"state": ["06"]}, "mechanism": GAUSSIAN},
    {"name": "east", "sum": "employment", "by": ["nation"], "where": {"state": ["01"]}, "mechanism": GAUSSIAN},
]
OWNED = {"unit": "firm_id"}
BUDGET = [{"at": [{"employment": 10, "payroll": 0}, {"employment": 20, "payroll": 0, "naics6": "311111"}], "rho": 1000}]


def world(folder: Path, **changes: Any) -> Path:
    facts: dict[str, Any] = {
        "queries": QUERIES,
        "budget": BUDGET,
        "dataset": OWNED,
        "naics": NAICS,
        "counties": COUNTIES,
    }
    changes["dataset"] = OWNED | changes.get("dataset", {})
    return write_world(folder, changes.pop("microdata", None), **facts | changes)


def loaded(folder: Path, **changes: Any) -> Plan:
    return load_plan(world(folder, **changes))


def owned(count: int = 500) -> pa.Table:
    table = records(count)
    owners = pa.array([f"F{i % 37}" for i in range(count)])
    return table.append_column("firm_id", owners)
