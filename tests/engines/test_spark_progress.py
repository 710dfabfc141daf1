"""Tasks of Spark's stages are counted while they run, and no number that follows from records is told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.log import Log
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_driver import GROUP
from pipeline.engines.totals import layout_of
from pipeline.microdata.source import chunks, find
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.spark import PYSPARKS_OWN
from tests.support.tasks import squared, until_told
from tests.support.terminal import Told
from tests.support.world import records, write_world

pytestmark = PYSPARKS_OWN


def test_tasks_are_counted_and_the_callers_group_of_jobs_stays(
    spark: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, context = Told(tmp_path), spark.session.sparkContext
    monkeypatch.setattr("pipeline.base.log.PATIENCE", 0.0)
    monkeypatch.setattr("pipeline.base.log.TICK", 0.02)
    monkeypatch.setattr(spark, "log", Log(told))
    spark.each(partial(until_told, tmp_path / "reading"), range(6), "reading")
    assert told.counts == {("reading", "6")}
    assert context.getLocalProperty(GROUP) is None
    context.setLocalProperty(GROUP, "of-the-caller")
    try:
        spark.each(partial(until_told, tmp_path / "files"), range(4), "files")
        assert context.getLocalProperty(GROUP) == "of-the-caller"
        spark.each(squared, range(5))
    finally:
        context.setLocalProperty(GROUP, None)  # type: ignore[arg-type]
    assert told.counts == {("reading", "6"), ("files", "4")}


def test_the_stages_of_the_one_job_for_totals_are_counted(
    spark: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    @contextmanager
    def recorded(context: Any, log: Log, names: Sequence[str]) -> Iterator[None]:
        asked.append(names)
        yield

    monkeypatch.setattr("pipeline.engines.spark_driver.counted", recorded)
    layout = layout_of(load_plan(write_world(tmp_path, records(20))))
    microdata = list(chunks(find(locate(tmp_path / "microdata"))))
    scratch = Staging(locate(tmp_path / "staging"), "release", "totals")
    spark.totals(microdata, layout, scratch)
    assert asked == [("sums", "adding up", "totals")]
