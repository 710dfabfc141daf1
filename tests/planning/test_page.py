"""The page of `prdp try`: in a real browser its numbers are those of explain's functions, to three digits."""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prdp
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.plan_text import read_text
from pipeline.plan.total_policy import limits_of, policy_of
from pipeline.planning.study.equal_publication import EDGES, SizedCells
from pipeline.planning.trial_page import trial_page
from pipeline.planning.trial_scales import families_of, read
from tests.support.devtools import evaluated
from tests.support.kinds import REGISTRY
from tests.support.world import write_world
from udfs.losses.tight import tight_loss
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.exact import bound_text

THREE_DIGITS = 1e-3
SETTINGS = 20
SIZE = {"of": "employment", "classes": [0, 10, 100]}
DOMAIN = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "size": SIZE}
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20}


def table(
    name: str, mechanism: dict[str, Any], by: list[str] | None = None, total: str = "employment"
) -> dict[str, Any]:
    counted = {"count": "records"} if total == "records" else {"sum": total}
    return {"name": name, **counted, "by": by or ["naics3", "state"], "mechanism": mechanism}


USUAL = [
    table("counts", {"kind": "gaussian", "sigma": 2}, total="records"),
    table("polylog", POLYLOG),
    table("laplace", {"kind": "laplace", "sigma": 50, "lattice": "fine"}, ["naics2"]),
    table("log", {"kind": "log", "a": 50, "sigma": 0.5}, ["county"], "payroll"),
    table(
        "by_size",
        {
            "by": "size",
            "parts": {"0-9": {"kind": "gaussian", "sigma": 12}},
            "others": {"kind": "laplace", "sigma": 300, "policy": "paper"},
        },
        ["state", "size"],
    ),
]
EDGES_OF_KINDS = [
    table("stable", {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 10}),
    table("fourth_root", {"kind": "root", "k": 4, "a": 2, "sigma": 0.3, "noise": "laplace"}),
    table("square_root", {"kind": "root", "k": 2, "a": 0, "sigma": 1}),
    table("tails", {"kind": "exponential_polylog", "p": 1, "d": 5, "a": 1, "sigma": 2500}, total="payroll"),
]
BUDGET = [{"at": {"employment": 7, "payroll": 60}, "rho": 3}, {"at": {"employment": 900, "payroll": 9000}, "rho": 40}]


def choices(kind: str) -> tuple[str, ...]:
    declared = CATALOGUE[kind].parameters().get("policy")
    return () if declared is None else declared.choices or ()


def by_policy(policy: str) -> list[dict[str, Any]]:
    """Return a table of each kind that plans accept, of this policy where the kind has a choice of it."""
    specs = {kind: {"kind": kind, **next(iter(known.published.values()))} for kind, known in REGISTRY.items()}
    return [
        table(
            f"{policy}_{kind}",
            spec | ({"policy": policy} if policy in choices(kind) else {}),
            total="records" if CATALOGUE[kind].counts_only else "employment",
        )
        for kind, spec in specs.items()
    ]


def page_of(path: Path) -> str:
    plan = load_plan(path)
    bins = len(EDGES) + 1
    counts = np.zeros(bins, dtype=np.int64)
    counts[[0, 40, 60, 80]] = 5, 10, 20, 3
    totals = np.append(0.0, EDGES) * (counts > 0)
    cells = [
        SizedCells(np.tile(counts, (len(query.parts), 1)), np.tile(totals, (len(query.parts), 1)))
        for query in plan.queries
    ]
    found = {
        "records": {"in_domain": 7},
        "tables": [],
        "derived": [],
        "usable": {"within": 0.3, "cells": 0, "released": None, "reconciled": None, "sizes": []},
    }
    document = {"plans": [found], "draws": 0, "microdata": {"label": "seven records"}}
    return trial_page(plan, read_text(path).data, document, cells)


