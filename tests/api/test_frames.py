"""DataFrames as microdata: the same bytes as from files, types that are refused, and nothing of them left anywhere."""

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prdp
from pipeline.storage.sealing import Seal
from tests.support.frames import know_the_key, tables
from tests.support.leaks import told
from tests.support.ledgers import ledger_file
from tests.support.world import budget_file, records, write_world

ROWS = 300
CANARY = "canary-3141592653"

Change = Callable[[pd.DataFrame], pd.DataFrame]


def frame(**changes: Any) -> pd.DataFrame:
    return records(ROWS).to_pandas().assign(**changes)


def release(folder: Path, data: Any = None, **settings: Any) -> prdp.Release:
    """Release the small world from `data`, with a ledger in its folder."""
    write_world(folder, None if data is not None else records(ROWS), **settings.pop("plan", {}))
    settings = {"ledger": ledger_file(folder / "state" / "ledger"), "workers": 2} | settings
    return prdp.load_plan(folder / "plan.yaml").release(data, **settings)


def leftovers(folder: Path) -> list[Path]:
    return list((folder / "state").glob("**/frame-*"))


@pytest.mark.parametrize("duplicates", ["trust", "reject"])
def test_every_frame_gives_the_bytes_that_files_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duplicates: str
) -> None:
    know_the_key(monkeypatch)
    plan = {"dataset": {"duplicates": duplicates}}
    expected = tables(release(tmp_path / "files", plan=plan))
    frames = {
        "pandas": frame(),
        "shuffled": frame().sample(frac=1, random_state=1),
        "nullable": frame().convert_dtypes(),
        "arrow dtypes": frame().convert_dtypes(dtype_backend="pyarrow"),
        "categorical": frame().astype({"naics": "category", "county": "category", "employment": "int32"}),
        "text measures": frame().astype({"payroll": str}),
        "arrow": records(ROWS),
        "batch": records(ROWS).combine_chunks().to_batches()[0],
        "dask": dd.from_pandas(frame(), npartitions=5),
    }
    for name, data in frames.items():
        folder = tmp_path / name
        assert tables(release(folder, data, plan=plan)) == expected, name
        assert leftovers(folder) == [], name


def pin(made: prdp.Release, ledger: Path) -> tuple[str, str]:
    entries = prdp.open_ledger(ledger).entries(confidential=True)
    (drawn,) = (e["facts"]["pin"] for e in entries if e["event"] == "drawn" and e["release"] == made.name)
    (reserved,) = (e["facts"]["source"] for e in entries if e["event"] == "reserved" and e["release"] == made.name)
    return drawn, reserved


def test_the_pin_is_that_of_the_contents_alone(tmp_path: Path) -> None:
    ledger = ledger_file(tmp_path / "state" / "ledger")
    variants = {
        "plain": frame(),
        "shuffled": frame().sample(frac=1, random_state=2),
        "dask": dd.from_pandas(frame().convert_dtypes(), npartitions=3),
        "decimals": records(ROWS).set_column(4, "payroll", records(ROWS)["payroll"].cast(pa.decimal128(25, 2))),
        "changed": frame(payroll=frame()["payroll"].where(frame().index != 7, 1)),
    }
    pins = {
        name: pin(release(tmp_path, data, ledger=ledger, out=tmp_path / name, plan={"release": name}), ledger)
        for name, data in variants.items()
    }
    changed = pins.pop("changed")
    assert len(set(pins.values())) == 1
    assert changed not in pins.values()
    assert all(source == f"DataFrame {drawn}" for drawn, source in [changed, *pins.values()])
    elsewhere = release(tmp_path / "elsewhere", frame())
    assert pin(elsewhere, tmp_path / "elsewhere" / "state" / "ledger")[0] not in {drawn for drawn, _ in pins.values()}


