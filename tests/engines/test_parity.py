"""One key, one set of totals: the same bytes and the same errors from every engine."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.spark import SparkEngine
from tests.support.dask_cluster import local_cluster
from tests.support.ledgers import staged_files
from tests.support.parity import PLANS, SECTOR, attempt_of, holds_figures, on_cluster, released, wide
from tests.support.spark import PYSPARKS_OWN, Cluster, standalone
from tests.support.submit import Place, submit
from tests.support.totals import totals_of
from tests.support.world import records, write_world

pytestmark = PYSPARKS_OWN


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[DaskEngine]:
    with local_cluster() as address:
        yield DaskEngine(address)


@pytest.mark.parametrize("name", PLANS)
def test_spark_and_dask_release_the_same_bytes(tmp_path: Path, spark: SparkEngine, name: str) -> None:
    plan = PLANS[name](tmp_path)
    expected = released(plan, tmp_path / "dask", None)
    found = released(plan, tmp_path / "spark", spark)
    assert found == expected
    assert sum(path.endswith(".parquet") for path in found) >= 3
    other = released(plan, tmp_path / "other", None, bytes(32))  # the broken twin: another key
    wrong = [path for path in found if (other[path] == found[path]) == holds_figures(path)]
    assert [path for path in wrong if path != "site/data/index.js"] == []  # ranks of few codes may be the same
    assert ("tables/jobs/part-00001.parquet" in found) == (name == "wide")


@pytest.mark.parametrize("name", [pytest.param("full", marks=pytest.mark.drill), "cells", "skewed", "combined"])
def test_a_dask_cluster_releases_the_same_bytes_as_threads(tmp_path: Path, dask_cluster: DaskEngine, name: str) -> None:
    plan = PLANS[name](tmp_path)
    expected = released(plan, tmp_path / "threads", None)
    assert released(plan, tmp_path / "cluster", dask_cluster) == expected
    assert released(plan, tmp_path / "other", dask_cluster, bytes(32)) != expected  # the broken twin: another key


# -- totals that 63 bits do not hold ----------------------------------------------------------------------------------

LARGEST = 2**63 - 1
CELLS = {
    ("311111", "01001"): [LARGEST] * 300 + [-7],
    ("311811", "01001"): [-LARGEST] * 299,
    ("441110", "02020"): [-(2**62)] * 500 + [-1] * 60,
    ("722511", "36061"): [5],
}
BROAD = {"kind": "gaussian", "sigma": 1000}
BY_PAYROLL = [
    {"name": "finest", "sum": "payroll", "by": ["naics6", "county"], "mechanism": BROAD},
    {"name": "pay", "sum": "payroll", "by": ["naics2", "county"], "mechanism": BROAD},
    {"name": "jobs", "sum": "employment", "by": ["state"], "mechanism": BROAD},
]


@pytest.mark.parametrize("duplicates", ["trust", "combine"])
def test_totals_are_exact_in_128_bits_and_held_at_the_end(tmp_path: Path, spark: SparkEngine, duplicates: str) -> None:
    """Sums of cells beyond 2⁷⁰, of both signs, that roll up to totals within 63 bits and beyond."""
    rows = [(*codes, pay) for codes, values in CELLS.items() for pay in values]
    rows = [rows[i] for i in np.random.default_rng(4).permutation(len(rows))]
    columns = dict(zip(("naics", "county", "payroll"), map(list, zip(*rows, strict=True)), strict=True))
    columns |= {"establishment_id": [f"E{i}" for i in range(len(rows))], "employment": [1] * len(rows)}
    table = pa.table(columns)
    if duplicates == "combine":  # some records are two rows, one of which adds nothing
        zeros = {"payroll": [0] * 50, "employment": [0] * 50}
        table = pa.concat_tables([table, pa.table({**table.slice(0, 50).to_pydict(), **zeros})])
    parts = {"by": "naics2", "parts": {"31-33": BROAD}, "others": {"kind": "laplace", "sigma": 5}}
    queries = [*BY_PAYROLL, {**BY_PAYROLL[1], "name": "in_parts", "mechanism": parts}]
    plan = write_world(tmp_path, None, queries=queries, dataset={"duplicates": duplicates})
    (tmp_path / "microdata").mkdir()
    for i, start in enumerate(range(0, len(table), 150)):  # of some files a cell's sum needs 128 bits, of some none
        pq.write_table(table.slice(start, 150), tmp_path / "microdata" / f"{i}.parquet")
    sums = {codes: sum(values) for codes, values in CELLS.items()}
    sectors = [sums["311111", "01001"] + sums["311811", "01001"], sums["441110", "02020"], 5]
    finest, held = ([max(-LARGEST, min(LARGEST, total)) for total in some] for some in (sums.values(), sectors))
    assert (finest, held) == ([LARGEST, -LARGEST, -LARGEST, 5], [LARGEST - 7, -LARGEST, 5])
    assert sum(finest[:2]) != held[0]  # a sector of sums that were held too early would be wrong
    for number, engine in enumerate((DaskEngine(workers=2), spark)):
        totals = totals_of(plan, tmp_path / "microdata", engine, tmp_path / f"staging-{number}")
        met = [totals[name][totals[name] != 0].tolist() for name in ("finest", "pay", "in_parts")]
        assert met == [finest, held, held]
    assert released(plan, tmp_path / "dask", None) == released(plan, tmp_path / "spark", spark)


# -- the same errors -------------------------------------------------------------------------------------------------


def changed(**columns: Any) -> pa.Table:
    """Some records, of which the first ones have other values in the given columns."""
    table = records(50).to_pydict()
    for name, values in columns.items():
        table[name][: len(values)] = values
    return pa.table(table)


BAD: dict[str, tuple[pa.Table, str]] = {
    "codes": (changed(naics=["31111", None, "3111111"], county=["0100", "x"]), "county holds .*; naics holds a code"),
    "empty": (changed(employment=[None], payroll=[None]), "employment is empty .*; payroll is empty"),
    "no column": (records(9).drop_columns(["payroll"]), "it has no column payroll"),
    "a number for a code": (records(9).set_column(1, "naics", pa.array(range(9))), "naics is not text"),
    "a date for a measure": (
        records(9).set_column(3, "employment", pa.array(range(9), pa.date32())),
        "employment is not of a number type",
    ),
    "off the step": (records(9).set_column(3, "employment", pa.array([0.5] * 9)), "not a whole number of its steps"),
}


OF_SCHEMA = ("no column", "a number for a code", "a date for a measure")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_the_same_words(
    tmp_path: Path, spark: SparkEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, words = BAD[name]
    monkeypatch.setattr("pipeline.release.steps.require_readable", lambda *_: None)  # it is met in the scan
    plan = write_world(tmp_path, table, queries=BY_PAYROLL)
    told = []
    for engine in (None, spark):
        place = Place(plan, tmp_path / ("dask" if engine is None else "spark"))
        with pytest.raises(PlanError if name in OF_SCHEMA else MicrodataError, match=words) as raised:
            submit(place, engine=engine)
        told.append(str(raised.value))
        assert raised.value.__context__ is None or raised.value.__suppress_context__
        state = place.state()
        assert state.refunded
        assert not staged_files(place.ledger().staging_root)
    assert told[0] == told[1]


def test_a_damaged_file_is_told_in_the_same_words(tmp_path: Path, spark: SparkEngine) -> None:
    plan = write_world(tmp_path, records(5000))
    file = tmp_path / "microdata" / "part-0.parquet"
    data = bytearray(file.read_bytes())
    data[-30_000:-10_000] = bytes(20_000)  # the footer is whole
    file.write_bytes(data)
    told = []
    for folder, engine in (("dask", None), ("spark", spark)):
        with pytest.raises(MicrodataError, match=r"reading failed \(\w+\); check that the file is whole") as raised:
            submit(Place(plan, tmp_path / folder), engine=engine)
        told.append(str(raised.value))
    assert told[0] == told[1]


# -- a real cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


SPECULATION = """spark.speculation true
spark.speculation.interval 100ms
spark.speculation.multiplier 1.01
spark.speculation.quantile 0.1
spark.speculation.minTaskRuntime 1ms
"""


def killing(cluster: Cluster, at: str, folder: Path, wanted: str, seen: list[int]) -> Callable[[str], None]:
    """Return what to do at each stage: from stage `at` on, kill a worker once a file of the wanted name is there.

    The number of such files at that moment is added to `seen`.
    """

    def watch() -> None:
        while not (found := list(folder.rglob(wanted))):
            time.sleep(0.005)
        cluster.kill_a_worker()
        seen.append(len(found))

    return lambda stage: Thread(target=watch, daemon=True).start() if stage == at else None


@pytest.mark.drill
def test_speculative_copies_of_tasks_write_the_same_bytes(tmp_path: Path, cluster: Cluster) -> None:
    """The first task of each stage dawdles after its work is done, so that Spark does it once more beside it."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SPECULATION)
    marks, plan = tmp_path / "marks", wide(tmp_path, SECTOR)
    marks.mkdir()
    eager = cluster.environment | {"SPARK_CONF_DIR": str(tmp_path / "conf")}
    on_cluster(cluster, [(plan, tmp_path)], environment=eager, dawdle=marks)
    twice = {path.name.split("-")[0] for path in marks.glob("*-0-1")}
    assert twice == {"SumChunks", "StageFiles"}
    assert attempt_of(tmp_path) == released(plan, tmp_path / "dask", None)


