"""Microdata in a table of Spark's catalog: the same totals as from files, pinned, and refused where nothing pins it."""

import subprocess
import sys
import uuid
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.spark import SealedTotals, SparkEngine
from pipeline.engines.totals import layout_of
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.parity import PLANS, RELEASE, released
from tests.support.spark import PYSPARKS_OWN, ROOT
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

pytestmark = PYSPARKS_OWN
RECORDS = 3000


def saved(engine: SparkEngine, table: pa.Table, kind: str = "parquet", parts: int = 3) -> str:
    """Save records as a new table of the catalog, in several files; return its name."""
    name = f"t{uuid.uuid4().hex}"
    frame = engine.session.createDataFrame(table.to_pandas()).repartition(parts)
    frame.write.format(kind).saveAsTable(name)
    return name


def totals(engine: SparkEngine, table: str, plan: Path, folder: Path) -> list[list[int]]:
    layout = layout_of(load_plan(plan))
    held = engine.totals(engine.table(table), layout, Staging(locate(folder), "small", f"totals-{uuid.uuid4().hex}"))
    return [opened(held, place) for place in range(held.files.first[-1])]


def opened(held: SealedTotals, place: int) -> list[int]:
    _, _, first, end = held.files.all[place]
    found: list[int] = held.vault.read("totals", place)["total"].tolist() if place in held.sealed else []
    return found or [0] * (end - first)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_totals_of_a_table_are_those_of_the_files(tmp_path: Path, spark: SparkEngine, kind: str) -> None:
    microdata = records(RECORDS)
    plan = write_world(tmp_path, microdata)
    loaded = load_plan(plan)
    by_dask = DaskEngine(workers=1).totals(
        list(chunks(find(loaded.dataset.path))), layout_of(loaded), Staging(locate(tmp_path), "small", "totals-0")
    )
    expected = [values.tolist() for values in by_dask.of_table]
    assert totals(spark, saved(spark, microdata, kind), plan, tmp_path) == expected
    assert totals(spark, saved(spark, microdata.slice(1), kind), plan, tmp_path) != expected  # the broken twin


def test_a_release_from_a_table_is_that_from_the_files(tmp_path: Path, spark: SparkEngine) -> None:
    microdata = records(200)
    plan = write_world(tmp_path, microdata)
    from_files = released(plan, tmp_path / "files", None)
    text = plan.read_text()
    assert "path: microdata" in text
    plan.write_text(text.replace("path: microdata", f"source: {{table: {saved(spark, microdata)}}}"))
    assert released(plan, tmp_path / "table", spark) == from_files


@pytest.mark.parametrize("name", ["owners", "owners_cells", "combined"])
def test_rows_of_one_owner_or_id_are_brought_together_from_a_table(
    tmp_path: Path, spark: SparkEngine, name: str
) -> None:
    """Codes and counts of owners, and rows that are added up: the bytes of files, and nothing is left in staging."""
    plan = PLANS[name](tmp_path)
    from_files = released(plan, tmp_path / "files", None)
    files = [
        read_csv(path) if path.suffix == ".csv" else pq.read_table(path) for path in (tmp_path / "microdata").iterdir()
    ]
    table = saved(spark, pa.concat_tables(files))
    plan.write_text(plan.read_text().replace("path: microdata", f"source: {{table: {table}}}"))
    assert released(plan, tmp_path / "table", spark) == from_files
    assert [path.name for path in Place(plan, tmp_path / "table").folder.rglob("rows-*")] == []


def read_csv(path: Path) -> pa.Table:
    text = {name: pa.string() for name in ("naics", "county", "firm_id")}
    return pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=text))


def test_a_table_that_changes_while_it_is_summed_is_not_released(tmp_path: Path, spark: SparkEngine) -> None:
    name = saved(spark, records(200))
    place = Place(write_world(tmp_path, None, dataset={"path": None, "source": {"table": name}}), tmp_path)

    def disturb(stage: str) -> None:
        if stage.startswith("drawing"):
            spark.session.createDataFrame(records(1).to_pandas()).write.mode("append").saveAsTable(name)

    with pytest.raises(MicrodataError, match=f"microdata in table .*{name}.*changed during the run"):
        submit(place, engine=spark, say=disturb)
    assert not place.out.exists()


def test_a_table_that_is_missing_charges_nothing(tmp_path: Path, spark: SparkEngine) -> None:
    place = Place(write_world(tmp_path, None, dataset={"path": None, "source": {"table": "missing"}}), tmp_path)
    with pytest.raises(PlanError, match="holds no such table"):
        submit(place, engine=spark)
    with pytest.raises(PlanError, match="engine='spark' alone"):
        submit(place)
    assert place.ledger().state(RELEASE) is None


def test_what_changes_a_table_changes_its_pin(spark: SparkEngine) -> None:
    name = saved(spark, records(30))
    table = spark.table(name)
    before = table.pin()
    assert before == table.pin() == spark.table(name).pin()
    spark.session.createDataFrame(records(5).to_pandas()).write.mode("append").saveAsTable(name)
    assert table.pin() != before
    assert spark.table(saved(spark, records(30))).pin() != before


def test_broken_records_of_a_table_are_told_by_rule_alone(tmp_path: Path, spark: SparkEngine) -> None:
    frame = records(50).to_pandas()
    frame.loc[7, "county"] = "CANARY"
    frame["payroll"] = frame["payroll"].astype("Int64")
    frame.loc[9, "payroll"] = pd.NA
    plan = write_world(tmp_path, None)
    name = saved(spark, pa.Table.from_pandas(frame, preserve_index=False))
    with pytest.raises(MicrodataError, match=r"county holds a code.*payroll is empty") as broken:
        totals(spark, name, plan, tmp_path)
    assert "CANARY" not in str(broken.value)


def test_columns_and_types_are_checked_before_anything_is_charged(tmp_path: Path, spark: SparkEngine) -> None:
    table = records(20)
    for name, bad, words in (
        ("ids", table.drop_columns(["establishment_id"]), "no column establishment_id"),  # ids are trusted
        ("codes", table.set_column(2, "county", pa.array(range(20))), "column county is not text"),
    ):
        facts = {"path": None, "source": {"table": saved(spark, bad)}}
        place = Place(write_world(tmp_path / name, None, dataset=facts), tmp_path / name)
        with pytest.raises(PlanError, match=f"microdata in table .*{words}"):
            submit(place, engine=spark)
        assert place.ledger().state(RELEASE) is None


def test_what_nothing_pins_is_refused(spark: SparkEngine) -> None:
    name = saved(spark, records(5))
    spark.session.sql(f"CREATE VIEW v_{name} AS SELECT * FROM {name}")
    spark.session.sql(f"CREATE TEMPORARY VIEW w_{name} AS SELECT * FROM {name}")
    csv = saved(spark, records(5), "csv")  # Spark reads broken lines of text as it likes
    for unpinned in (f"v_{name}", f"w_{name}", csv):
        with pytest.raises(PlanError, match="a change during a run could not be seen"):
            spark.table(unpinned)


@pytest.mark.drill
def test_tables_of_which_spark_knows_the_folder_alone_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.hive_tables", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "converted is read"
    assert len(said) == 3
    assert all("a change during a run could not be seen" in line for line in said[1:])


@pytest.mark.parametrize("name", ["", "a b", "t; DROP TABLE t", "a.b.c.d.e", "parquet.`/x`", "(SELECT 1)"])
def test_a_name_is_a_name(spark: SparkEngine, name: str) -> None:
    with pytest.raises(PlanError, match=r"name it as \[catalog"):
        spark.table(name)
