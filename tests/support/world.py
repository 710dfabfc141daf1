"""A small world for tests: a public domain, microdata and a plan in a folder of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

NAICS = ("113110", "236115", "311111", "311811", "321113", "336111", "441110", "445110", "484110", "722511")
COUNTIES = ("01001", "01003", "02020", "06037", "06075", "09001", "36061", "48201")
MEASURES = {
    "employment": {"column": "employment", "type": "integer"},
    "payroll": {"column": "payroll", "type": "decimal", "step": 1},
}
QUERIES = [
    {
        "name": "establishments",
        "count": "records",
        "by": ["naics6", "county"],
        "mechanism": {"kind": "gaussian", "sigma": 2},
    },
    {
        "name": "employment_sector_county",
        "sum": "employment",
        "by": ["naics2", "county"],
        "mechanism": {"kind": "laplace", "sigma": 10},
    },
    {
        "name": "payroll_state",
        "sum": "payroll",
        "by": ["naics3", "state"],
        "where": {"naics2": ["31-33", "44-45"]},
        "mechanism": {"kind": "log", "a": 50, "sigma": 0.5},
    },
]
BUDGET = [{"at": {"employment": 10, "payroll": 500}, "rho": 100}]


def records(count: int, seed: int = 1, first: int = 0) -> pa.Table:
    """Return random establishments in the domain of the small world."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "establishment_id": [f"E{first + i}" for i in range(count)],
            "naics": np.array(NAICS)[random.integers(0, len(NAICS), count)],
            "county": np.array(COUNTIES)[random.integers(0, len(COUNTIES), count)],
            "employment": random.integers(0, 300, count),
            "payroll": random.integers(0, 20_000, count),
        }
    )


def write_world(folder: Path, microdata: pa.Table | None, **changes: Any) -> Path:
    """Write domain, microdata (None: none) and plan into `folder`; return the plan's path."""
    (folder / "domain").mkdir(parents=True, exist_ok=True)
    write_codes(folder / "domain" / "naics.csv", changes.pop("naics", NAICS))
    write_codes(folder / "domain" / "counties.csv", changes.pop("counties", COUNTIES))
    if microdata is not None:
        (folder / "microdata").mkdir(exist_ok=True)
        pq.write_table(microdata, folder / "microdata" / "part-0.parquet")
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan(**changes), sort_keys=False))
    return path


def plan(**changes: Any) -> dict[str, Any]:
    """Return the small world's plan as data; `changes` replace top-level keys, `dataset` is merged."""
    dataset = {
        "name": "small-world",
        "path": "microdata",
        "record": "establishment_id",
        "duplicates": "trust",
        "unit": "record",
        "bad_records": "refuse",
        "keys": {"naics": "naics", "county": "county"},
        "measures": MEASURES,
    }
    whole = {
        "release": "small-release",
        "dataset": dataset | changes.pop("dataset", {}),
        "domain": {"naics": "domain/naics.csv", "county": "domain/counties.csv"},
        "queries": QUERIES,
        "budget": BUDGET,
    }
    return whole | changes


def budget_file(folder: Path, rho: float = 20, **changes: Any) -> Path:
    """Write the file by which an officer registers the small world, under one limit; return its path."""
    dataset = plan()["dataset"] | changes.pop("dataset", {})
    path = folder / "budget.yaml"
    path.write_text(
        yaml.safe_dump(
            {"dataset": dataset, "limits": [{"at": {"employment": 10, "payroll": 500}, "rho": rho}]} | changes
        )
    )
    return path


def write_codes(path: Path, codes: tuple[str, ...]) -> None:
    """Write a domain file."""
    path.write_text("code,name\n" + "".join(f"{code},{code}\n" for code in codes))


def tree(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below `folder`, by path, without the attempt's name."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def figures(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the tables of an attempt, but for what they say of the plan: the same for plans that draw alike."""
    return {path: without_footer(data) for path, data in files.items() if path.startswith("tables")}


def without_footer(data: bytes) -> bytes:
    """Return what stands before the footer of a Parquet file, all columns as they are stored; other files whole."""
    if not data.endswith(b"PAR1"):
        return data
    return data[: -8 - int.from_bytes(data[-8:-4], "little")]
