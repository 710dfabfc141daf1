"""Every mechanism with every form of query, measure and unit: the same bytes from both engines."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.engines.spark import SparkEngine
from tests.support.matrix import FACTORS, Choice, whole_product, written
from tests.support.parity import MECHANISMS, released
from tests.support.spark import PYSPARKS_OWN
from udfs.mechanisms.catalogue import CATALOGUE

pytestmark = PYSPARKS_OWN


def test_every_kind_is_a_choice() -> None:
    assert {MECHANISMS[name]["kind"] for name in FACTORS["mechanism"]} == set(CATALOGUE)


def same_bytes(folder: Path, spark: SparkEngine, unit: str, choices: Sequence[Choice]) -> None:
    plan = written(folder / unit, unit, choices)
    expected = released(plan, folder / unit / "dask", None)
    tables = [path for path in expected if path.startswith("tables")]
    assert len(tables) >= sum(choice[3] == unit for choice in choices)
    assert released(plan, folder / unit / "spark", spark) == expected
    other = released(plan, folder / unit / "other", None, bytes(32))
    assert all(other[path] != expected[path] for path in tables)  # the broken twin: another key


@pytest.mark.drill
@pytest.mark.parametrize("unit", FACTORS["unit"])
def test_the_whole_product_gives_the_same_bytes(tmp_path: Path, spark: SparkEngine, unit: str) -> None:
    same_bytes(tmp_path, spark, unit, whole_product())
