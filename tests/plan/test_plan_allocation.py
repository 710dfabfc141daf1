"""The plan's own key `calibrate`: drafts are refused as plans, and `prdp calibrate` writes the plan they become."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.base.errors import BudgetRefused, PlanError
from pipeline.plan.drafts import allocation_of
from pipeline.plan.load import draft_of, load_plan
from pipeline.plan.plan_text import read_text
from pipeline.plan.total_policy import limits_of, losses_at, policy_of
from pipeline.planning.allocated import allocated_plan
from tests.support.many_keys import write
from tests.support.mistakes import PLAN, lines, without_numbers, write_domain

DRAFT = """\
# Our programme.
release: cbp-2023-county
dataset:
  name: cbp-2023
  path: data/microdata
  record: establishment_id
  keys: {naics: naics, county: county}
  measures:
    employment: {column: employment, type: integer}   # heads
    payroll: {column: payroll, type: decimal, step: 0.5}
domain: {naics: naics.csv, county: counties.csv}

calibrate:
  # five years
  years: 5
  queries:
    employment: {weight: 2, total: 500}  # the main table
    payroll: {standard_error: 3000}

queries:
  - name: establishments
    count: records
    by: [naics4, county]
    mechanism: {kind: gaussian, calibrate: plan}  # counts
  - name: employment
    sum: employment
    by: [naics3, state]
    mechanism:
      kind: log
      a: 100
      calibrate: plan
  - name: payroll
    sum: payroll
    by: [nation]
    mechanism: {kind: laplace, calibrate: plan, policy: tight}
  - name: payroll_state
    sum: payroll
    by: [naics2, state]
    mechanism:
      by: naics2
      parts: {"31-33": {kind: gaussian, calibrate: plan}}
      others: {kind: laplace, calibrate: plan, policy: paper}
budget:
  - {at: {employment: 10, payroll: 500}, rho: 2.0}
  - {at: {employment: 5000, payroll: 300000, naics2: "31-33"}, rho: 4000}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_domain(tmp_path)


def allocated(folder: Path, text: str = DRAFT) -> tuple[dict[str, Any], Path]:
    path = folder / "draft.yaml"
    path.write_text(text)
    out = folder / "plan.yaml"
    return allocated_plan(read_text(path), path, out)[0], out


def test_a_place_elsewhere_is_refused_before_anything_is_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "draft.yaml"
    path.write_text(DRAFT)
    monkeypatch.delattr("pipeline.planning.allocated.allocation_of")
    with pytest.raises(PlanError, match="must lie in the plan's own folder"):
        allocated_plan(read_text(path), path, folder / "elsewhere" / "plan.yaml")


def test_the_written_plan_keeps_the_limits_and_the_authors_text(folder: Path) -> None:
    result, out = allocated(folder)
    plan = load_plan(out)
    assert plan.digest == result["plan_digest"]
    policy = policy_of(plan)
    for limit, stated in zip(limits_of(plan), result["limits"], strict=True):
        of_five = policy.loss_at(limit.at) + 4 * policy.loss_at(limit.at.anywhere())
        assert of_five <= limit.rho
        assert float(of_five) == pytest.approx(stated["spent"])
    assert max(each["spent"] / each["rho"] for each in result["limits"]) > 0.998
    at = plan.budget[0].at
    assert 5 * losses_at(plan, policy, at)[1].rho <= 2
    text = out.read_text()
    assert result["comments_kept"]
    kept = [line for line in DRAFT.splitlines() if "calibrate: plan" not in line]
    assert all(line in text for line in kept)
    assert "# calibrate:\n#   # five years\n#   years: 5\n" in text
    found = {(each["query"], each.get("part")): each for each in result["found"]}
    employed = found["employment", None]
    expected = f"      # for weight 2, total 500: standard error {employed['error']:.4g}; rho "
    assert expected in text
    assert f"      sigma: {employed['sigma']}\n" in text
    assert found["payroll", None]["error"] <= 3000
    assert list(found) == [
        ("establishments", None),
        ("employment", None),
        ("payroll", None),
        ("payroll_state", "31-33"),
        ("payroll_state", "others"),
    ]


