"""A mechanism as a pandas UDF: the bytes of a release, one noise a query, keys that cannot be kept."""

import copy
import pickle
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from pipeline.base.errors import PlanError
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_frames import NoiseKey, ReleaseCells, mechanism_udf
from pipeline.engines.writers import VALUES, Block, write_block
from tests.support.leaks import forms
from tests.support.spark import PYSPARKS_OWN, shared_engine
from udfs.mechanisms.additive_kinds import Gaussian
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.transformed_kinds import Log
from udfs.noise.keystream import SecretKey

pytestmark = PYSPARKS_OWN
RAW = b"CANARY-KEY-of-thirty-two-bytes-!"
GAUSSIAN = Gaussian(sigma=Fraction(50))
CANARY = 777_123_456_789
KEY, NINE = SecretKey(RAW), Fraction(9, 10)


@pytest.fixture(scope="module")
def spark() -> SparkEngine:
    return shared_engine()


def known_key() -> NoiseKey:
    """A key of known bytes, which only tests can make."""
    key = NoiseKey()
    key._key = SecretKey(RAW)
    return key


def frame(spark: SparkEngine, cells: list[int], totals: list[int | None]) -> DataFrame:
    rows = list(zip(cells, totals, strict=True))
    return spark.session.createDataFrame(rows, "cell long, total long").repartition(3)


def in_a_release(folder: Path, mechanism: Mechanism, totals: list[int], query: int, integer: bool) -> dict[str, bytes]:
    """The bytes of the columns of a table that a release stages under the known key."""
    block = Block(
        query="q",
        number=query,
        first=0,
        keys={},
        totals=np.array(totals),
        mechanisms=(mechanism,),
        part_of=None,
        interval=Fraction(9, 10),
        integer=integer,
        path=str(folder / "part-00000.parquet"),
    )
    write_block(block, SecretKey(RAW))
    table = pq.read_table(block.path)
    return {name: table[name].to_numpy().tobytes() for name in VALUES}


@pytest.mark.parametrize(
    ("mechanism", "integer"),
    [
        (GAUSSIAN, True),
        (Gaussian(sigma=Fraction(50), step=Fraction(1, 4)), False),
        (Log(a=Fraction(100), sigma=Fraction("0.35")), True),
    ],
)
def test_the_bytes_are_those_of_a_release(
    tmp_path: Path, spark: SparkEngine, mechanism: Mechanism, integer: bool
) -> None:
    totals = [n * n % 1001 for n in range(400)]
    release = mechanism_udf(spark.session, mechanism, known_key(), query=3, interval=0.9, integer=integer)
    cells = frame(spark, list(range(400)), list(totals))
    released = cells.select("cell", release("cell", "total").alias("r")).select("cell", "r.*").toPandas()
    released = released.sort_values("cell")
    columns = {name: released[name].to_numpy().tobytes() for name in VALUES}
    assert columns == in_a_release(tmp_path, mechanism, totals, 3, integer)
    assert columns != in_a_release(tmp_path, mechanism, totals, 4, integer)  # the broken twin: another query's noise


def test_tables_are_built_on_the_driver_and_shipped() -> None:
    """A worker whose processor gives other last bits must not draw from a table of its own."""
    made = ReleaseCells(
        "code", build({"kind": "symmetric_stable", "alpha": 1.5, "gamma": 3}, Fraction(1)), KEY, 0, NINE, True
    )
    shipped = vars(pickle.loads(pickle.dumps(made)).mechanism.lattice_noise)
    assert {"table", "half_widths", "noise_variance"} <= shipped.keys()
    assert shipped["half_widths"].keys() == {NINE}


def test_a_key_has_each_query_once_and_cannot_be_kept(spark: SparkEngine) -> None:
    key = NoiseKey()
    mechanism_udf(spark.session, GAUSSIAN, key)
    with pytest.raises(PlanError, match="query 0: this key has noise for it already"):
        mechanism_udf(spark.session, GAUSSIAN, key)
    mechanism_udf(spark.session, GAUSSIAN, key, query=1)
    with pytest.raises(PlanError, match="a query number lies between"):
        mechanism_udf(spark.session, GAUSSIAN, key, query=-1)
    with pytest.raises(PlanError, match="a query number is a whole number"):
        mechanism_udf(spark.session, GAUSSIAN, key, query=1.5)  # type: ignore[arg-type]
    for keep in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            keep(key)
    with pytest.raises(TypeError):
        NoiseKey(RAW)  # type: ignore[call-arg]
    assert not [form for form in forms(RAW) if form in repr(known_key())]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spark.master": "local[2]", "spark.driver.host": "127.0.0.1"}, "spark.io.encryption.enabled"),
        ({"spark.master": "yarn", "spark.io.encryption.enabled": "true"}, "spark.network.crypto.enabled"),
    ],
)
def test_a_session_without_encryption_is_refused(settings: dict[str, str], words: str) -> None:
    unsafe: Any = SimpleNamespace(_jsparkSession=None, sparkContext=SimpleNamespace(getConf=lambda: settings))
    key = NoiseKey()
    with pytest.raises(PlanError, match=words):
        mechanism_udf(unsafe, GAUSSIAN, key)
    assert key.for_query(0)  # it was not used up


@pytest.mark.parametrize("interval", [0, 1, float("nan")])
def test_an_interval_that_is_none_is_refused(spark: SparkEngine, interval: float) -> None:
    with pytest.raises(PlanError, match="must lie above 0 and below 1"):
        mechanism_udf(spark.session, GAUSSIAN, NoiseKey(), interval=interval)


def test_steps_of_an_integer_measure_are_1(spark: SparkEngine) -> None:
    with pytest.raises(PlanError, match=r"step 1/4: .* steps of 1"):
        mechanism_udf(spark.session, Gaussian(sigma=Fraction(50), step=Fraction(1, 4)), NoiseKey())


@pytest.mark.parametrize(
    ("cells", "totals", "words"),
    [
        ([0, 1], [CANARY, None], "without missing values"),
        ([5, 5], [CANARY, 1], "each once"),
        ([-1], [CANARY], "from 0"),
        ([0, 1], [CANARY, -(2**63)], "below what the mechanism allows"),  # it would come out above 0
    ],
)
def test_what_is_no_cell_or_total_is_refused_without_its_value(
    spark: SparkEngine, cells: list[int], totals: list[int | None], words: str
) -> None:
    release = mechanism_udf(spark.session, GAUSSIAN, known_key())
    with pytest.raises(PythonException, match=words) as raised:
        frame(spark, cells, totals).coalesce(1).select(release("cell", "total")).collect()
    assert not [text for text in (str(CANARY), *forms(RAW)) if text in str(raised.value)]


def test_a_total_below_zero_is_refused_where_records_may_not_be(spark: SparkEngine) -> None:
    release = mechanism_udf(spark.session, Log(a=Fraction(100), sigma=Fraction("0.35")), known_key())
    with pytest.raises(PythonException, match="below what the mechanism allows"):
        frame(spark, [0, 1], [CANARY, -1]).coalesce(1).select(release("cell", "total")).collect()


def test_one_noise_meets_one_column_of_totals(spark: SparkEngine) -> None:
    release = mechanism_udf(spark.session, GAUSSIAN, known_key())
    release("cell", "total")
    with pytest.raises(PlanError, match="was applied already"):
        release("cell", "other")
