"""Spark DataFrames as microdata: the bytes and the pin that other frames give; the caller's session stays as it was."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.functions import col, lit, raise_error

import prdp
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_frames import PACKED_ROWS
from tests.support.frames import know_the_key, tables
from tests.support.ledgers import ledger_file
from tests.support.spark import PYSPARKS_OWN
from tests.support.world import records, write_world

pytestmark = PYSPARKS_OWN
CANARY = "canary-2718281828"


def test_a_spark_frame_is_released_and_leaves_its_session_as_it_was(
    tmp_path: Path, spark: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_the_key(monkeypatch)
    table = records(300)
    write_world(tmp_path, None)
    plan, ledger = prdp.load_plan(tmp_path / "plan.yaml"), prdp.create_ledger(tmp_path / "state" / "ledger")
    expected = tables(
        plan.release(table, ledger=ledger_file(tmp_path / "other" / "ledger"), out=tmp_path / "a", workers=1)
    )
    session = spark.session
    before = {key: session.conf.get(key) for key in PACKED_ROWS}
    frame = session.createDataFrame(table.to_pandas()).repartition(3)

    floats = frame.withColumn("employment", col("employment").cast("double"))
    with pytest.raises(prdp.PlanError, match="employment is double"):
        plan.release(floats, ledger=ledger)
    fails = frame.withColumn("county", raise_error(lit(CANARY)).cast("string"))
    with pytest.raises(prdp.PrdpError) as error:
        plan.release(fails, ledger=ledger)
    assert CANARY not in str(error.value)
    assert ledger.show().empty

    assert tables(plan.release(frame, ledger=ledger, out=tmp_path / "b")) == expected
    assert {key: session.conf.get(key) for key in PACKED_ROWS} == before != PACKED_ROWS
    assert session.range(3).count() == 3
    assert list((tmp_path / "state").glob("**/frame-*")) == []
    by_contents = [e["facts"]["source"] for e in ledger.entries(confidential=True) if e["event"] == "reserved"]
    other = {"supersedes": "small-release", "release": "next"}
    write_world(tmp_path, None, **other)
    again = prdp.load_plan(tmp_path / "plan.yaml").release(pa.table(table), ledger=ledger, out=tmp_path / "b")
    assert again.state == "settled"
    assert {e["facts"]["source"] for e in ledger.entries(confidential=True) if e["event"] == "reserved"} == set(
        by_contents
    )
