"""The figures of a public site: scripts, sums, maps and words hold what was published, and no more."""

import base64
import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor, prod, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from pipeline.publication.manifest import verify_release
from pipeline.publication.site import site_files as write
from pipeline.publication.site.figures import Figures, classes, figure, map_script, outside, reading, with_bars
from pipeline.publication.site.packed import csv_of, packed
from pipeline.storage.paths import locate
from tests.support.parity import MECHANISMS, cells
from tests.support.submit import released
from tests.support.world import QUERIES, records, write_world
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import SeededBits


def script(path: Path, called: str) -> list[Any]:
    """The arguments of the one call that a script is."""
    found = re.fullmatch(rf"prdp\.{called}\((.*)\);\n", path.read_text())
    assert found is not None
    return json.loads(f"[{found[1]}]")


def unpacked(column: list[Any], count: int) -> Iterator[float]:
    """The numbers of a column, read as packed.py says."""
    kind, *given = column
    if kind == "c":
        return iter([float(given[0])] * count)
    data = base64.b64decode(given[-1])
    if kind == "d":
        return iter([float(given[0][i]) for i in data])
    return iter(map(float, np.frombuffer(data, "<i4" if kind == "i" else "<f8")))


def figures_of(site: Path, query: str) -> list[tuple[Any, ...]]:
    """Codes, value, lower, upper and standard error of each cell, from a table's scripts alone."""
    (axes,) = script(site / f"site/data/{query}/keys.js", "keys")
    rows: list[tuple[Any, ...]] = []
    for number in range(len(list((site / f"site/data/{query}").iterdir())) - 1):
        part, columns = script(site / f"site/data/{query}/{number}.js", "part")
        assert part == number
        facts = re.search(r"id=facts>(.*?)</script>", (site / f"site/tables/{query}.html").read_text())
        assert facts is not None
        told = json.loads(facts[1])
        size = min(told["part"], told["cells"] - len(rows))
        read = {name: list(unpacked(column, size)) for name, column in columns.items()}
        assert told["listed"] == ("cell" in read)
        for i in range(size):
            rest = int(read["cell"][i]) if told["listed"] else len(rows)
            widths = [len(axis["codes"]) for axis in axes]
            positions = [rest // prod(widths[a + 1 :]) % width for a, width in enumerate(widths)]
            codes = [axis["codes"][at] for axis, at in zip(axes, positions, strict=True)]
            value = read["value"][i]
            rows.append((*codes, value, value + read["lower"][i], value + read["upper"][i], read["standard_error"][i]))
    return rows


def require_published(site: Path, query: str) -> None:
    """The scripts hold the figures of the CSV file, in its order."""
    path = site / "tables" / f"{query}.csv"
    header = path.read_text().splitlines()[0].replace('"', "").split(",")
    keys = pa.csv.ConvertOptions(column_types={name: pa.string() for name in header[:-4]})
    expected = [tuple(row.values()) for row in pa.csv.read_csv(path, convert_options=keys).to_pylist()]
    found = figures_of(site, query)
    assert [row[:-4] for row in found] == [row[:-4] for row in expected]
    assert [row[-4:] for row in found] == [pytest.approx(row[-4:], rel=1e-12, nan_ok=True) for row in expected]


def test_scripts_hold_the_published_figures(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for query in QUERIES:
        require_published(site, query["name"])
    monkeypatch.setattr("pipeline.publication.site.packed.PART", 7)
    monkeypatch.setattr("pipeline.publication.site.site_pages.PART", 7)
    listed = released(cells(tmp_path), tmp_path / "run", csv=True)
    for query in ("pay", "pay_state", "jobs"):
        require_published(listed, query)
    changed = listed / "tables" / "jobs.csv"  # the twin
    changed.write_text(changed.read_text().replace(changed.read_text().splitlines()[1], '"113110",0,0,0,0', 1))
    with pytest.raises(AssertionError):
        require_published(listed, "jobs")


def test_whole_csv_is_as_arrow_writes_the_figures() -> None:
    values = [
        [1.0, -3.0, 0.0, 9_999_999_999.0],
        [1.0, 1e10],
        [-0.0, 0.0],
        [1.5, 2.0],
        [np.nan, 1.0],
        [np.inf, 1.0],
        [7],
    ]
    for each in map(np.array, values):
        cells, text = SimpleNamespace(keys=lambda *_: {}), io.BytesIO()
        pa.csv.write_csv(pa.table({"value": each}), text)
        assert gzip.decompress(csv_of(Figures(cells, {"value": each}))) == text.getvalue()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (np.array([7, 7], dtype=np.int64), "c"),
        (np.array([np.inf] * 3), "c"),
        (np.array([1.5, -2.0, 1.5]), "d"),
        (np.arange(300) - 2**31 + 1, "i"),
        (np.arange(300) * 2**40, "f"),
        (np.array([-(2**63), *range(300)]), "f"),
        (np.linspace(-1e300, 1e300, 400), "f"),
        (np.array([np.nan, np.inf, -np.inf, *np.arange(300.5)]), "f"),
    ],
)
def test_columns_are_packed_without_loss(numbers: Any, kind: str) -> None:
    column = json.loads(packed(numbers))
    assert column[0] == kind
    np.testing.assert_array_equal(list(unpacked(column, len(numbers))), numbers.astype(float))


