"""A table of several measures is one table of each: equal digests and losses, own scales, and one line of `explain`."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import prdp
from pipeline.base.errors import PlanError
from pipeline.plan.load import load_plan
from pipeline.plan.plan_schema import export_schema
from tests.support.plans import COUNTIES, DATA, NAICS

MEASURES = ["employment", "payroll"]
TABLE: dict[str, Any] = {
    "name": "both",
    "sum": MEASURES,
    "by": ["naics3", "county"],
    "where": {"state": ["01", "36"]},
    "mechanism": {"kind": "log", "a": 10, "sigma": {"employment": 0.3, "payroll": 0.5}},
    "unit": {"employment": "people", "payroll": "dollars"},
}


def one_by_one(measure: str) -> dict[str, Any]:
    """Return what the table of one measure is by the docs, written by hand."""
    sigma, unit = {"employment": (0.3, "people"), "payroll": (0.5, "dollars")}[measure]
    mechanism = {"kind": "log", "a": 10, "sigma": sigma}
    return TABLE | {"name": f"both_{measure}", "sum": measure, "mechanism": mechanism, "unit": unit}


def plan_file(folder: Path, name: str, queries: list[dict[str, Any]], **changes: Any) -> Path:
    for file, codes in (("naics.csv", NAICS), ("counties.csv", COUNTIES)):
        (folder / file).write_text("\n".join(["code", *codes]))
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(deepcopy(DATA) | {"queries": queries} | changes, sort_keys=False))
    return path


def test_it_is_the_plan_of_its_tables_one_by_one(tmp_path: Path) -> None:
    first = {**DATA["queries"][0]}
    plan = load_plan(plan_file(tmp_path, "several", [first, TABLE]))
    apart = load_plan(plan_file(tmp_path, "apart", [first, *map(one_by_one, MEASURES)]))
    assert plan.digest == apart.digest
    assert dict(plan.together) == {"both_employment": "both", "both_payroll": "both"}
    assert not apart.together
    # the broken twin: one scale for both is another plan
    alike = TABLE | {"mechanism": {"kind": "log", "a": 10, "sigma": 0.3}}
    assert load_plan(plan_file(tmp_path, "alike", [first, alike])).digest != plan.digest


def test_explain_states_one_line_and_the_sum_of_the_losses(tmp_path: Path) -> None:
    plan = prdp.load_plan(plan_file(tmp_path, "several", [{**DATA["queries"][0]}, TABLE]))
    explained = plan.explain()
    shares = explained.shares[explained.shares["at"] == explained.shares["at"].iloc[0]].set_index("query")["share"]
    lines = explained.text().split("share of the loss")[1].split("errors:")[0]
    (line,) = [line.split() for line in lines.splitlines() if line.strip().startswith("both")]
    together = 100 * (shares["both_employment"] + shares["both_payroll"])
    assert line[0] == "both"
    assert float(line[1]) == pytest.approx(together, rel=0.02)
    assert float(line[1]) > 1.02 * 100 * shares["both_payroll"]  # no line of a part alone
    detail = explained.detail()
    assert all(f"both_{measure}: sum of {measure} by" in detail for measure in MEASURES)


def test_targets_take_each_its_own_measure(tmp_path: Path) -> None:
    target = {"kind": "gaussian", "calibrate": {"loss": 0.5, "at": {"employment": 10, "payroll": 500}}}
    path = plan_file(tmp_path, "wishes", [TABLE | {"mechanism": target}])
    # rho = influence² / (2 σ²) = 0.5, so that σ is the influence
    scales = {query.name: float(query.mechanisms[0].sigma) for query in load_plan(path).queries}  # type: ignore[attr-defined]
    assert scales == pytest.approx({"both_employment": 10, "both_payroll": 500}, rel=1e-6)
    written = prdp.calibrate(path, out=tmp_path / "scaled.yaml")
    assert load_plan(tmp_path / "scaled.yaml").digest == load_plan(path).digest
    assert written is not None


def test_a_draft_chooses_a_scale_for_each(tmp_path: Path) -> None:
    open_scale = TABLE | {"mechanism": {"kind": "gaussian", "calibrate": "plan"}}
    path = plan_file(tmp_path, "draft", [open_scale], calibrate={"minimise": "standard_error"})
    prdp.calibrate(path, out=tmp_path / "plan.yaml")
    plan = load_plan(tmp_path / "plan.yaml")
    assert [query.name for query in plan.queries] == ["both_employment", "both_payroll"]
    assert len({query.mechanisms[0].describe()["sigma"] for query in plan.queries}) == 2


MISTAKES = [
    ({"sum": ["employment"]}, r"queries\[0\].sum: must be one measure, or a list of two or more different ones"),
    ({"sum": ["payroll", "payroll"]}, r"queries\[0\].sum: must be one measure, or a list"),
    ({"sum": ["payroll", 3], "mechanism": {"kind": "log", "a": 1, "sigma": 1}, "unit": "x"}, "sum: must be text"),
    ({"sum": ["payroll", "employmnt"]}, r"mechanism.sigma: must name each measure of the table, .*employmnt, payroll"),
    ({"sum": ["payroll", "wages"], "mechanism": {"kind": "log", "a": 1, "sigma": 1}, "unit": "x"}, "unknown measure"),
    ({"unit": "dollars"}, r"unit: is one for measures of several types or steps: state that of each, by its name"),
    ({"name": 3}, r"name: must be text: its tables are called NAME_MEASURE"),
    ({"unit": {"payroll": "dollars"}}, r"unit: must name each measure of the table, and nothing else: employment"),
    ({"mechanism": {"kind": "log", "a": 1, "sigma": {"payroll": 2, "employment": -1}}}, r"sigma: must be above 0"),
    ({"by": ["naics3", "conty"]}, r"by\[1\]: unknown level"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_name_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = plan_file(tmp_path, "wrong", [TABLE | change, {**DATA["queries"][0]}])
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(path)
    begins = path.read_text().split("queries:")[0].count("\n") + 1
    ends = path.read_text().split("- name: establishments")[0].count("\n") + 1
    for line in str(caught.value).splitlines():
        number = int(re.fullmatch(rf"{re.escape(str(path))}: line (\d+): .*", line)[1])  # type: ignore[index]
        assert begins < number < ends, line


def test_names_that_meet_are_refused(tmp_path: Path) -> None:
    path = plan_file(tmp_path, "twice", [TABLE, one_by_one("payroll")])
    with pytest.raises(PlanError, match="another table has this name"):
        load_plan(path)
    path = plan_file(tmp_path, "group", [TABLE, one_by_one("payroll") | {"name": "both"}])
    with pytest.raises(PlanError, match=r"queries\[0\].name: another table has this name"):
        load_plan(path)


def test_the_schema_takes_it_as_the_plan_does(tmp_path: Path) -> None:
    import jsonschema  # takes a second, and every process imports this module

    schema = yaml.safe_load(export_schema())
    data = deepcopy(DATA) | {"queries": [TABLE]}
    data = {key: each for key, each in data.items() if each is not None}
    data["domain"] = {"naics": "naics.csv", "county": "counties.csv"}
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"queries": [TABLE | {"sum": ["payroll"]}]}, schema)
    with pytest.raises(jsonschema.ValidationError):  # of one measure there is one value
        jsonschema.validate(data | {"queries": [TABLE | {"sum": "payroll"}]}, schema)
