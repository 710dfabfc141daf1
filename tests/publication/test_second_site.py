"""`prdp export --to site`: a site of a release's folder alone, also with reconciled figures and products."""

import csv
import gzip
import hashlib
import json
import re
import shutil
from html import unescape
from math import ceil, floor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from pipeline.publication.description import NOT_ADDING, SUMS
from pipeline.publication.site.figures import figure
from tests.publication.test_reconcile import released
from tests.publication.test_reconcile_choices import DERIVED, MEASURED
from tests.support.published import drawn, publish
from tests.support.submit import Place, submit
from tests.support.world import records, tree, write_world

GAUSSIAN = {"kind": "gaussian", "sigma": 3}
SECOND = [
    {"name": "by_county", "sum": "employment", "by": ["naics2", "county"], "mechanism": GAUSSIAN},
    {"name": "by_state", "sum": "employment", "by": ["naics2", "state"], "mechanism": GAUSSIAN},
    {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": {"kind": "log", "a": 50, "sigma": 0.5}},
]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    place = Place(write_world(folder, records(2000), queries=SECOND), folder / "run")
    return Path(place.out) / submit(place, csv=True).release


@pytest.fixture(scope="module")
def reconciled(release: Path) -> Path:
    prdp.reconcile(release, release.parent / "reconciled", interval=0.9)
    return release.parent / "reconciled"


def shown(page: Path) -> list[str]:
    """The figures in a page's table, with their intervals."""
    rows = re.findall(r"<tr><td>.*?</td>(<td class=n.*?)<td><span class=bar", page.read_text())
    return [text for row in rows for text in re.findall(r"<td class=n[^>]*>(.*?)</td>", row)]


def figures_in(file: Path) -> list[str]:
    rows = sorted(pq.read_table(file).to_pylist(), key=lambda row: -row["value"])[:50]
    words = [
        (figure(row["value"]), f"{figure(row['lower'])} to {figure(row['upper'])}", figure(row["standard_error"]))
        for row in rows
    ]
    return [text for row in words for text in row]


def displayed(file: Path) -> list[str]:
    """What pages show of reconciled files: whole units, and whole ends inside of the intervals."""
    rows = sorted(pq.read_table(file).to_pylist(), key=lambda row: -row["display"])[:50]
    words = [
        (
            figure(row["display"]),
            f"{figure(ceil(row['lower']))} to {figure(floor(row['upper']))}",
            figure(row["standard_error"]),
        )
        for row in rows
    ]
    return [text for row in words for text in row]


def test_reconciled_intervals_are_never_wider_than_published_ones(tmp_path: Path) -> None:
    """Bounds for all symmetric noise can be wider than the quantile of Laplace noise; pages then show the published."""
    noise = {"kind": "laplace", "sigma": 30}
    tables = [each | {"mechanism": noise} for each in SECOND[:2]]
    place = Place(write_world(tmp_path, records(2000), queries=tables), tmp_path / "run")
    release = Path(place.out) / submit(place).release
    prdp.reconcile(release, tmp_path / "reconciled")
    prdp.site(release, tmp_path / "site", reconciled=tmp_path / "reconciled")
    wider = 0
    for table in ("by_county", "by_state"):
        (part,) = release.glob(f"*/tables/{table}/*.parquet")
        before, after = pq.read_table(part), pq.read_table(tmp_path / f"reconciled/tables/{table}.parquet")
        with gzip.open(tmp_path / f"site/site/tables/{table}.csv.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        for row, one, other in zip(rows, before.to_pylist(), after.to_pylist(), strict=True):
            length = float(row["upper"]) - float(row["lower"])
            assert length <= one["upper"] - one["lower"]
            assert length <= other["upper"] - other["lower"]
            assert int(row["value"]) == other["display"]
            wider += other["upper"] - other["lower"] > one["upper"] - one["lower"]
    assert wider > 0  # the twin: reconciled files alone have wider ones


def require_whole(site: Path) -> None:
    """Every link of every page leads to a file of the site."""
    pages = list(site.rglob("*.html"))
    for page in pages:
        for link in re.findall(r'(?:href|src)="([^"#]+)', page.read_text()):
            assert (page.parent / unescape(link)).is_file(), (page, link)
    assert len(pages) > 4


def test_a_second_site_holds_all_that_was_published(release: Path, tmp_path: Path) -> None:
    before = tree(release)
    made = prdp.site(release, tmp_path / "site")
    assert (made["tables"], made["reconciled"]) == (["by_county", "by_state", "pay"], [])
    assert tree(release) == before
    require_whole(tmp_path / "site")
    assert '<a href="codes/state.csv">state.csv</a>' in (tmp_path / "site/index.html").read_text()
    attempt = {path.partition("/")[2]: data for path, data in before.items() if "/" in path}
    copied = tree(tmp_path / "site")
    assert {path: copied[path] for path in attempt if not path.startswith("site/")} == {
        path: data for path, data in attempt.items() if not path.startswith("site/")
    }
    for path, data in attempt.items():  # the pages say the same, but for where the front page is
        if path.startswith("site/"):
            assert copied[path] == data.replace(b"../../index.html", b"../index.html")


def test_reconciled_figures_stand_beside_published_ones(release: Path, reconciled: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    made = prdp.site(release, site, reconciled=reconciled)
    assert made["reconciled"] == ["by_county", "by_state"]
    require_whole(site)
    for table in made["reconciled"]:
        page, other = site / f"site/tables/{table}.html", site / f"published/tables/{table}.html"
        assert shown(page) == displayed(reconciled / "tables" / f"{table}.parquet")
        (part,) = release.glob(f"*/tables/{table}/*.parquet")
        assert shown(other) == figures_in(part)
        assert shown(page) != shown(other)  # the twin
        assert f"../../published/tables/{table}.html" in page.read_text()
        assert f"../../site/tables/{table}.html" in other.read_text()
        assert "with 90 % confidence" in page.read_text()
        assert "with 95 % confidence" in other.read_text()
        assert "errors depend on each other" in page.read_text()
    assert "Reconciled figures" not in (site / "site/tables/pay.html").read_text()
    front = (site / "index.html").read_text()
    assert (NOT_ADDING in front, SUMS in front) == (False, False)
    assert "reconciled/by_county.parquet" in front
    assert SUMS in (site / "published/index.html").read_text()


def test_a_site_has_the_files_of_derived_tables_and_says_that_they_have_no_pages(tmp_path: Path) -> None:
    release = released(tmp_path, MEASURED, derived=DERIVED)
    made = prdp.reconcile(release, tmp_path / "reconciled")
    site = tmp_path / "site"
    assert prdp.site(release, site, reconciled=tmp_path / "reconciled")["derived"] == ["food", "nation", "sector"]
    for name in ("food", "nation", "sector"):
        assert pq.read_table(site / f"reconciled/{name}.parquet").to_pandas().equals(made[name])
        assert not (site / f"site/tables/{name}.html").exists()
    said = "in the folder reconciled, but no pages: food, nation, sector."
    assert said in (site / "index.html").read_text()
    assert said not in (site / "published/index.html").read_text()  # of figures that were measured


def test_a_product_is_for_download_under_its_own_names(release: Path, tmp_path: Path) -> None:
    spec = {
        "product": "small",
        "title": "Small & good",
        "levels": {level: {"meaning": level} for level in ("naics2", "state")},
        "measures": {"people": {"meaning": "People", "unit": "people"}},
        "flags": [{"flag": "a", "meaning": "all"}],
        "tables": [{"name": "states", "values": {"people": "by_state"}}],
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec))
    prdp.product(release, tmp_path / "small", product=tmp_path / "small.yaml")
    made = prdp.site(release, tmp_path / "site", product=tmp_path / "small")
    files = tree(tmp_path / "small")
    assert {path: data for path, data in tree(tmp_path / "site").items() if path.startswith("product/")} == {
        f"product/{path}": data for path, data in files.items()
    }
    assert sorted(made["product"]) == sorted(f"product/{path}" for path in files.keys() - {"product.json"})
    require_whole(tmp_path / "site")
    front = (tmp_path / "site/index.html").read_text()
    assert "Small &amp; good: files to load" in front
    for path in files.keys() - {"product.json"}:
        assert f'<a href="product/{path}">{path}</a>' in front
        assert hashlib.sha256(files[path]).hexdigest() in front
    (tmp_path / "small/basic/states.csv").write_text("other figures")
    with pytest.raises(prdp.StateError, match="differs from the manifest"):
        prdp.site(release, tmp_path / "other", product=tmp_path / "small")
    manifest = json.loads((tmp_path / "small/product.json").read_text())
    for each in manifest["releases"]:
        each["manifest_sha256"] = "0" * 64
    (tmp_path / "small/basic/states.csv").write_bytes(files["basic/states.csv"])
    (tmp_path / "small/product.json").write_text(json.dumps(manifest))
    with pytest.raises(prdp.PlanError, match="was not made of the release"):
        prdp.site(release, tmp_path / "other", product=tmp_path / "small")
    assert not (tmp_path / "other").exists()


def test_what_does_not_belong_together_is_refused(release: Path, reconciled: Path, tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(20), queries=SECOND), tmp_path / "run")
    other = Path(place.out) / submit(place).release
    with pytest.raises(prdp.PlanError, match="was not made of the release"):
        prdp.site(other, tmp_path / "site", reconciled=reconciled)
    with pytest.raises(prdp.StateError, match="is a release's folder"):
        prdp.site(release, release / "site")
    old = publish(tmp_path, {"q": drawn({"state": ("01", "02")})})
    with pytest.raises(prdp.StateError, match="without a public site"):
        prdp.site(old, tmp_path / "site")
    changed = tmp_path / "changed"
    shutil.copytree(release, changed)
    (page,) = changed.glob("*/site/tables/pay.html")
    page.write_text("other figures")
    with pytest.raises(prdp.StateError, match="differs from the manifest"):
        prdp.site(changed, tmp_path / "site")
    assert not (tmp_path / "site").exists()