REFUSED: dict[str, tuple[Change, str]] = {
    "a missing value made floats": (lambda f: f.assign(employment=f["employment"].where(f.index != 3)), "Int64"),
    "floats of a decimal measure": (lambda f: f.assign(payroll=f["payroll"].astype(float)), "payroll is double"),
    "codes as integers": (lambda f: f.assign(county=f["county"].astype(int)), "county is int64: codes are text"),
    "a type of which only values tell": (
        lambda f: f.assign(employment=pd.arrays.SparseArray(f["employment"])),
        r"employment is Sparse\[int64, 0\]: give text, integers",
    ),
    "complex numbers": (lambda f: f.assign(payroll=f["payroll"].astype(complex)), "of dtype complex128 cannot be read"),
    "categories of integers": (lambda f: f.assign(county=f["county"].astype(int).astype("category")), "codes are text"),
    "truth values": (lambda f: f.assign(employment=f["employment"] > 5), "employment is bool"),
    "dates": (lambda f: f.assign(payroll=pd.Timestamp("2023-01-01")), "payroll is timestamp"),
    "a negative scale": (
        lambda f: f.assign(payroll=pd.Series([Decimal(100)] * len(f), dtype=pd.ArrowDtype(pa.decimal128(10, -2)))),
        "whose scale is not negative",
    ),
    "a missing column": (lambda f: f.drop(columns="payroll"), "it has no column payroll"),
    "a column twice": (lambda f: pd.concat([f, f[["county"]]], axis=1), "county stands twice"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_could_have_altered_a_value_are_refused(tmp_path: Path, name: str) -> None:
    change, words = REFUSED[name]
    with pytest.raises(prdp.PlanError, match=words):
        release(tmp_path, change(frame()))
    assert prdp.create_ledger(tmp_path / "state" / "ledger").show().empty
    assert leftovers(tmp_path) == []


def arrow_text(*texts: bytes) -> pa.Array:
    """Text of any bytes: Arrow does not check that they are UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


def changed_first(column: str, first: pa.Array) -> pa.Table:
    table = records(ROWS)
    rest = table[column][1:].combine_chunks().cast(first.type)
    return table.set_column(table.column_names.index(column), column, pa.chunked_array([first, rest]))


def in_partitions(data: pd.DataFrame) -> dd.DataFrame:
    """A Dask frame with the values as they are: by default Dask makes text of an object column."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(data, npartitions=5)


NOT_UTF8 = b"31\xff" + CANARY.encode()
BAD_RECORDS: dict[str, Callable[[], Any]] = {
    "a code that is not UTF-8": lambda: changed_first("naics", arrow_text(NOT_UTF8)),
    "half a surrogate pair": lambda: frame(naics=["31\ud800111", *frame()["naics"][1:]]),
    "half a pair in categories": lambda: frame(naics=pd.Categorical(["31\ud800111", *frame()["naics"][1:]])),
    "a number among codes": lambda: frame(naics=[311111, *frame()["naics"][1:]]),
    "bytes among codes": lambda: frame(naics=[b"311111", *frame()["naics"][1:]]),
    "a list among codes": lambda: frame(naics=[["311111"], *frame()["naics"][1:]]),
    "a number among categories": lambda: frame(naics=pd.Categorical([311111, *frame()["naics"][1:]])),
    "a number in a partition": lambda: in_partitions(frame(naics=[311111, *frame()["naics"][1:]])),
    "a missing code": lambda: frame(naics=[None, *frame()["naics"][1:]]),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_bad_text_breaks_the_contract_of_its_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    know_the_key(monkeypatch)
    data, plan = BAD_RECORDS[name](), {"dataset": {"bad_records": "drop"}}
    without = tables(release(tmp_path / "without", records(ROWS)[1:], plan=plan))
    assert tables(release(tmp_path / "with", data, plan=plan)) == without
    with pytest.raises(prdp.MicrodataError, match="naics holds a code that is empty or malformed") as error:
        release(tmp_path / "refused", data)
    assert CANARY not in told(error.value)
    assert prdp.open_ledger(tmp_path / "refused" / "state" / "ledger").refusals() == {"small-world": 1}


@pytest.mark.parametrize("column", ["establishment_id", "payroll"])
@pytest.mark.parametrize("odd", [Decimal("NaN"), 1.5, b"1", ("1",), object()])
def test_what_is_no_text_in_an_object_column_is_one_bad_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, odd: object
) -> None:
    know_the_key(monkeypatch)
    texts = frame()[column].astype(str)
    plan = {"dataset": {"bad_records": "drop", "duplicates": "reject"}}
    without = tables(release(tmp_path / "without", frame(**{column: texts})[1:], plan=plan))
    data = frame(**{column: pd.Series([odd, *texts[1:]], dtype=object)})
    assert tables(release(tmp_path / "with", data, plan=plan)) == without
    with pytest.raises(prdp.MicrodataError, match=f"{column} "):
        release(tmp_path / "refused", data, plan={"dataset": {"duplicates": "reject"}})
    assert prdp.open_ledger(tmp_path / "refused" / "state" / "ledger").refusals() == {"small-world": 1}


def test_every_form_of_text_and_categories_without_a_value_are_read(tmp_path: Path) -> None:
    views = records(ROWS)["naics"].combine_chunks().cast(pa.string_view())
    coded = pa.DictionaryArray.from_arrays(pa.array(range(ROWS), pa.int32()), views)
    plan = {"dataset": {"bad_records": "drop"}, "max_left_out": 0.99}  # of one form all records are left out
    forms = {
        "views": frame(naics=pd.Series(views.to_pylist(), dtype=pd.ArrowDtype(pa.string_view()))),
        "dictionary of views": records(ROWS).set_column(1, "naics", coded),
        "no category": frame(naics=pd.Categorical([None] * ROWS)),
    }
    for name, data in forms.items():
        assert release(tmp_path / name.replace(" ", "-"), data, plan=plan).state == "settled", name


def test_other_columns_of_a_table_are_never_looked_at(tmp_path: Path) -> None:
    others = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0] * ROWS), pa.array([[{"x": 1}]]))])
    data = pa.concat_tables(
        [records(ROWS).append_column("other", others)[:7], records(ROWS).append_column("other", others)[7:]]
    )
    assert release(tmp_path, data).state == "settled"