def test_a_plan_whose_text_cannot_be_kept_is_written_anew(folder: Path) -> None:
    draft = json.dumps(yaml.safe_load(DRAFT))  # one line
    result, out = allocated(folder, draft)
    assert not result["comments_kept"]
    assert load_plan(out).digest == result["plan_digest"]
    assert out.read_text().startswith("# prdp calibrate chose the scales")
    assert "# payroll: sigma " in out.read_text()


def test_targets_of_single_queries_are_written_out_too(folder: Path) -> None:
    text = DRAFT.replace("gaussian, calibrate: plan}  #", "gaussian, calibrate: {standard_error: 9}}  #")
    result, out = allocated(folder, text)
    assert result["comments_kept"]
    assert "    # for standard_error 9\n    mechanism: {kind: gaussian, sigma: 9}  # counts\n" in out.read_text()
    assert [each["query"] for each in result["solved"]] == ["establishments"]


def test_a_share_of_cells_of_public_sizes(folder: Path) -> None:
    (folder / "cells.csv").write_text("value,count\n0,7\n100,50\n9000,50\n90000,100\n")
    wish = "payroll: {within: 0.1, share: 0.6, sizes: cells.csv}"
    result, out = allocated(folder, DRAFT.replace("payroll: {standard_error: 3000}", wish))
    (mechanism,) = load_plan(out).queries[2].mechanisms
    shares = [mechanism.error_share(total, total / 10) for total in (100.0, 9000.0, 90000.0)]
    assert 0.6 <= (50 * shares[0] + 50 * shares[1] + 100 * shares[2]) / 200 < 0.601
    assert "# for share 0.6, within 0.1: share of cells 0.6" in out.read_text()
    assert result["found"][2]["error"] <= 0.4


def test_values_that_are_all_but_exact_come_with_a_warning(folder: Path) -> None:
    loose = DRAFT.replace("rho: 2.0", "rho: 1e9").replace("rho: 4000", "rho: 1e12")
    warned = str(allocated(folder, loose)[0]["warnings"])
    assert "query establishments: its values are published all but exactly, as the limits allow" in warned
    assert prdp.allocate(yaml.safe_load(DRAFT), folder=folder).to_json()["warnings"] == []


def test_reconciled_errors_count_for_tables_that_nest(folder: Path) -> None:
    text = DRAFT.replace("  years: 5\n", "  reconciled: true\n").replace("    payroll: {standard_error: 3000}\n", "")
    parts = text[text.index("\n      by: naics2\n") : text.index("\nbudget:")]
    text = text.replace(parts, " {kind: gaussian, calibrate: plan}")
    result, _ = allocated(folder, text)
    found = {each["query"]: each for each in result["found"]}
    for name in ("payroll", "payroll_state"):  # the nation, and its four states by four sectors
        assert found[name]["reconciled"] < found[name]["error"]
    assert "reconciled" not in found["establishments"]
    assert "reconciled" not in found["employment"]
    own = [found[name]["error"] ** 2 for name in ("payroll_state", "payroll")]
    cells = len(load_plan(folder / "plan.yaml").domain.codes_met("naics2", {})) * 3
    together = 1 / (1 / own[1] + 1 / (cells * own[0]))
    assert found["payroll"]["reconciled"] ** 2 == pytest.approx(together, rel=1e-6)


