"""Expected errors of a plan's tables once they add up: against least squares over all cells of a small world."""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prdp
from pipeline.plan.drafts import MOST_CODES, lattices_of, reconciled_errors
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan, Query
from tests.support.world import write_world
from udfs.numbers.arrays import Floats


def counted(name: str, by: list[str], sigma: float, **parts: float) -> dict[str, Any]:
    noise = {"kind": "gaussian", "sigma": sigma}
    own = {code: {"kind": "gaussian", "sigma": of} for code, of in parts.items()}
    return {
        "name": name,
        "count": "records",
        "by": by,
        "mechanism": {"by": "naics2", "parts": own, "others": noise} if parts else noise,
    }


QUERIES = [
    counted("fine", ["naics6", "county"], 20),
    counted("sectors", ["naics2", "county"], 60, **{"31-33": 3}),
    counted("subsectors", ["naics3", "state"], 200, **{"31-33": 30, "72": 5}),
    counted("states", ["state"], 25),
    counted("nation", ["nation"], 15),
]
DERIVED = [
    {"name": "groups", "count": "records", "by": ["naics4", "state"]},
    {"name": "industry", "count": "records", "by": ["naics2"]},
]


def planned(folder: Path, queries: list[dict[str, Any]], **more: Any) -> Plan:
    return load_plan(write_world(folder, None, queries=queries, budget=[], **more))


def sums_of(plan: Plan, by: tuple[str, ...]) -> Floats:
    """Return (cells, finest cells): which finest cells a table adds up."""
    matrix = np.ones((1, 1))
    for dimension in plan.domain.dimensions:
        level = next((each for each in by if each in dimension.levels), None)
        parent = dimension.parent(level)
        matrix = np.kron(matrix, np.unique(parent)[:, None] == parent)
    return matrix.astype(np.float64)


def part_of(plan: Plan, query: Query, cells: Floats) -> list[int]:
    """Return the part of each cell, which lies in one sector if there are several."""
    if query.split is None:
        return [0] * len(cells)
    naics, county = plan.domain.dimensions
    sectors = np.repeat([naics.level_codes("naics2")[i] for i in naics.parent("naics2")], len(county.codes))
    return [next(p for p, part in enumerate(query.parts) if sectors[row > 0][0] in part.codes) for row in cells]


def exact(plan: Plan) -> dict[str, list[Floats]]:
    """Return the standard errors of the cells of each table and part by dense least squares."""
    sums = {each.name: sums_of(plan, each.by) for each in plan.published}
    parts = {query.name: np.array(part_of(plan, query, sums[query.name])) for query in plan.queries}
    rows, weights = [], []
    for query in plan.queries:
        variances = np.array([mechanism.variance(0.0) for mechanism in query.mechanisms])
        rows.append(sums[query.name])
        weights.append(1 / variances[parts[query.name]])
    stacked = np.concatenate(rows)
    inverse = np.linalg.pinv(stacked.T * np.concatenate(weights) @ stacked, hermitian=True, rcond=1e-12)
    deviations = {name: np.sqrt(((each @ inverse) * each).sum(axis=1)) for name, each in sums.items()}
    by_part = {name: [deviations[name][parts[name] == p] for p in np.unique(parts[name])] for name in parts}
    return {name: by_part.get(name, [each]) for name, each in deviations.items()}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return planned(tmp_path, QUERIES, derived=DERIVED)


def test_expected_errors_of_parts_and_derived_tables_are_near_least_squares(plan: Plan) -> None:
    """Of a small, very uneven world: 7 of 10 errors of its tables and parts within 10 %, 9 of 10 within 15 %."""
    stated, squares = reconciled_errors(plan), exact(plan)
    assert {name: len(errors) for name, errors in stated.items()} == {name: len(of) for name, of in squares.items()}
    off = [
        np.sqrt(np.mean(cells**2)) / error - 1
        for name, errors in stated.items()
        for error, cells in zip(errors, squares[name], strict=True)
        if error is not None
    ]
    assert np.mean(np.abs(off) < 0.1) >= 0.7
    assert np.mean(np.abs(off) < 0.15) >= 0.9
    alone = [
        np.sqrt(np.mean(cells**2)) / sqrt(mechanism.variance(0.0)) - 1  # a broken twin: errors as they are released
        for query in plan.queries
        for mechanism, cells in zip(query.mechanisms, squares[query.name], strict=True)
    ]
    assert np.mean(np.abs(alone) < 0.15) < 0.5


def test_the_lattice_names_its_tables_and_their_policies(plan: Plan) -> None:
    (lattice,) = lattices_of(plan)
    assert lattice.names == ["fine", "sectors", "subsectors", "states", "nation", "groups", "industry"]
    assert [list(each) for each in lattice.members] == [[0], [1, 2], [3, 4, 5], [6], [7], [], []]
    assert all(sum(each.values()) == pytest.approx(1) for each in lattice.members if each)
    assert len(lattice.tables[1].sums) == 6 <= MOST_CODES  # sectors of the world


def test_tables_that_no_other_tells_keep_their_errors(tmp_path: Path) -> None:
    others = [
        {"name": "alone", "sum": "employment", "by": ["county"], "mechanism": {"kind": "gaussian", "sigma": 7}},
        {
            "name": "log",
            "sum": "payroll",
            "by": ["naics3", "state"],
            "mechanism": {"kind": "log", "a": 50, "sigma": 0.5},
        },
    ]
    plan = planned(tmp_path, [counted("nation", ["nation"], 3), counted("states", ["state"], 4), *others])
    assert reconciled_errors(plan).keys() == {"nation", "states"}
    errors = prdp.load_plan(plan.path).explain().errors
    for name in ("alone", "log"):
        of_table = errors[errors["query"] == name]
        assert of_table["reconciled"].tolist() == of_table["standard_error"].tolist()
    nation = errors[errors["query"] == "nation"]["reconciled"].to_numpy()
    assert nation == pytest.approx(1 / np.sqrt(1 / 9 + 1 / (6 * 16)), rel=1e-3)  # of six states


def test_explain_shows_reconciled_errors_in_text_json_and_frames(plan: Plan) -> None:
    explained = prdp.load_plan(plan.path).explain({})
    stated = reconciled_errors(plan)
    tables = {table["name"]: table["errors"] for table in explained.to_json()["verdict"]["tables"]}
    assert {error["reconciled"] for error in tables["groups"]} == set(stated["groups"])
    assert tables["groups"][0]["standard_error"] is None
    by_part = {(error["part"], error["reconciled"]) for error in tables["sectors"]}
    assert by_part == set(zip(("31-33", "others"), stated["sectors"], strict=True))
    of_queries = {query["name"]: query["accuracy"] for query in explained.to_json()["queries"]}
    assert of_queries["nation"][0]["reconciled"] == stated["nation"][0]
    assert explained.to_json()["derived"][0]["reconciled"] == stated["groups"][0]
    assert explained.accuracy["reconciled"].notna().all()
    shown = str(explained).splitlines()
    (line,) = [line for line in shown if line.strip().startswith("groups")]
    assert line.split()[1:] == ["–", "–", "–", f"≈{stated['groups'][0]:.3g}"]
    assert max(map(len, shown)) <= 80
    assert f"≈ {stated['nation'][0]:.4g}" in explained.detail()
