"""Derived columns of layouts: ratios, shares and changes hold the true one as often as they say, and cost no draw."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import prdp
from pipeline.base.errors import as_options
from pipeline.publication.product.derived_columns import Part, change_of_rows, quotient_of, share_of_rows
from pipeline.publication.product.product_tables import ShownTables
from prdp import PlanError
from tests.support.published import ATTEMPT, Table, publish
from udfs.estimates.intervals import Law, Statistics, Totals, ratio

STATES, SECTORS = ("01", "02"), ("11", "21", "31-33")
MONTHS = ("m1", "m2", "m3")
KEYS = {"state": STATES, "sector": SECTORS}
EMPLOYED = np.array([1000.0, 40, 500, 60, 3000, 200])


def table(values: Any, error: float, keys: Any = KEYS, kind: str = "gaussian") -> Table:
    return Table(keys, np.asarray(values, dtype=np.float64), np.full(len(values), error), kind)


TABLES = {month: table(EMPLOYED + i, 5.0) for i, month in enumerate(MONTHS)} | {
    "wages": table(EMPLOYED * 13_000, 2e5),
    "wages_us": table([EMPLOYED.sum() * 13_000], 1e5, {"nation": ("US",)}),
    **{f"{month}_us": table([EMPLOYED.sum()], 9.0, {"nation": ("US",)}) for month in MONTHS},
}
PRODUCT: dict[str, Any] = {
    "product": "qcew",
    "title": "Employment and wages",
    "levels": {"nation": {"meaning": "US"}, "state": {"meaning": "State"}, "sector": {"meaning": "Sector"}},
    "measures": {name: {"meaning": name, "unit": "1"} for name in (*MONTHS, "wages")},
    "derived": {
        "wage": {
            "meaning": "Average weekly wage",
            "unit": "$",
            "ratio": "wages",
            "per": list(MONTHS),
            "times": "3/13",
            "decimals": 0,
        },
        "part": {"meaning": "Share of the state", "unit": "%", "share": "m3", "over": "sector", "times": 100},
    },
    "flags": [{"flag": "a", "under": 2, "meaning": "good"}, {"flag": "b", "meaning": "others"}],
    "layouts": [
        {
            "file": "wages.csv",
            "about": "Wages",
            "rows": [{"by": ["sector", "state"], "values": "{measure}"}],
            "order": ["AREA"],
            "columns": [
                {"name": "SECTOR", "meaning": "Sector", "codes": {"sector": {}}, "otherwise": "all"},
                {"name": "WAGE", "meaning": "Wage", "value": "wage"},
                {"name": "WAGE_F", "meaning": "Its flag", "flag": "wage"},
                {"name": "AREA", "meaning": "Area", "codes": {"state": {}, "nation": {}}},
                {"name": "JOBS", "meaning": "Jobs in month 3", "value": "m3"},
            ],
            "ranges": True,
        }
    ],
}
LAYOUT = PRODUCT["layouts"][0]


def made(folder: Path, since: Any = None, **changes: Any) -> Path:
    release = publish(folder, TABLES)
    (folder / "p.yaml").write_text(yaml.safe_dump(PRODUCT | changes, sort_keys=False))
    earlier = {} if since is None else {"since": since}
    prdp.product(release, folder / "out", product=folder / "p.yaml", **earlier)
    return folder / "out" / "layouts"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fieller(n: float, d: float, vn: float, vd: float, k: float) -> tuple[float, float]:
    """Return the roots of (n − θd)² = k²(vn + θ²vd), by NumPy's own solver."""
    low, high = sorted(np.roots([d**2 - k**2 * vd, -2 * n * d, n**2 - k**2 * vn]).real)
    return low, high