def test_tables_of_other_records_do_not_nest(folder: Path) -> None:
    """Counties outside every cbsa, and records without a listed county, are in the coarser table alone."""
    tables = [
        ("n3_county_size", {"count": "records"}, ["naics3", "county", "size"]),  # everyone has a size
        ("n3_cbsa", {"sum": "employment"}, ["naics3", "cbsa"]),
        ("n3_nation", {"sum": "employment"}, ["naics3", "nation"]),
        ("pay_county", {"sum": "payroll"}, ["naics3", "county"]),
        ("pay", {"sum": "payroll"}, ["naics3"]),
        ("n3_state", {"count": "records"}, ["naics3", "state"]),
    ]
    noise = {"kind": "gaussian", "calibrate": "plan"}
    queries = [{"name": name, **of, "by": by, "mechanism": noise} for name, of, by in tables]
    budget = [{"at": {"employment": 10, "payroll": 50}, "rho": 1}]
    path = write(folder, ("naics", "county", "size"), queries, calibrate={"reconciled": True}, budget=budget).plan
    problem = allocation_of(*draft_of(read_text(path), path)).problem
    assert [each.numbers for each in problem.lattices] == [[0, 5], [1, 2], [3, 4]]
    gained = [each.reconciled([1.0, 1.0]) for each in problem.lattices]
    assert gained[0].max() < 1
    assert np.stack(gained[1:]) == pytest.approx(np.ones((2, 2)))


def test_parts_may_keep_their_scales_in_proportion(folder: Path) -> None:
    text = DRAFT.replace(
        "    payroll: {standard_error: 3000}", '    payroll_state: {weight: 1, proportions: {"31-33": 2, others: 0.5}}'
    )
    _, out = allocated(folder, text)
    parts = load_plan(out).queries[3].mechanisms
    scales = [part.describe()["sigma"] for part in parts]
    assert scales[0] == 4 * scales[1]  # type: ignore[operator]


def test_limits_of_its_own_stand_beside_the_budget(folder: Path) -> None:
    own = "  limits: [{at: {employment: 100, payroll: 5000}, rho: 50}]\n"
    result, out = allocated(folder, DRAFT.replace("  years: 5\n", own + "  years: 3\n"))
    assert [(each["at"], each["times"]) for each in result["limits"]][:2] == [
        ({"employment": 100, "payroll": 5000}, 3),
        ({"employment": 10, "payroll": 500}, 1),
    ]
    assert all(each["spent"] <= each["rho"] for each in result["limits"])
    assert len(load_plan(out).budget) == 2


def test_a_draft_is_no_plan(folder: Path) -> None:
    (folder / "draft.yaml").write_text(DRAFT)
    with pytest.raises(PlanError) as caught:
        load_plan(folder / "draft.yaml")
    (line,) = caught.value.lines
    draft = f"{folder}/draft.yaml"
    assert line.startswith(f"{draft}: line 13: calibrate: this is a draft: write the plan with its scales")
    assert line.endswith(f"prdp calibrate {draft} --out {folder}/draft-calibrated.yaml")


def test_wishes_that_cannot_be_met_say_what_could(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "draft.yaml"
    path.write_text(DRAFT.replace("standard_error: 3000", "standard_error: 300"))
    assert main(["calibrate", str(path), "--out", str(folder / "plan.yaml")]) == 3
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(
        "error: refused by the budget at employment=10, payroll=500 (the plan's own budget): the accuracies asked for"
    )
    assert any("it would hold with payroll: standard error 6" in line and "in place of 300" in line for line in told)
    assert not (folder / "plan.yaml").exists()
    with pytest.raises(BudgetRefused, match="in place of 300"):
        prdp.allocate(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("calibrate: plan", '"calibrate" : "plan"'),
        lambda text: text.replace("calibrate: plan}  #", "\n      calibrate: plan  # here\n    }  #"),
        lambda text: (
            text[: text.index("calibrate:\n")]
            + text[text.index("queries:\n  - name") :].rstrip()
            + "\n\n"
            + text[text.index("calibrate:\n") : text.index("\nqueries:\n  - name")].rstrip()
        ),
    ],
    ids=["windows", "quoted", "several lines", "last, without an end of line"],
)
def test_texts_of_many_layouts_are_kept(folder: Path, change: Any) -> None:
    result, out = allocated(folder, change(DRAFT))
    assert result["comments_kept"]
    assert load_plan(out).digest == allocated_digest(folder)
    assert "# heads" in out.read_text()


