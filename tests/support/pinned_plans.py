"""The plans and microdata whose releases are pinned (tests/support/pinned.py), by name: PLANS."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

RELEASE = "pinned"
Row = dict[str, Any]

# The microdata: plain arithmetic, so that no library's random numbers are pinned along with the product.

NAICS = ("113110", "236115", "311111", "311811", "321113", "336111", "441110", "445110", "484110", "722511")
COUNTIES = ("01001", "01003", "02020", "06037", "06075", "09001", "36061", "48201")
LISTED = tuple((NAICS[i * 7 % 10], COUNTIES[i * 3 % 8]) for i in range(33))  # the cells of a file


def rows(count: int = 600) -> list[Row]:
    """Establishments of all sizes: some without employees, giants, payrolls in quarters; each with an owner."""
    made = []
    for i in range(count):
        scrambled = (i * 2654435761 + 12345) % 2**32
        employment = 0 if i % 11 == 0 else 1 + (scrambled >> 7) % (2 + i % 290)
        payroll = ((scrambled >> 3) % 90_001) / 4
        if i % 97 == 5:
            employment, payroll = 40_000 + i, 5_000_000.25 + i
        made.append(
            {
                "establishment_id": f"E{i:05d}",
                "firm_id": f"F{scrambled % 41}",
                "naics": NAICS[(scrambled >> 11) % 10],
                "county": COUNTIES[(scrambled >> 17) % 8 if i % 3 else 0],
                "employment": employment,
                "payroll": payroll,
            }
        )
    return made


def repeated(given: Sequence[Row]) -> list[Row]:
    """The rows, of which some stand twice or thrice; of a few the repetition differs in its county."""
    moved = [row | {"county": COUNTIES[-1]} for row in given[:12]]
    return [*given, *given[20:230], *moved, *given[100:130]]


def as_parquet(folder: Path, given: Sequence[Row]) -> None:
    """Three files of small row groups."""
    table = pa.Table.from_pylist(list(given))
    for i in range(3):
        start, end = len(table) * i // 3, len(table) * (i + 1) // 3
        pq.write_table(table.slice(start, end - start), folder / f"part-{i}.parquet", row_group_size=50)


def as_csv(folder: Path, given: Sequence[Row]) -> None:
    """Two files."""
    for name, part in (("a.csv", given[:250]), ("b.csv", given[250:])):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(given[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(part)


# The plans.

VARIANTS: Mapping[str, dict[str, Any]] = {
    "gaussian": {"kind": "gaussian", "sigma": 7.5},
    "gaussian-narrow": {"kind": "gaussian", "sigma": 0.3, "policy": "paper"},
    "laplace": {"kind": "laplace", "sigma": 3},
    "laplace-fine": {"kind": "laplace", "sigma": 3, "lattice": "fine"},
    "laplace-paper": {"kind": "laplace", "sigma": 30.5, "policy": "paper"},
    "generalized": {"kind": "generalized_gaussian", "p": 0.5, "sigma": 4},
    "generalized-fine": {"kind": "generalized_gaussian", "p": 0.75, "sigma": 4, "lattice": "fine", "policy": "paper"},
    "polylog": {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20},
    "polylog-fine": {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20, "lattice": "fine"},
    "polylog-paper": {"kind": "exponential_polylog", "p": 1, "d": 4, "a": 5, "sigma": 9, "policy": "paper"},
    "cauchy": {"kind": "symmetric_stable", "alpha": 1, "gamma": 2, "policy": "paper"},
    "stable": {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 4000, "policy": "paper"},
    "root": {"kind": "root", "k": 2, "a": 10, "sigma": 2},
    "root-median": {"kind": "root", "k": 3, "a": 10, "sigma": 0.5, "estimator": "median"},
    "root-laplace": {"kind": "root", "k": 4, "a": 100, "sigma": 0.5, "noise": "laplace"},
    "root-laplace-median": {"kind": "root", "k": 4, "a": 100, "sigma": 0.5, "noise": "laplace", "estimator": "median"},
    "log": {"kind": "log", "a": 50, "sigma": 0.5},
    "log-median": {"kind": "log", "a": 1, "sigma": 0.25, "estimator": "median"},
    "log-laplace": {"kind": "log", "a": 5, "sigma": 0.2, "noise": "laplace"},
    "log-laplace-median": {"kind": "log", "a": 5, "sigma": 0.2, "noise": "laplace", "estimator": "median"},
    "splitting": {"kind": "unit_splitting", "threshold": 100, "rho": 0.1, "policy": "paper"},
    "groupwise-log": {"kind": "groupwise_log", "a": 5, "sigma": 0.1},
    "groupwise-noisy": {"kind": "groupwise_noisy", "r": 0.1, "sigma": 3},
}
STATISTICS: Mapping[str, dict[str, str]] = {
    "count": {"count": "records"},
    "integer": {"sum": "employment"},
    "decimal": {"sum": "payroll"},
}
BY = (["naics6", "county"], ["county", "naics3"], ["naics2", "state"], ["state"], ["nation"], ["naics4"], ["naics5"])
AT = (
    {"employment": 10, "payroll": 500},
    {"employment": 40_005, "payroll": 5_000_005.25},
    {"employment": 3, "payroll": 20.25, "naics2": "31-33"},
    {"employment": 0, "payroll": 0},
)
AMPLE = [{"at": at, "rho": 10**15} for at in AT]
OF_FIRMS = [{"at": [AT[0], AT[0], AT[2]], "rho": 10**15}, {"at": [AT[1]], "rho": 10**15}]


def counts_only(variant: str) -> bool:
    return variant.startswith("groupwise")


def kinds(folder: Path) -> Path:
    """Every variant of every mechanism with every statistic, by all sorts of levels."""
    pairs = [(v, s) for v in VARIANTS for s in STATISTICS if s == "count" or not counts_only(v)]
    queries = [_query(f"{v}-{s}", s, BY[i % len(BY)], v) for i, (v, s) in enumerate(pairs)]
    return _world(folder, as_parquet, rows(), queries)


def brief(folder: Path) -> Path:
    """Every kind once, in parts, the statistics by turns, with codes beyond the lists: for slow engines."""
    first = list({given["kind"]: name for name, given in reversed(VARIANTS.items())}.values())
    queries = []
    for i, variant in enumerate(first):
        statistic = "count" if counts_only(variant) else ("integer", "decimal", "count")[i % 3]
        queries.append(_query(variant, statistic, BY[i % 4], variant) | {"mechanism": _split(variant, statistic)})
    for query in queries:
        if not query["by"][-1].startswith("naics") and not query["by"][0].startswith("naics"):
            query["mechanism"] = VARIANTS[query["name"]]
    domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["county"]}
    return _world(folder, as_parquet, rows(), queries, domain=domain, counties=COUNTIES[1:])


def _split(variant: str, statistic: str) -> dict[str, Any]:
    fitting = [name for name in VARIANTS if statistic == "count" or not counts_only(name)]
    at = fitting.index(variant)
    parts = {"31-33": VARIANTS[variant], "72": VARIANTS[fitting[at - 2]]}
    return {"by": "naics2", "parts": parts, "others": VARIANTS[fitting[at - 1]]}


def splits(folder: Path) -> Path:
    """Every variant in a part of a query, other ones in its other parts; each third under a filter too."""
    where = {"naics2": ["31-33", "72", "44-45"], "state": ["01", "36", "06"]}
    queries = []
    for i, variant in enumerate(VARIANTS):
        statistic = "count" if counts_only(variant) else ("decimal", "integer", "count")[i // 3 % 3]
        by = (["naics4", "state"], ["naics2"], ["naics6", "county"])[i % 3]
        query = _query(variant, statistic, by, variant) | {"mechanism": _split(variant, statistic)}
        queries.append(query | ({"where": where} if i % 3 == 1 else {}))
    return _world(folder, as_csv, rows(), queries)


def filters(folder: Path) -> Path:
    """Filters on one key, on both, on the level of the cells and above it; parts without others, split by county."""
    narrow = {"by": "state", "parts": {"06": VARIANTS["log"], "36": VARIANTS["laplace"]}}
    queries = [
        _query("sector", "integer", ["naics6", "county"], "root", where={"naics2": ["31-33"]}),
        _query("codes", "decimal", ["naics4"], "log", where={"naics4": ["3111", "7225"]}),
        _query("states", "count", ["naics3"], "gaussian", where={"state": ["06", "48"]}),
        _query("both", "decimal", ["county", "naics2"], "laplace-fine", where={"naics3": ["311"], "county": ["06075"]}),
        _query("whole", "integer", ["nation"], "stable", where={"naics2": ["44-45"], "state": ["01"]}),
        _query("parts", "integer", ["county"], "log", where={"state": ["06", "36"]}) | {"mechanism": narrow},
    ]
    return _world(folder, as_parquet, rows(), queries, interval=0.8)


def other(folder: Path) -> Path:
    """Codes that the lists do not name, in both keys; a filter on them, and a part of them."""
    parts = {"by": "naics2", "parts": {"other": VARIANTS["log"]}, "others": VARIANTS["laplace"]}
    given = [row | ({"naics": "999999"} if i % 50 == 0 else {}) for i, row in enumerate(rows())]
    queries = [
        _query("parts", "integer", ["naics6", "county"], "log") | {"mechanism": parts},
        _query("pay", "decimal", ["state", "naics2"], "root"),
        _query("elsewhere", "count", ["naics3"], "gaussian", where={"state": ["other", "06"]}),
        _query("whole", "count", ["nation"], "groupwise-noisy"),
    ]
    domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["county", "naics"]}
    return _world(folder, as_csv, given, queries, domain=domain, naics=NAICS[::3], counties=COUNTIES[::2])


def cells(folder: Path) -> Path:
    """Cells that a file lists; records that are malformed or elsewhere are dropped, some payrolls are negative."""
    given = [row | ({"payroll": -row["payroll"]} if i % 7 == 3 else {}) for i, row in enumerate(rows())]
    given = [row | ({"naics": "31111"} if i % 40 == 1 else {}) for i, row in enumerate(given)]
    queries = [
        _query("pay", "decimal", ["county", "naics4"], "polylog-fine"),
        _query("pay-state", "decimal", ["state"], "splitting"),
        _query("jobs", "integer", ["naics6"], "root"),
        _query("jobs-log", "integer", ["naics2", "county"], "log-laplace-median"),
        _query("count", "count", ["naics6", "county"], "groupwise-log"),
    ]
    path = _world(folder, as_csv, given, queries, dataset={"bad_records": "drop"}, domain={"cells": "domain/cells.csv"})
    (folder / "domain" / "cells.csv").write_text("naics,county\n" + "".join(f"{n},{c}\n" for n, c in LISTED))
    return path


COUPLES = "count gaussian, integer laplace, decimal log, integer root, decimal stable"


def _several() -> list[dict[str, Any]]:
    pairs = [_query(f"{v}-{s}", s, BY[i], v) for i, (s, v) in enumerate(map(str.split, COUPLES.split(",")))]
    return [*pairs, _query("parts", "decimal", ["naics3", "state"], "log") | {"mechanism": _split("log", "decimal")}]


def combine(folder: Path) -> Path:
    """Rows of one id are added up, of which some differ in their keys."""
    return _of_rows(folder, as_parquet, duplicates="combine")


def reject(folder: Path) -> Path:
    """Records whose id stands in several rows are left out."""
    return _of_rows(folder, as_csv, duplicates="reject")


def trust(folder: Path) -> Path:
    """Every row is a record, whatever its id."""
    return _of_rows(folder, as_csv, duplicates="trust")


def firms(folder: Path) -> Path:
    """The unit is the firm, whose rows of one id are rejected."""
    return _of_rows(folder, as_csv, duplicates="reject", unit="firm_id")


def firms_combine(folder: Path) -> Path:
    """The unit is the firm, whose rows of one id are added up."""
    return _of_rows(folder, as_parquet, duplicates="combine", unit="firm_id")


def firms_trust(folder: Path) -> Path:
    """The unit is the firm, of which each row is an establishment."""
    return _of_rows(folder, as_parquet, duplicates="trust", unit="firm_id")


def _of_rows(folder: Path, write: Callable[[Path, Sequence[Row]], None], **dataset: Any) -> Path:
    budget = OF_FIRMS if "unit" in dataset else AMPLE
    dataset["bad_records"] = "refuse" if dataset["duplicates"] == "trust" else "drop"
    return _world(folder, write, repeated(rows()), _several(), dataset=dataset, budget=budget)


AT_HALF = 8.3618196  # what version 0.1 found, in eight digits, for a loss of 0.5 at AT[0]; later ones find fifteen


def calibrated(folder: Path) -> Path:
    """Scales that are asked for by an error, an interval or a loss."""
    asked: dict[str, dict[str, Any]] = {
        "loss": {"kind": "gaussian", "calibrate": {"loss": 0.125}},
        "loss-at": {"kind": "laplace", "sigma": AT_HALF},
        "interval": {"kind": "generalized_gaussian", "p": 0.5, "calibrate": {"interval": 60}},
        "polylog": {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "calibrate": {"mean_absolute_error": 25}},
        "error": {"kind": "log", "a": 5, "calibrate": {"standard_error": 30, "total": 500}},
        "root": {"kind": "root", "k": 2, "a": 10, "calibrate": {"interval": 80, "total": 1000}},
    }
    queries = [
        {"name": name, **STATISTICS["count" if name == "loss" else "integer"], "by": BY[i], "mechanism": mechanism}
        for i, (name, mechanism) in enumerate(asked.items())
    ]
    return _world(folder, as_parquet, rows(), queries)


def wide(folder: Path) -> Path:
    """A table of two files, most of whose cells have no record."""
    counties = tuple(sorted({*(f"{code:05d}" for code in range(1001, 55001, 2)), *COUNTIES}))
    queries = [
        _query("count", "count", ["naics6", "county"], "laplace"),
        _query("jobs", "integer", ["county", "naics2"], "root"),
    ]
    return _world(folder, as_parquet, rows(), queries, counties=counties)


def nothing(folder: Path) -> Path:
    """No record in any cell: the only one lies outside the domain."""
    return _world(folder, as_parquet, [rows(1)[0] | {"county": "72001"}], _several())


PLANS: Mapping[str, Callable[[Path], Path]] = {
    made.__name__: made
    for made in (
        kinds,
        brief,
        splits,
        filters,
        other,
        cells,
        combine,
        reject,
        trust,
        firms,
        firms_combine,
        firms_trust,
        calibrated,
        wide,
        nothing,
    )
}


def _query(name: str, statistic: str, by: list[str], variant: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **STATISTICS[statistic], "by": by, "mechanism": VARIANTS[variant]} | more


def _world(
    folder: Path,
    write: Callable[[Path, Sequence[Row]], None],
    given: Sequence[Row],
    queries: list[dict[str, Any]],
    *,
    naics: Iterable[str] = NAICS,
    counties: Iterable[str] = COUNTIES,
    dataset: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write domain, microdata and plan into a new folder; return the plan's path."""
    for name in ("domain", "microdata"):
        (folder / name).mkdir(parents=True)
    write(folder / "microdata", given)
    for name, codes in (("naics", naics), ("counties", counties)):
        (folder / "domain" / f"{name}.csv").write_text("code\n" + "".join(f"{code}\n" for code in codes))
    measures = {
        "employment": {"column": "employment", "type": "integer"},
        "payroll": {"column": "payroll", "type": "decimal", "step": 0.25},
    }
    facts = {
        "name": "pinned-microdata",
        "path": "microdata",
        "record": "establishment_id",
        "keys": {"naics": "naics", "county": "county"},
        "measures": measures,
    }
    plan = {
        "release": RELEASE,
        "dataset": facts | dict(dataset or {}),
        "domain": {"naics": "domain/naics.csv", "county": "domain/counties.csv"},
        "queries": queries,
        "budget": AMPLE,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan | changes, sort_keys=False))
    return folder / "plan.yaml"
