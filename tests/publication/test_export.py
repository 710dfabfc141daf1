"""`prdp export`: other libraries read codes as text, the published figures, and what they mean."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError, StateError
from pipeline.publication.product import exports as workbook
from pipeline.publication.product.exports import EXACT
from tests.support.published import drawn, publish
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

GAUSSIAN = {"kind": "gaussian", "sigma": 3}
QUERIES = [
    {"name": "jobs", "sum": "employment", "by": ["naics2", "county"], "mechanism": GAUSSIAN, "title": "O'Jobs"},
    {"name": "by-state", "sum": "employment", "by": ["naics2", "state"], "mechanism": GAUSSIAN},
    {"name": "heavy", "sum": "payroll", "by": ["state"], "mechanism": {"kind": "symmetric_stable", "alpha": 1.5,
                                                                       "gamma": 20}},
]  # fmt: skip


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    place = Place(write_world(folder, records(300), queries=QUERIES), folder)
    return Path(place.out) / submit(place).release


@pytest.fixture(scope="module")
def reconciled(release: Path) -> Path:
    prdp.reconcile(release, release.parent / "reconciled", leave_out=["heavy"], csv=True)
    return release.parent / "reconciled"


def require_valid(package: Path, tables: int) -> None:
    """frictionless reads every CSV file as it is described, and finds each code in its list."""
    import frictionless

    with frictionless.system.use_context(trusted=True):
        found = frictionless.Package(str(package))
        found.resources = [each for each in found.resources if each.format == "csv"]
        report = found.validate()
    assert report.valid, report.flatten(["name", "title", "note"])
    assert len([each for each in report.tasks if not each.name.startswith("codes/")]) == tables


@pytest.mark.filterwarnings("ignore")
def test_csv_files_are_as_they_are_described(release: Path, reconciled: Path, tmp_path: Path) -> None:
    prdp.read_release(release).export("csv", tmp_path / "all")
    require_valid(tmp_path / "all/datapackage.json", 3)
    prdp.read_reconciled(reconciled).export("csv", tmp_path / "estimates", tables=["by-state"])
    require_valid(tmp_path / "estimates/datapackage.json", 1)
    assert not (tmp_path / "estimates/codes/county.csv").exists()
    require_valid(reconciled / "datapackage.json", 2)
    assert prdp.read_reconciled(reconciled).verify().files == 2 * 2 + 1 + 1 + 3


def test_reconciled_parquet_files_say_what_they_are(reconciled: Path) -> None:
    found = pq.read_schema(reconciled / "tables" / "jobs.parquet").metadata
    assert found[b"prdp.title"].decode() == "O'Jobs"
    assert found[b"prdp.column.value"].startswith(b"the estimate of the cell's total")
    assert found[b"prdp.column.published"].startswith(b"the published figure")
    assert found[b"prdp.release"] == b"small-release"


def test_duckdb_reads_what_parquet_files_say(release: Path) -> None:
    import duckdb

    (file,) = release.glob("*/tables/jobs/*.parquet")
    rows = duckdb.sql(f"SELECT decode(key), decode(value) FROM parquet_kv_metadata('{file}')").fetchall()
    assert dict(rows)["prdp.unit"] == "employment"


def test_a_workbook_has_codes_as_text_their_names_and_notes(release: Path, tmp_path: Path) -> None:
    import openpyxl

    published = prdp.read_release(release)
    made = published.export("xlsx", tmp_path / "books")
    for name in published:
        book = openpyxl.load_workbook(made["tables"][name]["path"], read_only=True)
        header, *rows = book["figures"].iter_rows(values_only=True)
        found = pd.DataFrame(rows, columns=header)
        expected = published[name]
        assert found["state" if name != "jobs" else "county"].map(type).eq(str).all()
        for column in expected:
            shown = (
                found[column].map(float) if column in ("value", "lower", "upper", "standard_error") else found[column]
            )
            np.testing.assert_array_equal(shown, expected[column])
        notes = dict(row[:2] for row in book["about"].iter_rows(values_only=True))
        assert "interval that holds the true total" in notes["lower"]
        assert notes["plan_digest"] == published.manifest["plan_digest"]
        if name == "by-state":
            assert found.query("state == '06'")["state_name"].eq("California").all()
        book.close()


class Sheet:
    """What is written to a sheet."""

    def write_string(self, row: int, column: int, text: str) -> None:
        self.written: Any = text

    def write_number(self, row: int, column: int, number: float) -> None:
        self.written = number


@pytest.mark.parametrize(
    ("value", "written"),
    [("=1+1", "=1+1"), (EXACT, EXACT), (EXACT + 1, str(EXACT + 1)), (float("inf"), "inf"), (-0.5, -0.5)],
)
def test_a_workbook_rounds_no_number_and_has_no_formula(value: Any, written: Any) -> None:
    sheet = Sheet()
    workbook._write(sheet, 0, 0, value)
    assert (type(sheet.written), sheet.written) == (type(written), written)


def sheets_of(book: Path) -> dict[str, pd.DataFrame]:
    found: dict[str, pd.DataFrame] = pd.read_excel(book, sheet_name=None, dtype=str, keep_default_na=False)
    return found


@pytest.mark.parametrize(("most", "level"), [(12, "state"), (8, "naics2")])
def test_a_large_table_is_divided_by_state_or_by_the_first_part_that_fits(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, level: str
) -> None:
    key, first = {"state": ("county", "01 Alabama"), "naics2": ("naics2", "11 Agriculture, Forestry, Fishi")}[level]
    published = prdp.read_release(release)
    monkeypatch.setattr(workbook, "MOST_ROWS", most)
    made = published.export("xlsx", tmp_path / "books", tables=["jobs"])
    found = sheets_of(Path(made["tables"]["jobs"]["path"]))
    listed = found.pop("sheets")
    assert list(listed.columns) == ["sheet", level, f"{level}_name", "rows"]
    assert [*listed["sheet"], "about"] == list(found)
    assert listed["sheet"][0] == first
    assert listed["rows"].astype(int).tolist() == [len(found[each]) for each in listed["sheet"]]
    assert listed["rows"].astype(int).max() <= most
    whole = published["jobs"]
    for code, title in zip(listed[level], listed["sheet"], strict=True):
        expected = whole[whole[key].str.startswith(code)]
        assert len(expected)
        for column in expected:
            assert found[title][column].tolist() == expected[column].map(shown).tolist()


def shown(value: Any) -> str:
    """A value as pandas reads its cell as text."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def test_titles_of_sheets_are_allowed_and_differ() -> None:
    parts = {"a/b": "x" * 40, "a:b": "x" * 40, "A*B": "x" * 40, "about": "", "''": "", "[": "", "01": "Alabama"}
    titles = workbook._titles(parts, parts)
    assert len({title.lower() for title in titles.values()} | {"about", "sheets"}) == len(parts) + 2
    assert all(0 < len(title) <= 31 and not set(title) & set("[]:*?/\\") for title in titles.values())
    assert titles["01"] == "01 Alabama"


