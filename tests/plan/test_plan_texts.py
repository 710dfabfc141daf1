"""Faulty domain files, texts that are no plan, and junk anywhere in one: plain words, in the order of the file."""

from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.errors import SYNONYMS, PlanError, hint, likeness, nearest
from pipeline.plan.domain import ALL_LEVELS
from pipeline.plan.load import load_plan
from pipeline.plan.plan_schema import CalibrateSpec, DatasetSpec, LimitSpec, PlanSpec, QuerySpec
from pipeline.plan.plan_text import parsed, written
from tests.support.mistakes import PLAN, lines, write_domain
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.records.codes import LEVELS

RELATIVE = "paths are relative to the file that names them"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_domain(tmp_path_factory.mktemp("plans"))


def test_faulty_domain_files_stand_at_the_key_domain(tmp_path: Path) -> None:
    write_domain(tmp_path)
    (tmp_path / "naics.csv").write_text("code\n3111\n31\n")
    (tmp_path / "counties.csv").unlink()
    assert lines(tmp_path, PLAN) == [
        'naics.csv: line 3: "31" is a part of a sector; write 31-33',
        f"plan.yaml: domain.county: counties.csv: no such file; {RELATIVE}",
    ]


LISTS = "{naics: naics.csv, county: counties.csv, vintage: {naics: 2022, county: 2023}}"


def test_filters_meet_the_listed_cells_not_their_product(folder: Path) -> None:
    text = PLAN.replace(LISTS, "{cells: cells.csv}").replace(
        '["31-33"], state: ["01", "02"]', '["31-33"], naics3: ["321"], state: ["01"]'
    )
    assert lines(folder, text) == ["plan.yaml: queries[employment].where: no cell of the domain meets it"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("release: a\n1: b\n", "line 2: a key must be text; put it in quotes"),
        ("release: a\nb: !!set {c}\n", "line 2: write plain values, without tags"),
        ("b: !!float x\n", "a value cannot be read; write plain text and numbers, without tags"),
        (f"b: {'9' * 5000}\n", "a value cannot be read; write plain text and numbers, without tags"),
    ],
)
def test_text_that_is_no_plan(folder: Path, text: str | bytes, expected: str) -> None:
    assert lines(folder, text) == [f"plan.yaml: {expected}"]


def test_a_plan_that_holds_itself(folder: Path) -> None:
    assert any("where: unknown key; known keys: release, " in line for line in lines(folder, "where: &w [*w]\n"))


JUNK = st.sampled_from(
    [None, True, 0, -1, 2.5, 10**400, "", "x", "31", "naics9", [], [1], ["a", "a"], {}, {"a": 1}, {"kind": "log"}]
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in the plan."""
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += places(value, (*path, key))
    return found


@given(data=st.data())
def test_junk_anywhere_is_plain_words(folder: Path, data: st.DataObject) -> None:
    plan = yaml.safe_load(PLAN)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(plan)))
        here = plan
        for step in path[:-1]:
            here = here[step]
        if isinstance(here, dict) and data.draw(st.booleans()):
            here[data.draw(st.sampled_from(["x", "kind", "naics2", "", "a.b"]))] = here.pop(path[-1])
        else:
            here[path[-1]] = deepcopy(data.draw(JUNK))
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan, sort_keys=False))
    try:
        load_plan(file)
    except PlanError as error:
        for line in str(error).split("\n"):
            place, _, rule = line.removeprefix(f"{folder}/").partition(": ")
            assert place in ("plan.yaml", "naics.csv", "counties.csv", "x", "31", "naics9")
            for jargon in (
                "Input",
                "input",
                "pydantic",
                "http",
                "type=",
                "wrong value",
                "Fraction",
                "[type",
                "NoneType",
            ):
                assert jargon not in rule


def test_the_nearest_name() -> None:
    assert nearest("mechansim", ["name", "mechanism", "by"]) == "mechanism"
    assert likeness("mechansim", "mechanism") > likeness("mechansim", "name")
    assert nearest("emp", ["employment", "payroll"]) == "employment"
    assert nearest("gaussian", ["exponential_polylog", "generalized_gaussian"]) == "generalized_gaussian"
    assert nearest("employees", ["employment", "payroll"]) == "employment"
    for name, known in (
        ("zip", ALL_LEVELS),
        ("naics9", ALL_LEVELS),  # as near to naics2 as to naics3
        ("step", ["kind", "sigma", "calibrate"]),
        ("cauchy", CATALOGUE),
        ("x", ["a", "by"]),
    ):
        assert nearest(name, known) is None
        assert hint(name, known, "name") == f"; known names: {', '.join(known)}"


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("normal", CATALOGUE, "gaussian"),
        ("geometric", CATALOGUE, "laplace"),
        ("scale", ["kind", "sigma", "calibrate"], "sigma"),
        ("b", ["kind", "sigma", "policy", "calibrate"], "sigma"),
        ("StdDev", ["kind", "sigma", "calibrate"], "sigma"),
        ("std", ["standard_error", "interval", "loss"], "standard_error"),
        ("epsilon", ["kind", "sigma", "calibrate"], "calibrate"),
        ("epsilon", ["standard_error", "loss"], "loss"),
        ("epsilon", ["at", "rho"], "rho"),
    ],
)
def test_the_fields_own_words(name: str, known: Collection[str], meant: str) -> None:
    assert nearest(name, known) == meant


def test_synonyms_name_what_plans_have() -> None:
    keys = {key for kind in (PlanSpec, DatasetSpec, QuerySpec, CalibrateSpec, LimitSpec) for key in kind.model_fields}
    parameters = {name for kind in CATALOGUE.values() for name in kind.parameters()}
    known = {"kind", "calibrate", *keys, *parameters, *CATALOGUE, *ALL_LEVELS, *LEVELS}
    assert {word for words, _ in SYNONYMS.values() for word in words} <= known
    assert not SYNONYMS.keys() & known - {"noise", "epsilon"}  # of log and root; of calibrate, not of a mechanism


def test_paragraphs_are_written_as_they_are_read() -> None:
    for text in ("One.\n\nTwo: three.\n", "trailing \nspaces", "\tone\ntwo", "- a\n- b"):
        assert parsed(written({"about": text}), Path("plan.yaml")).data == {"about": text}
    assert "about: |-\n  One.\n\n  Two." in written({"about": "One.\n\nTwo."})
