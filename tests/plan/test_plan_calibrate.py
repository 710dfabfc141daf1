"""The key `calibrate` of plans: solved when the plan is loaded, and written out so that no later solver changes it."""

from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import Target
from pipeline.base.errors import PlanError, StateError
from pipeline.plan.load import load_plan
from pipeline.plan.plan_schema import export_schema
from pipeline.plan.plan_text import read_text, written
from pipeline.plan.structure import warnings
from pipeline.planning.calibrated import resolved_plan
from tests.support.mistakes import PLAN, lines, write_domain
from tests.support.plans import DATA, load
from udfs.numbers.exact import as_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_domain(tmp_path_factory.mktemp("plans"))


def asking() -> dict[str, Any]:
    """The plan in which every mechanism asks, one of them in parts."""
    data = deepcopy(DATA)
    counted, paid, employed = data["queries"]
    counted["mechanism"] = {"kind": "gaussian", "policy": "paper", "calibrate": {"loss": 0.125}}
    paid["mechanism"] = {
        "by": "naics2",
        "parts": {"44-45": {"calibrate": {"loss": 0.5, "at": {"payroll": 500, "employment": 1}}, "kind": "laplace"}},
        "others": {"kind": "generalized_gaussian", "p": 0.5, "calibrate": {"interval": 60}},
    }
    employed["mechanism"] = {"kind": "log", "calibrate": {"standard_error": 30, "total": 500}, "a": 1}
    return data


def test_what_is_asked_is_solved_for_the_querys_measure(folder: Path) -> None:
    plan = load(folder, asking())
    counted, paid, employed = plan.queries
    half = Fraction(1, 2)
    assert counted.mechanisms[0].describe() == {"kind": "gaussian", "sigma": 2, "policy": "paper"}
    assert paid.mechanisms == (
        solve("laplace", {}, half, Target.of("loss", loss=half, influence=Fraction(500))),
        solve(
            "generalized_gaussian",
            {"p": half},
            half,
            Target.of("interval", interval=Fraction(60), coverage=plan.interval),
        ),
    )
    target = Target.of("standard_error", standard_error=Fraction(30), total=Fraction(500))
    assert employed.mechanisms[0] == solve("log", {"a": 1}, Fraction(1), target)
    assert paid.mechanisms[0].loss_at(Fraction(500)) <= half
    assert employed.mechanisms[0].variance(500.0) == pytest.approx(900, rel=1e-6)


def test_the_digest_is_that_of_the_plan_that_says_the_solution(folder: Path) -> None:
    plan = load(folder, asking())
    outright = asking()
    for query, data in zip(plan.queries, outright["queries"], strict=True):
        data["mechanism"] = query.described()
    assert load(folder, outright).digest == plan.digest
    other = asking()
    other["queries"][2]["mechanism"]["calibrate"]["standard_error"] = 31
    assert load(folder, other).digest != plan.digest


def test_the_coverage_is_the_plans(folder: Path) -> None:
    wider = load(folder, asking() | {"interval": 0.99}).queries[1].mechanisms[1]
    assert wider.describe()["sigma"] < load(folder, asking()).queries[1].mechanisms[1].describe()["sigma"]  # type: ignore[operator]


# -- written out ----------------------------------------------------------------------------------------------------


def test_the_plan_is_written_with_its_solutions(folder: Path) -> None:
    plan = load(folder, asking())
    out = plan.path.parent / "resolved.yaml"
    found = resolved_plan(plan.path, out)
    again = load_plan(out)
    assert "calibrate" not in out.read_text()
    assert found["plan_digest"] == plan.digest == again.digest
    assert again.queries == plan.queries
    assert [entry["query"] for entry in found["found"]] == ["establishments", "payroll", "payroll", "employment"]
    assert [entry.get("part") for entry in found["found"]] == [None, "44-45", "others", None]
    assert found["found"][0] == {"query": "establishments", "calibrate": {"loss": 0.125}, "sigma": 2}
    employed = plan.queries[2].mechanisms[0]
    data = read_text(out).data
    assert list(data) == list(asking())
    assert list(data["queries"][2]["mechanism"].items()) == [
        ("kind", "log"),
        ("sigma", as_json(employed.sigma)),  # type: ignore[attr-defined]
        ("a", 1),
    ]


