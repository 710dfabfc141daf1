"""Drafts of whole programmes: wished shares, kinds, derived tables, and what other limits would be worth."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import prdp
from jobs.cli import main

DRAFT = """\
# A small programme.
release: small
dataset:
  name: cbp-synthetic
  path: microdata
  record: establishment_id
  keys: {naics: naics, county: county}
  measures: {employment: {column: employment, type: integer}, payroll: {column: payroll, type: decimal, step: 1}}
domain: {naics: domain/naics.csv, county: domain/counties.csv, vintage: {naics: 2022, county: 2022}}
calibrate:
  minimise: unusable
  reconciled: true
  derive: true
  kinds:
    - &gaussian {kind: gaussian, calibrate: plan}
    - {kind: exponential_polylog, p: 1, d: 5, a: 1, calibrate: plan}
  limits:
    - {at: {employment: 10, payroll: 500}, rho: 2}
    - {at: {employment: 5000, payroll: 300000}, rho: 100}
  queries:
    emp_county: {usable: 0.3, sizes: counties.csv}
    emp_state: {sizes: states.csv}
    emp_n2_state: {weight: 0.5, sizes: states.csv}
    est_county: {sizes: counties.csv}
queries:
  - {name: emp_county, sum: employment, by: [county], mechanism: *gaussian}
  - {name: emp_state, sum: employment, by: [state], mechanism: *gaussian}
  - {name: emp_n2_state, sum: employment, by: [naics2, state], mechanism: *gaussian}
  - {name: est_county, count: records, by: [county], mechanism: *gaussian}
"""
SIZES = {"counties": {5: 500, 40: 900, 200: 800, 5000: 200}, "states": {300: 10, 9000: 30, 200000: 11}}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    prdp.generate(1000, tmp_path, seed=1)
    for name, sizes in SIZES.items():
        lines = ["value,count", *(f"{value},{count}" for value, count in sizes.items())]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "draft.yaml"
    path.write_text(DRAFT)
    return path


def test_a_draft_becomes_a_plan_with_other_kinds_and_derived_tables(draft: Path, capsys: Any) -> None:
    out = draft.with_name("plan-of-it.yaml")
    assert main(["calibrate", str(draft), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "usable cells, by weight:" in printed
    assert "a tenth more of it would make about" in printed
    plan = prdp.load_plan(out)
    kinds = {query["name"]: query["mechanism"]["kind"] for query in plan.source["queries"]}
    assert kinds["emp_county"] == "exponential_polylog"  # of a giant Gaussian noise would take nearly all
    assert kinds["est_county"] == "gaussian"
    assert [table["name"] for table in plan.source["derived"]] == ["emp_state"]
    assert "emp_state" not in kinds
    for limit in ({"employment": 10, "payroll": 500}, {"employment": 5000, "payroll": 300000}):
        rho = plan.explain(at=limit).losses.rho.sum()
        assert rho <= {10: 2, 5000: 100}[limit["employment"]]
    assert out.read_text().startswith("# A small programme.\n")


PARTS = """{by: naics2, parts: {"23": *gaussian, "31-33": *gaussian}, others: *gaussian}"""


def test_tables_that_share_a_mechanism_by_an_alias_have_scales_of_their_own(draft: Path) -> None:
    """Each table's scales in the plan are those that were chosen for it: the alias is no mechanism of all."""
    changes = {
        "by: [county], mechanism: *gaussian": f"by: [county, naics2], mechanism: &parts {PARTS}",
        "by: [naics2, state], mechanism: *gaussian": "by: [naics2, state], mechanism: *parts",
        "derive: true": "derive: false",
        "usable: 0.3": "weight: 1",
    }
    text = DRAFT
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    draft.write_text(text)
    result = prdp.allocate(draft)
    written = {query["name"]: query["mechanism"] for query in result.plan.source["queries"]}
    chosen = [each for each in result.to_json()["found"] if "part" in each]
    assert {each["query"] for each in chosen} == {"emp_county", "emp_n2_state"}
    for each in chosen:
        of_parts = written[each["query"]]
        part = of_parts["others"] if each["part"] == "others" else of_parts["parts"][each["part"]]
        assert part["sigma"] == each["sigma"]
    assert len({(each["query"], each["sigma"]) for each in chosen}) == len({each["sigma"] for each in chosen}) == 2


def test_a_wish_that_cannot_be_had_is_refused_with_the_nearest(draft: Path, capsys: Any) -> None:
    draft.write_text(DRAFT.replace("usable: 0.3", "usable: 0.99"))
    assert main(["calibrate", str(draft)]) == 3
    message = capsys.readouterr().err
    assert "refused by the draft's limits" in message
    assert "emp_county: " in message
    assert "in place of 0.99" in message
    assert f"every limit about {prdp.frontier(draft)['needed']:.3g} times as large" in message