def test_a_table_that_no_sheets_can_hold_is_refused(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = prdp.read_release(release)
    monkeypatch.setattr(workbook, "MOST_ROWS", 5)
    with pytest.raises(
        PlanError, match=r"table jobs: its .* rows are more than the 5 of a workbook's sheet, also divid"
    ):
        published.export("xlsx", tmp_path / "books")
    assert not list((tmp_path / "books").iterdir())
    monkeypatch.setattr(workbook, "MOST_SHEETS", 3)
    monkeypatch.setattr(workbook, "MOST_ROWS", 12)
    with pytest.raises(PlanError, match="table jobs"):
        published.export("xlsx", tmp_path / "books", tables=["jobs"])


def test_duckdb_reads_types_comments_and_names(release: Path, reconciled: Path, tmp_path: Path) -> None:
    import duckdb

    published = prdp.read_release(release)
    made = published.export("duckdb", tmp_path / "database")
    with duckdb.connect(made["tables"]["jobs"]["path"], read_only=True) as database:
        columns = database.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'jobs'")
        types = dict(columns.fetchall())
        assert (types["naics2"], types["county"], types["value"]) == ("VARCHAR", "VARCHAR", "BIGINT")
        for name in published:
            expected = published[name]
            found = database.execute(f'SELECT * FROM "{name}"').fetchall()
            assert found == list(expected.itertuples(index=False, name=None))
        (note,) = database.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'jobs'").fetchone()
        assert note.startswith("O'Jobs, in employment.")
        assert published.manifest["plan_digest"] in note
        named = database.execute("SELECT name FROM heavy JOIN codes.state ON state = code WHERE code = '06'")
        assert named.fetchall() == [("California",)]
    made = prdp.read_reconciled(reconciled).export("duckdb", tmp_path / "estimates")
    with duckdb.connect(made["tables"]["jobs"]["path"], read_only=True) as database:
        (total,) = database.execute("SELECT sum(display) FROM jobs").fetchone()
    assert total == prdp.read_reconciled(reconciled)["by-state"]["display"].sum()


def test_delta_tables_are_read_as_they_were_published(release: Path, tmp_path: Path) -> None:
    import deltalake

    published = prdp.read_release(release)
    made = published.export("delta", tmp_path / "delta", tables=["by-state"])
    table = deltalake.DeltaTable(made["tables"]["by-state"]["path"])
    rows = pd.DataFrame(table.to_pyarrow_table().to_pydict())
    keys = ["naics2", "state"]
    pd.testing.assert_frame_equal(
        rows.sort_values(keys, ignore_index=True), published["by-state"].sort_values(keys, ignore_index=True)
    )
    assert "Release small-release" in str(table.metadata().description)
    fields = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
    assert "its code, as text" in fields["state"]["metadata"]["comment"]


def test_the_command_says_what_is_wrong(
    release: Path, reconciled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["export", str(release), "--to", "csv", "--out", out, "--table", "job"]) == 2
    assert "--table job: unknown table; nearest known table: jobs" in capsys.readouterr().err
    assert main(["export", str(reconciled), "--to", "csv", "--out", out, "--table", "jobs"]) == 0
    assert "reconciled tables of small-release: their files match the manifest" in capsys.readouterr().out
    older = publish(tmp_path, {"t": drawn({"state": ("06", "48")})})
    with pytest.raises(StateError, match=r"an earlier build wrote it, without datapackage\.json: only csv"):
        prdp.read_release(older).export("duckdb", tmp_path / "older")
    assert prdp.read_release(older).export("csv", tmp_path / "older")["tables"]["t"]["rows"] == 2
