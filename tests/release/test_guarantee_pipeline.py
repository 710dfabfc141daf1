"""The noise of every kind, through a whole release on Dask: what is published less the truth fits its distribution.

One query for every kind, and for both noises and estimators of the transformations, over cells of which some hold
establishments. Broken twin of each: the same values against noise whose scale is 2 % off.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.support.families import noise_fit, tail_bins
from tests.support.guarantee import noise_of
from tests.support.kinds import REGISTRY
from tests.support.mixture import ranks
from tests.support.statistics import chi_square, level
from tests.support.submit import Place, submit
from tests.support.world import write_world
from udfs.mechanisms.catalogue import CATALOGUE, build

NAICS = tuple(f"{code}" for code in range(311000, 311600))
COUNTIES = tuple(f"{code:05d}" for code in range(1001, 1501))
CELLS, RECORDS = len(NAICS) * len(COUNTIES), 20_000
OFF = Fraction(102, 100)
Floats = NDArray[np.float64]

SPECS: dict[str, dict[str, Any]] = {
    name: {"kind": kind, **given} for kind, known in REGISTRY.items() for name, given in known.published.items()
}
COUNTED = ("groupwise_log", "groupwise_noisy")
# f(value + a) of the estimators, from docs/mathematics.md, section 4; totals are so far above 0 that a root's sign
# is not in doubt
NOISY: dict[str, Callable[[Floats], Floats]] = {
    "root_mean": lambda value: np.sqrt(value + 10_000 + 2 * 0.5**2),
    "root_median": lambda value: np.cbrt(value + 1000),
    "log_mean": lambda value: np.log(value + 50) + 0.5**2 / 2,
    "log_median": lambda value: np.log(value + 50),
    "groupwise_log": lambda value: np.log(value + 5) + 0.1**2 / 2,
}
TRUE: dict[str, Callable[[Floats], Floats]] = {
    "root_mean": lambda q: np.sqrt(q + 10_000),
    "root_median": lambda q: np.cbrt(q + 1000),
    "log_mean": lambda q: np.log(q + 50),
    "log_median": lambda q: np.log(q + 50),
    "groupwise_log": lambda q: np.log(q + 5),
}
Released = tuple[dict[str, Floats], dict[str, Floats]]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    """Each query's true totals and its released values, in cell order."""
    random, folder = np.random.default_rng(23), tmp_path_factory.mktemp("kinds")
    cells, employment = random.integers(0, CELLS, RECORDS), random.integers(0, 3000, RECORDS)
    naics, county = np.divmod(cells, len(COUNTIES))
    microdata = pa.table(
        {
            "establishment_id": [f"E{i}" for i in range(RECORDS)],
            "naics": np.array(NAICS)[naics],
            "county": np.array(COUNTIES)[county],
            "employment": employment,
            "payroll": employment,
        }
    )
    queries = [
        {"name": name, "by": ["naics6", "county"], "mechanism": spec}
        | ({"count": "records"} if name in COUNTED else {"sum": "employment"})
        for name, spec in SPECS.items()
    ]
    plan = write_world(folder, microdata, naics=NAICS, counties=COUNTIES, queries=queries, budget=[])
    published = submit(Place(plan, folder))
    values = {name: pq.read_table(published.tables[name]["path"])["value"].to_numpy() for name in SPECS}
    counts, sums = (np.bincount(cells, weights=w, minlength=CELLS).astype(float) for w in (None, employment))
    return {name: counts if name in COUNTED else sums for name in SPECS}, values


def noise_in_steps(name: str, truth: Floats, values: Floats) -> NDArray[np.int64]:
    if name not in NOISY:
        return values.astype(np.int64) - truth.astype(np.int64)
    m = build(SPECS[name], Fraction(1))
    return np.rint((NOISY[name](values) - TRUE[name](truth)) / float(m.lattice_step)).astype(np.int64)


def test_every_kind_is_released() -> None:
    assert {spec["kind"] for spec in SPECS.values()} == set(CATALOGUE)


@pytest.mark.parametrize("name", sorted(SPECS.keys() - {"groupwise_noisy"}))
def test_released_values_less_the_truth_fit_the_noise(released: Released, name: str) -> None:
    truth, value = (each[name] for each in released)
    noise = noise_of(build(SPECS[name], Fraction(1)))
    drawn = noise_in_steps(name, truth, value)
    assert np.count_nonzero(truth) > RECORDS / 2
    ends = tail_bins(noise)
    assert noise_fit(drawn, noise, ends) > level(1)
    assert noise_fit(drawn, replace(noise, scale=noise.scale * OFF), ends) < level(1)  # type: ignore[type-var]
    assert noise_fit(noise_in_steps(name, np.roll(truth, 1), value), noise, ends) < level(1)  # another truth


def test_counts_with_noise_on_noise_fit_their_mixture(released: Released) -> None:
    truth, value = (each["groupwise_noisy"] for each in released)
    one = value[truth == 1]
    assert len(one) > 0.9 * RECORDS
    ends = np.array([-12, -8, -5, -3, -2, -1, -0.5, -1e-9, 1e-9, 0.5, 1, 2, 3, 4, 6, 9, 13])
    counts = np.bincount(np.searchsorted(ends, one), minlength=len(ends) + 1)

    def p_value(x: int, r: float, sigma: str) -> float:
        return chi_square(counts, np.diff([0.0, *ranks(ends, x, r, sigma), 1.0]))

    assert counts[8] == np.count_nonzero(one == 0)  # the noise has taken the record away
    assert p_value(1, 0.5, "3") > level(1)
    assert p_value(2, 0.5, "3") < level(1)  # another truth
    assert p_value(1, 0.5, "3.2") < level(1)
    assert p_value(1, 0.6, "3") < level(1)


def test_the_release_wrote_every_cell(released: Released) -> None:
    assert {len(values) for values in released[1].values()} == {CELLS}