def allocated_digest(folder: Path) -> str:
    return prdp.allocate(yaml.safe_load(DRAFT), folder=folder).plan.digest


def test_a_mechanism_that_two_queries_share_is_written_anew(folder: Path) -> None:
    gaussian = "{kind: gaussian, calibrate: plan}"
    text = DRAFT.replace(f"mechanism: {gaussian}", f"mechanism: &g {gaussian}").replace("error: 3000", "error: 9000")
    text = text.replace("mechanism: {kind: laplace, calibrate: plan, policy: tight}", "mechanism: *g")
    result, out = allocated(folder, text)
    assert not result["comments_kept"]
    first, _, third, _ = load_plan(out).queries
    assert first.mechanisms != third.mechanisms


def test_the_command_and_the_function_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "draft.yaml"
    path.write_text(DRAFT)
    assert main(["calibrate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    allocation = prdp.allocate(yaml.safe_load(DRAFT), folder=folder)
    assert allocation.plan.digest == told["plan_digest"]
    assert allocation.to_json()["found"] == told["found"] == prdp.calibrate(path)["found"]
    assert allocation.tables["query"].tolist()[-1] == "payroll_state"
    assert main(["calibrate", str(path)]) == 0
    assert "chosen for" in capsys.readouterr().out


def test_without_limits_accuracies_alone_can_be_met(folder: Path) -> None:
    text = PLAN.replace("sigma: 20", "calibrate: plan").split("budget:")[0]
    text += "calibrate: {queries: {payroll: {mean_absolute_error: 20}}}\n"
    result, out = allocated(folder, text)
    assert result["limits"] == []
    assert result["found"][0]["error"] <= 20
    assert load_plan(out).budget == ()


PLANWIDE = PLAN.replace("sigma: 20", "calibrate: plan").replace("sigma: 0.5}", "calibrate: plan}")
MISTAKES = [
    (PLANWIDE, "queries[employment].mechanism.calibrate: plan needs the key calibrate of the plan"),
    ("calibrate: {}\n", "calibrate: no mechanism says calibrate: plan, in place of its scale"),
    ("calibrate: {queries: {pay: {weight: 1}}}\n", "calibrate.queries.pay: unknown query; "),
    (
        "calibrate: {queries: {establishments: {weight: 1}, employment: {total: 5}}}\n",
        "calibrate.queries.establishments: its mechanism must say calibrate: plan in place of its scale",
    ),
    (
        "calibrate: {queries: {payroll: {weight: 1, standard_error: 3}, employment: {total: 5}}}\n",
        "calibrate.queries.payroll: must have one of weight, standard_error, mean_absolute_error, relative_error, "
        "interval, within, not weight and standard_error",
    ),
    (
        "calibrate: {queries: {payroll: {within: 0.1, share: 0.5}, employment: {total: 5}}}\n",
        "calibrate.queries.payroll.sizes: missing key (a public file of the cells' expected totals, header",
    ),
    (
        "calibrate: {queries: {payroll: {share: 0.1}, employment: {total: 5}}}\n",
        "calibrate.queries.payroll.share: must be left out: it goes with within",
    ),
    ("calibrate: {}\n", "calibrate.queries.employment.total: missing key (at which the error is meant"),
    (
        "calibrate: {minimise: relative_error, queries: {employment: {total: 5}}}\n",
        "calibrate.queries.payroll.total: missing key (from which on the relative error is meant; prdp",
    ),
    (
        "calibrate: {queries: {payroll: {quantile: 0.5}, employment: {total: 5}}}\n",
        "calibrate.queries.payroll.quantile: must be left out: it goes with relative_error",
    ),
    (
        "calibrate: {queries: {payroll: {proportions: {a: 1}}, employment: {total: 5}}}\n",
        "calibrate.queries.payroll.proportions: must be left out: the query's mechanism has no parts",
    ),
    (
        "calibrate: {years: 0.5, queries: {employment: {total: 5}}}\n",
        "calibrate.years: must be a whole number from 1 to 1000",
    ),
    (
        "calibrate: {limits: [{at: {employment: 1}, rho: 2}], queries: {employment: {total: 5}}}\n",
        "calibrate.limits[0].at: must also name payroll, which a query sums",
    ),
    (
        "calibrate: {minimise: interval, reconciled: true, queries: {employment: {total: 5}}}\n",
        "calibrate.reconciled: must be left out: it goes with minimise: standard_error or unusable",
    ),
    (
        "calibrate: {within: 0.2, queries: {employment: {total: 5}}}\n",
        "calibrate.within: must be left out: it goes with minimise: unusable",
    ),
    (
        "calibrate: {minimise: unusable, queries: {employment: {sizes: cells.csv}}}\n",
        "calibrate.queries.payroll.sizes: missing key (a public file of the cells' expected totals",
    ),
    (
        "calibrate: {minimise: unusable, queries: {employment: {sizes: cells.csv}, payroll: {total: 5}}}\n",
        "calibrate.queries.payroll.total: must be left out: a share of cells is meant",
    ),
    (
        "calibrate: {queries: {employment: {total: 5, sizes: cells.csv}}}\n",
        "calibrate.queries.employment.sizes: must be left out: it goes with within, or with minimise: unusable",
    ),
    ("calibrate: {minimize: interval}\n", "calibrate.minimize: unknown key; nearest known key: minimise"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_mistakes_are_one_line(folder: Path, text: str, expected: str) -> None:
    plain = expected.startswith("calibrate: no mechanism")
    found = lines(folder, text if text is PLANWIDE else (PLAN if plain else PLANWIDE) + text)
    assert any(line.startswith(f"plan.yaml: {expected}") for line in found)
    assert len(found) <= 2


def test_a_draft_without_limits_is_told(folder: Path) -> None:
    text = PLANWIDE.split("budget:")[0] + "calibrate: {queries: {employment: {total: 5}}}\n"
    (line,) = lines(folder, text)
    assert line.startswith("plan.yaml: calibrate: no limits: state them here as limits, or as the plan's budget")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "kind: laplace, calibrate: plan, policy: paper",
            "kind: symmetric_stable, alpha: 1.5, calibrate: plan",
            "calibrate: the noise of payroll has no standard error: let the plan minimise",
        ),
        (
            "by: [nation]",
            'by: [nation]\n    where: {naics2: ["44-45"]}',
            "calibrate: no limit's reference has a record in the cells of payroll, so that",
        ),
    ],
)
def test_what_cannot_be_weighed_is_told(folder: Path, old: str, new: str, expected: str) -> None:
    text = PLANWIDE.replace(old, new) + "calibrate: {queries: {employment: {total: 5}}}\n"
    text = text.replace("  - {at: {employment: 10, payroll: 500}, rho: 2.0}\n", "")
    assert new in text
    with pytest.raises(PlanError) as caught:
        allocated(folder, text)
    assert str(caught.value).startswith(expected)


def test_noise_without_variance_has_no_standard_error_to_wish_for(folder: Path) -> None:
    text = PLANWIDE.replace(
        "kind: laplace, calibrate: plan, policy: paper", "kind: symmetric_stable, alpha: 1.5, calibrate: plan"
    )
    text += "calibrate: {queries: {employment: {total: 5}, payroll: {standard_error: 9}}}\n"
    with pytest.raises(PlanError) as caught:
        allocated(folder, text)
    (line,) = without_numbers(caught.value.lines)
    assert "the noise has no standard error; ask for an interval" in line
