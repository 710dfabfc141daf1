"""Text that is not UTF-8 breaks the contract of its own record, wherever it stands and however a file holds it."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_tasks import Shared, SumRecords
from pipeline.engines.totals import layout_of
from pipeline.plan.load import load_plan
from pipeline.storage.sealing import unpack
from tests.support.counted import counted
from tests.support.diagnostics import diagnosed, read
from tests.support.prepare import prepared
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place
from tests.support.world import COUNTIES, NAICS, write_world
from udfs.records.contract import in_utf8
from udfs.records.sums import CELL, RecordCounts, counts_of

pytestmark = PYSPARKS_OWN
GOOD = {"establishment_id": b"E0", "firm_id": b"F0", "naics": NAICS[2].encode(), "county": COUNTIES[0].encode()}
ODD = b"\xffCANARY-7341\x01"
KINDS = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view()}


def text(values: list[bytes], form: str) -> pa.Array:
    """Bytes as text, which nobody checked, in one of the forms that a Parquet file can have."""
    _, offsets, data = pa.array(values, pa.large_binary()).buffers()
    plain = pa.Array.from_buffers(pa.large_string(), len(values), [None, offsets, data])
    if form == "dictionary":
        return pa.DictionaryArray.from_arrays(pa.array(range(len(values))), plain, safe=False)
    return plain.cast(KINDS.get(form, pa.string()))


def table(form: str) -> pa.Table:
    """Two good records, and for each column of text two records in which it is odd, each in its own way."""
    rows = [GOOD, GOOD | {"establishment_id": b"E1"}]
    rows += [
        GOOD | {"establishment_id": f"{name}{i}".encode(), name: ODD + b"\xfe" * i} for name in GOOD for i in (0, 1)
    ]
    columns = {name: text([row[name] for row in rows], form) for name in GOOD}
    return pa.table(columns | {"employment": [5] * len(rows), "payroll": [60] * len(rows)})


def place(folder: Path, form: str, duplicates: str, bad_records: str) -> Place:
    dataset = {"duplicates": duplicates, "bad_records": bad_records, "unit": "firm_id"}
    budget = [{"at": [{"employment": 10, "payroll": 500}], "rho": 1000}]
    plan = write_world(folder, None, dataset=dataset, budget=budget)
    (folder / "microdata").mkdir()
    options = {"use_dictionary": False, "column_encoding": dict.fromkeys(GOOD, "DELTA_BYTE_ARRAY")}
    pq.write_table(table(form), folder / "microdata" / "a.parquet", **(options if form == "delta" else {}))
    return Place(plan, folder)


@pytest.mark.parametrize("duplicates", ["trust", "combine"])
@pytest.mark.parametrize("form", [*KINDS, "dictionary", "delta"])
def test_odd_text_is_a_bad_record(
    tmp_path: Path, form: str, duplicates: str, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = RecordCounts(2, 8) if duplicates == "combine" else RecordCounts(4, 6)  # trusted ids are not read
    world = place(tmp_path / "drop", form, duplicates, "drop")
    assert counted(world) == expected
    assert counted(world, prepared(world, tmp_path / "drop" / "microdata", tmp_path / "prepared")) == expected
    found = read(diagnosed(world.plan, tmp_path / "diagnostics", per_record=True))["records"]
    assert (found["read"] - found["dropped"], found["dropped"]) == (expected.kept, expected.left_out)
    with pytest.raises(MicrodataError, match=r"firm_id names no owner.*naics holds a code") as raised:
        counted(place(tmp_path / "refuse", form, duplicates, "refuse"))
    said = f"{capfd.readouterr()} {raised.value}"
    assert "Traceback" not in said
    assert "CANARY" not in said
    assert "\\xff" not in said


def test_lines_that_are_no_records_are_diagnosed_as_dropped(tmp_path: Path) -> None:
    world = place(tmp_path, "string", "combine", "drop")
    (tmp_path / "microdata" / "a.parquet").unlink()
    good = b",".join([*GOOD.values(), b"5", b"60"])
    header = ",".join([*GOOD, "employment", "payroll"]).encode()
    (tmp_path / "microdata" / "a.csv").write_bytes(b"\n".join([header, ODD, good, good + b",7", b"\x01\xff"]))
    found = read(diagnosed(world.plan, tmp_path / "diagnostics", per_record=True))["records"]
    assert (found["read"], found["dropped"]) == (4, 3)


def test_odd_text_is_a_bad_record_on_spark(tmp_path: Path, spark: SparkEngine) -> None:
    assert counted(place(tmp_path, "dictionary", "combine", "drop"), engine=spark) == RecordCounts(2, 8)


@dataclass(frozen=True)
class Shipped:
    """What a worker of Spark sees of a broadcast."""

    value: bytes


def test_odd_text_of_a_table_of_sparks_catalog_is_a_bad_record(tmp_path: Path) -> None:
    layout = layout_of(load_plan(place(tmp_path, "string", "trust", "drop").plan))
    task = SumRecords(code_digest(), Shared(Shipped(pickle.dumps(layout))))
    batches = table("string").select(layout.spec.columns).to_batches()
    parts = [unpack(row.column("packed")[0].as_py()) for row in task(batches) if row.column("index")[0].as_py() < 0]
    assert counts_of(parts[0][CELL], parts[0][layout.spec.addends[0]]) == RecordCounts(4, 6)


@pytest.mark.parametrize("form", [*KINDS, "dictionary"])
def test_text_becomes_what_python_reads(form: str) -> None:
    values = [b"", b"plain", "é".encode(), b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\x00\x01"]
    for shown in (values, values[:3]):
        made = in_utf8(text(shown, form))
        made.validate(full=True)
        assert made.to_pylist() == [value.decode(errors="replace") for value in shown]
    assert (in_utf8(text(values[:3], form)).type == pa.large_string()) == (form in ("large", "view"))


def test_what_is_no_odd_text_is_left_as_it_is() -> None:
    for array in (pa.array([1, None]), pa.array(["é", None]), pa.array(["é", None]).dictionary_encode()):
        assert in_utf8(array) is array