def settings_of(page: str, count: int) -> list[str]:
    """Return random settings of the sliders, as the address has them."""
    rng = np.random.default_rng(3)
    data = json.loads(re.search(r"id=data>(.*?)</script>", page, re.DOTALL)[1])  # type: ignore[index]
    texts = []
    for _ in range(count):
        parts = []
        for t, shown in enumerate(data["tables"]):
            if shown["scale"] is None:
                continue
            first = data["policies"][shown["policies"][0]]
            family = data["families"][first["family"]]
            middle = 1.0 if shown["split"] else first["scale"]
            low, high = (0.2, 5.0) if shown["split"] else (family["least"] / middle, family["most"] / middle)
            parts.append(f"t{t}={float(f'{middle * np.exp(rng.uniform(np.log(low), np.log(high))):.5g}')}")
        for k in range(len(data["limits"])):
            parts += [f"l{k}.{name}={round(10 ** rng.uniform(0, 5))}" for name in ("employment", "payroll")]
        texts.append("&".join(parts))
    return texts


def near(found: float, wanted: float) -> bool:
    return abs(found / wanted - 1) <= THREE_DIGITS


def disagreements(page: str, path: Path, count: int) -> list[str]:
    """Return where the page, in the browser, says other numbers than the plan that it exports there."""
    script = f"{json.dumps(settings_of(page, count))}.map(each => {{ prdp.set(each); return prdp.figures(); }})"
    wrong = []
    for n, figures in enumerate(evaluated(page, script, path.parent)):
        exported = path.with_name(f"exported-{n}.yaml")
        exported.write_text(figures["yaml"])
        plan = load_plan(exported)
        wrong += [f"setting {n}: {line}" for line in _wrong(plan, figures)]
    return wrong


def _wrong(plan: Plan, figures: dict[str, Any]) -> list[str]:
    policy, lines = policy_of(plan), []
    for limit, shown in zip(limits_of(plan), figures["limits"], strict=True):
        stated = {"total": (shown["rho"], policy.loss_at(limit.at))}
        for query, rho in zip(plan.queries, shown["tables"], strict=True):
            stated[query.name] = (rho, policy.query_loss_at(limit.at, query.name))
        lines += [
            f"{limit.at.label}: {name} {rho} for {float(loss)}"
            for name, (rho, loss) in stated.items()
            if not (loss == rho == 0 or (loss and near(rho, float(loss))))
        ]
    for query, shown in zip(plan.queries, figures["tables"], strict=True):
        for part, errors in zip(query.parts, shown["at"], strict=True):
            mean, standard = part.mechanism.mean_absolute_error(0.0), part.mechanism.variance(0.0) ** 0.5
            for kind, stated in (("mean", mean), ("standard", standard)):
                known = errors[kind]
                if (
                    known is None
                ):  # infinite; just below the scale from which a logarithm's values have no variance, too
                    same = stated == np.inf or (part.mechanism.kind == "log" and kind == "standard")
                else:
                    same = near(known, stated)
                if not same:
                    lines.append(f"{query.name}: {kind} error {known} for {stated}")
    return lines


def test_the_numbers_are_those_of_explain(tmp_path: Path) -> None:
    path = write_world(tmp_path, None, queries=USUAL, budget=BUDGET, domain=DOMAIN)
    page = page_of(path)
    assert disagreements(page, path, SETTINGS) == []
    wrong = page.replace("Math.tanh(pure / 2) * pure", "Math.tanh(pure / 2) * pure * 1.002")
    assert len(disagreements(wrong, path, 2)) > 2


def test_every_kind_is_computed_and_one_that_the_page_does_not_know_is_said_to_be_unknown(tmp_path: Path) -> None:
    assert REGISTRY.keys() == CATALOGUE.keys()
    path = write_world(tmp_path, None, queries=by_policy("paper"), budget=BUDGET)
    page = page_of(path)
    assert disagreements(page, path, 5) == []
    for kind in ("generalized_gaussian", "root"):
        strange = page.replace(f'"kind": "{kind}"', '"kind": "strange"')
        shown = evaluated(strange, "[document.getElementById('verdict').textContent, verdict.className]", tmp_path)
        assert shown == ["This page cannot compute losses of the kind strange: see prdp explain", "broken"]


@pytest.mark.drill
def test_the_numbers_of_all_kinds_are_those_of_explain(tmp_path: Path) -> None:
    path = write_world(tmp_path, None, queries=by_policy("tight") + EDGES_OF_KINDS, budget=BUDGET)
    assert disagreements(page_of(path), path, SETTINGS) == []


