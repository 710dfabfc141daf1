"""Plans whose releases must be the same bytes on every engine: all mechanisms, forms of domain, files and filters."""

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from pipeline.engines.protocol import Engine
from tests.support.kinds import REGISTRY
from tests.support.spark import ROOT, Cluster
from tests.support.submit import KEY, Place, submit
from tests.support.world import COUNTIES, NAICS, records, tree, write_world
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.records.codes import roll_up

RELEASE = "small-release"
COUNTRY = tuple(f"{code:05d}" for code in range(1001, 57001, 2))  # 28,000 counties
SECTOR = tuple(f"81{code:04d}" for code in range(1110, 1150))  # 40 more industries
AMPLE = [{"at": {"employment": 10, "payroll": 500}, "rho": 100_000}]
OF_FIRMS = [{"at": [{"employment": 10, "payroll": 500}], "rho": 100_000}]

MECHANISMS: Mapping[str, dict[str, Any]] = {
    name: {"kind": kind, **given} for kind, known in REGISTRY.items() for name, given in known.released.items()
}
PARTS = {
    "by": "naics2",
    "parts": {"31-33": MECHANISMS["gaussian"], "72": MECHANISMS["unit_splitting"]},
    "others": MECHANISMS["log"],
}
BY = (["naics6", "county"], ["county", "naics3"], ["naics2", "state"], ["state"], ["nation"], ["naics4", "county"])


def counts_only(mechanism: Mapping[str, Any]) -> bool:
    return CATALOGUE[mechanism["kind"]].counts_only


def every_mechanism() -> list[dict[str, Any]]:
    """One query a mechanism, each by other levels, and parts."""
    single = [
        {"name": name, "by": BY[i % len(BY)], "mechanism": mechanism}
        | ({"count": "records"} if counts_only(mechanism) else {"sum": ("employment", "payroll")[i % 2]})
        for i, (name, mechanism) in enumerate(MECHANISMS.items())
    ]
    where = {"naics2": ["31-33", "44-45"], "state": ["01", "06", "36"]}
    return [
        *single,
        {"name": "counted", "count": "records", "by": ["naics5"], "where": where, "mechanism": MECHANISMS["laplace"]},
        {"name": "parts", "sum": "employment", "by": ["naics3", "county"], "mechanism": PARTS},
    ]


def as_parquet(folder: Path, table: pa.Table) -> None:
    """Several files of small row groups."""
    for i, start in enumerate(range(0, len(table), 700)):
        pq.write_table(table.slice(start, 700), folder / f"part-{i}.parquet", row_group_size=100)


def as_csv(folder: Path, table: pa.Table) -> None:
    """Two files."""
    pa.csv.write_csv(table.slice(0, 900), folder / "a.csv")
    pa.csv.write_csv(table.slice(900), folder / "b.csv")


def full(folder: Path) -> Path:
    """Every mechanism over a product of two lists, Parquet."""
    return _world(folder, records(2000), as_parquet, queries=every_mechanism())


def cells(folder: Path) -> Path:
    """Listed cells, CSV, decimals in steps of a quarter, bad records dropped, negative payrolls."""
    table = records(2000)
    random = np.random.default_rng(3)
    payroll = (random.integers(-4000, 40_000, 2000) / 4).tolist()
    codes = table.column("naics").to_pylist()
    codes[::100] = ["31111"] * 20
    table = table.set_column(1, "naics", pa.array(codes)).set_column(4, "payroll", pa.array(payroll))
    pairs = sorted({(NAICS[i * 7 % 10], COUNTIES[i * 3 % 8]) for i in range(33)})
    measures = {
        "employment": {"column": "employment", "type": "integer"},
        "payroll": {"column": "payroll", "type": "decimal", "step": 0.25},
    }
    queries = [
        {"name": "pay", "sum": "payroll", "by": ["county", "naics4"], "mechanism": MECHANISMS["exponential_polylog"]},
        {"name": "pay_state", "sum": "payroll", "by": ["state"], "mechanism": MECHANISMS["unit_splitting"]},
        {"name": "jobs", "sum": "employment", "by": ["naics6"], "mechanism": MECHANISMS["root"]},
    ]
    changes = {"dataset": {"bad_records": "drop", "measures": measures}, "queries": queries}
    changes["max_left_out"] = 0.99  # most pairs of codes are no listed cells
    path = _world(folder, table, as_csv, **changes, domain={"cells": "domain/cells.csv"})
    (folder / "domain" / "cells.csv").write_text("naics,county\n" + "".join(f"{n},{c}\n" for n, c in pairs))
    return path


