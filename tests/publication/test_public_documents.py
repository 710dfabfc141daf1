"""What the public documents state of classes with noise of their own, and of the test of records left out."""

import json
import marshal
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import pyarrow.parquet as pq
import pytest
from jinja2.bccache import bc_magic

import prdp
from pipeline.accounting.accountant import LeftOutTest
from pipeline.base import plain
from pipeline.base.plain import Table, rendered
from pipeline.plan.total_policy import left_out_test_of, limits_of, policy_of
from pipeline.publication.description import PACKAGE, Description, field_type
from pipeline.publication.policy_document import CLASSES, CODES, COUNTS, guarantee
from pipeline.publication.site.site_pages import report_page
from pipeline.storage.local import LocalPath
from tests.support import studies
from tests.support.keyed import Asked, Classes, World
from tests.support.plans import changed, load
from tests.support.submit import Place, released, submit
from tests.support.world import records, write_world

NARROW_BELOW = Asked("employment", ("size",), {}, "size", {"0-2": 1, "others": 50})
ONE_NOISE = Asked("employment", ("size",), {}, None, {"others": 9})


@pytest.mark.parametrize("asked", [NARROW_BELOW, ONE_NOISE], ids=["classes", "one noise"])
def test_the_public_documents_bound_smaller_records_where_they_lose_more(tmp_path: Path, asked: Asked) -> None:
    world = World({"size": Classes("employment", (0, 3))}, (asked,))
    plan = world.plan(tmp_path, budget=[{"at": {"employment": 10, "payroll": 0}, "rho": 1000}])
    about, (limit,) = Description(plan, left_out_test_of(plan)), limits_of(plan)
    page = report_page(about, LocalPath(tmp_path / "none"))
    (at,) = about.policy["references"]
    if asked is ONE_NOISE:
        assert "no_larger" not in at
        assert "a smaller record loses no more" in page
        return
    rho = at["no_larger"]["rho"]
    assert rho == pytest.approx(2 + 1 / 20_000, rel=1e-12)  # two employees under noise of scale 1, and the test
    assert rho >= policy_of(plan).loss_at(limit.at) > 10 * at["total"]["rho"]
    assert "smaller record may lose more" in page
    assert "loses no more" not in page
    assert "all no larger, together" in page
    for owner in (None, "firm"):
        words = guarantee(owner, traits=[CLASSES])["words"]
        assert "within the classes of a record's values" in words
        assert "within the classes of a record's values" not in guarantee(owner)["words"]
    before, after = guarantee("firm"), guarantee("firm", traits=[COUNTS, CODES])
    assert "is protected as a firm of this one record" in before["words"]
    assert "is protected as a firm of this one record" not in after["words"]  # it may move its whole firm
    assert "its influence among firms with the same codes" in after["words"]
    assert "1 for a count of firms" in after["formula"]
    assert not re.search(r"\{[a-z]+\}", f"{before}{after}")


def test_a_release_states_the_losses_of_the_test_that_it_reserved(tmp_path: Path) -> None:
    """An older build reserved Gaussian tests for pure plans too: such a release has no pure loss."""
    laplace = {"kind": "laplace", "sigma": 20, "policy": "tight"}
    plan = load(tmp_path, changed([(("queries", number, "mechanism"), laplace) for number in range(3)]))
    assert left_out_test_of(plan).pure
    for test in (left_out_test_of(plan), LeftOutTest()):
        about = Description(plan, test)
        for at in about.policy["references"]:
            own, total = at["left_out_test"], at["total"]
            assert own["rho"] == pytest.approx(1 / 20_000, rel=1e-4)
            assert (own["epsilon"] is not None) == (total["epsilon"] is not None) == test.pure
            if test.pure:
                assert total["epsilon"] > own["epsilon"] == pytest.approx(1 / 100)
        totals = [at["total"]["rho"] for at in about.policy["references"]]
        assert [loss["rho"] for loss in about.facts["losses"]] == totals
    assert totals != [at["total"]["rho"] for at in Description(plan, left_out_test_of(plan)).policy["references"]]


# Pages: every text escaped, nothing loaded from elsewhere, and a value that a template misses is an error.