def listed_counties(year: int) -> set[str]:
    with (Path(__file__).parents[2] / f"conf/codes/counties_{year}.csv").open(newline="") as file:
        return {row["code"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("year", [2020, 2022])
def test_a_map_draws_the_counties_of_the_year_and_no_others(year: int) -> None:
    codes, other = listed_counties(year), listed_counties(4042 - year)
    drawn = json.loads(map_script("county", codes)[len("prdp.map(") : -len(");\n")])
    assert drawn["shapes"].keys() == codes
    assert drawn["shapes"].keys() - other  # the twin: the other year's counties are others
    lines = drawn["arcs"]
    for rings in drawn["shapes"].values():
        for ring in rings:  # every ring is closed: each line begins where the one before ends
            ends = [ends_of(lines[arc]) if arc >= 0 else ends_of(lines[~arc])[::-1] for arc in ring]
            assert all(one[1] == two[0] for one, two in zip(ends, [*ends[1:], ends[0]], strict=True))


def ends_of(line: list[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    return (line[0], line[1]), (sum(line[::2]), sum(line[1::2]))


SECTORS = {"31": "31-33", "32": "31-33", "33": "31-33", "44": "44-45", "48": "48-49"}


def sums_of(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """Value and variance by sector and state, added up from a CSV file."""
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            sector = row["naics6"][:2]
            key = SECTORS.get(sector, sector), row["county"][:2]
            value, variance = found.get(key, (0.0, 0.0))
            found[key] = value + float(row["value"]), variance + float(row["standard_error"]) ** 2
    return found


def require_sums(site: Path, multiplier: float) -> None:
    """The scripts of `establishments` hold sums by sector and state, with errors and intervals of sums."""
    sums = sums_of(site / "tables/establishments.csv")
    found = {row[:-4]: row[-4:] for row in figures_of(site, "establishments")}
    assert found.keys() == sums.keys()
    for key, (value, variance) in sums.items():
        half = multiplier * variance**0.5 + 0.5
        assert found[key] == pytest.approx((value, floor(value - half), ceil(value + half), variance**0.5)), key


def test_tables_too_large_show_coarser_levels_and_say_whose_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`jobs` by industry is told by the table of sectors; counts have no other table, and are added up."""
    monkeypatch.setattr(write, "MOST_CELLS", 79)
    monkeypatch.setattr("pipeline.publication.site.figures.MOST_SUMS", 40)
    jobs = {"name": "jobs", "sum": "employment", "by": ["naics6", "county"], "mechanism": QUERIES[1]["mechanism"]}
    plan = write_world(tmp_path, records(100), queries=[*QUERIES, jobs])
    site = released(plan, tmp_path / "run", csv=True)
    names = {"establishments", "employment_sector_county", "payroll_state"}
    assert {path.name for path in (site / "site/data").iterdir()} == names | {"index.js"}
    require_sums(site, sqrt(4 / (9 * 0.05)))  # Gauss's inequality
    with pytest.raises(AssertionError):  # the twin: as if noise of two steps were Gaussian
        require_sums(site, 1.959964)
    added = (site / "site/tables/establishments.html").read_text()
    assert "<strong>sums</strong> of its published cells by Sector (NAICS 2) and State" in added
    assert "the first 50 of 80 cells, as published" in added
    other = (site / "site/tables/jobs.html").read_text()
    assert "are not sums of the cells here" in other
    assert '"name": "employment_sector_county"' in other
    assert verify_release(locate(site.parent))


def test_sums_are_shown_where_their_errors_are_known_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(write, "MOST_CELLS", 5)
    monkeypatch.setattr(write, "FIRST_ROWS", 5)
    monkeypatch.setattr("pipeline.publication.site.figures.MOST_SUMS", 40)
    heavy = {
        "name": "heavy",
        "count": "records",
        "by": ["naics3", "state"],
        "mechanism": MECHANISMS["symmetric_stable"],
    }
    site = released(write_world(tmp_path, records(100), queries=[QUERIES[2], heavy]), tmp_path / "run", csv=True)
    for query in ("payroll_state", "heavy"):  # noise that grows with the total, and noise without a variance
        page = (site / f"site/tables/{query}.html").read_text()
        assert "the table is too large to be looked at here" in page
        assert "<strong>sums" not in page
    assert not (site / "site/data").exists()


def test_figures_in_words_and_on_a_scale() -> None:
    assert [figure(x) for x in (1234, -5, 1234.56, 1e15, float("inf"), float("nan"))] == [
        *("1,234", "−5", "1,234.6", "1.000e+15", "unbounded", "unknown")
    ]
    rows = [{"numbers": {"value": v, "lower": v - 10, "upper": v + 10}} for v in (0, 90)]
    bars = [(row["from"], row["at"], row["to"], row["zero"]) for row in with_bars(rows)]
    assert bars == [(0, pytest.approx(9.09), pytest.approx(18.18), pytest.approx(9.09)), *bars[1:]]
    assert bars[1][2] == 100


def test_classes_of_a_map_differ_by_more_than_their_errors() -> None:
    values = np.array([5.0, 1, 1.2, 9, 7])
    assert classes(values, values - 0.01, values + 0.01) == [1, 0, 0, 3, 2]
    assert classes(values, values - 1.5, values + 1.5) == [1, 0, 0, 1, 1]
    assert classes(values, values - 9, values + 9) == [0] * 5
    random = np.random.default_rng(3)
    for error in (0.01, 12.0, 40.0):
        values = random.pareto(1, 500) * 10
        of = np.array(classes(values, values - error, values + error))
        middles = [np.median(values[of == number]) for number in range(of.max() + 1)]
        assert (np.diff(middles) > 1.9 * error).all()
        ranks = np.argsort(np.argsort(values))  # the twin: classes of these numbers whatever the errors are
        halves = np.searchsorted([250, 375, 437, 468], ranks, "right")
        apart = np.diff([np.median(values[halves == number]) for number in range(5)])
        assert (apart > 1.9 * error).all() == (error == 0.01)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "log", "root", "groupwise_log", "symmetric_stable"])
def test_intervals_cut_at_zero_hold_as_often(name: str) -> None:
    """Of totals that are not negative, draw by draw, for all kinds of noise; of negative ones (twin) not."""
    mechanism = build(MECHANISMS[name], Fraction(1))
    for total in (0, 1, 4):
        drawn = mechanism.release(np.full(4000, total), SeededBits(4000, 7, 0), Fraction(9, 10))
        raw = (drawn.lower <= total) & (total <= drawn.upper)
        cut = (np.maximum(drawn.lower, 0) <= total) & (total <= np.maximum(drawn.upper, 0))
        assert (cut >= raw).all()
        assert cut.mean() > 0.88
        words = {reading(low, high) for low, high in zip(drawn.lower.tolist(), drawn.upper.tolist(), strict=True)}
        assert all("none" in each for each in words - {""})
    if mechanism.additive:
        drawn = mechanism.release(np.full(4000, -9), SeededBits(4000, 7, 0), Fraction(9, 10))
        assert ((np.maximum(drawn.lower, 0) <= -9) & (drawn.upper >= -9)).mean() == 0


def test_a_figure_outside_its_interval_is_said_to_be() -> None:
    """What is displayed adds up, and can leave its interval; NaN, as in no noise known, is outside too."""
    words = "the figure is outside: quote the interval"
    assert [outside(value, 3, 7) for value in (2, 3, 7, 8, float("nan"))] == [words, "", "", words, words]


@pytest.mark.parametrize("values", [np.random.default_rng(0).integers(0, 5, 30), np.array([1, np.nan, 2, np.nan, 2])])
def test_the_largest_are_the_first_of_a_whole_sort(values: Any) -> None:
    for most in (1, 3, 4, 40):
        order = np.argsort(-values.astype(float), kind="stable")[:most].tolist()
        assert Figures(None, {"value": values}).largest(most) == order  # type: ignore[arg-type]  # it asks no cells