def test_a_plan_is_never_written_over_or_elsewhere(folder: Path, tmp_path: Path) -> None:
    plan = load(folder, asking())
    before = plan.path.read_text()
    with pytest.raises(StateError, match="exists already: give a new file"):
        resolved_plan(plan.path, plan.path)
    with pytest.raises(PlanError, match="must lie in the plan's own folder"):
        resolved_plan(plan.path, tmp_path / "resolved.yaml")
    assert plan.path.read_text() == before
    assert list(tmp_path.iterdir()) == []


def test_a_plan_without_calibration_is_written_as_it_is(folder: Path) -> None:
    plan = load(folder, DATA)
    out = plan.path.parent / "same.yaml"
    assert resolved_plan(plan.path, out)["found"] == []
    assert read_text(out).data == read_text(plan.path).data


TEXTS = st.one_of(
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12),
    st.sampled_from(
        ["08", "01001", "1_000", "12:30:45", "yes", "no", "on", "null", "~", "", "1e5", ".5", "2023-01-01"]
    ),
)
DATAS = st.recursive(
    st.one_of(TEXTS, st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(data=st.dictionaries(TEXTS, DATAS, min_size=1, max_size=4))
def test_what_is_written_reads_the_same(folder: Path, data: dict[str, Any]) -> None:
    """Text stays text under the plan's own reader: 08 is a number there, and none to the reader of YAML 1.1."""
    (folder / "written.yaml").write_text(written(data), encoding="utf-8")
    found = read_text(folder / "written.yaml").data
    assert found == data
    assert list(found) == list(data)


def test_a_plain_dump_would_turn_codes_into_numbers(folder: Path) -> None:
    (folder / "dumped.yaml").write_text(yaml.safe_dump({"code": "08"}))
    assert read_text(folder / "dumped.yaml").data == {"code": 8}


GROUPED = "kind: groupwise_log, "


def test_an_offset_and_a_scale_are_solved_together_and_written(folder: Path) -> None:
    data = deepcopy(DATA)
    asked = {"relative_error": 0.1, "total": 10, "group_loss": 0.01, "group": 100}
    data["queries"][0]["mechanism"] = {"kind": "groupwise_log", "calibrate": asked}
    plan = load(folder, data)
    mechanism: Any = plan.queries[0].mechanisms[0]
    assert mechanism.group_loss_at(Fraction(100)) <= Fraction(1, 100)
    stated = {"kind": "groupwise_log", "a": as_json(mechanism.a), "sigma": as_json(mechanism.sigma)}
    said = deepcopy(data)
    said["queries"][0]["mechanism"] = stated
    assert load(folder, said).digest == plan.digest
    path = folder / "grouped.yaml"
    path.write_text(yaml.safe_dump(data))
    found = resolved_plan(path, None)["found"][0]
    assert {name: found[name] for name in ("a", "sigma")} == {name: stated[name] for name in ("a", "sigma")}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ("sigma: 1}", "a: missing key"),
        ("calibrate: {loss: 1}}", "a: missing key (or group_loss of calibrate)"),
        (
            "a: 1, calibrate: {relative_error: 0.1, total: 10, group_loss: 1, group: 9}}",
            "a: must be left out beside calibrate, which sets it",
        ),
        (
            "calibrate: {relative_error: 0.1, total: 10, group_loss: 1}}",
            "calibrate.group: missing key (the number of records of the group that may lose so much)",
        ),
    ],
)
def test_mistakes_about_groups_are_one_line(folder: Path, new: str, expected: str) -> None:
    text = PLAN.replace("kind: gaussian, " + GAUSSIAN, GROUPED + new)
    assert lines(folder, text) == [f"plan.yaml: queries[establishments].mechanism.{expected}"]


# -- mistakes -------------------------------------------------------------------------------------------------------

GAUSSIAN, LOG, LAPLACE = "sigma: 2}", "sigma: 0.5}", "sigma: 20, policy: paper}"
ONE_OF = "must have exactly one of standard_error, mean_absolute_error, relative_error, interval, loss, epsilon"
MAPPING = "must be a mapping of keys to values"

