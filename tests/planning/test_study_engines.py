"""prdp study run on Spark: the same figures, tables and page as on Dask."""

from pathlib import Path

import pytest

from pipeline.engines.spark import SparkEngine
from pipeline.microdata import source
from tests.support import studies
from tests.support.spark import PYSPARKS_OWN
from tests.support.world import tree

pytestmark = PYSPARKS_OWN


def test_spark_gives_the_bytes_of_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkEngine) -> None:
    studies.without_pictures(monkeypatch)
    monkeypatch.setattr(source, "CHUNK_RECORDS", 1500)
    panels = [studies.study()["panels"][1]]
    studies.evaluated(tmp_path / "dask", panels=panels)
    studies.evaluated(tmp_path / "spark", spark, panels=panels)
    here, there = (tree(tmp_path / name / "out") for name in ("dask", "spark"))
    assert here == there
    assert {"study.json", "losses-curves.csv", "errors-curves.csv", "study.html"} <= set(here)
