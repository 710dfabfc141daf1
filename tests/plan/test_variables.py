"""Variables of a plan: where they may stand, what their values may be, and that nothing of them is left."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import prdp
from pipeline.base.errors import PlanError
from pipeline.plan import load as variables
from pipeline.plan.load import load_plan
from pipeline.plan.plan_schema import VariableSpec, export_schema
from pipeline.plan.values import matches
from tests.support.plans import DATA, at, load

YEAR = {"year": {"pattern": "20[0-9]{2}", "about": "The reference year."}}
PLACED = {  # where a variable may stand, and the text there
    ("release",): "cbp-{{ year }}-county",
    ("supersedes",): "cbp-{{year}}-early",
    ("title",): "County Business Patterns {{ year }}",
    ("about",): "Of {{ year }}, and of {{ year }} alone.",
    ("contact",): "cbp-{{ year }}@example.org",
    ("dataset", "name"): "cbp-{{ year }}",
    ("dataset", "path"): "data/year={{ year }}/microdata",
    ("domain", "vintage", "naics"): "{{ year }}",
    ("queries", 0, "title"): "Establishments {{ year }}",
    ("queries", 0, "about"): "All of {{ year }}.",
    ("queries", 0, "unit"): "establishments of {{ year }}",
}


def template(**changes: Any) -> dict[str, Any]:
    data = {"variables": YEAR, **deepcopy(DATA), **changes}
    data["dataset"]["family"] = "cbp"
    for path, text in PLACED.items():
        at(data, path[:-1])[path[-1]] = text
    return data


def written(folder: Path, data: dict[str, Any]) -> Path:
    """Write the plan `data` beside the lists of a plan that is there."""
    path = load(folder, DATA).path.parent / "template.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def by_hand(value: str) -> dict[str, Any]:
    text = yaml.safe_dump(template(), sort_keys=False).replace("{{ year }}", value).replace("{{year}}", value)
    data = yaml.safe_load(text)
    del data["variables"]
    data["domain"]["vintage"]["naics"] = int(value)
    return dict(data)


def refusal(folder: Path, data: dict[str, Any], **values: Any) -> str:
    with pytest.raises(PlanError) as refused:
        load_plan(written(folder, data), values or {"year": "2022"})
    return str(refused.value)


def test_a_template_is_the_plan_that_is_written_by_hand(tmp_path: Path) -> None:
    path = written(tmp_path, template())
    plan = load_plan(path, {"year": "2022"})
    assert plan.resolved() == load(tmp_path, by_hand("2022")).resolved()
    assert plan.digest == load(tmp_path, by_hand("2022")).digest
    assert plan.dataset.path == load_plan(path, {"year": "2022"}).dataset.path
    assert str(plan.dataset.path).endswith("data/year=2022/microdata")
    assert "{{" not in json.dumps(plan.resolved())
    loaded = prdp.load_plan(path, set={"year": "2022"})
    with pytest.raises(prdp.PlanError, match="a plan that was loaded has its values already"):
        prdp.load_plan(loaded, set={"year": "2017"})
    assert loaded.digest == plan.digest == prdp.load_plan(loaded.source, folder=path.parent).digest
    assert prdp.load_plan(template(), folder=path.parent, set={"year": "2022"}).digest == plan.digest
    assert load_plan(written(tmp_path, template() | {"domain": DATA["domain"]}), {"year": "2031"}).digest != plan.digest


def test_a_family_is_part_of_the_digest_and_none_is_not(tmp_path: Path) -> None:
    kin = deepcopy(DATA)
    kin["dataset"]["family"] = "cbp"
    assert load(tmp_path, kin).resolved()["dataset"]["family"] == "cbp"
    assert "family" not in load(tmp_path, DATA).resolved()["dataset"]
    assert load(tmp_path, kin).dataset.facts() == load(tmp_path, DATA).dataset.facts()


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a plan where a text could stand."""
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in parts:
        yield from leaves(value, (*path, step))
    if not isinstance(data, dict | list):
        yield path


def allowed(folder: Path, data: dict[str, Any], path: tuple[str | int, ...]) -> bool:
    """Whether a variable at `path` is replaced, and not refused by a line that names the key."""
    wrong = deepcopy(data)
    at(wrong, path[:-1])[path[-1]] = "{{ year }}"
    try:
        load_plan(written(folder, wrong), {"year": "2022"})
    except PlanError as error:
        return "no variable may stand here" not in str(error)
    return True


def test_variables_stand_in_names_places_and_texts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = template(calibrate={"minimise": "interval"}, max_left_out=0.5)
    data["queries"][1]["mechanism"] = {"by": "naics2", "parts": {"31-33": {"kind": "gaussian", "sigma": 2}}}
    free = {("domain", "vintage", "county"), *PLACED}
    places = set(leaves({key: value for key, value in data.items() if key != "variables"}))
    assert free <= places
    assert {path for path in places if allowed(tmp_path, data, path)} == free
    monkeypatch.setattr(variables._Text, "may_vary", True)  # the twin lets a value choose the noise
    assert allowed(tmp_path, data, ("queries", 0, "mechanism", "sigma"))


def test_no_key_has_a_variable(tmp_path: Path) -> None:
    data = template(budget=[{"at": {"{{ year }}": 10}, "rho": 2}])
    assert "budget[0].at.{{ year }}: no variable may stand here" in refusal(tmp_path, data)


@pytest.mark.parametrize(
    "value", ["", "22", "2022\n", " 2022", "20222", "20２2", "../2022", "2022/x", "{{ year }}", "a b"]
)
def test_a_value_is_plain_and_matches_its_pattern(tmp_path: Path, value: str) -> None:
    assert "variables.year: the value" in refusal(tmp_path, template(), year=value)