def test_what_is_pinned_is_what_was_sealed_though_the_frame_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, changing = tmp_path / "state" / "ledger", frame()
    write = Seal.write_batch

    def write_and_change(self: Seal, *args: Any) -> None:
        write(self, *args)
        changing["employment"].to_numpy()[:] += 1

    before = release(tmp_path, frame(), ledger=ledger, out=tmp_path / "before", plan={"release": "before"})
    with monkeypatch.context() as patched:
        patched.setattr(Seal, "write_batch", write_and_change)
        made = release(tmp_path, changing, ledger=ledger, out=tmp_path / "made", plan={"release": "made"})
    assert (changing["employment"] != frame()["employment"]).all()
    assert pin(made, ledger) == pin(before, ledger)


def test_what_is_no_frame_is_refused(tmp_path: Path) -> None:
    ledger = prdp.create_ledger(tmp_path / "prepared" / "ledger")
    for data in (3, [1], np.zeros(3), frame()["county"]):
        with pytest.raises(prdp.PlanError, match="neither a location nor a DataFrame"):
            release(tmp_path, data)
    with pytest.raises(prdp.PlanError, match="no location"):
        prdp.prepare(tmp_path / "plan.yaml", frame(), tmp_path / "out", ledger=ledger)  # type: ignore[arg-type]


def test_a_dask_partition_of_another_type_is_refused_and_its_failures_show_no_value(tmp_path: Path) -> None:
    def changed(part: pd.DataFrame) -> pd.DataFrame:
        return part.assign(employment=part["employment"].astype(float))

    def fails(part: pd.DataFrame) -> pd.DataFrame:
        raise ValueError(CANARY)

    whole = dd.from_pandas(frame(), npartitions=2)
    with pytest.raises(prdp.PlanError, match="employment is double"):
        release(tmp_path, whole.map_partitions(changed, meta=whole._meta))
    with pytest.raises(prdp.MicrodataError, match="computing the Dask DataFrame failed") as error:
        release(tmp_path, whole.map_partitions(fails, meta=whole._meta))
    assert CANARY not in str(error.value)