CASES = [
    (GAUSSIAN, "calibrate: {}}", f".calibrate: {ONE_OF}"),
    (GAUSSIAN, "calibrate: 30}", f".calibrate: {MAPPING}"),
    (
        GAUSSIAN,
        "calibrate: {loss: 1, total: 5}}",
        ".calibrate.total: must be left out beside loss, which is meant at a record",
    ),
    (GAUSSIAN, "calibrate: {standard_error: 1e70}}", ".calibrate: standard_error: must be between 1e-50 and 1e50"),
    (
        LOG,
        "calibrate: {standard_error: 30, total: 500, at: {employment: 1}}}",
        ".calibrate.at: must be left out: it goes with loss; total says where an error is meant",
    ),
    (
        LOG,
        "calibrate: {loss: 1}}",
        ".calibrate.at: missing key (the record that may lose so much, such as {employment: 10})",
    ),
    (
        LOG,
        "calibrate: {loss: 1, at: {employment: 0}}}",
        ".calibrate.at.employment: must be above 0: a record of influence 0 loses nothing",
    ),
    (
        LOG,
        "noise: laplace, calibrate: {loss: 0.5, at: {employment: 10}}}",
        ".calibrate: cannot be had: the least loss with these parameters is 1.48881 (sigma: must be below 1 with "
        "noise: laplace, or with estimator: median (else it has no mean))",
    ),
    (GAUSSIAN, "calibrate: {epsilon: 1}}", ".calibrate: this noise has no pure loss; name a delta beside epsilon"),
    (
        GAUSSIAN,
        "calibrate: {loss: 0.00005, with_test: true}}",
        ".calibrate.loss: must be above 5e-05, which the test of records left out alone costs",
    ),
    (
        GAUSSIAN,
        "calibrate: {interval: 3, with_test: true}}",
        ".calibrate.with_test: must be left out: it goes with loss, or with epsilon without delta",
    ),
    (GAUSSIAN, "calibrate: {loss: 1, delta: 0.1}}", ".calibrate.delta: must be left out: it goes with epsilon"),
    (
        LAPLACE,
        "calibrate: {epsilon: 1, bound: closed, at: {payroll: 1}}}",
        ".calibrate.bound: must be left out: it goes with delta",
    ),
    (
        LAPLACE,
        "calibrate: {epsilon: 1, delta: 0.1, bound: closed, at: {payroll: 1}}}",
        ".calibrate: the closed form is one of Gaussian noise; leave bound: closed out",
    ),
    (GAUSSIAN, "calibrate: {interval: 9, group: 3}}", ".calibrate.group: must be left out: it goes with group_loss"),
]
QUERY = {GAUSSIAN: "establishments", LOG: "employment", LAPLACE: "payroll"}


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_one_mistake_is_one_line(folder: Path, old: str, new: str, expected: str) -> None:
    assert PLAN.count(old) == 1
    found = lines(folder, PLAN.replace(old, new))
    assert found == [f"plan.yaml: queries[{QUERY[old]}].mechanism{expected}"]


def test_what_is_asked_of_an_unknown_measure_is_told_once(folder: Path) -> None:
    text = PLAN.replace(LOG, "calibrate: {loss: 1, at: {emp: 10}}}").replace("sum: employment", "sum: emp")
    assert lines(folder, text) == [
        "plan.yaml: queries[employment].sum: unknown measure; nearest known measure: employment",
        "plan.yaml: queries[employment].mechanism.calibrate.at.emp: unknown measure; nearest known measure: employment",
    ]


def test_the_schema_asks_for_one_of_scale_and_calibrate() -> None:
    schema = yaml.safe_load(export_schema())["$defs"]
    assert schema["log"]["oneOf"] == [{"required": ["sigma"]}, {"required": ["calibrate"]}]
    assert schema["unit_splitting"]["oneOf"][0] == {"required": ["rho"]}
    assert "default" not in schema["log"]["properties"]["sigma"]
    asked = [each["required"][0] for each in schema["CalibrateSpec"]["oneOf"]]
    assert asked == ["standard_error", "mean_absolute_error", "relative_error", "interval", "loss", "epsilon"]


def test_a_loss_that_leaves_no_standard_error_is_warned_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = "noise: laplace, calibrate: {loss: 0.2, at: {employment: 1}}}"
    path = folder / "infinite.yaml"
    path.write_text(PLAN.replace("a: 1, sigma: 0.5}", f"a: 1, {asked}"))
    for words, code in ((["calibrate"], 0), (["explain", "--detail"], 3)):  # this plan breaks its own budget
        assert main([*words, str(path)]) == code
        assert "warning: query employment: the standard error of its values is infinite" in capsys.readouterr().out
    assert warnings(load_plan(path).queries[1])
    path.write_text(PLAN.replace("a: 1, sigma: 0.5}", f"a: 1, {asked.replace('0.2', '2')}"))
    assert not warnings(load_plan(path).queries[1])