HOSTILE = """<script src="http://evil.example/x.js">alert('1')</script>&"""


def page_of_a_release(text: str) -> str:
    table = Table([text, text], [[text, text]], numbers=[1])
    names = ("title", "dataset", "protection", "coverage", "unit", "records", "of_losses", "composition", "plan_digest")
    return rendered(
        "release.html",
        **dict.fromkeys(names, text),
        **dict.fromkeys(("tables", "columns", "losses", "policies"), table),
        oddities=[text],
        largest=[(text, table)],
        guarantee={"words": text, "formula": text, "assumptions": [text]},
    )


def test_every_text_of_a_page_is_escaped() -> None:
    hostile, plain = page_of_a_release(HOSTILE), page_of_a_release("plain")
    assert "<script" not in hostile
    assert "&lt;script src=&#34;http://evil.example/x.js&#34;&gt;" in hostile
    assert hostile.count("<") == plain.count("<")  # no text makes an element
    assert "http" not in plain


def test_a_study_with_hostile_names_is_a_harmless_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies.without_pictures(monkeypatch)
    entries = [{"label": HOSTILE, "mechanism": {"kind": "gaussian"}}]
    panels = [{"name": "one", "title": HOSTILE, "entries": entries, "errors": True}]
    data = {"synthetic": "establishments", "records": 50}
    studies.evaluated(tmp_path, title=HOSTILE, data=data, panels=panels)
    page = (tmp_path / "out" / "study.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script") > 5  # the title twice, the panel's, and the label in every table