def test_the_average_weekly_wage_is_a_column_in_any_place(tmp_path: Path) -> None:
    folder = made(tmp_path)
    read = rows(folder / "wages.csv")
    assert list(read[0]) == ["SECTOR", "WAGE", "WAGE_F", "AREA", "JOBS"]  # tables are released by state × sector
    assert [(each["SECTOR"], each["AREA"]) for each in read] == [(s, a) for s in SECTORS for a in STATES]
    by_cell = dict(zip([(s, a) for a in STATES for s in SECTORS], EMPLOYED, strict=True))
    ranges = rows(folder / "wages_ranges.csv")
    symmetric = math.sqrt(4 / (9 * 0.05))
    for each, ends in zip(read, ranges, strict=True):
        jobs = by_cell[each["SECTOR"], each["AREA"]]
        wages, three = 13_000 * jobs, 3 * jobs + 3
        assert float(each["WAGE"]) == round(wages / (three / 3) / 13)
        k = symmetric + math.sqrt(3 / 5.0**2 + 1 / 2e5**2) / 2  # half a step of each part
        low, high = fieller(wages, three, 2e5**2, 3 * 5.0**2, k)
        assert float(ends["WAGE_low"]) == math.floor(low * 3 / 13)
        assert float(ends["WAGE_high"]) == math.ceil(high * 3 / 13)
        relative = 100 * math.hypot(2e5 / wages, math.sqrt(3) * 5 / three)
        assert each["WAGE_F"] == ("a" if relative < 2 else "b")
    meanings = (tmp_path / "out" / "dictionary.csv").read_text()
    assert re.search(r'"?layouts/wages.csv, .parquet"?,WAGE,number,\$,Wage', meanings)
    assert "holds the true one" not in meanings
    assert "Ratios, shares and changes" in (tmp_path / "out" / "README.md").read_text()


