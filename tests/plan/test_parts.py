"""A mechanism for each public part of a query: the partition, its losses, and noise that knows no parts."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from mpmath import mp

import pipeline.engines.writers
from pipeline.accounting.accountant import NAME, LeftOutTest
from pipeline.accounting.policy import PolicySum
from pipeline.base.errors import MicrodataError, PlanError
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import limits_of, parse_at, policy_of
from pipeline.planning.explain_text import render
from pipeline.planning.explanation import explain
from pipeline.publication.description import Description
from tests.support.mistakes import without_numbers
from tests.support.submit import Place, submit
from tests.support.world import NAICS, QUERIES, figures, records, tree, write_world
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.release import release_cells
from udfs.noise.keystream import SecretKey
from udfs.noise.lattice import CHUNK

GAUSSIAN = {"kind": "gaussian", "sigma": 500}
LAPLACE = {"kind": "laplace", "sigma": 10}
LOG = {"kind": "log", "a": 100, "sigma": 0.5, "noise": "gaussian", "estimator": "mean"}
FINE_LOG = LOG | {"a": 50, "sigma": 0.25}
PARTED = {"by": "naics2", "parts": {"31-33": GAUSSIAN, "72": LOG}, "others": FINE_LOG}
BUDGET = [{"at": {"employment": 10}, "rho": 1000}]
TEST = 1 / 20_000  # what the test of records left out costs a record


def employment(mechanism: Any, name: str = "employment", **changes: Any) -> dict[str, Any]:
    return {"name": name, "sum": "employment", "by": ["naics3", "county"], "mechanism": mechanism} | changes


def world(folder: Path, *queries: dict[str, Any], **changes: Any) -> Path:
    return write_world(folder, records(3000), queries=list(queries), **{"budget": BUDGET} | changes)


def loaded(folder: Path, *queries: dict[str, Any], **changes: Any) -> Plan:
    return load_plan(world(folder, *queries, **changes))


def tables(folder: Path, *queries: dict[str, Any]) -> dict[str, bytes]:
    """Release under the known key; return the bytes of the tables' files."""
    published = submit(Place(world(folder, *queries), folder))
    return figures(tree(folder / "out" / published.release / published.attempt))


def rows(folder: Path, name: str = "employment") -> list[dict[str, Any]]:
    return pq.read_table(next((folder / "out").rglob(f"tables/{name}"))).to_pylist()


# --- the tables


@pytest.mark.parametrize("mechanism", [LAPLACE, LOG])
@pytest.mark.parametrize("cells", [1 << 18, 7])
def test_parts_with_one_mechanism_give_the_bytes_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: dict[str, Any], cells: int
) -> None:
    monkeypatch.setattr(pipeline.engines.writers, "FILE_CELLS", cells)
    parted = {"by": "naics2", "parts": {"31-33": mechanism, "44-45": mechanism}, "others": mechanism}
    by_county = {"by": "state", "parts": {"06": mechanism}, "others": mechanism}
    whole = tables(tmp_path / "whole", employment(mechanism))
    assert len(whole) == math.ceil(9 * 8 / cells)
    assert tables(tmp_path / "parted", employment(parted)) == whole
    assert tables(tmp_path / "by-county", employment(by_county)) == whole


def test_each_cell_has_the_value_of_its_own_parts_mechanism(tmp_path: Path) -> None:
    wholes = {"31-33": GAUSSIAN, "72": LOG, "others": FINE_LOG}
    for name, mechanism in wholes.items():
        tables(tmp_path / name, employment(mechanism))
    tables(tmp_path / "parted", employment(PARTED))
    expected = {name: rows(tmp_path / name) for name in wholes}
    parted = rows(tmp_path / "parted")
    assert len({row["naics3"] for row in parted}) == 9
    for i, row in enumerate(parted):
        part = "31-33" if row["naics3"][0] == "3" else "72" if row["naics3"] == "722" else "others"
        assert row == expected[part][i]
        assert isinstance(row["value"], float)
    assert all(isinstance(row["value"], int) for row in expected["31-33"])


def test_integers_stay_integers_where_every_part_is_additive(tmp_path: Path) -> None:
    tables(tmp_path, employment({"by": "naics3", "parts": {"311": LAPLACE}, "others": GAUSSIAN}))
    assert all(isinstance(row["value"], int) for row in rows(tmp_path))


