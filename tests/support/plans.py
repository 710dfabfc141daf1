"""A plan as data in which every key is given, written to a fresh folder and loaded."""

from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan

NAICS = ["311111", "311811", "321113", "441110", "111110"]
COUNTIES = ["01001", "01003", "02020", "36061"]
FRESH = count()

DATA: dict[str, Any] = {
    "release": "cbp-2023-county",
    "supersedes": None,
    "dataset": {
        "name": "cbp-2023",
        "path": "data/microdata",
        "record": "establishment_id",
        "duplicates": "trust",
        "unit": "record",
        "bad_records": "refuse",
        "keys": {"naics": "industry", "county": "fips"},
        "measures": {
            "employment": {"column": "emp", "type": "integer", "step": 1},
            "payroll": {"column": "pay", "type": "decimal", "step": 0.5},
        },
    },
    "domain": {"naics": "naics.csv", "county": "counties.csv", "vintage": {"naics": 2022, "county": None}},
    "interval": 0.95,
    "queries": [
        {
            "name": "establishments",
            "count": "records",
            "by": ["county", "naics4"],
            "where": {},
            "mechanism": {"kind": "gaussian", "sigma": 2, "policy": "paper"},
        },
        {
            "name": "payroll",
            "sum": "payroll",
            "by": ["naics2"],
            "where": {"naics2": ["31-33", "44-45"], "state": ["36", "01", "02"]},
            "mechanism": {"kind": "laplace", "sigma": 20, "policy": "tight", "lattice": "measure"},
        },
        {
            "name": "employment",
            "sum": "employment",
            "by": ["nation"],
            "where": {},
            "mechanism": {"kind": "log", "a": 1, "sigma": 0.35},
        },
    ],
    "budget": [
        {"at": {"payroll": 500, "employment": 10, "naics3": "311"}, "rho": 2},
        {"at": {"employment": 1, "payroll": 2}, "rho": 1.5},
    ],
}


def load(
    folder: Path,
    data: dict[str, Any],
    *,
    naics: list[str] = NAICS,
    counties: list[str] = COUNTIES,
    name: str = "plan.yaml",
    text: str = "{}",
    label: str = "",
) -> Plan:
    """Load `data` from a fresh folder; `text` formats the YAML."""
    place = folder / str(next(FRESH))
    place.mkdir()
    for file, codes in (("naics.csv", naics), ("counties.csv", counties)):
        lines = [f"{code},{label}" for code in codes] if label else codes
        (place / file).write_text("\n".join(["code,name" if label else "code", *lines]))
    (place / name).write_text(text.format(yaml.safe_dump(data, sort_keys=False)))
    return load_plan(place / name)


def at(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def changed(changes: list[tuple[tuple[str | int, ...], Any]]) -> dict[str, Any]:
    data = deepcopy(DATA)
    for path, value in changes:
        at(data, path[:-1])[path[-1]] = value
    return data
