"""Synthetic cattle farms: the laws they are drawn from, and the same bytes for the same seed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from pipeline.base.errors import PlanError
from pipeline.planning.economy.generate import Cattle, write_cattle
from tests.support.false_alarms import FALSE_ALARM
from tests.support.world import tree
from udfs.records.codes import is_code

FARMS = 60_000


@pytest.fixture(scope="module")
def farms(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("cattle") / "data"
    write_cattle(FARMS, 3, folder)
    return pq.read_table(folder / "microdata")


def p_values(head: np.ndarray, feedlot: np.ndarray, model: Cattle) -> list[float]:
    """Of head being the model's laws, rounded up: the body's logarithm, and the cut Pareto tail."""

    def body(x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.asarray(stats.norm.cdf(np.log(x / model.median) / model.spread))

    left = 1 - (model.tail_from / model.tail_end) ** model.tail_index

    def tail(x: np.ndarray) -> np.ndarray:
        return (1 - (x / model.tail_from) ** -model.tail_index) / left

    found = []
    for law, values in ((body, head[~feedlot]), (tail, head[feedlot])):
        # whole numbers spread evenly over their last unit: exact for the law of the number rounded up
        rng = np.random.default_rng(1)
        low, high = law(values - 1.0), law(values.astype(np.float64))
        found.append(float(stats.kstest(low + rng.random(len(values)) * (high - low), "uniform").pvalue))
    return found


def test_sizes_follow_the_stated_laws(farms: pa.Table) -> None:
    head = farms.column("head").to_numpy()
    feedlot = np.array(farms.column("naics").to_pylist()) == "112112"
    assert min(p_values(head, feedlot, Cattle())) > FALSE_ALARM
    for wrong in (Cattle(median=24), Cattle(spread=1.4), Cattle(tail_index=2), Cattle(tail_from=900)):
        assert min(p_values(head, feedlot, wrong)) < 1e-3
    assert feedlot.mean() == pytest.approx(0.0125, abs=1 / FARMS)
    assert head.mean() == pytest.approx(106, rel=0.05)  # 93.6 million head on 882,692 farms
    assert (head.min(), head.max() <= 150_000) == (1, True)


def test_farms_are_records_of_the_contract(farms: pa.Table) -> None:
    assert farms.column_names == ["farm_id", "firm_id", "naics", "county", "head"]
    assert len(set(farms.column("farm_id").to_pylist())) == len(set(farms.column("firm_id").to_pylist())) == FARMS
    assert set(farms.column("naics").to_pylist()) == {"112111", "112112", "112120"}
    assert all(is_code(code, "county") for code in set(farms.column("county").to_pylist()))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        write_cattle(2_000, seed, tmp_path / name)
    one, again, other = (tree(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    assert [name for name in one if one[name] != other[name]] == ["microdata/part-00000.parquet"]


def test_numbers_of_farms_are_checked(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="from 0 to 900000000"):
        write_cattle(-1, 1, tmp_path / "data")
    write_cattle(0, 1, tmp_path / "none")
    assert len(pq.read_table(tmp_path / "none" / "microdata")) == 0