@pytest.mark.drill
def test_a_standalone_cluster_releases_the_same_bytes_also_when_a_worker_dies(tmp_path: Path) -> None:
    full, six_files = tmp_path / "full", tmp_path / "wide"
    for folder in (full, six_files):
        folder.mkdir()
    works = [(PLANS["full"](full), full), (wide(six_files, SECTOR), six_files)]
    seen: list[int] = []
    folder = tmp_path / "wide" / "state" / "staging"
    with standalone(tmp_path) as cluster:  # its own: it loses a worker
        on_cluster(cluster, works, killing(cluster, "wide: drawing jobs", folder, "jobs/part-*", seen))
        assert len(cluster.workers) == 1
    assert seen[0] < 6  # files were still to be written
    for plan, folder in works:
        assert attempt_of(folder) == released(plan, folder / "dask", None)


@pytest.mark.drill
@pytest.mark.parametrize(
    ("at", "wanted"), [("wide: reading the microdata", "records-0"), ("wide: reading the microdata", "totals-[0-9]")]
)
def test_a_worker_that_dies_while_sums_are_made(tmp_path: Path, at: str, wanted: str) -> None:
    for name in ("cluster", "wide"):
        (tmp_path / name).mkdir()
    plan, seen, staging = wide(tmp_path / "wide", SECTOR), [], tmp_path / "wide" / "state" / "staging"
    with standalone(tmp_path / "cluster") as cluster:
        on_cluster(cluster, [(plan, tmp_path / "wide")], killing(cluster, at, staging, wanted, seen))
    assert seen
    assert attempt_of(tmp_path / "wide") == released(plan, tmp_path / "dask", None)
