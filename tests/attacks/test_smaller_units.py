"""What public documents say that smaller records and firms lose, against every smaller one of small worlds.

Brute force knows classes, cells and Gaussian noise alone: a unit that loses ρ is, to whoever tests for it, one normal
variable with its mean moved by √(2ρ) standard deviations. Scales of at least 10 lie so near to continuous noise that
TOLERANCE covers the lattice.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import pipeline.planning.explanation
import pipeline.publication.policy_document
from pipeline.accounting.references import Reference
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import left_out_test_of, located, policy_of
from pipeline.planning.explain_text import render
from pipeline.planning.explanation import explain
from pipeline.planning.verdict import verdict
from pipeline.publication.description import Description
from pipeline.publication.policy_document import WITHIN
from pipeline.publication.site.site_pages import SMALLER_FIRMS, SMALLER_RECORDS, report_page
from pipeline.storage.local import LocalPath
from tests.support.keyed import FORMS, NAICS, TEST, Asked, Classes, World, most_lost, smaller_firms, worlds
from tests.support.submit import Place, submit

TOLERANCE = 1e-3
DELTA = 1e-9  # at which all documents state (ε, δ)
Values = Mapping[str, int]


def implied(rho: Fraction) -> dict[str, float]:
    """What a unit's loss means at least: ε at DELTA, the power of the best test of size 5 %, posteriors of prior ½."""
    mean = sqrt(2 * rho)
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        delta = norm.cdf(mean / 2 - middle / mean) - exp(middle) * norm.cdf(-mean / 2 - middle / mean)
        low, high = (middle, high) if delta > DELTA else (low, middle)
    at = np.linspace(-12, 12, 4001)
    mean_posterior = np.average(1 / (1 + np.exp(-(mean**2) / 2 - mean * at)), weights=norm.pdf(at))
    return {
        "epsilon": low,
        "power": norm.cdf(norm.ppf(0.05) + mean),
        "mean": float(mean_posterior),
        "largest": 1 / (1 + exp(-(mean**2) / 2 - mean * norm.isf(DELTA))),
    }


def understated(stated: Mapping[str, Any], lost: Fraction) -> list[str]:
    """The figures that are below what a unit loses."""
    (even,) = (each for each in stated.get("posteriors", [{"prior": 0.5}]) if each["prior"] == 0.5)
    figures = {**stated, **even}
    below = ["rho"] if "rho" in stated and stated["rho"] < lost else []
    least = implied(lost)
    return below + [
        name
        for name in least.keys() & figures.keys()
        if (inf if figures[name] is None else figures[name]) < (1 - TOLERANCE) * least[name] - 1e-5
    ]


def untrue(world: World, plan: Plan, units: Sequence[Sequence[Values]]) -> Iterator[str]:
    """Yield what the plan's documents say that does not hold of some smaller unit; `units`: those of its limits."""
    lost = [most_lost(world, smaller_firms(unit)) for unit in units]
    own = [most_lost(world, [unit]) for unit in units]
    firm, test = plan.dataset.owner is not None, left_out_test_of(plan)
    about = Description(plan, test)
    policy = about.policy
    explained = explain(plan, [])
    text, page = render(explained, plan), report_page(about, LocalPath(plan.path.parent / "none"))
    site, judged = about.facts, verdict(plan)
    rises = all(stated["total"]["rho"] >= most for stated, most in zip(policy["references"], lost, strict=True))
    if not rises and WITHIN not in policy["guarantee"]["words"]:
        yield "words of the guarantee"
    if any(most > mine for most, mine in zip(lost, own, strict=True)) and not site["guarantee"]["words"].count(WITHIN):
        yield "words of the site"
    if not rises and (SMALLER_FIRMS if firm else SMALLER_RECORDS).format(unit="record", records="records") in page:
        yield "words of the page"
    if not rises and "bind every" in text.replace("\n", " "):
        yield "words of explain"
    for i, most in enumerate(lost):
        reference = policy["references"][i]
        total, means = explained["total"][i], explained["total_means"][i]
        statements = {
            "policy.json": reference.get("no_larger", reference["total"]) | {"epsilon": None},
            "explain": {"rho": total.get("rho_below", total["rho"])} | means.get("below", means),
            "site": site["losses"][i],
            "verdict": judged.standings[i].to_json(),
        }
        wrong = {name: understated(at, most) for name, at in statements.items()}
        yield from (f"{name}: {', '.join(figures)}" for name, figures in wrong.items() if figures)


def limited(world: World, folder: Path, units: Sequence[Sequence[Values]], unit: str) -> Plan:
    at = [units_of if unit == "firm" else units_of[0] for units_of in map(list, units)]
    budget = [{"at": each, "rho": 10**9} for each in at]
    return world.plan(folder, dataset={"unit": unit}, budget=budget)


WIDE = {"others": 10}
TWO = {"size": Classes("employment", (0, 15))}
TEN = {"size": Classes("employment", (0, *range(11, 20)))}
ISSUE = {
    # classes in `by`: smaller records come together in a cell
    "two": (World(TWO, (Asked("employment", ("size",), {}, None, WIDE),)), "firm", (10, 20), 2.5002, 2.8802),
    "ten": (World(TEN, (Asked("employment", ("size",), {}, None, WIDE),)), "firm", range(10, 20), 10.93, 40.505),
    # cells are listed, and the class of larger values has none for it
    "listed": (
        World(
            {"size": Classes("employment", (0, 20))},
            (Asked("employment", ("naics2",), {}, None, WIDE),),
            frozenset((naics, form, "0-19") for naics in NAICS for form in FORMS),
        ),
        "record",
        (25,),
        0.00005,
        1.80505,
    ),
}


