"""The digest of a plan follows its meaning, and nothing else."""

from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.errors import PlanError
from pipeline.plan.load import load_plan
from tests.support.plans import COUNTIES, DATA, NAICS, at, changed, load
from udfs.mechanisms.additive_kinds import Gaussian

# Every key that may be left out, with its default.
DEFAULTS: list[tuple[tuple[str | int, ...], str]] = [
    ((), "supersedes"),
    ((), "interval"),
    (("dataset",), "duplicates"),
    (("dataset",), "unit"),
    (("dataset",), "bad_records"),
    (("dataset", "measures", "employment"), "step"),
    (("domain", "vintage"), "county"),
    (("queries", 0), "where"),
    (("queries", 2), "where"),
    (("queries", 0, "mechanism"), "policy"),
    (("queries", 1, "mechanism"), "policy"),
    (("queries", 1, "mechanism"), "lattice"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


def shuffled(draw: st.DataObject, value: Any) -> Any:
    """Return the data with its mappings in another order."""
    if isinstance(value, dict):
        return {key: shuffled(draw, value[key]) for key in draw.draw(st.permutations(list(value)))}
    return [shuffled(draw, item) for item in value] if isinstance(value, list) else value


def respelt(draw: st.DataObject, value: Any) -> Any:
    """Return the data with some whole numbers written as decimals; years are no measures of anything."""
    if isinstance(value, dict):
        return {key: part if key == "vintage" else respelt(draw, part) for key, part in value.items()}
    if isinstance(value, list):
        return [respelt(draw, item) for item in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and draw.draw(st.booleans()) else value


@given(draw=st.data())
def test_the_digest_does_not_depend_on_how_a_plan_is_written(folder: Path, draw: st.DataObject) -> None:
    original = load(folder, DATA)
    data = deepcopy(DATA)
    for path, key in draw.draw(st.lists(st.sampled_from(DEFAULTS), unique=True)):
        del at(data, path)[key]
    where = data["queries"][1]["where"]
    data["queries"][1]["where"] = {level: draw.draw(st.permutations(codes)) for level, codes in where.items()}
    data["dataset"]["path"] = draw.draw(st.sampled_from(["elsewhere", "/data/cbp", "../x"]))
    again = load(
        folder,
        shuffled(draw, respelt(draw, data)),
        naics=draw.draw(st.permutations(NAICS)),
        counties=draw.draw(st.permutations(COUNTIES)),
        name=draw.draw(st.sampled_from(["plan.yaml", "other.yml"])),
        text=draw.draw(st.sampled_from(["{}", "# a comment\n{}\n# another", "---\n{}"])),
        label=draw.draw(st.sampled_from(["", "a name", "another name"])),
    )
    assert again.digest == original.digest
    # equal digests mean equal plans, but for paths, down to the order in which mappings are gone through
    assert repr((again.queries, again.budget)) == repr((original.queries, original.budget))
    assert replace(again, path=original.path, dataset=replace(again.dataset, path=original.dataset.path)) == original


OTHER: list[tuple[tuple[str | int, ...], Any]] = [
    (("release",), "cbp-2024"),
    (("supersedes",), "cbp-2022"),
    (("dataset", "name"), "other"),
    (("dataset", "record"), "id"),
    (("dataset", "bad_records"), "drop"),
    (("dataset", "keys", "naics"), "naics"),
    (("dataset", "keys", "county"), "county"),
    (("dataset", "measures", "employment", "column"), "employees"),
    (("dataset", "measures", "employment", "type"), "decimal"),
    (("dataset", "measures", "payroll", "step"), 0.25),
    (("dataset", "measures", "rent"), {"column": "rent", "type": "integer"}),
    (("domain", "vintage", "naics"), 2017),
    (("domain", "vintage", "county"), 2023),
    (("interval",), 0.9),
    (("queries", 0, "name"), "counts"),
    (("queries", 0, "by"), ["naics4", "county"]),
    (("queries", 0, "by"), ["county"]),
    (("queries", 0, "by"), ["county", "naics5"]),
    (("queries", 0, "where"), {"state": ["01"]}),
    (("queries", 0, "mechanism", "kind"), "laplace"),
    (("queries", 0, "mechanism", "sigma"), 2.0000000000000004),
    (("queries", 1, "sum"), "employment"),
    (("queries", 1, "mechanism", "policy"), "paper"),
    (("queries", 1, "mechanism", "lattice"), "fine"),
    (("queries", 1, "where"), {"naics2": ["31-33", "44-45"]}),
    (("queries", 1, "where", "state"), ["36", "01"]),
    (("queries", 2, "mechanism", "a"), 2),
    (("queries", 2, "mechanism", "sigma"), 0.36),
    (("queries",), DATA["queries"][::-1]),
    (("queries",), DATA["queries"][:2]),
    (("title",), "Jobs"),
    (("about",), "Jobs"),
    (("contact",), "Jobs"),
    (("queries", 0, "title"), "Jobs"),
    (("queries", 0, "about"), "Jobs"),
    (("queries", 0, "unit"), "Jobs"),
    (("budget",), []),
    (("budget",), DATA["budget"][:1]),
    (("budget", 0, "rho"), 2.5),
    (("budget", 0, "at", "payroll"), 501),
    (("budget", 0, "at", "naics3"), "321"),
]


def test_the_digest_depends_on_every_value(folder: Path) -> None:
    digests = {"": load(folder, DATA).digest}
    digests |= {str(change): load(folder, changed([change])).digest for change in OTHER}
    digests["a code less"] = load(folder, DATA, naics=NAICS[:-1]).digest
    digests["a county more"] = load(folder, DATA, counties=[*COUNTIES, "48201"]).digest
    digests["another code"] = load(folder, DATA, naics=[*NAICS[:-1], "111120"]).digest
    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize("path", [("title",), ("contact",), ("queries", 0, "unit"), ("queries", 0, "title")])
@pytest.mark.parametrize("text", ["", "  ", "two\nlines", "a \x07 bell", "x" * 201])
def test_a_text_is_one_line_that_can_be_shown(folder: Path, path: tuple[str | int, ...], text: str) -> None:
    named = "text must not hold control characters" if "\x07" in text else str(path[-1])
    with pytest.raises(PlanError, match=named):
        load(folder, changed([(path, text)]))


def test_names_of_codes_come_from_the_lists(folder: Path) -> None:
    keys = load(folder, DATA, label="a name").domain.keys
    assert keys["naics"].names == dict.fromkeys(NAICS, "a name")
    assert keys["county"].names == dict.fromkeys(COUNTIES, "a name")
    assert load(folder, DATA).domain.keys["naics"].names == {}


NUMBERS = st.decimals("0.001", "1e6", places=3).map(float) | st.integers(1, 10**9) | st.floats(1e-9, 1e12)
NUMBER_PLACES: list[tuple[str | int, ...]] = [
    ("queries", 0, "mechanism", "sigma"),
    ("queries", 2, "mechanism", "a"),
    ("dataset", "measures", "payroll", "step"),
    ("budget", 0, "rho"),
    ("budget", 1, "at", "employment"),
]


@given(path=st.sampled_from(NUMBER_PLACES), one=NUMBERS, other=NUMBERS)
def test_digests_are_equal_exactly_where_numbers_are(
    folder: Path, path: tuple[str | int, ...], one: float, other: float
) -> None:
    digests = [load(folder, changed([(path, number)])).digest for number in (one, other)]
    assert (digests[0] == digests[1]) == (Fraction(repr(one)) == Fraction(repr(other)))


def test_numbers_mean_their_shortest_decimal(folder: Path) -> None:
    sigma = load(folder, changed([(("queries", 0, "mechanism", "sigma"), 0.1)])).queries[0].parts[0].mechanism
    assert sigma == Gaussian(sigma=Fraction(1, 10))


@pytest.mark.parametrize(
    ("written", "meant"), [("1e3", 1000), ("2.50", Fraction(5, 2)), (".5", Fraction(1, 2)), ("+3", 3), ("010", 10)]
)
def test_numbers_are_read_as_yaml_1_2_reads_them(folder: Path, written: str, meant: Fraction) -> None:
    data = changed([(("queries", 0, "mechanism", "sigma"), "HERE")])
    place = load(folder, DATA).path
    place.write_text(yaml.safe_dump(data).replace("HERE", written))
    assert load_plan(place).queries[0].parts[0].mechanism == Gaussian(sigma=Fraction(meant))


def test_anchors_and_a_byte_order_mark(folder: Path) -> None:
    place = load(folder, DATA).path
    text = (
        yaml.safe_dump(DATA, sort_keys=False)
        .replace("where: {}", "where: &none {}", 1)
        .replace("where: {}", "where: *none", 1)
    )
    assert "*none" in text
    place.write_text("\ufeff" + text)
    assert load_plan(place).digest == load(folder, DATA).digest