def test_the_page_asks_nobody_for_anything_and_exports_the_plan(tmp_path: Path) -> None:
    path = write_world(tmp_path, None)
    out = tmp_path / "page.html"
    prdp.try_plan(path, records=20_000, draws=0, page=out)
    page = out.read_text()
    assert not re.findall(
        r"(?:src|href)=|url\((?!#)|@import|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", page
    )
    figures = evaluated(page, "(prdp.set(''), prdp.figures())", tmp_path)
    exported = tmp_path / "exported.yaml"
    exported.write_text(figures["yaml"])
    assert load_plan(exported).digest == load_plan(path).digest
    unlabelled = "[...document.querySelectorAll('input')].filter(e => !e.labels.length && !e.ariaLabel).length"
    assert evaluated(page, unlabelled, tmp_path) == 0


def test_limits_that_the_page_cannot_recompute_are_never_told_as_kept(tmp_path: Path) -> None:
    firm = {"employment": 10, "payroll": 500}
    limits = [{"at": [firm], "rho": 100}, {"at": [firm, firm], "rho": 0.01}]
    path = write_world(tmp_path, None, dataset={"unit": "firm"}, budget=limits)
    page = page_of(path)
    figures = evaluated(page, "(prdp.set(''), prdp.figures())", tmp_path)
    first, _ = limits_of(load_plan(path))
    assert [near(each["rho"], float(policy_of(load_plan(path)).loss_at(first.at))) for each in figures["limits"]] == [
        True
    ]
    verdict = evaluated(page, "[document.getElementById('verdict').textContent, verdict.className]", tmp_path)
    assert verdict[0].startswith("1 of 2 limits kept; 1 not recomputed here")
    assert verdict[1] == "unknown"
    rho = float(policy_of(load_plan(path)).loss_at(limits_of(load_plan(path))[1].at))
    assert f"As the plan is, it loses ρ {bound_text(rho)} of 0.01." in page
    # as near to a limit as three digits tell it is not kept either
    at_the_limit = json.dumps(f"l0={figures['limits'][0]['rho'] * 1.0004}")
    seen = f"(prdp.set({at_the_limit}), prdp.show(), verdict.textContent)"
    assert evaluated(page, seen, tmp_path).startswith("0 of 2 limits kept; 1 reached")
    # a number that is none is a broken limit, not a kept one
    broken = page.replace("x * x / (2 * scale * scale)", "NaN")
    assert evaluated(broken, "verdict.className", tmp_path) == "broken"


@pytest.mark.parametrize(("times", "told"), [(1.0001, "kept"), (0.9999, "broken")])
def test_the_plan_as_it_is_stands_as_explain_says(tmp_path: Path, times: float, told: str) -> None:
    at = {"employment": 10, "payroll": 500}
    path = write_world(tmp_path, None, budget=[{"at": at, "rho": 100}])
    plan = load_plan(path)
    rho = float(policy_of(plan).loss_at(limits_of(plan)[0].at))
    write_world(tmp_path, None, budget=[{"at": at, "rho": float(f"{rho * times:.7g}")}])
    page = page_of(path)
    assert evaluated(page, "(prdp.set(''), prdp.show(), verdict.textContent)", tmp_path).startswith(
        f"1 of 1 limits {told}"
    )
    # of other scales the page knows three digits, and says so
    touched = f"(prdp.set('t1=10.000001&l0={rho * 1.0004}'), prdp.show(), verdict.textContent)"
    assert evaluated(page, touched, tmp_path).startswith("0 of 1 limits kept; 1 reached")


def test_tables_over_scales_are_right_between_their_points() -> None:
    (family,), _ = families_of([build(POLYLOG, Fraction(1))])
    losses = family.to_json(1e4)["losses"]
    x, y, values = (np.array(losses[name]) for name in ("scales", "steps", "ratios"))

    def far_off(d: float) -> float:
        """How far off what is read may be, at most, where the noise has another parameter than the table's."""
        off = []
        for scale, influence in ((3.7, 5), (33, 71), (190, 1234)):
            mechanism = build(POLYLOG | {"d": d, "sigma": scale}, Fraction(1))
            tight = tight_loss(mechanism.log_weights, influence)  # stated losses are those of the next knots
            ratio = tight / float(mechanism.by_paper().loss_at(Fraction(influence)))
            found = read(x, y, values, float(np.log(scale)), float(np.log(influence)))
            off.append(abs(float(np.exp(found)) / ratio - 1))
        return max(off)

    assert far_off(1.5) <= THREE_DIGITS < far_off(1.6)