def of_issue(name: str, folder: Path) -> tuple[World, Plan, list[list[Values]], float, float]:
    world, unit, sizes, own, lost = ISSUE[name]
    units = [[{"employment": size, "payroll": 0} for size in sizes]]
    return world, limited(world, folder, units, unit), units, own, lost


@pytest.mark.parametrize("name", ["two", "listed"])
def test_statements_hold_where_smaller_units_lose_more(name: str, tmp_path: Path) -> None:
    world, plan, units, own, lost = of_issue(name, tmp_path)
    assert float(most_lost(world, units)) == own
    assert float(most_lost(world, smaller_firms(units[0]))) == pytest.approx(lost, rel=1e-12)
    assert list(untrue(world, plan, units)) == []


def test_ten_records_of_one_class_are_below_what_ten_classes_are_stated(tmp_path: Path) -> None:
    """Too many smaller firms to try all: ten nines are one of them."""
    world, plan, _, own, lost = of_issue("ten", tmp_path)
    nines = [{"naics": NAICS[0], "form": "C", "employment": 9, "payroll": 0}] * 10
    assert float(world.loss(nines)) == lost
    (at,) = Description(plan, left_out_test_of(plan)).policy["references"]
    assert at["total"]["rho"] == pytest.approx(own, rel=1e-12)
    assert at["no_larger"]["rho"] >= lost
    explained = explain(plan, [])
    assert explained["total"][0]["rho_below"] >= lost
    assert understated(explained["total_means"][0]["below"], world.loss(nines)) == []


def test_the_manifest_has_the_words_of_the_policy(tmp_path: Path) -> None:
    _, plan, *_ = of_issue("two", tmp_path)
    rows = {"id": ["a", "b"], "naics": [*NAICS], "form": ["C", "S"], "firm": ["F", "F"], "employment": [10, 20]}
    (plan.path.parent / "microdata").mkdir()
    pq.write_table(pa.table(rows | {"payroll": [0, 0]}), plan.path.parent / "microdata" / "all.parquet")
    place = Place(plan.path, tmp_path)
    attempt = submit(place).attempt
    folder = place.out / plan.release
    manifest, policy = (json.loads((folder / name).read_text()) for name in ("release.json", f"{attempt}/policy.json"))
    assert manifest["guarantee"] == policy["guarantee"]
    assert WITHIN in manifest["guarantee"]["words"]


@pytest.mark.parametrize("name", ["two", "listed"])
def test_a_bound_for_classes_with_noise_of_their_own_alone_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin: other cells of smaller units are forgotten."""
    world, plan, units, _, _ = of_issue(name, tmp_path)

    def broken(plan: Plan, at: Reference) -> Reference | None:
        return located(plan, at, below=True) if policy_of(plan).spans else None

    document = pipeline.publication.policy_document
    for module in (pipeline.planning.explanation, document):
        monkeypatch.setattr(module, "no_larger", broken)
    monkeypatch.setattr(document, "classes_decide", lambda plan: bool(policy_of(plan).spans))
    wrong = list(untrue(world, plan, units))
    assert {"words of the guarantee", "words of the page", "words of explain", "policy.json: rho"} <= {*wrong}
    (of_explain,) = (each for each in wrong if each.startswith("explain: "))
    seen = {"rho", "epsilon", "power"} | ({"mean", "largest"} if name == "listed" else set())
    assert seen <= {*of_explain.removeprefix("explain: ").split(", ")}


@pytest.mark.parametrize(("sizes", "lost"), [((25, 19), Fraction(361, 200) + 2 * TEST), ((25, 26), 4 * TEST)])
def test_records_of_a_list_that_no_listed_cell_has_are_left_out(
    sizes: tuple[int, int], lost: Fraction, tmp_path: Path
) -> None:
    """One of 19 is in its cell; one of 25, or both, are among those that the test of records left out counts."""
    _, plan, *_ = of_issue("listed", tmp_path)
    at = Reference.of([{"employment": size, "payroll": 0} for size in sizes])
    (total,) = explain(plan, [at])["total"]
    assert total["rho_found"] == pytest.approx(float(lost), rel=1e-9)
    assert total["rho_found"] <= lost <= total["rho"]


def wide(world: World) -> World:
    """The world under ten times the noise."""
    asked = (replace(q, sigmas={code: 10 * sigma for code, sigma in q.sigmas.items()}) for q in world.asked)
    return replace(world, asked=tuple(asked))


VALUES = st.fixed_dictionaries({"employment": st.integers(0, 4), "payroll": st.integers(0, 1)})
RANDOM = settings(
    derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("unit", ["record", "firm"])
@given(world=worlds(most=2), data=st.data())
@RANDOM
def test_every_statement_about_smaller_units_holds(
    unit: str, world: World, data: st.DataObject, tmp_path: Path
) -> None:
    world = wide(world)
    units = [data.draw(st.lists(VALUES, min_size=1, max_size=1 if unit == "record" else 2)) for _ in range(2)]
    plan = limited(world, tmp_path, units, unit)
    assert list(untrue(world, plan, units)) == [], json.dumps(units)