def test_noise_that_numbered_the_cells_of_a_part_anew_would_be_seen() -> None:
    key, mechanism = SecretKey(bytes(32)), Gaussian(sigma=Fraction(50))
    part_of = np.array([1, 0, 0, 1, 0, 1], dtype=np.int32)
    facts: dict[str, Any] = {"key": key, "query": 2, "interval": Fraction(9, 10), "integer": True}
    totals, cells = np.arange(6), np.arange(100, 106)
    whole = release_cells({"cell": cells, "total": totals}, (mechanism,), **facts)
    parted = release_cells({"cell": cells, "total": totals, "part": part_of}, (mechanism, mechanism), **facts)
    anew = [{"cell": 100 + np.arange(3), "total": totals[part_of == part]} for part in (0, 1)]
    broken = [release_cells(frame, (mechanism,), **facts) for frame in anew]
    assert parted.value.tolist() == whole.value.tolist()
    assert parted.value.tolist() != np.concatenate([part.value for part in broken]).tolist()
    assert parted.value[part_of == 0].tolist() != broken[0].value.tolist()


@pytest.mark.parametrize("size", [0, 1, 2 * CHUNK + 3])
def test_each_cell_has_the_value_of_its_own_mechanism_however_many_there_are(size: int) -> None:
    facts: dict[str, Any] = {"key": SecretKey(bytes(32)), "query": 2, "interval": Fraction(9, 10), "integer": True}
    kinds = Gaussian(sigma=Fraction(50)), Laplace(sigma=Fraction(9))
    cells = np.arange(size)
    frame = {"cell": cells, "total": cells % 7, "part": (cells % 3 == 0).astype(np.int32)}
    alone = [release_cells(frame, (kind,), **facts) for kind in kinds]
    for name, values in vars(release_cells(frame, kinds, **facts)).items():
        expected = np.where(frame["part"] == 0, *(getattr(each, name) for each in alone))
        assert values.tolist() == expected.tolist()


def test_one_part_that_needs_nonnegative_values_makes_the_measure_nonnegative(tmp_path: Path) -> None:
    negative = records(5).to_pydict() | {"employment": [-1] * 5, "naics": ["722511"] * 5}
    for name, parted, allowed in (
        ("additive", {"72": LAPLACE}, True),
        ("log", {"31-33": GAUSSIAN, "44-45": LOG}, False),
    ):
        mechanism = {"by": "naics2", "parts": parted, "others": GAUSSIAN}
        plan = write_world(tmp_path / name, type(records(1)).from_pydict(negative), queries=[employment(mechanism)])
        if allowed:
            assert submit(Place(plan, tmp_path / name)).state == "settled"
            continue
        with pytest.raises(MicrodataError, match="employment is below zero"):
            submit(Place(plan, tmp_path / name))


# --- the losses


def log_loss(influence: int, a: float, sigma: float) -> float:
    return float(mp.log(1 + mp.mpf(influence) / a) ** 2 / (2 * mp.mpf(sigma) ** 2))


EXACT = {"31-33": 60**2 / (2 * 500**2), "72": log_loss(60, 100, 0.5), "others": log_loss(60, 50, 0.25)}


@pytest.mark.parametrize(
    ("at", "part"),
    [
        ("employment=60,naics2=31-33", "31-33"),
        ("employment=60,naics3=311", "31-33"),
        ("employment=60,naics6=722511,county=06037", "72"),
        ("employment=60,naics6=113110", "others"),
        ("employment=60,state=06", "others"),  # the worst part
        ("employment=60", "others"),
    ],
)
def test_a_record_loses_what_its_own_cells_mechanism_costs(tmp_path: Path, at: str, part: str) -> None:
    plan = loaded(tmp_path, employment(PARTED), employment(GAUSSIAN, "again", by=["nation"]))
    told = explain(plan, [parse_at(at, plan)])
    assert told["queries"][0]["losses"][0]["rho"] == pytest.approx(EXACT[part], rel=1e-7)
    assert told["queries"][0]["losses"][0]["rho"] >= EXACT[part]
    assert told["queries"][0]["losses"][0]["influence"] == 60
    assert told["total"][0]["rho"] == pytest.approx(EXACT[part] + EXACT["31-33"] + TEST, rel=1e-7)  # not of all parts
    described = {"kind": "gaussian", "sigma": 500, "policy": "paper"}
    assert told["queries"][0]["mechanism"] == PARTED | {"parts": {"31-33": described, "72": LOG}}


