"""Queries of every kind: mechanism × what is summed × form × unit."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.parity import AMPLE, COUNTRY, MECHANISMS, as_parquet, counts_only
from tests.support.world import COUNTIES, NAICS, records, write_world

FACTORS: dict[str, tuple[str, ...]] = {
    "mechanism": tuple(MECHANISMS),
    "summed": ("count", "integer", "decimal"),
    "form": ("whole", "where", "parts", "wide"),
    "unit": ("record", "firm_id"),
}
Choice = tuple[str, ...]  # a level of each factor
MEASURES = {
    "employment": {"column": "employment", "type": "integer"},
    "payroll": {"column": "payroll", "type": "decimal", "step": 0.25},
}
COUNTIES_OF_WIDE = tuple(sorted({*COUNTRY[::5], *COUNTIES}))


def whole_product() -> list[Choice]:
    """Every choice; some mechanisms are for counts alone."""
    every = product(*FACTORS.values())
    return [choice for choice in every if choice[1] == "count" or not counts_only(MECHANISMS[choice[0]])]


def written(folder: Path, unit: str, choices: Sequence[Choice]) -> Path:
    """Write a world whose plan has a query for each choice of this unit; return the plan's path."""
    folder.mkdir(parents=True)
    queries = [_query(*choice[:3]) for choice in choices if choice[3] == unit]
    facts: dict[str, Any] = {"queries": queries, "counties": COUNTIES_OF_WIDE, "naics": NAICS, "budget": AMPLE}
    if unit != "record":
        facts["budget"] = [{"at": [{"employment": 10, "payroll": 500}] * 2, "rho": 10**6}]
    path = write_world(folder, None, dataset={"unit": unit, "measures": MEASURES}, **facts)
    (folder / "microdata").mkdir()
    as_parquet(folder / "microdata", _microdata())
    return path


def _query(mechanism: str, summed: str, form: str) -> dict[str, Any]:
    query: dict[str, Any] = {"name": f"{mechanism}-{summed}-{form}", "mechanism": MECHANISMS[mechanism]}
    query |= {"count": "records"} if summed == "count" else {"sum": {"integer": "employment"}.get(summed, "payroll")}
    if form == "whole":
        return query | {"by": ["county", "naics2"]}
    if form == "where":
        return query | {"by": ["naics3", "state"], "where": {"naics2": ["31-33", "72"], "state": ["01", "36", "06"]}}
    if form == "wide":
        return query | {"by": ["naics6", "county"]}
    names = [name for name, given in MECHANISMS.items() if summed == "count" or not counts_only(given)]
    others = MECHANISMS[names[names.index(mechanism) - 1]]
    split = {"by": "naics2", "parts": {"31-33": MECHANISMS[mechanism]}, "others": others}
    return query | {"by": ["naics4", "state"], "mechanism": split}


def _microdata() -> pa.Table:
    count = 2500
    payroll = np.random.default_rng(5).integers(0, 80_000, count) / 4
    owners = pa.array([f"F{i % 61}" for i in range(count)])
    return records(count, seed=5).set_column(4, "payroll", pa.array(payroll)).append_column("firm_id", owners)