def test_pages_are_the_same_by_templates_that_are_kept_spoiled_or_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, compiling, compiled = tmp_path / "__pycache__", jinja2.Environment.compile, list[str]()
    monkeypatch.setattr(plain, "__file__", str(tmp_path / "plain.py"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    counted = lambda *given: compiled.append(given[2]) or compiling(*given)  # noqa: E731
    monkeypatch.setattr(jinja2.Environment, "compile", counted)

    def made() -> tuple[str, list[str]]:
        plain._environment.cache_clear()
        compiled.clear()
        return page_of_a_release("plain"), compiled[:]

    page, every = made()  # no such folder
    place.mkdir()
    assert every
    assert [made(), made()] == [(page, every), (page, [])]
    for spoiled in (b"?", bc_magic + b"?", bc_magic + pickle.dumps("?") + marshal.dumps("?")):
        for kept in place.iterdir():
            kept.write_bytes(spoiled)
        assert made() == (page, every)
    (tmp_path / "prdp.zip").touch()  # as prdp is sent to Spark's workers
    monkeypatch.setattr(plain, "__file__", str(tmp_path / "prdp.zip" / "plain.py"))
    assert made() == (page, every)
    plain._environment.cache_clear()


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        rendered("release.html", title="only")


# datapackage.json beside the tables: an independent reader takes codes as text, and finds each code in its list.

GAUSSIAN = {"kind": "gaussian", "sigma": 3}
QUERIES = [
    {"name": "jobs", "sum": "employment", "by": ["naics2", "county"], "mechanism": GAUSSIAN, "title": "Jobs",
     "unit": "persons", "about": "Of one week."},
    {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": {"kind": "log", "a": 50, "sigma": 0.5}},
    {"name": "places", "count": "records", "by": ["naics2"], "mechanism": GAUSSIAN},
]  # fmt: skip


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("described")
    plan = write_world(folder, records(300), queries=QUERIES, title="A world", contact="a@b.org")
    return released(plan, folder, csv=True)


def test_it_says_what_the_tables_are(attempt: Path) -> None:
    package = json.loads((attempt / PACKAGE).read_text())
    manifest = json.loads((attempt.parent / "release.json").read_text())
    assert (package["title"], package["plan_digest"]) == ("A world", manifest["plan_digest"])
    tables = {each["name"]: each for each in package["resources"]}
    assert (tables["jobs"]["title"], tables["jobs"]["unit"]) == ("Jobs", "persons")
    assert tables["jobs"]["description"] == "Jobs, in persons. Of one week."
    assert "σ" in tables["jobs"]["mechanisms"][0] or "sigma" in tables["jobs"]["mechanisms"][0]
    listed = {file["path"] for file in manifest["files"]}
    assert {f"{attempt.name}/{each}" for each in (PACKAGE, "codes/state.csv", "codes/county.csv")} <= listed


def noted(attempt: Path, table: str) -> dict[str, str]:
    """What the one Parquet file of a table says of it."""
    (file,) = (attempt / "tables" / table).iterdir()
    return {key.decode(): text.decode() for key, text in pq.read_schema(file).metadata.items()}


def test_parquet_files_say_what_their_table_is(attempt: Path) -> None:
    package = json.loads((attempt / PACKAGE).read_text())
    for each in (each for each in package["resources"] if each["format"] == "parquet"):
        found = noted(attempt, each["name"])
        for key in ("title", "description", "unit", "statistic"):
            assert found[f"prdp.{key}"] == each[key]
        assert (found["prdp.release"], found["prdp.plan_digest"]) == (package["release"], package["plan_digest"])
        assert (found["prdp.mechanism"], found["prdp.interval"]) == ("; ".join(each["mechanisms"]), "0.95")
        assert found["prdp.keys"] == ", ".join(each["schema"]["primaryKey"])
        for field in each["schema"]["fields"]:
            assert found[f"prdp.column.{field['name']}"].endswith(field["description"])
    assert noted(attempt, "jobs")["prdp.column.naics2"].startswith("Sector (NAICS 2): its code, as text")
    assert "true total of the cell plus random noise" in noted(attempt, "jobs")["prdp.column.value"]
    table = prdp.read_release(attempt.parent).arrow("jobs")
    assert table.schema.metadata[b"prdp.title"] == b"Jobs"


def test_other_microdata_and_another_key_leave_the_same_words(attempt: Path, tmp_path: Path) -> None:
    changes = {"queries": QUERIES, "title": "A world", "contact": "a@b.org"}
    place = Place(write_world(tmp_path, records(900, seed=5), **changes), tmp_path)
    other = Path(place.out) / "small-release" / submit(place, csv=True).attempt
    for table in ("jobs", "pay", "places"):
        assert noted(attempt, table) == noted(other, table)
        assert b"ARROW:schema" not in pq.read_metadata(next((other / "tables" / table).iterdir())).metadata
    figures = [pd.read_csv(each / "tables" / "jobs.csv", dtype=str) for each in (attempt, other)]
    assert not figures[0].equals(figures[1])  # the twin: what is drawn differs


def test_every_file_is_described_with_the_columns_that_it_has(attempt: Path) -> None:
    described = set()
    for each in json.loads((attempt / PACKAGE).read_text())["resources"]:
        for path in each["path"] if isinstance(each["path"], list) else [each["path"]]:
            described.add(path)
            fields = {field["name"]: field["type"] for field in each["schema"]["fields"]}
            if each["format"] == "parquet":
                schema = pq.read_schema(attempt / path)
                assert fields == {name: field_type(kind) for name, kind in zip(schema.names, schema.types, strict=True)}
            else:
                assert list(fields) == list(pd.read_csv(attempt / path, nrows=0).columns)
    tables = {path.relative_to(attempt).as_posix() for path in (attempt / "tables").rglob("*") if path.is_file()}
    assert described == tables | {f"codes/{level}.csv" for level in ("county", "naics2", "state")}


def validated(package: Path) -> Any:
    import frictionless

    with frictionless.system.use_context(trusted=True):
        found = frictionless.Package(str(package))
        found.resources = [each for each in found.resources if each.format == "csv"]
        return found.validate()


@pytest.mark.filterwarnings("ignore")
def test_an_independent_reader_finds_the_tables_as_they_are_described(attempt: Path, tmp_path: Path) -> None:
    report = validated(attempt / PACKAGE)
    assert report.valid, report.flatten(["name", "title", "note"])
    assert len(report.tasks) == 3 + 3
    shutil.copytree(attempt, tmp_path / "copy")  # the twin: a code whose zero was lost is in no list
    states = tmp_path / "copy/tables/pay.csv"
    states.write_text(states.read_text().replace('"01"', '"1"').replace('"06"', '"6"'))
    assert not validated(tmp_path / "copy" / PACKAGE).valid
