"""The public site of a release: what it is made of, what it says, and that its scripts hold the published figures."""

import base64
import csv
import json
import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import prdp
from pipeline.plan.load import load_plan
from pipeline.plan.structure import Structure
from pipeline.publication.manifest import verify_release
from pipeline.publication.site import site_files as write
from pipeline.publication.site.figures import classes, figure, map_script, reading, with_bars
from pipeline.publication.site.packed import packed
from pipeline.release.officers import withdraw
from pipeline.storage.paths import locate
from tests.support.parity import MECHANISMS, cells, holds_figures
from tests.support.submit import Place, submit
from tests.support.world import QUERIES, records, tree, write_world
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import SeededBits

WIDE = [{"at": {"employment": 10, "payroll": 500}, "rho": 1000}]
TEXTS = {
    "title": "Establishments & <script>alert(1)</script>",
    "about": "What it is.\n\nA second paragraph.",
    "contact": "statistics@example.org",
}


def released(plan: Path, folder: Path, **settings: Any) -> Path:
    """Release under the known key; return the attempt's folder."""
    place = Place(plan, folder)
    outcome = submit(place, **settings)
    return Path(place.out) / outcome.release / outcome.attempt


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    queries = [QUERIES[0] | {"title": "All of them", "unit": "places", "about": "Counted."}, *QUERIES[1:]]
    plan = write_world(folder, records(2000), queries=queries, **TEXTS)
    return released(plan, folder / "run", csv=True)


def leaks(one: dict[str, bytes], other: dict[str, bytes]) -> set[str]:
    """The files of a site that differ between two data sets though they hold no figures; those with figures all do."""
    assert one.keys() == other.keys()
    different = {path for path in one if one[path] != other[path]}
    assert different >= {path for path in one if holds_figures(path)}
    return {path for path in different if not holds_figures(path)}


def without_digests(page: str) -> str:
    return re.sub(r"[0-9a-f]{16,}|\([\d,]+ bytes\)", "", page)  # and sizes