def test_files_are_read_by_other_programs(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    folder = made(tmp_path)
    frame = pd.read_csv(folder / "wages.csv", dtype={"AREA": str, "SECTOR": str})
    pd.testing.assert_frame_equal(frame, pd.read_parquet(folder / "wages.parquet"), check_dtype=False)
    (total,) = duckdb.sql(f"SELECT sum(WAGE) FROM '{folder / 'wages.parquet'}'").fetchall()[0]
    assert total == frame["WAGE"].sum()


def test_areas_of_several_levels_stand_in_one_file(tmp_path: Path) -> None:
    both = [{"by": ["nation"], "values": "{measure}_us"}, {"by": ["state", "sector"], "values": "{measure}"}]
    read = rows(made(tmp_path, layouts=[LAYOUT | {"rows": both}]) / "wages.csv")
    assert [each["AREA"] for each in read] == ["US", *["01"] * 3, *["02"] * 3]
    assert read[0] | {"WAGE_F": ""} == {"SECTOR": "all", "WAGE": "1000", "WAGE_F": "", "AREA": "US", "JOBS": "4800"}


def test_shares_add_up_and_know_that_the_part_is_in_the_total(tmp_path: Path) -> None:
    columns = [LAYOUT["columns"][0], LAYOUT["columns"][3], {"name": "PART", "meaning": "Part", "value": "part"}]
    layout = LAYOUT | {"rows": [{"by": ["state", "sector"], "values": "{measure}"}], "columns": columns, "order": []}
    folder = made(tmp_path, layouts=[layout])
    shares = [float(each["PART"]) for each in rows(folder / "wages.csv")]
    assert sum(shares[:3]) == pytest.approx(100, abs=0.2)
    assert shares[0] == round(100 * 1002 / (1540 + 6), 1)
    ends = rows(folder / "wages_ranges.csv")[0]
    # Var(N − θD) = (1 − θ)²·v + 2·θ²·v at the ends
    for end in (float(ends["PART_low"]), float(ends["PART_high"])):
        theta, v = end / 100, 25.0
        distance = abs(1002 - theta * 1546) / math.sqrt((1 - theta) ** 2 * v + 2 * theta**2 * v)
        assert distance == pytest.approx(math.sqrt(4 / (9 * 0.05)) + math.sqrt(3 / 25) / 2, rel=0.15)


CHANGE = {"change": {"meaning": "Change", "unit": "%", "change": "m3", "relative": True, "times": 100, "decimals": 2}}


def changed_layout() -> list[dict[str, Any]]:
    columns = [*LAYOUT["columns"][:1], {"name": "CHANGE", "meaning": "Change", "value": "change"}]
    columns += [LAYOUT["columns"][3], {"name": "CHANGE_F", "meaning": "Flag", "flag": "change"}]
    return [LAYOUT | {"rows": [{"by": ["sector", "state"], "values": {"m3": "m3"}}], "columns": columns}]


def earlier(folder: Path, values: Any, attempt: str = "f" * 16, **more: Any) -> Path:
    """Publish last year's table under an attempt of its own."""
    (folder / "before").mkdir()
    home = publish(folder / "before", {"m3": table(values, 5.0, **more)}, "last-year")
    for path in (home / "release.json",):
        path.write_text(path.read_text().replace(ATTEMPT, attempt))
    (home / ATTEMPT).rename(home / attempt)
    return home


def test_changes_since_last_year_are_columns(tmp_path: Path) -> None:
    before = earlier(tmp_path, EMPLOYED * 0.8)
    folder = made(tmp_path, since=before, derived=CHANGE, layouts=changed_layout())
    first, ends = rows(folder / "wages.csv")[0], rows(folder / "wages_ranges.csv")[0]
    assert first["CHANGE"] == str(round(100 * (1002 / 800 - 1), 2))
    k = math.sqrt(4 / (9 * 0.05)) + math.sqrt(2 / 25) / 2
    low, high = fieller(1002, 800, 25, 25, k)
    assert float(ends["CHANGE_low"]) == pytest.approx(100 * (low - 1), abs=0.011)
    assert float(ends["CHANGE_high"]) == pytest.approx(100 * (high - 1), abs=0.011)
    assert first["CHANGE_F"] == "a"  # its error is under two percentage points
    assert "since" in (tmp_path / "out" / "product.json").read_text()


def test_changes_are_refused_where_they_are_none(tmp_path: Path) -> None:
    with as_options(), pytest.raises(PlanError, match="a change is since earlier releases: give them by --since"):
        made(tmp_path, derived=CHANGE, layouts=changed_layout())
    with pytest.raises(PlanError, match="is on both sides: its noise is no independent noise"):
        made(tmp_path / "x", since=publish(tmp_path / "y", TABLES), derived=CHANGE, layouts=changed_layout())


WAGE = PRODUCT["derived"]["wage"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"derived": {"wage": WAGE | {"share": "m1"}}}, r"line \d+: derived.wage: one of ratio, share and change"),
        ({"derived": {"wage": WAGE | {"per": []}}}, r"line \d+: derived.wage.per: missing key"),
        ({"derived": {"wage": WAGE | {"over": "sector"}}}, r"line \d+: derived.wage.over: goes with share"),
        ({"derived": {"wage": WAGE | {"ratio": "wage"}}}, r"line \d+: derived.wage: wage: must be one of m1"),
        ({"derived": {"wage": WAGE | {"times": "3/0"}}}, r"line \d+: derived.wage.times: must be a number above 0"),
        ({"derived": {"wage": WAGE | {"times": -1}}}, r"derived.wage.times: must be a number above 0"),
        ({"derived": {"m1": WAGE}}, r"line \d+: derived.m1: a measure or a level has this name"),
        (
            {"layouts": [LAYOUT | {"rows": [{"by": ["state"], "values": {"wages": "wages", "m3": "m3"}}]}]},
            r"line \d+: layouts\[0\].rows\[0\].values: lacks m1, which column WAGE shows",
        ),
        ({"derived": PRODUCT["derived"] | {"part": PRODUCT["derived"]["part"] | {"over": "zip"}}}, "over: zip is no"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    if "zip" in message:
        columns = [*LAYOUT["columns"], {"name": "PART", "meaning": "Part", "value": "part"}]
        changes = changes | {"layouts": [LAYOUT | {"columns": columns}]}
    with pytest.raises(PlanError, match=message):
        made(tmp_path, **changes)


# Coverage, by simulation: figures as releases publish them, of known true totals.

DRAWS = 20_000


def part(true: Any, sd: float, rng: np.random.Generator, table: str, *, uniform: bool = False, **more: Any) -> Part:
    shape = (DRAWS, *np.shape(true))
    noise = rng.uniform(-1, 1, shape) * sd * math.sqrt(3) if uniform else rng.normal(0, sd, shape)
    value = np.asarray(true) + noise
    law = more.pop("law", Law.SYMMETRIC if uniform else Law.GAUSSIAN)
    stated = Statistics(value, np.full(shape, sd), value - 1.96 * sd, value + 1.96 * sd)
    return Part(table, more.pop("group", None), law, 0.0, 0.95, stated)


def missed(stated: Statistics, true: Any) -> float:
    """Return how often an interval is stated and does not hold the true figure."""
    return float(((true < stated.lower) | (true > stated.upper)).mean())


def test_ratios_and_changes_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    for denominator in (15.0, 60.0, 1000.0):
        above, below = part(700.0, 20.0, rng, "a"), part(denominator, 10.0, rng, "b")
        assert missed(quotient_of([above], [below]), 700 / denominator) < 0.055
        assert missed(change_of_rows([above], [below], relative=True), 700 / denominator - 1) < 0.055
        assert missed(change_of_rows([above], [below], relative=False), 700 - denominator) < 0.055
    exact = quotient_of([above], [below])
    assert missed(exact, 0.7) > 0.04  # no wider than it must be
    # the broken twin: an interval of value ± 1.96 of the delta method's errors misses a small denominator's ratio
    far = quotient_of([part(700.0, 20.0, rng, "a")], [near := part(25.0, 10.0, rng, "b")])
    value, error = far.value, np.abs(far.value) * np.hypot(20 / 700, 10 / near.figures.value)
    assert missed(Statistics(value, error, value - 1.96 * error, value + 1.96 * error), 28.0) > 0.055
    assert missed(far, 28.0) < 0.055


def test_what_is_in_both_sides_is_counted() -> None:
    rng = np.random.default_rng(8)
    one, two = part(500.0, 40.0, rng, "one"), part(300.0, 10.0, rng, "two")
    assert 0.04 < missed(quotient_of([one], [one, two]), 500 / 800) < 0.055
    # the broken twin takes them for independent, and is far too wide: it misses next to never
    apart = ratio(
        Totals(one.figures.value, np.array(1600.0)),
        Totals(one.figures.value + two.figures.value, np.array(1700.0)),
        1.96,
    )
    assert missed(apart, 500 / 800) < 0.01
    rows_of = part([500.0, 300.0, 200.0], 15.0, rng, "rows")
    shares = share_of_rows([rows_of], (DRAWS, 3), (1,))
    assert 0.04 < missed(shares, np.array([0.5, 0.3, 0.2])) < 0.055


def test_errors_that_nobody_knows_the_correlation_of_are_taken_at_the_worst() -> None:
    rng = np.random.default_rng(9)
    noise = rng.normal(0, 30, DRAWS)
    for sign in (1, -1):  # estimates of one group, as correlated as can be
        a, b = 600 + noise, 200 + sign * noise / 3
        parts = [
            Part(name, 1, Law.GAUSSIAN, 0.0, 0.95, Statistics(x, np.full(DRAWS, sd), x, x))
            for name, x, sd in (("a", a, 30.0), ("b", b, 10.0))
        ]
        assert missed(quotient_of(parts[:1], parts[1:]), 3.0) < 0.055
        if sign == -1:  # the broken twin: as if they were independent
            independent = ratio(Totals(a, np.array(900.0)), Totals(b, np.array(100.0)), 1.96)
            assert missed(independent, 3.0) > 0.1


def test_where_intervals_alone_tell_all_quotients_are_held() -> None:
    rng = np.random.default_rng(10)
    above = part(700.0, 20.0, rng, "a", law=None)
    below = part(100.0, 10.0, rng, "b")
    stated = quotient_of([above], [below])
    assert missed(stated, 7.0) < 0.1  # at most as often as both together
    assert np.isnan(stated.standard_error).all()


def test_uniform_noise_is_within_the_symmetric_bound() -> None:
    rng = np.random.default_rng(11)
    above, below = (part(x, 20.0, rng, name, uniform=True) for name, x in (("a", 900.0), ("b", 300.0)))
    assert missed(quotient_of([above], [below]), 3.0) < 0.05


def test_shares_of_counts_of_owners_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that each count an owner have no total; `adds_up` says so of a table, as structure.json tells."""
    columns = [LAYOUT["columns"][3], {"name": "PART", "meaning": "Part", "value": "part"}]
    layout = LAYOUT | {"rows": [{"by": ["state", "sector"], "values": "{measure}"}], "columns": columns, "order": []}
    read = ShownTables.of

    def of_owners(*folders: Any) -> ShownTables:
        shown = read(*folders)
        return replace(shown, tables={name: replace(each, adds_up=False) for name, each in shown.tables.items()})

    monkeypatch.setattr(ShownTables, "of", of_owners)
    with pytest.raises(PlanError, match="column PART: the cells of m3 each count an owner"):
        made(tmp_path, layouts=[layout])