def test_parts_meet_across_queries_where_one_cell_has_both(tmp_path: Path) -> None:
    costly, cheap = {"kind": "gaussian", "sigma": 1}, {"kind": "gaussian", "sigma": 10}
    by_sector = {"by": "naics2", "parts": {"72": costly}, "others": cheap}
    by_state = {"by": "state", "parts": {"06": costly}, "others": cheap}
    not_here = {"by": "naics3", "parts": {"311": costly}, "others": cheap}
    plan = loaded(
        tmp_path,
        employment(by_sector, "a"),
        employment(by_state, "b", by=["state"]),
        employment(not_here, "c", where={"naics2": ["31-33"]}),
    )
    # 72 in California: a and b at full cost, c not at all; food in California: b and c, a cheaply. Δ = 10: 50, ½.
    assert explain(plan, [parse_at("employment=10", plan)])["total"][0]["rho"] == pytest.approx(50 + 50 + 0.5 + TEST)
    assert explain(plan, [parse_at("employment=10,naics2=72", plan)])["total"][0]["rho"] == pytest.approx(
        50 + 50 + TEST
    )
    assert explain(plan, [parse_at("employment=10,naics3=321,state=01", plan)])["total"][0]["rho"] == pytest.approx(
        1.5 + TEST
    )


def test_pure_losses_are_those_of_the_part(tmp_path: Path) -> None:
    plan = loaded(tmp_path, employment({"by": "naics2", "parts": {"72": LAPLACE}, "others": GAUSSIAN}))
    for at, epsilon in (("employment=5,naics2=72", 0.5), ("employment=5", None), ("employment=5,naics2=23", None)):
        told = explain(plan, [parse_at(at, plan)])
        assert told["queries"][0]["losses"][0]["epsilon"] == epsilon
        assert told["total"][0]["epsilon"] is None  # the test of records left out has none


def test_the_policy_can_be_evaluated_years_later(tmp_path: Path) -> None:
    plan = loaded(
        tmp_path, QUERIES[0], employment(PARTED), budget=[{"at": {"employment": 60, "naics2": "72"}, "rho": 9}]
    )
    policy, (limit,) = policy_of(plan), limits_of(plan)
    written = json.loads(json.dumps(policy.to_json()))
    assert "part" not in written["queries"][0]  # a plain query is written as ever
    assert [entry.get("part") for entry in written["queries"]] == [None, "31-33", "72", "others", None]
    again = PolicySum.from_json(written)
    assert again == policy
    assert float(again.loss_at(limit.at)) == pytest.approx(1 / 8 + EXACT["72"] + TEST, rel=1e-7)


def test_what_is_told_of_parts(tmp_path: Path) -> None:
    plan = loaded(tmp_path, employment(PARTED))
    shown = render(explain(plan, []), plan)
    assert "naics2 31-33: gaussian (sigma 500, policy paper)\n        P(Δ) = Δ²/(2σ²)\n" in shown
    log = "log (a {}, sigma {}, noise gaussian, estimator mean)"
    assert f"naics2 others: {log.format(50, 0.25)}\n        P(Δ) = D²/(2σ²), D = ln(" in shown
    public = Description(plan, LeftOutTest()).policy
    sectors = {code[:2] for code in NAICS} - {"31", "32", "33", "72"}
    assert [part["part"] for part in public["queries"][0]["parts"]] == ["31-33", "72", "others"]
    assert [code[:2] for code in public["queries"][0]["parts"][2]["codes"]] == sorted(sectors)
    parts = ("31-33", "72", "others")
    assert public["sum"]["places"] == [[f"employment ({part})", NAME] for part in parts]
    published = submit(Place(plan.path, tmp_path))
    page = (tmp_path / "out" / published.release / published.attempt / "report.html").read_text()
    assert f"naics2 72: {log.format(100, 0.5)}; naics2 others: {log.format(50, 0.25)}" in page


def test_the_digest_follows_the_parts(tmp_path: Path) -> None:
    backwards = {"others": FINE_LOG, "parts": {"72": LOG, "31-33": GAUSSIAN | {"policy": "paper"}}, "by": "naics2"}
    other = PARTED | {"parts": {"31-33": GAUSSIAN, "72": LOG | {"a": 101}}}
    finer = PARTED | {"by": "naics3", "parts": {"311": GAUSSIAN, "722": LOG}}
    plans = [loaded(tmp_path / str(i), employment(m)) for i, m in enumerate((PARTED, backwards, other, finer))]
    assert plans[0].digest == plans[1].digest
    assert len({plan.digest for plan in plans}) == 3
    assert plans[0].resolved()["queries"][0]["mechanism"]["step"] == 1
    assert plans[0].queries[0].mechanisms[0] == Gaussian(sigma=Fraction(500))
    assert Laplace(sigma=Fraction(10)) not in plans[0].queries[0].mechanisms