def told(manifest: Path) -> Any:
    """What a manifest says besides digests, sizes, the attempt and the ledger's head."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: kept(each) for key, each in value.items() if key not in {"sha256", "bytes"}}
        return [kept(each) for each in value] if isinstance(value, list) else value

    read = json.loads(manifest.read_text())
    text = json.dumps(kept({key: read[key] for key in read if key != "ledger_head"}))
    return json.loads(text.replace(read["attempt"], ""))


def test_two_data_sets_under_one_key_differ_in_files_with_figures_alone(site: Path, tmp_path: Path) -> None:
    queries = [QUERIES[0] | {"title": "All of them", "unit": "places", "about": "Counted."}, *QUERIES[1:]]
    plan = write_world(tmp_path, records(1500, seed=2), queries=queries, **TEXTS)
    one, other = tree(site), tree(released(plan, tmp_path / "run", csv=True))
    assert leaks(one, other) == set()
    assert sum(map(holds_figures, one)) == 2 + 3 * (1 + 1 + 1 + 1)  # report.html, index.js; four files a table
    assert {"codes/state.csv", "datapackage.json", "structure.json", "policy.json", "site/maps/county.js"} <= one.keys()
    fronts = [(folder / "index.html").read_text() for folder in (site.parent, tmp_path / "run/out/small-release")]
    assert without_digests(fronts[0]) == without_digests(fronts[1])
    manifests = [told(folder / "release.json") for folder in (site.parent, tmp_path / "run/out/small-release")]
    assert manifests[0] == manifests[1]


def test_so_do_large_tables_and_second_sites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(write, "MOST_CELLS", 79)
    monkeypatch.setattr("pipeline.publication.site.figures.MOST_SUMS", 40)
    plans = [write_world(tmp_path / f"{seed}", records(500 + seed, seed=seed)) for seed in (1, 2)]
    sites = [released(plan, plan.parent / "run", csv=True) for plan in plans]
    assert leaks(*map(tree, sites)) == set()
    for site in sites:
        prdp.site(site.parent, site.parents[3] / "second")
    seconds = [tree(site.parents[3] / "second") for site in sites]
    fronts = [without_digests(each.pop("index.html").decode()) for each in seconds]
    marks = [without_digests(each.pop("site.json").decode()) for each in seconds]
    assert re.sub(r'"bytes": \d+', "", marks[0]) == re.sub(r'"bytes": \d+', "", marks[1])
    assert leaks(*seconds) == set()
    assert fronts[0] == fronts[1]
    # the twin: a list of codes that says how much there is
    monkeypatch.setattr(write, "keys_script", lambda figures, *_: f"// {figures.columns['value'].sum()}")
    sites = [released(plan, plan.parent / "again", csv=True) for plan in plans]
    assert {path.rpartition("/")[2] for path in leaks(*map(tree, sites))} == {"keys.js"}


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
    column = json.loads(json.dumps(packed(numbers), allow_nan=False))
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


def test_pages_say_titles_units_names_and_intervals(site: Path) -> None:
    page = (site / "site/tables/establishments.html").read_text()
    assert "<title>All of them</title>" in page
    assert "<p class=lead>Counted.</p>" in page
    assert "<th scope=col class=n>places</th>" in page
    assert re.search(r"The true total is between −?[\d,]+ and [\d,]+ with 95 % confidence", page)
    default = (site / "site/tables/payroll_state.html").read_text()
    assert "<title>Payroll by subsector (NAICS 3) and state</title>" in default
    assert "California" in default
    assert "only Sector (NAICS 2): 31-33, 44-45" in default
    assert default.count('<li class="q') == 6  # a square for each state of the domain
    assert "tables/payroll_state.csv" not in page
    for path in site.rglob("*.html"):
        assert re.findall(r"(?:src|href)=\"?(?:https?:)?//", path.read_text()) == []


def test_texts_of_a_plan_are_no_markup(site: Path) -> None:
    for path in (site.parent / "index.html", *site.glob("site/**/*.html")):
        assert "<script>alert" not in path.read_text()
    front = (site.parent / "index.html").read_text()
    assert "Establishments &amp; &lt;script&gt;" in front
    assert "<p class=lead>What it is.</p>\n<p>A second paragraph.</p>" in front
    assert "statistics@example.org" in front


def test_the_front_page_is_in_readers_words(tmp_path: Path) -> None:
    """What a reader meets before anything is unfolded names no parameter, kind of noise or Greek letter."""
    heavy = {"name": "heavy", "count": "records", "by": ["state"], "mechanism": MECHANISMS["groupwise_log"]}
    median = QUERIES[2]["mechanism"] | {"estimator": "median"}
    queries = [*QUERIES, heavy, QUERIES[2] | {"name": "pay", "mechanism": median}]
    site = released(write_world(tmp_path, records(100), queries=queries, budget=WIDE), tmp_path / "run")
    technical = re.compile(r"estimator|groupwise|\bmean\b|median|\brho\b|ε|δ|unbiased|\blog\b|\broot mechanism", re.I)
    page = (site / "site/index.html").read_text()
    assert technical.findall(re.sub(r"(?s)<details>.*?</details>", "", page)) == []
    assert technical.findall(page) != []  # the twin: what is folded away
    assert technical.findall((site / "report.html").read_text()) != []


def test_the_front_page_names_all_files_with_their_digests(site: Path) -> None:
    front = (site.parent / "index.html").read_text()
    manifest = json.loads((site.parent / "release.json").read_text())
    texts = [file for file in manifest["files"] if file["path"].endswith(".csv") and "/tables/" in file["path"]]
    assert len(texts) == 3
    for file in (*texts, *(file for table in manifest["tables"] for file in table["files"])):
        row = f'<a href="{file["path"]}">'
        assert row in front
        assert file["sha256"] in front
        assert f"{file['bytes']:,}" in front
    assert manifest["ledger_head"] in front
    assert f'<a href="{site.name}/datapackage.json">' in front
    assert f'<a href="{site.name}/codes/state.csv">state.csv</a>' in front
    for link in re.findall(r'href="([^"#]+)"', front):
        assert (site.parent / link).is_file(), link
    for page in site.glob("site/**/*.html"):
        for link in re.findall(r'(?:href|src)="([^"#]+)', page.read_text()):
            assert (page.parent / link).is_file(), (page, link)
    assert verify_release(locate(site.parent)).attempt == site.name


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


def test_corrections_and_withdrawals_leave_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = write_world(tmp_path / "a", records(100), release="first")
    second = write_world(tmp_path / "b", records(100), release="second", supersedes="first")
    fronts = [released(plan, folder).parent / "index.html" for plan in (first, second)]
    date = json.loads((fronts[1].parent / "release.json").read_text())["date"]
    assert f"<p class=note>Release second of {date} corrects this one: use its figures.</p>" in fronts[0].read_text()
    assert "which corrects release first" in fronts[1].read_text()
    assert "class=note" not in fronts[1].read_text()
    withdraw(Place(first, folder).ledger(), "first", "a wrong <year>")
    assert {path.name for path in fronts[0].parent.iterdir()} == {"index.html", "withdrawn.json"}
    assert "Reason: a wrong &lt;year&gt;" in fronts[0].read_text()


def test_nothing_is_on_the_front_before_it_is_published(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(100)), tmp_path / "run")
    assert submit(place, hold=True).state == "held"
    assert not list((tmp_path / "run/out").rglob("index.html"))


def test_firms_and_unbounded_errors_are_told(tmp_path: Path) -> None:
    queries = [QUERIES[0] | {"mechanism": MECHANISMS["symmetric_stable"]}]
    table = records(300).append_column("firm_id", pa.array([f"F{i % 30}" for i in range(300)]))
    budget = [{"at": [{"employment": 10, "payroll": 500}], "rho": 1000}]
    plan = write_world(tmp_path, table, queries=queries, dataset={"unit": "firm_id"}, budget=budget)
    site = released(plan, tmp_path / "run")
    assert "What each firm is promised" in (site / "site/index.html").read_text()
    assert "unbounded" in (site / "site/tables/establishments.html").read_text()


def test_many_tables_are_listed_by_statistic(tmp_path: Path) -> None:
    queries = [each | {"name": f"{each['name']}_{i}"} for i in range(9) for each in QUERIES]
    plan = write_world(
        tmp_path, records(20), queries=queries, budget=[{"at": {"employment": 1, "payroll": 1}, "rho": 99}]
    )
    front = (released(plan, tmp_path / "run").parent / "index.html").read_text()
    heads = re.findall(r"<h3>(.*?)</h3>", front)
    assert [head for head in heads if head.startswith(("Count", "Sum"))] == [
        *("Count of records", "Sum of employment", "Sum of payroll")
    ]
    assert front.count("/site/tables/") == 27 + 1  # for readers without scripts


def test_the_facts_and_the_structure_tell_a_site(site: Path) -> None:
    facts = json.loads((site / "site/metadata.json").read_text())
    structure = Structure.from_json((site / "structure.json").read_text())
    assert [table["name"] for table in facts["tables"]] == list(structure.tables)
    assert facts["levels"]["state"]["names"]["06"] == "California"
    assert facts["plan_digest"] == load_plan(site.parents[3] / "plan.yaml").digest


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