def test_no_value_of_a_frame_is_told_or_left_outside_its_seal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.release import steps as run

    seen: list[Path] = []
    draw = run._draw

    def look(job: Any) -> Any:
        (folder,) = leftovers(tmp_path)
        files = list(folder.iterdir())
        assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert not any(CANARY.encode() in path.read_bytes() for path in files)
        seen.extend(files)
        return draw(job)

    monkeypatch.setattr(run, "_draw", look)
    named = frame(establishment_id=[f"{CANARY}-{i}" for i in range(ROWS)])
    broken = named.assign(county=named["county"].where(named.index != 3, CANARY))
    for data in (broken, dd.from_pandas(broken, npartitions=2)):
        with pytest.raises(prdp.MicrodataError, match="malformed") as error:
            release(tmp_path, data, progress=True)
        assert CANARY not in told(error.value)
    release(tmp_path, named, progress=True)
    assert len(seen) == 1 + 2 + 1
    printed = capsys.readouterr()
    assert CANARY not in printed.out + printed.err
    assert not any(CANARY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert ((tmp_path / "state").rglob(".frame-pins").__next__().stat().st_mode & 0o777) == 0o600


def killed(folder: Path, before: bool = False) -> None:
    write_world(folder, None)
    pq.write_table(records(ROWS), folder / "frame.parquet")
    (folder / "before").touch() if before else (folder / "before").unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", "tests.support.frames", str(folder)], check=False)
    assert done.returncode == -9
    assert len(leftovers(folder)) == 1


def test_what_a_killed_run_sealed_is_destroyed_by_the_next_or_purged(tmp_path: Path) -> None:
    ledger = ledger_file(tmp_path / "state" / "ledger")
    killed(tmp_path)
    with pytest.raises(prdp.StateError, match="is reserved for the microdata DataFrame"):
        release(tmp_path, frame(payroll=1))  # changed: refused, and nothing is drawn of it
    assert leftovers(tmp_path) == []
    killed(tmp_path)
    assert [purged["release"] for purged in prdp.open_ledger(ledger).purge_staging()] == ["small-release"]
    assert leftovers(tmp_path) == []
    killed(tmp_path)
    made = release(tmp_path, frame())
    assert made.state == "settled"
    assert leftovers(tmp_path) == []
    assert release(tmp_path, frame(payroll=1)).attempt == made.attempt  # published already: nothing is sealed


def test_what_is_sealed_before_the_reservation_is_purged_too(tmp_path: Path) -> None:
    killed(tmp_path, before=True)
    opened = prdp.create_ledger(tmp_path / "state" / "ledger")
    assert opened.show().empty
    (purged,) = opened.purge_staging()
    assert purged["names"][0].startswith("frame-")
    assert leftovers(tmp_path) == []
    assert opened.purge_staging() == []


def test_a_registered_dataset_is_known_by_its_contents(tmp_path: Path) -> None:
    write_world(tmp_path, records(ROWS))
    ledger = ledger_file(tmp_path / "state" / "ledger")
    prdp.open_ledger(ledger).register("small-world", budget_file(tmp_path, 1000))
    made = release(tmp_path, frame().sample(frac=1, random_state=3))
    assert pin(made, ledger)[1] == str(tmp_path / "microdata")
    with pytest.raises(prdp.StateError, match="are those of the registered dataset small-world"):
        release(tmp_path, frame(), plan={"release": "other", "dataset": {"name": "another-name"}})
    with pytest.raises(prdp.StateError, match="its source is"):
        release(tmp_path, frame(payroll=1), plan={"release": "third"})
