"""A release that is published already says so, and its tables come in other formats from its published files alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError, StateError
from pipeline.publication.product.exports import export
from pipeline.storage.paths import locate
from tests.support.submit import Place, officer, released, submit
from tests.support.world import records, write_world

RELEASE = "small-release"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("published")
    released(write_world(folder, records(100)), folder)
    return Place(folder / "plan.yaml", folder)


def test_what_an_earlier_run_drew_is_told_and_what_is_not_done(published: Place, tmp_path: Path) -> None:
    first = submit(published)
    assert (first.already, first.not_done) == (True, ())
    shutil.copytree(published.folder / "microdata", tmp_path / "others")
    (line,) = submit(published, microdata=tmp_path / "others").not_done
    assert line == (
        f"the microdata {tmp_path}/others were not read: the release was made from {published.folder}/microdata"
    )
    (line,) = submit(published, hold=True).not_done
    assert line.startswith("it was not held for approval")


def test_a_format_that_is_missing_is_never_done(published: Place) -> None:
    with pytest.raises(StateError, match=f"drawn without csv: run prdp export {published.out}/{RELEASE} --to csv"):
        submit(published, csv=True)


def test_a_held_release_says_the_same(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(100)), tmp_path)
    fresh = submit(place, hold=True)
    assert (fresh.state, fresh.already, fresh.not_done) == ("held", False, ())
    assert submit(place, hold=True) == replace(fresh, already=True)
    with pytest.raises(StateError, match="is held, but was drawn without csv: when an officer has approved it, run"):
        submit(place, hold=True, csv=True)
    officer(place, "approve", RELEASE)
    assert submit(place, hold=True).not_done == ()


def test_an_export_adds_nothing_to_a_release(published: Place) -> None:
    folder = published.out / RELEASE
    for out in (folder / "csv", folder / submit(published).attempt / "csv"):
        with pytest.raises(StateError, match="which is a release's folder: give another folder"):
            export(locate(str(folder)), "csv", out)
        assert not out.exists()


def test_an_export_has_the_bytes_that_the_release_would_have(published: Place, tmp_path: Path) -> None:
    with_csv = Place(write_world(tmp_path / "world", records(100)), tmp_path / "world")
    attempt = submit(with_csv, csv=True).attempt
    shutil.rmtree(tmp_path / "world" / "microdata")  # neither microdata nor ledger are needed
    shutil.rmtree(tmp_path / "world" / "state")
    made = prdp.read_release(with_csv.out / RELEASE).export("csv", tmp_path / "tables")
    assert made["out"] == str(tmp_path / "tables")
    tables = with_csv.out / RELEASE / attempt / "tables"
    assert {path.name for path in (tmp_path / "tables").glob("*.csv")} == {path.name for path in tables.glob("*.csv")}
    for query, table in made["tables"].items():
        data = Path(table["path"]).read_bytes()
        assert data == (tables / f"{query}.csv").read_bytes()
        assert data.count(b"\n") == table["rows"] + 1


def test_the_command_prints_where_the_tables_are(
    published: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    release = str(published.out / RELEASE)
    assert main(["export", release, "--to", "csv", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["out"] == f"{RELEASE}-csv"
    assert all(Path(table["path"]).is_file() for table in made["tables"].values())
    assert main(["export", release, "--to", "csv"]) == 5
    assert "it exists and is no empty folder" in capsys.readouterr().err


def test_what_is_not_the_published_release_is_not_exported(published: Place, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(published.out / RELEASE, copy)
    part = next(copy.rglob("part-00000.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    with pytest.raises(StateError, match="differs from the manifest"):
        export(locate(copy), "csv", tmp_path / "out")
    with pytest.raises(PlanError, match="xls: unknown format; nearest known format: xlsx"):
        export(locate(published.out / RELEASE), "xls", tmp_path / "out")
    manifest = json.loads((published.out / RELEASE / "release.json").read_text())
    manifest["tables"][0]["query"] = "../elsewhere"
    shutil.rmtree(copy)
    shutil.copytree(published.out / RELEASE, copy)
    (copy / "release.json").write_text(json.dumps(manifest))
    with pytest.raises(PlanError, match=r"query '\.\./elsewhere'"):
        export(locate(copy), "csv", tmp_path / "out")
    assert not list(tmp_path.glob("elsewhere*"))
    assert not (tmp_path / "out").exists()