def wide(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """A table of two files, or of six with `more` industries (SECTOR); few records in many cells."""
    queries = [
        {"name": "jobs", "sum": "employment", "by": ["naics6", "county"], "mechanism": MECHANISMS["root"]},
        {"name": "by_state", "count": "records", "by": ["state", "naics2"], "mechanism": MECHANISMS["laplace"]},
    ]
    return _world(folder, records(300), as_parquet, queries=queries, naics=(*NAICS, *more), counties=COUNTRY)


def skewed(folder: Path) -> Path:
    """A third of all records in one cell."""
    table = records(3000)
    naics, county = (table.column(key).to_pylist() for key in ("naics", "county"))
    naics[::3], county[::3] = [NAICS[0]] * 1000, [COUNTIES[0]] * 1000
    table = table.set_column(1, "naics", pa.array(naics)).set_column(2, "county", pa.array(county))
    queries = [
        {"name": "jobs", "sum": "employment", "by": ["naics6", "county"], "mechanism": MECHANISMS["laplace"]},
        {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": MECHANISMS["generalized_gaussian"]},
        {"name": "all", "count": "records", "by": ["nation"], "mechanism": MECHANISMS["gaussian"]},
    ]
    return _world(folder, table, as_parquet, queries=queries)


def other(folder: Path) -> Path:
    """Codes beyond the domain's lists, in both keys, most of them; a filter on `other`, and a part for it."""
    table = records(2000)
    naics = table.column("naics").to_pylist()
    naics[::50] = ["999999"] * 40
    parts = {"by": "naics2", "parts": {"other": MECHANISMS["log"]}, "others": MECHANISMS["laplace"]}
    queries = [
        {"name": "jobs", "sum": "employment", "by": ["naics6", "county"], "mechanism": parts},
        {"name": "pay", "sum": "payroll", "by": ["state", "naics2"], "mechanism": MECHANISMS["root"]},
        {
            "name": "elsewhere",
            "count": "records",
            "by": ["naics3"],
            "where": {"state": ["other", "06"]},
            "mechanism": MECHANISMS["gaussian"],
        },
    ]
    domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["county", "naics"]}
    lists = {"naics": NAICS[::3], "counties": COUNTIES[::2]}
    return _world(
        folder, table.set_column(1, "naics", pa.array(naics)), as_csv, queries=queries, domain=domain, **lists
    )


def again(table: pa.Table) -> pa.Table:
    """The records, of which some stand in several rows; of a few the rows differ in their county."""
    county = table.column("county").to_pylist()
    county[:40] = [COUNTIES[-1]] * 40
    twice = table.set_column(2, "county", pa.array(county)).slice(0, 30)
    return pa.concat_tables([table, table.slice(20, 700), twice, table.slice(100, 50)])


def combined(folder: Path) -> Path:
    """Rows of one id added up to a record, ids that are numbers, bad records dropped, decimals, Parquet."""
    table = again(records(2000))
    ids = pa.array([int(name[1:]) for name in table.column("establishment_id").to_pylist()])
    pay = pa.array([value / 4 for value in table.column("payroll").to_pylist()])
    table = table.set_column(0, "establishment_id", ids).set_column(4, "payroll", pay)
    measures = {
        "employment": {"column": "employment", "type": "integer"},
        "payroll": {"column": "payroll", "type": "decimal", "step": 0.25},
    }
    queries = [
        {"name": "jobs", "sum": "employment", "by": ["naics6", "county"], "mechanism": MECHANISMS["root"]},
        {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": MECHANISMS["laplace"]},
        {"name": "all", "count": "records", "by": ["naics3"], "mechanism": MECHANISMS["gaussian"]},
    ]
    dataset = {"duplicates": "combine", "bad_records": "drop", "measures": measures}
    return _world(folder, table, as_parquet, dataset=dataset, queries=queries)


def rejected(folder: Path) -> Path:
    """Records of firms, left out where their id stands twice in a firm, CSV."""
    table = again(records(2000))
    owners = [f"F{i % 30}" for i in range(len(table))]
    table = table.append_column("firm_id", pa.array(owners))
    queries = [
        {"name": "jobs", "sum": "employment", "by": ["naics2", "county"], "mechanism": MECHANISMS["laplace"]},
        {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": MECHANISMS["log"]},
        {"name": "all", "count": "records", "by": ["nation"], "mechanism": MECHANISMS["gaussian"]},
    ]
    dataset = {"duplicates": "reject", "bad_records": "drop", "unit": "firm_id"}
    return _world(folder, table, as_csv, dataset=dataset, queries=queries, budget=OF_FIRMS, max_left_out=0.99)


def owners(folder: Path, **listed: str) -> Path:
    """Counts of firms, their size and main industry, of rows of one id added up; some bad, some outside the domain."""
    table = again(records(2000))
    naics, employment = (table.column(name).to_pylist() for name in ("naics", "employment"))
    naics[::60], employment[::90] = ["999999"] * len(naics[::60]), [-1] * len(employment[::90])
    table = table.set_column(1, "naics", pa.array(naics)).set_column(3, "employment", pa.array(employment))
    table = table.append_column("firm_id", pa.array([f"F{i * i % 611}" for i in range(len(table))]))
    domain = {
        **(listed or {"naics": "domain/naics.csv", "county": "domain/counties.csv"}),
        "size": {"of": "employment", "classes": [0, 100, 500, 1000], "per": "owner"},
        "main": {"of": "employment", "main": "naics2"},
    }
    queries = [
        {"name": "firms", "count": "owners", "by": ["naics3", "state"], "mechanism": MECHANISMS["laplace"]},
        {"name": "sizes", "count": "owners", "by": ["size", "main"], "mechanism": MECHANISMS["gaussian"]},
        {"name": "jobs", "sum": "employment", "by": ["county", "size"], "mechanism": MECHANISMS["root"]},
        {"name": "all", "count": "records", "by": ["main"], "where": {"size": ["0-99"]}, "mechanism": PARTS["others"]},
    ]
    dataset = {"duplicates": "combine", "bad_records": "drop", "unit": "firm_id"}
    changes = {"dataset": dataset, "domain": domain, "queries": queries, "budget": OF_FIRMS, "max_left_out": 0.99}
    return _world(folder, table, as_csv, **changes)


def owners_cells(folder: Path) -> Path:
    """The same where cells are listed by all codes, those of firms too."""
    mains, sizes = sorted({roll_up(code, "naics2") for code in NAICS}), ("0-99", "100-499", "500-999", "1000+")
    every = itertools.product(NAICS, COUNTIES, sizes, mains)
    lines = [f"{main},{county},{naics},{size}\n" for i, (naics, county, size, main) in enumerate(every) if i % 5]
    plan = owners(folder, cells="domain/cells.csv")
    (folder / "domain" / "cells.csv").write_text("main,county,naics,size\n" + "".join(lines))
    return plan


def none(folder: Path) -> Path:
    """No record in any cell: the only one lies outside the domain."""
    outside = records(1).set_column(1, "naics", pa.array(["999999"]))
    return _world(folder, outside, lambda place, table: pq.write_table(table, place / "outside.parquet"))


PLANS: Mapping[str, Callable[[Path], Path]] = {
    "full": full,
    "cells": cells,
    "wide": wide,
    "skewed": skewed,
    "other": other,
    "combined": combined,
    "rejected": rejected,
    "owners": owners,
    "owners_cells": owners_cells,
    "none": none,
}


def released(plan: Path, folder: Path, engine: Engine | None, key: bytes = KEY) -> dict[str, bytes]:
    """Release under a known key; return the bytes of tables, policy and page."""
    place = Place(plan, folder)
    return tree(place.out / RELEASE / submit(place, engine=engine, key=key).attempt)


def holds_figures(path: str) -> bool:
    """Whether a file of an attempt holds figures of its tables, or what is computed from them: all others never do."""
    return path == "report.html" or re.match(r"(site/)?tables/|site/data/([^/]+/\d+|index)\.js$", path) is not None


def on_cluster(
    cluster: Cluster,
    works: Sequence[tuple[Path, Path]],
    at: Callable[[str], None] = lambda stage: None,
    environment: Mapping[str, str] | None = None,
    dawdle: Path | None = None,
) -> None:
    """Release plans to folders in one process and session, calling `at` at each stage; `dawdle`: see spark_release."""
    arguments = [cluster.url, str(dawdle or "-"), *(str(path) for work in works for path in work)]
    command = [sys.executable, "-m", "tests.support.spark_release", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment or cluster.environment, cwd=ROOT, **pipes) as child:
        for line in child.stdout or ():
            at(line.strip())
            print(file=child.stdin, flush=True)
    assert child.returncode == 0


def attempt_of(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the one attempt that is published in a folder."""
    (attempt,) = (path for path in (folder / "out" / RELEASE).iterdir() if path.is_dir())
    return tree(attempt)


def _world(folder: Path, table: pa.Table, write: Callable[[Path, pa.Table], None], **changes: Any) -> Path:
    path = write_world(folder, None, **{"budget": AMPLE, **changes})
    (folder / "microdata").mkdir()
    write(folder / "microdata", table)
    assert yaml.safe_load(path.read_text())["budget"] in (AMPLE, OF_FIRMS)
    return path
