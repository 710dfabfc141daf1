"""Every mistake in a plan is one plain line; all of them come out together, in the order of the file.

Mistakes that tests/corpus holds are not repeated here.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

import prdp
from pipeline.base.errors import PlanError
from pipeline.plan.domain import ALL_LEVELS
from pipeline.plan.load import load_plan
from pipeline.planning.study.study_spec import load_study
from pipeline.release.officers import load_budget
from tests.support.mistakes import PLAN, lines, write_domain
from udfs.mechanisms.catalogue import CATALOGUE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_domain(tmp_path_factory.mktemp("plans"))


def test_the_plan_that_the_cases_edit_is_right(folder: Path) -> None:
    (folder / "plan.yaml").write_text(PLAN)
    assert load_plan(folder / "plan.yaml").release == "cbp-2023-county"


NAME = "must be 1 to 100 of a-z 0-9 . _ - and start with a letter or digit, without .."
MAPPING = "must be a mapping of keys to values"
TAKEN = "this name has another meaning; choose another"
FILES_OR_TABLE = "must have either path (files) or source (a table of Spark's catalog)"
COUNTS = "is for count: records alone; for a sum choose log"
LEVELS = "known levels: " + ", ".join(ALL_LEVELS)
KINDS = "known kinds: " + ", ".join(CATALOGUE)
EITHER = "must have either sum (a measure) or count: records or owners"

CASES = [
    # names
    ("release: cbp-2023-county", "release: a..b", f"release: {NAME}"),
    ("release: cbp-2023-county", "release: .hidden", f"release: {NAME}"),
    ("release: cbp-2023-county", 'release: "a\\n"', f"release: {NAME}"),
    ("supersedes: cbp-2023-first", "supersedes: cbp-2023-county", "supersedes: must name an earlier release"),
    # unknown and missing keys
    ("county: counties.csv", "conty: counties.csv", "domain.conty: unknown key; nearest known key: county"),
    (
        "rho: 2.0",
        "rho: 2.0, epsilon: 1",
        "budget[0].epsilon: unknown key; nearest known key: rho (a loss is zCDP's rho here, not epsilon)",
    ),
    # the dataset
    ("  path: data/microdata\n", "", f"dataset: {FILES_OR_TABLE}"),
    ("path: data/microdata", "path: data/microdata\n  source: {table: cbp}", f"dataset: {FILES_OR_TABLE}"),
    *(
        (
            "path: data/microdata",
            f"source: {{table: {name}}}",
            "dataset.source.table: must be [catalog.][schema.]table, in letters, digits and _",
        )
        for name in ('""', "a b", "a.b.c.d.e", "t;", '"parquet.`/x`"')
    ),
    ("unit: record", 'unit: ""', "dataset.unit: must not be empty"),
    ("duplicates: trust", "duplicates: ignore", "dataset.duplicates: must be one of trust, reject, combine"),
    ("bad_records: refuse", "bad_records: skip", "dataset.bad_records: must be one of refuse, drop"),
    (
        "type: integer",
        "type: integer, step: 2",
        "dataset.measures.employment.step: must be 1 or left out, for integers",
    ),
    (", step: 0.5", "", "dataset.measures.payroll.step: missing key (every value is a whole multiple of it)"),
    ("    payroll: {", "    records: {column: n, type: integer}\n    payroll: {", f"dataset.measures.records: {TAKEN}"),
    # the domain
    ("naics: naics.csv, ", "", "domain.naics: missing key (give naics and county, or cells)"),
    ("vintage: {naics: 2022", "vintage: {state: 2022", "domain.vintage.state: unknown key; known keys: naics, county"),
    ("vintage: {", "other: [nacis], vintage: {", "domain.other[0]: must be one of naics, county"),
    ("vintage: {", "other: [naics, naics], vintage: {", "domain.other[1]: this key stands twice"),
    (
        "naics: naics.csv, county: counties.csv,",
        "cells: cells.csv, other: [naics],",
        "domain.other: must be left out beside cells; only lists of codes have other cells",
    ),
    # the interval
    ("interval: 0.9", "interval: 1", "interval: must be above 0 and below 1"),
    ("interval: 0.9", "interval: 0", "interval: must be above 0 and below 1"),
    # statistics
    ("    count: records\n", "", f"queries[establishments]: {EITHER}"),
    ("count: records", "count: records\n    sum: payroll", f"queries[establishments]: {EITHER}"),
    ("count: records", "count: firms", "queries[establishments].count: must be one of records, owners"),
    # levels and codes
    (
        "[naics4, county]",
        "[naics5, county]",
        "queries[establishments].by[0]: naics5 is finer than the domain, whose finest level is naics4",
    ),
    (
        "[naics4, county]",
        "[state, state]",
        "queries[establishments].by[1]: must be the only level of county; state stands before it",
    ),
    ('["01", "02"]', '["01", "01"]', "queries[employment].where.state[1]: this code stands twice"),
    # mechanisms
    (", sigma: 2}", "}", "queries[establishments].mechanism.sigma: missing key (or calibrate)"),
    (
        "sigma: 2}",
        "sigma: 2, step: 1}",
        "queries[establishments].mechanism.step: unknown key; known keys: kind, sigma, policy, calibrate",
    ),
    (
        "kind: gaussian, ",
        "knid: gaussian, ",
        "queries[establishments].mechanism.knid: unknown key; nearest known key: kind",
    ),
    (
        "kind: gaussian",
        "kind: [gaussian]",
        "queries[establishments].mechanism.kind: unknown kind; nearest known kind: gaussian",
    ),
    ("kind: gaussian", "kind: 3", f"queries[establishments].mechanism.kind: unknown kind; {KINDS}"),
    (
        "{kind: log, a: 1, sigma: 0.5}",
        '{by: naics2, parts: {"31-33": {kind: groupwise_noisy, r: 1, sigma: 1}}}',
        f"queries[employment].mechanism.parts.31-33.kind: groupwise_noisy {COUNTS}",
    ),
    ("policy: paper", "policy: tighter", "queries[payroll].mechanism.policy: must be one of tight, paper"),
    # the budget
    ("rho: 2.0", "rho: -1", "budget[0].rho: must be at least 0"),
    (
        "at: {employment: 10, payroll: 500}",
        "at: [{employment: 10, payroll: 500}]",
        "budget[0].at: must be a mapping; a list is for a dataset whose unit is an owner column",
    ),
    ('naics2: "31-33"}', "naics2: 31}", "budget[1].at.naics2: must be text; put the code in quotes"),
    (
        'naics2: "31-33"}',
        'naics5: "31111"}',
        "budget[1].at.naics5: naics5 is finer than the domain, whose finest level is naics4",
    ),
    ('naics2: "31-33"}', 'naics2: "31-33", naics3: "441"}', "budget[1].at: no cell of the domain has these codes"),
]


@pytest.mark.parametrize(("old", "new", "expected"), CASES)
def test_one_mistake_is_one_line(folder: Path, old: str, new: str, expected: str) -> None:
    assert PLAN.count(old) >= 1
    assert lines(folder, PLAN.replace(old, new, 1)) == [f"plan.yaml: {expected}"]


SHAPE = [
    ("release: cbp-2023-county", "release: CBP", f"release: {NAME}"),
    ("step: 0.5", "step: -1", "dataset.measures.payroll.step: must be above 0"),
    ("interval: 0.9", "interval: 2", "interval: must be above 0 and below 1"),
    (
        "mechanism: {kind: gaussian",
        "mechansim: {kind: gaussian",
        "queries[establishments].mechansim: unknown key; nearest known key: mechanism",
    ),
    ('["01", "02"]', '[01, "99"]', "queries[employment].where.state[0]: must be text; put it in quotes"),
    ("a: 1, sigma", "a: -1, sigma", "queries[employment].mechanism.a: must be above 0"),
    ("rho: 2.0", "rho: low", "budget[0].rho: must be a number"),
]
MEANING = [
    ("  path: data/microdata\n", "", f"dataset: {FILES_OR_TABLE}"),
    ("[naics4, county]", "[naics9, county]", f"queries[establishments].by[0]: unknown level; {LEVELS}"),
    ('["01", "02"]', '["01", "99"]', 'queries[employment].where.state[1]: the domain has no code "99" at level state'),
    ("10, payroll: 500", "10", "budget[0].at: must also name payroll, which a query sums"),
]


def test_all_mistakes_in_the_shape_then_all_in_the_meaning_come_out_in_the_order_of_the_file(folder: Path) -> None:
    def edited(text: str, edits: Iterable[tuple[str, str, str]]) -> str:
        for old, new, _ in edits:
            assert old in text
            text = text.replace(old, new, 1)
        return text

    both = edited(PLAN, (MEANING[0], MEANING[3], *SHAPE))
    for text, edits in ((both, SHAPE), (edited(PLAN, MEANING), MEANING)):
        assert lines(folder, text) == [f"plan.yaml: {expected}" for _, _, expected in edits]


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        ("{name: a, count: records, by: [naics4]}", None),
        ("{name: a, count: records, by: [naics2, state], where: {state: ['01']}}", None),
        ("{name: employment, count: records, by: [naics4]}", "[0].name: another table has this name"),
        ("{name: a.csv, count: records, by: [naics4]}", "[0].name: must not end in .csv, the ending of a table's"),
        ("{name: a, by: [naics4]}", "[a]: must have either sum (a measure) or count: records or owners"),
        ("{name: a, sum: pay, by: [naics4]}", "[a].sum: unknown measure; nearest known measure: payroll"),
        (
            "{name: a, count: records, by: [state], where: {state: ['99']}}",
            "[a].where.state[0]: the domain has no code",
        ),
        ("{name: a, count: records, by: [state], mechanism: {kind: laplace}}", "[a].mechanism: unknown key"),
        (
            "{name: a, count: records, by: [county, naics4]}",
            "[a]: is the very table establishments: leave one of them out",
        ),
        (
            "{name: a, count: records, by: [naics4]}, {name: b, count: records, by: [naics4]}",
            "[b]: is the very table a: leave one of them out",
        ),
        (
            "{name: a, sum: payroll, by: [state]}",
            "[a]: no query measures sum of payroll at these cells or finer ones: add one, or leave the table out",
        ),
        (
            "{name: a, sum: employment, by: [naics3]}",  # the query has a filter
            "[a]: no query measures sum of employment at these cells or finer ones: add one, or leave the table out",
        ),
    ],
)
def test_a_derived_table_must_be_made_of_measured_ones(folder: Path, derived: str, expected: str | None) -> None:
    text = PLAN.replace("budget:", f"derived: [{derived}]\nbudget:")
    if expected is None:
        (folder / "plan.yaml").write_text(text)
        assert [table.name for table in load_plan(folder / "plan.yaml").derived] == ["a"]
        return
    (line,) = lines(folder, text)
    assert line.startswith(f"plan.yaml: derived{expected}")


def test_a_derived_table_needs_a_query_that_can_be_weighted(folder: Path) -> None:
    text = PLAN.replace("budget:", "derived: [{name: a, count: records, by: [state]}]\nbudget:")
    (line,) = lines(folder, text.replace("{kind: gaussian, sigma: 2}", "{kind: symmetric_stable, alpha: 1, gamma: 2}"))
    assert "derived[a]: no query that measures it can be weighted: establishments: its noise has no variance" in line


def test_a_derived_table_of_other_records_is_told_which_keys_to_close(folder: Path) -> None:
    (folder / "zips.csv").write_text("code\n10001\n90001\n")
    text = (
        PLAN.replace("county: county}", "county: county, zip: zip}")
        .replace("counties.csv, v", "counties.csv, zip: {list: zips.csv, optional: true}, other: [county], v")
        .replace("[naics4, county]", "[naics4, zip]")
        .replace("budget:", "derived: [{name: a, count: records, by: [zip]}]\nbudget:")
    )
    (line,) = lines(folder, text)
    close = "derived[a]: establishments measures it of other records: add other: [naics, county] to the plan's domain"
    assert line == f"plan.yaml: {close}"
    (line,) = lines(folder, text.replace("by: [zip]}]", "by: [naics2]}]"))
    assert line == f"plan.yaml: {close.replace('[naics, county]', '[county, zip]')}; " + (
        "a record without a code of zip, which is optional, is in no cell, nor in `other`"
    )
    (folder / "plan.yaml").write_text(text.replace("other: [county]", "other: [naics]"))
    assert load_plan(folder / "plan.yaml").derived


def test_a_mistake_names_the_line_of_its_file_and_its_query(folder: Path) -> None:
    text = PLAN.replace("sigma: 20", "stddev: 20").replace("type: integer", "type: whole")
    (folder / "plan.yaml").write_text(text)
    with pytest.raises(PlanError) as caught:
        load_plan(folder / "plan.yaml")
    assert [line.removeprefix(f"{folder}/") for line in caught.value.lines] == [
        "plan.yaml: line 12: dataset.measures.employment.type: must be one of integer, decimal",
        "plan.yaml: line 29: queries[payroll].mechanism.stddev: unknown key; nearest known key: sigma (the scale of "
        "the noise; a standard deviation is asked for by calibrate: {standard_error: …})",
    ]


def test_a_plan_from_python_has_no_lines_to_name(folder: Path) -> None:
    data = yaml.safe_load(PLAN) | {"interval": 2, "relase": "a"}
    with pytest.raises(PlanError) as caught:
        prdp.load_plan(data, folder=folder)
    assert [line.partition("plan: ")[2] for line in caught.value.lines] == [
        "interval: must be above 0 and below 1",
        "relase: unknown key; nearest known key: release",
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"study": "s", "title": "S", "data": {}, "panels": []}, "this is a study, not a plan; use prdp study run"),
        ({"dataset": {}, "limits": []}, "this is a file of limits, not a plan; use prdp ledger init"),
        ({"release": "r", "attempt": "0", "plan_digest": "d"}, "this is the manifest of a release, not a plan; use "),
    ],
)
def test_a_file_of_another_kind_is_one_mistake(folder: Path, data: dict[str, Any], expected: str) -> None:
    (line,) = lines(folder, yaml.safe_dump(data))
    assert line.startswith(f"plan.yaml: {expected}")


def test_a_plan_in_the_place_of_another_file_is_one_mistake(folder: Path) -> None:
    path = folder / "plan.yaml"
    path.write_text(PLAN)
    for load, kind in ((load_study, "a study"), (lambda file: load_budget(file, "cbp-2023"), "a file of limits")):
        with pytest.raises(PlanError) as caught:
            load(path)
        assert caught.value.lines == (f"{path}: this is a plan, not {kind}; use prdp explain or prdp release",)