# --- mistakes

ONE = "{kind: gaussian, sigma: 2}"
UNKNOWN = "unknown level; known levels: naics2, naics3, naics4, naics5, naics6, nation, state, county"
PLACE = "queries[employment].mechanism"
MISTAKES = [
    (
        "{by: naics2, parts: {}, others: 1}",
        [".parts: must not be empty", ".others: must be a mapping of keys to values"],
    ),
    (f"{{by: naics2, parts: {{'72': {ONE}}}, kind: log}}", None),
    (
        f"{{by: naics4, parts: {{'7225': {ONE}}}}}",
        [".by: must be naics3, by which the query's cells are made, or a coarser level"],
    ),
    (
        f"{{by: state, parts: {{'06': {ONE}}}}}",
        [".by: must be a level of the query's by (naics3), or a coarser one of the same key"],
    ),
    (
        f"{{by: naics2, parts: {{'72': {ONE}}}}}",
        [".others: missing key (the mechanism of the codes that have no part: 11, 23, 31-33, 44-45, 48-49)"],
    ),
    (
        f"{{by: naics2, parts: {{'31': {ONE}, '72': {ONE}}}}}",
        ['.parts.31: the domain has no code "31" at level naics2; write 31-33'],
    ),
    (
        f"{{by: naics2, parts: {{'99': {ONE}, '72': {{kind: log, sgima: 1, a: 0}}}}, others: {{kind: lgo}}}}",
        [
            ".parts.72.sgima: unknown key; nearest known key: sigma",
            ".parts.72.a: must be above 0",
            ".others.kind: unknown kind; nearest known kind: log",
        ],
    ),
    (
        f"{{by: naics2, parts: {{'72': {{kind: laplace, sigma: 1.0e+40}}}}, others: {ONE}}}",
        [".parts.72.sigma: must be at most 2⁵⁵ steps of the measure"],
    ),
    (
        "{by: naics2, parts: {" + ", ".join(f"'{i}': {ONE}" for i in range(101)) + "}}",
        [".parts: must hold at most 100"],
    ),
]


def lines(folder: Path, mechanism: str, where: str = "{}") -> list[str]:
    path = write_world(folder, None, queries=[employment("HERE", by=["naics3"], where="THERE")], budget=[])
    path.write_text(path.read_text().replace("HERE", mechanism, 1).replace("THERE", where, 1))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    return [line.removeprefix(f"{path}: ") for line in without_numbers(caught.value.lines)]


@pytest.mark.parametrize(("mechanism", "expected"), MISTAKES)
def test_mistakes_in_parts_are_plain_lines(tmp_path: Path, mechanism: str, expected: list[str] | None) -> None:
    told = lines(tmp_path, mechanism)
    if expected is not None:
        assert told == [PLACE + line for line in expected]
    assert all("one." not in line and "parts.parts" not in line and "wrong value" not in line for line in told)


def test_parts_are_those_of_the_querys_own_cells(tmp_path: Path) -> None:
    food = '{naics2: ["31-33"], naics3: ["311", "321"]}'
    unmet = f"{{by: naics3, parts: {{'336': {ONE}, '311': {ONE}, '321': {ONE}}}, others: {ONE}}}"
    assert lines(tmp_path, unmet, food) == [
        f"{PLACE}.parts.336: no cell of the query has this code",
        f"{PLACE}.others: must be left out: the parts name every code that the query has",
    ]
    assert lines(tmp_path, f"{{by: naics3, parts: {{'311': {ONE}}}}}", food) == [
        f"{PLACE}.others: missing key (the mechanism of the codes that have no part: 321)"
    ]
    assert lines(tmp_path, f"{{by: naics3, parts: {{'311': {ONE}}}}}", '{naics2: ["99"]}') == [
        'queries[employment].where.naics2[0]: the domain has no code "99" at level naics2'
    ]
    twice = f"{{by: naics3, parts: {{'311': {ONE}, '311': {ONE}}}}}"
    assert 'key "311" stands twice' in lines(tmp_path, twice)[0]