def test_a_refusal_says_what_the_farthest_wish_can_be_beside_all_others(draft: Path, capsys: Any) -> None:
    """That is granted, and hardly more of it is."""
    asked = DRAFT.replace("emp_state: {sizes", "emp_state: {usable: 0.9, sizes")
    draft.write_text(asked.replace("usable: 0.3", "usable: 0.99"))
    assert main(["calibrate", str(draft)]) == 3
    had = re.search(r"hold with emp_county: (\S+) in place of 0.99, all others as asked", capsys.readouterr().err)
    assert had is not None
    draft.write_text(asked.replace("usable: 0.3", f"usable: {had[1]}"))
    assert main(["calibrate", str(draft)]) == 0
    draft.write_text(asked.replace("usable: 0.3", f"usable: {float(had[1]) + 0.01}"))
    assert main(["calibrate", str(draft)]) == 3


def test_what_no_limits_can_give_is_refused_as_that(draft: Path, capsys: Any) -> None:
    """A count of 1 is told to within 30 % by no noise of half a step."""
    draft.with_name("ones.csv").write_text("value,count\n1,900\n40,100\n")
    draft.write_text(DRAFT.replace("est_county: {sizes: counties.csv}", "est_county: {usable: 0.9, sizes: ones.csv}"))
    assert main(["calibrate", str(draft)]) == 3
    message = capsys.readouterr().err
    assert "est_county: 0.1 in place of 0.9" in message
    assert "no limits are large enough" in message
    result = prdp.frontier(draft)
    assert result["wished"]
    assert result["needed"] is None
    assert "cannot be had" in str(result)


def test_the_frontier_rises_with_the_limits_and_says_what_wishes_need(draft: Path, tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "frontier.svg"
    assert main(["calibrate", str(draft), "--frontier", "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "what is wished needs limits x" in printed
    assert picture.read_text().lstrip().startswith("<?xml")
    result = prdp.frontier(draft)
    shares = [point["usable"] for point in result["frontier"]]
    assert shares == sorted(shares)
    assert [point["factor"] for point in result["frontier"]] == [0.1, 0.3, 1, 3]
    needed = result["needed"]
    scaled = DRAFT.replace("rho: 2}", f"rho: {2 * needed * 1.03:.6f}}}").replace(
        "rho: 100}", f"rho: {103 * needed:.6f}}}"
    )
    draft.write_text(scaled)
    assert main(["calibrate", str(draft)]) == 0
    less = DRAFT.replace("rho: 2}", f"rho: {1.8 * needed:.6f}}}").replace("rho: 100}", f"rho: {90 * needed:.6f}}}")
    draft.write_text(less)
    assert main(["calibrate", str(draft)]) == 3  # what is said to be needed is
    assert json.loads(json.dumps(result.to_json())) == result.to_json()


def test_records_lose_what_a_frontier_says_in_the_plan_of_such_limits(draft: Path) -> None:
    """Both know the losses of records between and below the limits; the plan's budget is a tenth as well."""
    head, rest = DRAFT.split("  limits:\n")
    limits, rest = rest.split("  queries:\n")
    draft.write_text(f"{head}  queries:\n{rest}budget:\n{limits}")
    point = prdp.frontier(draft)["frontier"][0]
    made = prdp.allocate(draft, times="0.1").plan
    assert [limit["rho"] for limit in made.source["budget"]] == [0.2, 10]
    assert sorted(point["derived"]) == [table["name"] for table in made.source.get("derived", ())]
    losses = {each["at"]["employment"]: each["rho"] for each in point["losses"]}
    assert list(losses) == [1, 10, 100, 1000, 5000]
    assert losses[10] <= 0.2
    assert losses[5000] <= 10
    assert list(losses.values()) == sorted(losses.values())
    for each in point["losses"]:
        assert each["rho"] == pytest.approx(made.explain(at=each["at"]).totals.rho.max(), rel=1e-9)


WRONG = [
    (
        "    - &gaussian {kind: gaussian, calibrate: plan}\n",
        "    - {kind: log, a: 1, calibrate: plan}\n",
        "calibrate.kinds",
    ),
    (
        "exponential_polylog, p: 1, d: 5, a: 1, calibrate: plan",
        "designed, weights: x.json",
        "then ask prdp study kinds",
    ),
    ("exponential_polylog, p: 1, d: 5, a: 1", "designed", "calibrate.kinds: designed noise cannot be chosen"),
    ("  reconciled: true\n", "", "calibrate.derive: must be left out"),
    ("  minimise: unusable\n", "", "calibrate.queries.emp_county.usable: must be left out"),
    ("usable: 0.3", "usable: 1.3", "usable"),
]


@pytest.mark.parametrize(("text", "other", "message"), WRONG)
def test_what_does_not_go_together_is_refused(draft: Path, text: str, other: str, message: str, capsys: Any) -> None:
    draft.write_text(DRAFT.replace(text, other).replace("*gaussian", "{kind: gaussian, calibrate: plan}"))
    assert main(["calibrate", str(draft)]) == 2
    assert message in capsys.readouterr().err


def test_a_frontier_writes_no_plan(draft: Path, capsys: Any) -> None:
    assert main(["calibrate", str(draft), "--frontier", "--out", str(draft.with_name("x.yaml"))]) == 2
    assert main(["calibrate", str(draft), "--plot", str(draft.with_name("x.svg"))]) == 2
    assert "needs --frontier beside it" in capsys.readouterr().err
