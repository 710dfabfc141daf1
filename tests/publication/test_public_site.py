"""The public site of a release: what it is made of, what it says, and that its scripts hold the published figures."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import prdp
from pipeline.plan.load import load_plan
from pipeline.plan.structure import Structure
from pipeline.publication.manifest import verify_release
from pipeline.publication.site import site_files as write
from pipeline.release.officers import withdraw
from pipeline.storage.paths import locate
from tests.support.parity import MECHANISMS, holds_figures
from tests.support.submit import Place, released, submit
from tests.support.world import QUERIES, records, tree, write_world

WIDE = [{"at": {"employment": 10, "payroll": 500}, "rho": 1000}]
TEXTS = {
    "title": "Establishments & <script>alert(1)</script>",
    "about": "What it is.\n\nA second paragraph.",
    "contact": "statistics@example.org",
}


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


def test_the_absence_of_one_record_changes_figures_alone(site: Path, tmp_path: Path) -> None:
    queries = [QUERIES[0] | {"title": "All of them", "unit": "places", "about": "Counted."}, *QUERIES[1:]]
    plan = write_world(tmp_path, records(2000).slice(1), queries=queries, **TEXTS)
    one, other = tree(site), tree(released(plan, tmp_path / "run", csv=True))
    assert one.keys() == other.keys()
    different = {path for path in one if one[path] != other[path]}
    assert {path for path in different if "establishments" in path}, "the record is counted there"
    assert {path for path in different if not holds_figures(path)} == set()
    fronts = [(folder / "index.html").read_text() for folder in (site.parent, tmp_path / "run/out/small-release")]
    assert without_digests(fronts[0]) == without_digests(fronts[1])


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


def test_many_tables_are_listed_by_statistic_on_a_small_page(tmp_path: Path) -> None:
    """125 tables: the first page and what it loads have less than 150 kB."""
    queries = [each | {"name": f"{each['name']}_{i}"} for i in range(42) for each in QUERIES][:125]
    plan = write_world(
        tmp_path, records(20), queries=queries, budget=[{"at": {"employment": 1, "payroll": 1}, "rho": 999}]
    )
    folder = released(plan, tmp_path / "run")
    front = (folder.parent / "index.html").read_text()
    heads = re.findall(r"<h3>(.*?)</h3>", front)
    assert [head for head in heads if head.startswith(("Count", "Sum"))] == [
        *("Count of records", "Sum of employment", "Sum of payroll")
    ]
    links = re.findall(r'"[^"]*/site/(tables/[^"]*)"', front)
    assert len([link for link in links if link.endswith(".html")]) == 125 + 1  # for readers without scripts
    assert len([link for link in links if link.endswith(".csv.gz")]) == 125
    loads = [folder / "site" / path for path in re.findall(r'(?:src|stylesheet href)="?[^" ]*?site/([a-z.]+)', front)]
    assert {"site.js", "place.js"} <= {path.name for path in loads}
    assert len(front.encode()) + sum(path.stat().st_size for path in loads) < 150_000


def test_the_facts_and_the_structure_tell_a_site(site: Path) -> None:
    facts = json.loads((site / "site/metadata.json").read_text())
    structure = Structure.from_json((site / "structure.json").read_text())
    assert [table["name"] for table in facts["tables"]] == list(structure.tables)
    assert facts["levels"]["state"]["names"]["06"] == "California"
    assert facts["plan_digest"] == load_plan(site.parents[3] / "plan.yaml").digest
