"""Columns and format of the microdata: what is told of them, and that a record taken for a header is not."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prdp
from pipeline.base.errors import PlanError
from pipeline.engines.totals import layout_of
from pipeline.microdata.read import header, mistakes
from pipeline.microdata.source import columns_line, find, require_columns, require_types
from pipeline.plan.load import load_plan
from pipeline.storage.local import LocalPath
from tests.support.leaks import told
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

NEEDED = ("naics", "county", "employment", "payroll", "establishment_id")
TEXT = "establishment_id,naics,county,employment,payroll\nCANARY-KIWI,311111,01001,5,6\n"
FIELD = st.text(st.characters(exclude_characters='",;|\t\r\n', exclude_categories=["Cs"]), min_size=3, max_size=12)


def refusal(file: Path, line: str) -> str:
    file.write_text(line, encoding="utf-8", newline="")
    with pytest.raises(PlanError) as raised:
        header(LocalPath(file), NEEDED)
    return told(raised.value)


@given(fields=st.lists(FIELD.map(lambda text: f"C7{text}"), min_size=1, max_size=6), separator=st.sampled_from(",;\t|"))
def test_a_first_line_without_a_column_of_the_plan_is_never_told(
    tmp_path_factory: pytest.TempPathFactory, fields: list[str], separator: str
) -> None:
    message = refusal(tmp_path_factory.mktemp("lines") / "a.csv", separator.join(fields) + "\n")
    assert not [field for field in fields if field in message]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_the_search_finds_a_line_that_is_told(tmp_path: Path, separator: str) -> None:
    """The twin: one name of the plan makes it a header, and then all of it is told."""
    message = refusal(tmp_path / "a.csv", separator.join(["C7canary", "naics"]) + "\n")
    assert "C7canary" in message


def zipped(data: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.csv", data)
    return archive.getvalue()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "compressed by gzip": gzip.compress,
    "compressed by bzip2": bz2.compress,
    "compressed by xz": lzma.compress,
    "compressed by zstd": lambda data: pa.compress(data or b"x", codec="zstd", asbytes=True),
    "zip archive": zipped,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [TEXT, ""])
def test_other_formats_are_called_by_their_names(tmp_path: Path, form: str, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(FORMS[form](text.encode()))
    with pytest.raises(PlanError, match=form):
        header(LocalPath(path), NEEDED)


def test_a_header_is_read_whatever_its_dress(tmp_path: Path) -> None:
    for line in (TEXT, "\ufeff" + TEXT, TEXT.replace("\n", "\r\n"), TEXT.replace("naics", '"naics"'), TEXT[:-1]):
        path = tmp_path / "a.csv"
        path.write_text(line, encoding="utf-8", newline="")
        assert header(LocalPath(path), NEEDED) == TEXT.splitlines()[0].split(",")


def test_a_column_may_be_called_as_a_file_of_another_format_begins(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"PAR1,{TEXT}", encoding="utf-8")
    assert header(LocalPath(path), NEEDED)[:2] == ["PAR1", "establishment_id"]


def test_a_column_of_the_plan_is_not_proposed_for_another() -> None:
    with pytest.raises(PlanError, match=r"it has no column payroll2; "):
        require_columns("data", ["naics", "payroll"], ["naics", "payroll", "payroll2"])


def test_what_is_missing_comes_with_the_nearest_and_all_that_is_there() -> None:
    with pytest.raises(PlanError) as raised:
        require_columns("data", ["NAICS", "county", "emp_total", "x" * 300], ["naics", "county", "payroll"])
    first, second = raised.value.lines
    assert first.startswith("data: it has no column naics (nearest: NAICS), payroll; ")
    assert second.startswith("its columns are NAICS, county, emp_total, xxx")
    assert len(second) < 300
    assert len(columns_line([f"column {i}" for i in range(5000)])) < 300


def test_every_file_is_looked_at_before_anything_is_charged(tmp_path: Path) -> None:
    plan = write_world(tmp_path, records(20))
    for name, table in (
        ("1", records(5).drop_columns(["payroll"])),
        ("2", records(5).set_column(2, "county", pa.array(range(5)))),
        ("3", records(5).set_column(3, "employment", pa.array([True] * 5))),
        ("4", records(5).slice(0, 0).set_column(2, "county", pa.array([], pa.int64()))),  # no value, so no wrong one
        ("5", records(5).drop_columns(["establishment_id"])),
    ):
        pq.write_table(table, tmp_path / "microdata" / f"{name}.parquet")
    loaded = load_plan(plan)
    wrong = mistakes(find(LocalPath(tmp_path / "microdata")), layout_of(loaded).spec, "establishment_id")
    words = [None if each is None else each.lines[0] for each in wrong]
    assert [text is None for text in words] == [False, False, False, True, False, True]
    assert "no column payroll" in str(words[0])
    assert "column county is not text" in str(words[1])
    assert "column employment is not of a number type" in str(words[2])
    assert "no column establishment_id" in str(words[4])
    place = Place(plan, tmp_path)
    with pytest.raises(PlanError, match=r"1\.parquet: it has no column payroll"):
        submit(place)
    assert place.ledger().states() == []


def test_a_schema_that_changes_before_the_scan_gives_the_charge_back(tmp_path: Path) -> None:
    plan = write_world(tmp_path, records(20))
    place = Place(plan, tmp_path)

    def spoil(stage: str) -> None:
        if stage.startswith("reading"):
            pq.write_table(records(20).drop_columns(["payroll"]), tmp_path / "microdata" / "part-0.parquet")

    with pytest.raises(PlanError, match="no column payroll"):
        submit(place, say=spoil)
    (state,) = place.ledger().states()
    assert state.refunded


@pytest.mark.parametrize("frame", [pd.DataFrame({"C7canary": ["x"]}), pa.table({"C7canary": ["x"]})])
def test_a_frame_without_a_column_of_the_plan(tmp_path: Path, frame: object) -> None:
    write_world(tmp_path, None)
    with pytest.raises(PlanError, match="none of its columns is one that the plan names") as raised:
        prdp.load_plan(tmp_path / "plan.yaml").release(frame, ledger=prdp.create_ledger(tmp_path / "s" / "l.sqlite"))
    assert "C7canary" not in str(raised.value)


def test_types_are_judged_as_the_kernels_judge_values(tmp_path: Path) -> None:
    spec = replace(layout_of(load_plan(write_world(tmp_path, None))).spec, record="establishment_id")
    good = records(1).schema
    require_types("data", good, spec)
    for column, kind in (
        ("naics", pa.int32()),
        ("county", pa.dictionary(pa.int8(), pa.int32())),
        ("employment", pa.dictionary(pa.int8(), pa.string())),
        ("payroll", pa.date32()),
        ("establishment_id", pa.float64()),
    ):
        schema = good.set(good.get_field_index(column), pa.field(column, kind))
        with pytest.raises(PlanError, match=f"column {column} is"):
            require_types("data", schema, spec)
