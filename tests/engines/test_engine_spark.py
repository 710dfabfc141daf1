"""The Spark engine on a local session: exact totals however data are cut, one file's bytes, nothing in the clear."""

import os
import re
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.functions import rand

from pipeline.base.errors import PrdpError, StateError
from pipeline.engines import spark as spark_module
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Destination, TaskFailed
from pipeline.engines.spark import SealedTotals, SparkEngine, require_once
from pipeline.engines.spark_frames import BATCH, COMPILED, settings
from pipeline.engines.spark_session import JAVA_OPTIONS, TRACEBACKS, private_folder
from pipeline.engines.spark_tasks import AddFiles, SumChunks
from pipeline.engines.totals import Layout, layout_of
from pipeline.microdata.source import Chunk, Piece, chunks, find
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from pipeline.storage.sealing import pack
from pipeline.storage.staging import Staging
from tests.support.leaks import forms
from tests.support.ledgers import staged_files
from tests.support.parity import RELEASE, full, released
from tests.support.spark import PYSPARKS_OWN, descendants
from tests.support.submit import Place, submit
from tests.support.world import records, write_world
from udfs.noise.keystream import SecretKey

pytestmark = PYSPARKS_OWN
RAW = b"CANARY-KEY-of-thirty-two-bytes-!"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full(tmp_path_factory.mktemp("world"))


def scratch(folder: Path) -> Staging:
    return Staging(locate(folder), RELEASE, f"totals-{uuid.uuid4().hex}")


def totals(engine: SparkEngine, cut: list[Chunk], layout: Layout, folder: Path) -> dict[int, list[int]]:
    """The totals of every file, opened; zeros where there are none."""
    held = engine.totals(cut, layout, scratch(folder))
    return {index: opened(held, index) for index in range(held.files.first[-1])}


def opened(held: SealedTotals, index: int) -> list[int]:
    _, _, first, end = held.files.all[index]
    if index not in held.sealed:
        return [0] * (end - first)
    values: list[int] = held.vault.read("totals", index)["total"].tolist()
    return values


def test_totals_are_those_of_dask_however_data_are_cut(
    tmp_path: Path, plan: Path, spark: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_plan(plan)
    layout, found = layout_of(loaded), list(chunks(find(loaded.dataset.path)))
    by_dask = DaskEngine(workers=1).totals(found, layout, scratch(tmp_path))
    expected = {place: values.tolist() for place, values in enumerate(by_dask.of_table)}  # a file a table
    assert any(any(values) for values in expected.values())
    pieces = [Piece(piece.path, (group,)) for chunk in found for piece in chunk for group in piece.row_groups or ()]
    for cut in (found, [(piece,) for piece in pieces[::-1]], [tuple(pieces[:15]), tuple(pieces[15:])]):
        assert totals(spark, cut, layout, tmp_path) == expected
    monkeypatch.setattr(spark_module, "FEWEST_TASKS", 3)  # many chunks are joined to few tasks
    monkeypatch.setattr(spark_module, "TASKS_A_CORE", 1)
    assert totals(spark, [(piece,) for piece in pieces], layout, tmp_path) == expected
    twice = [(pieces[0],), *((piece,) for piece in pieces)]  # the broken twin: a chunk is read twice
    assert totals(spark, twice, layout, tmp_path) != expected


def test_a_stage_that_is_repeated_writes_the_same_bytes_and_reads_no_microdata(
    tmp_path: Path, spark: SparkEngine
) -> None:
    plan = load_plan(write_world(tmp_path, records(500)))
    layout = layout_of(plan)
    held = spark.totals(list(chunks(find(plan.dataset.path))), layout, scratch(tmp_path / "staging"))
    for file in (tmp_path / "microdata").iterdir():
        file.unlink()
    written = []
    for folder in (tmp_path / "first", tmp_path / "again", tmp_path / "again"):
        folder.mkdir(exist_ok=True)
        held.stage([Destination(0, locate(folder))], SecretKey(RAW))
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1] == written[2]
    assert written[0].keys() == {"part-00000.parquet"}
    (held.vault.folder / "totals-0").delete()  # totals that are gone are an error, never zeros
    with pytest.raises(TaskFailed, match=r"failed \(FileNotFoundError\)"):
        held.stage([Destination(0, locate(tmp_path / "first"))], SecretKey(RAW))


def test_an_unwritable_place_is_told_in_a_plain_error(tmp_path: Path, spark: SparkEngine) -> None:
    plan = load_plan(write_world(tmp_path, records(5)))
    held = spark.totals(list(chunks(find(plan.dataset.path))), layout_of(plan), scratch(tmp_path / "staging"))
    with pytest.raises(StateError, match="table establishments: writing to staging failed"):
        held.stage([Destination(0, locate(tmp_path / "nowhere"))], SecretKey(RAW))


