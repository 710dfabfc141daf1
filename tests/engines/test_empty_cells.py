"""The noise of 200,000 empty cells, through the whole pipeline, fits its distribution; broken twins do not."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import stats

from tests.support.false_alarms import dependence, fit, level, repeats
from tests.support.lattice import Noise
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

NAICS = tuple(f"{code}" for code in range(311000, 311500))
COUNTIES = tuple(f"{code:05d}" for code in range(1001, 1401))
CELLS = len(NAICS) * len(COUNTIES)
CHECKS = 12  # comparisons in this file, twins aside
LEVEL = level(CHECKS)
SIGMA, LAPLACE, A, LOG = 3, 20, 50, 0.5


def plan_queries(sigma: float = SIGMA, laplace: float = LAPLACE, log: float = LOG) -> list[dict[str, object]]:
    by = {"by": ["naics6", "county"]}
    counted, summed = {"count": "records"} | by, {"sum": "employment"} | by
    return [
        {"name": "gaussian"} | counted | {"mechanism": {"kind": "gaussian", "sigma": sigma}},
        {"name": "again"} | counted | {"mechanism": {"kind": "gaussian", "sigma": sigma}},
        {"name": "laplace"} | summed | {"mechanism": {"kind": "laplace", "sigma": laplace}},
        {"name": "log"} | summed | {"mechanism": {"kind": "log", "a": A, "sigma": log}},
    ]


def noise(folder: Path, **scales: float) -> dict[str, NDArray[np.float64]]:
    """Release the empty cells; return each query's values in cell order."""
    outside = records(1).set_column(1, "naics", pa.array(["999999"]))
    plan = write_world(folder, outside, naics=NAICS, counties=COUNTIES, queries=plan_queries(**scales), budget=[])
    published = submit(Place(plan, folder))
    tables = {name: pq.read_table(table["path"]) for name, table in published.tables.items()}
    assert {table.num_rows for table in tables.values()} == {CELLS}
    return {name: table["value"].to_numpy() for name, table in tables.items()}


def lattice(power: int, scale: int) -> dict[int, float]:
    exact = Noise(power, Fraction(scale))
    return {k: float(exact.probability(k)) for k in range(-12 * scale, 12 * scale + 1)}


def log_fit(values: NDArray[np.float64], sigma: float = LOG) -> float:
    """ṽ − ln a = ln(value + a) + σ²/2 − ln a is normal noise up to 2⁻³⁰ of its scale."""
    normal = (np.log(values + A) + sigma**2 / 2 - np.log(A)) / sigma
    return float(stats.kstest(normal, "norm").pvalue)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray[np.float64]]:
    return noise(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray[np.float64]]:
    """Noise whose scale is 4 % too small."""
    return noise(tmp_path_factory.mktemp("twin"), sigma=2.88, laplace=19.2, log=0.48)


def test_values_fit_the_lattice(drawn: dict[str, NDArray[np.float64]], twin: dict[str, NDArray[np.float64]]) -> None:
    gaussian, laplace = lattice(2, SIGMA), lattice(1, LAPLACE)
    assert fit(drawn["gaussian"], gaussian) > LEVEL
    assert fit(drawn["again"], gaussian) > LEVEL
    assert fit(drawn["laplace"], laplace) > LEVEL
    assert log_fit(drawn["log"]) > LEVEL
    assert fit(twin["gaussian"], gaussian) < LEVEL
    assert fit(twin["laplace"], laplace) < LEVEL
    assert log_fit(twin["log"]) < LEVEL
    assert fit(drawn["gaussian"] + (np.arange(CELLS) % 5 == 0), gaussian) < LEVEL  # a bias in every 5th cell


def test_no_noise_is_shared(drawn: dict[str, NDArray[np.float64]]) -> None:
    first, second = drawn["gaussian"], drawn["again"]
    assert dependence(first, second) > LEVEL
    assert dependence(first, first) < LEVEL
    assert dependence(drawn["laplace"], drawn["log"]) > LEVEL
    ranks = stats.rankdata(drawn["laplace"], method="ordinal")
    assert dependence(ranks, np.roll(ranks, 1)) > LEVEL  # neighbouring cells
    assert dependence(drawn["log"][: CELLS // 2], drawn["log"][CELLS // 2 :]) > LEVEL
    repeated = drawn["log"].copy()
    repeated[CELLS // 2 :] = repeated[: CELLS // 2]
    assert dependence(repeated[: CELLS // 2], repeated[CELLS // 2 :]) < LEVEL


def test_every_cell_of_a_fine_lattice_has_a_draw_of_its_own(drawn: dict[str, NDArray[np.float64]]) -> None:
    # Gaussian noise of scale 2³⁰ steps: two draws are equal with probability 1/(2√π·2³⁰), so there are some 5 pairs.
    collision = 1 / (2 * np.sqrt(np.pi) * 2.0**30)
    fine = np.rint((np.log(drawn["log"] + A) + LOG**2 / 2) * 2.0**31).astype(np.int64)
    assert repeats(fine, collision) > LEVEL
    shared = fine.copy()
    shared[1000:1100] = shared[:100]
    assert repeats(shared, collision) < LEVEL