@given(st.text(max_size=5))
def test_no_value_leads_to_another_folder_or_ends_a_text(value: str) -> None:
    rule = variables._value_rule("v", VariableSpec(pattern="(?s:.*)", about="anything"), value, True)
    plain = value != "" and all(c.isascii() and (c.isalnum() or c in "._-") for c in value) and ".." not in value
    assert (rule is None) == plain


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[ab0]", r"\d", ".", "(?:ab)"]),
    lambda of: st.one_of(
        st.tuples(of, of).map("".join),
        st.tuples(of, of).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(of, st.sampled_from(["*", "+", "?", "{2}", "{0,3}"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.text("ab01", max_size=8))
def test_patterns_mean_what_they_do_in_python(pattern: str, text: str) -> None:
    assert matches(pattern, text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(.*)*b", "(a{0,99}){0,99}b"])
def test_no_pattern_takes_long(tmp_path: Path, pattern: str) -> None:
    """Matching of any of these takes Python's own expressions longer than a life."""
    data = template(variables={"year": YEAR["year"] | {"pattern": pattern}})
    assert "does not match" in refusal(tmp_path, data, year="a" * 100)


@pytest.mark.parametrize(
    ("changes", "values", "line"),
    [
        ({}, {"yeer": "2022"}, "yeer: unknown variable; nearest known variable: year"),
        ({}, {"month": "1", "year": "2022"}, "month: unknown variable; known variables: year"),
        ({}, {"year": 2022}, "variables.year: the value must be text"),
        ({"title": "{{ yaer }}"}, {}, "title: {{ yaer }}: unknown variable; nearest known variable: year"),
        ({"title": "{{ year + 1 }}"}, {}, "title: {{ year + 1 }}: write the name of a variable alone"),
        ({"title": "{{ }}"}, {}, "title: {{  }}: write the name"),
        ({"title": "{{{ year }}}"}, {}, "title: {{ { year }}: write the name"),
        ({"variables": YEAR | {"q": YEAR["year"]}}, {}, "variables.q: stands nowhere in the plan: write {{ q }}"),
        ({"variables": {"year": {"pattern": "(", "about": "x"}}}, {}, "variables.year.pattern: must be a regular"),
        ({"variables": {"year": {"pattern": "(?=2).*", "about": "x"}}}, {}, "without look-around"),
        ({"variables": {"year": {"pattern": "a)|(b", "about": "x"}}}, {}, "variables.year.pattern: must be a regular"),
        ({"variables": {"year": {"pattern": "x"}}}, {}, "variables.year.about: missing key"),
        ({"variables": {"Year": YEAR["year"]}}, {}, "variables.Year: must be 1 to 50 of a-z"),
        ({"variables": {"year": YEAR["year"] | {"default": "2022"}}}, {}, "variables.year.default: unknown key"),
        ({"variables": None}, {}, "variables: must be a mapping"),
        ({"variables": {}}, {}, "release: {{ year }}: the plan declares no variables"),
    ],
)
def test_mistakes_in_one_plain_line(tmp_path: Path, changes: Any, values: Any, line: str) -> None:
    data = template(**{key: value for key, value in changes.items() if key != "title"})
    said = refusal(tmp_path, data | changes, **values)
    assert line in said


def test_values_that_are_no_mapping_are_told() -> None:
    with pytest.raises(PlanError, match=r'set: must be the values by name, such as \{"year": "2026"\}'):
        prdp.load_plan("plan.yaml", set="year=2026")  # type: ignore[arg-type]


def test_a_variable_without_a_value_is_told_with_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"give it by set= year=VALUE \(The reference year; pattern 20\[0-9\]\{2\}\)"):
        load_plan(written(tmp_path, template()))
    with pytest.raises(PlanError, match="set= year: the plan declares no variables"):
        load_plan(written(tmp_path, DATA), {"year": "2022"})
    with pytest.raises(PlanError, match=r"\{\{ year \}\}: the plan declares no variables"):
        load_plan(written(tmp_path, DATA | {"release": "cbp-{{ year }}"}))


def test_a_dataset_whose_name_varies_needs_a_family(tmp_path: Path) -> None:
    data = template()
    del data["dataset"]["family"]
    assert "dataset.family: missing key" in refusal(tmp_path, data)
    data["dataset"]["name"] = "cbp"
    assert load_plan(written(tmp_path, data), {"year": "2022"}).dataset.family is None


def test_braces_without_quotes_are_told_and_aliases_end(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    path.write_text("release: {{ year }}\n")
    with pytest.raises(PlanError, match=r"line 1: put text with \{\{ \}\} in quotes"):
        load_plan(path)
    path.write_text("release: &a ['{{ year }}', *a]\n")
    with pytest.raises(PlanError, match="nested too deeply"):
        load_plan(path)


def test_editors_know_variables() -> None:
    schema = json.loads(export_schema())
    release = schema["properties"]["release"]["pattern"]
    for known in ("cbp-2023", "cbp-{{ year }}", "{{year}}", "c{{ year }}.{{ month }}_x"):
        assert re.search(release, known), known
    for wrong in ("cbp {{ year }}", "cbp-{{ year + 1 }}", "cbp-{{ }}", "-{{ year }}", "{ year }", "cbp..{{ year }}"):
        assert not re.search(release, wrong), wrong
    assert schema["$defs"]["DatasetSpec"]["properties"]["name"]["pattern"] == release
    assert "{{" not in schema["$defs"]["QuerySpec"]["else"]["properties"]["name"]["pattern"]
    number, text = schema["$defs"]["VintageSpec"]["properties"]["naics"]["anyOf"][:2]
    assert (number["type"], bool(re.search(text["pattern"], "20{{ yy }}"))) == ("integer", True)