def test_a_worker_with_other_code_is_refused(
    tmp_path: Path, plan: Path, spark: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_plan(plan)
    monkeypatch.setattr(spark_module, "code_digest", lambda: "sha256:other")
    with pytest.raises(TaskFailed, match="another build of prdp"):
        spark.totals(list(chunks(find(loaded.dataset.path))), layout_of(loaded), scratch(tmp_path))


def test_an_index_that_two_tasks_had_is_refused() -> None:
    assert require_once([3, 1, 2]) == [1, 2, 3]
    with pytest.raises(TaskFailed, match="to two tasks"):
        require_once([3, 1, 3])


def test_a_session_at_another_master_is_not_taken_for_ours(spark: SparkEngine) -> None:
    assert spark.session.sparkContext.master == "local[2]"
    with pytest.raises(PrdpError, match=r"has a Spark session at local\[2\] already; end it first"):
        _ = SparkEngine("local[1]").session
    assert spark.session.range(3).count() == 3


def test_a_program_s_own_session_keeps_its_settings(spark: SparkEngine) -> None:
    own = {BATCH: "777", COMPILED: "true"}
    with settings(spark.session, own):
        assert SparkEngine("local[2]").each(abs, [-1]) == [1]
        assert {key: spark.session.conf.get(key) for key in own} == own
    with settings(spark.session, {TRACEBACKS: "true"}):
        assert SparkEngine("local[2]").session.conf.get(TRACEBACKS) == "true"


def test_tasks_run_in_the_workers_of_an_rdd_which_start_before_a_session(spark: SparkEngine) -> None:
    assert spark.each(abs, [-1, 2, -3]) == [1, 2, 3]
    java = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    states = [Path(f"/proc/{pid}/stat").read_text().split()[2:4] for pid in descendants(java)]
    parents = [parent for state, parent in states if state != "Z"]  # Java's own helpers end at once
    assert parents.count(str(java)) == 1


def test_java_starts_with_the_options_that_halve_its_work(spark: SparkEngine) -> None:
    beans = spark.session.sparkContext._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    given = " ".join(map(str, beans.getRuntimeMXBean().getInputArguments()))
    assert JAVA_OPTIONS in given  # side by side, as the options of the tests' environment do not stand


def clear(folder: Path, canaries: list[bytes]) -> list[tuple[str, bytes]]:
    """Return which canaries stand in which files below a folder."""
    files = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return [(file.name, canary) for file in files for canary in canaries if canary in file.read_bytes()]


def test_neither_key_nor_totals_lie_on_a_disk_in_the_clear(
    tmp_path: Path, spark: SparkEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    total = 777_123_456_789
    table = records(300).to_pydict()
    table["payroll"][7] = total
    table["naics"][7], table["county"][7] = "113110", "02020"
    kept = [i for i in range(300) if i == 7 or (table["naics"][i], table["county"][i]) != ("113110", "02020")]
    mechanism = {"kind": "gaussian", "sigma": 10**6}
    queries = [{"name": "pay", "sum": "payroll", "by": ["naics6", "county"], "mechanism": mechanism}]
    plan = load_plan(write_world(tmp_path, pa.table(table).take(kept), queries=queries))
    private = scratch(tmp_path / "staging")
    held = spark.totals(list(chunks(find(plan.dataset.path))), layout_of(plan), private)
    assert total in opened(held, 0)
    (tmp_path / "out").mkdir()
    held.stage([Destination(0, locate(tmp_path / "out"))], SecretKey(RAW))
    canaries = [total.to_bytes(8, "little"), str(total).encode(), *(form.encode("latin-1") for form in forms(RAW))]
    assert (private_folder() / "spill").is_dir()
    assert clear(private_folder(), canaries) == []
    assert len(list(private.path.as_path().iterdir())) >= 2
    assert clear(private.path.as_path(), canaries) == []
    (private.path.as_path() / "twin").write_bytes(pack({"total": np.array([1, total])}))
    assert clear(private.path.as_path(), canaries) == [("twin", canaries[0])]
    said = capfd.readouterr()
    assert not [form for form in (*forms(RAW), str(total)) if form in said.out + said.err]
    task = replace(AddFiles("", held.shared, held.vault))
    assert str(total) not in repr(task) + repr(held) + repr(SumChunks("", held.shared, []))


def test_a_release_leaves_no_totals_behind(tmp_path: Path, spark: SparkEngine) -> None:
    place = Place(write_world(tmp_path, records(50)), tmp_path)
    seen: list[str] = []

    def look(stage: str) -> None:
        seen.extend(path.name for path in place.ledger().staging_root.rglob("totals-*"))

    submit(place, engine=spark, say=look)
    assert [name for name in seen if len(name) > 30]
    assert not staged_files(place.ledger().staging_root)
    manifest = (place.out / RELEASE / "release.json").read_text()
    assert '"name": "spark"' in manifest
    assert '"pyspark": "' in manifest


# -- frames that are evaluated twice ---------------------------------------------------------------------------------


def shuffles(frame: DataFrame) -> set[str]:
    """Return by what a frame's rows are shuffled, without numbers."""
    assert frame._jdf is not None
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return {re.sub(r"[#, ]*[0-9]+L?", "", by) for by in re.findall(r"Exchange (\w+\(.*?\)), ", plan)}


def test_a_release_whose_every_frame_is_evaluated_twice(
    tmp_path: Path, spark: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same bytes, and no shuffle but by index: a row's index is the same whenever it is computed."""
    evaluate, seen, by = SparkEngine._outcomes, [0], set()

    def twice(engine: SparkEngine, frame: DataFrame, *stages: str, **sent: dict[str, str]) -> list[tuple[int, int]]:
        first, again = evaluate(engine, frame, *stages, **sent), evaluate(engine, frame, *stages, **sent)
        assert sorted(first) == sorted(again)
        seen[0] += len(again)
        by.update(shuffles(frame))
        return again

    plan = full(tmp_path)
    monkeypatch.setattr(SparkEngine, "_outcomes", twice)
    assert released(plan, tmp_path / "spark", spark) == released(plan, tmp_path / "dask", None)
    assert seen[0] > 20
    assert by == {"hashpartitioning(index)"}
    unsteady = spark.session.range(9).repartition(3)  # the broken twins: by whatever order rows come in, by chance
    assert shuffles(unsteady) == {"RoundRobinPartitioning()"}
    assert shuffles(unsteady.repartition(3, rand())) - by
