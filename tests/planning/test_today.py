"""Multiplicative noise as agencies add it: its density, closed forms of variances, flags; a plan in today's cells."""

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

import prdp
from pipeline.base.errors import PlanError
from pipeline.planning.economy.published import allocated, published
from pipeline.planning.study.todays_practice import FactorNoise
from prdp.studies import today
from tests.support.factors import cell_variance, draw, flags, totals_with_factors
from tests.support.false_alarms import level
from tests.support.world import records

A, B = 1.1, 1.25
DRAWS = 200_000


def density(d: float) -> float:
    if A <= d <= B:
        return (B - d) / (B - A) ** 2
    return (B + d - 2) / (B - A) ** 2 if 2 - B <= d <= 2 - A else 0.0


def moment(power: int, centre: float) -> float:
    sides = ((2 - B, 2 - A), (A, B))
    return float(sum(integrate.quad(lambda d: density(d) * abs(d - centre) ** power, *side)[0] for side in sides))


def test_the_density_has_the_stated_moments() -> None:
    noise = FactorNoise(a=A, b=B)
    assert moment(0, 1) == pytest.approx(1)
    assert moment(1, 0) == pytest.approx(1)  # unbiased
    assert noise.magnitude == pytest.approx(moment(1, 1))
    assert noise.variance == pytest.approx(moment(2, 1))
    assert noise.variance == pytest.approx((A - 1) ** 2 + 2 * (A - 1) * (B - A) / 3 + (B - A) ** 2 / 6)
    assert noise.magnitude_variance == pytest.approx(moment(2, 1) - moment(1, 1) ** 2)


@pytest.mark.parametrize("own", [False, True])
def test_factors_follow_the_density(own: bool) -> None:
    factors = draw(FactorNoise(a=A, b=B, own_magnitudes=own), np.random.default_rng(1), np.arange(DRAWS))

    def cdf(d: np.ndarray) -> np.ndarray:
        upper = 1 - ((B - np.clip(d, A, B)) / (B - A)) ** 2
        lower = ((np.clip(d, 2 - B, 2 - A) - 2 + B) / (B - A)) ** 2
        return np.asarray((upper + lower) / 2)

    assert stats.kstest(factors, cdf).pvalue > level(1)
    assert stats.kstest(factors, lambda d: cdf(1 + (d - 1) * 1.02)).pvalue < level(1)  # the twin: 2 % too near to 1
    assert np.all(np.abs(factors - 1) >= A - 1)


def test_a_firm_shares_its_factor_or_its_direction() -> None:
    firm = np.repeat(np.arange(300), 4)
    one = draw(FactorNoise(a=A, b=B), np.random.default_rng(2), firm).reshape(300, 4)
    assert np.all(one == one[:, :1])
    own = draw(FactorNoise(a=A, b=B, own_magnitudes=True), np.random.default_rng(2), firm).reshape(300, 4)
    assert np.all((own > 1) == (own[:, :1] > 1))
    assert len(np.unique(own)) == 1200
    assert 0.35 < np.mean(own[:, 0] > 1) < 0.65


@pytest.mark.parametrize("own", [False, True])
def test_cell_variances_are_those_of_many_draws(own: bool) -> None:
    """Three cells; firm 0 is in two of them with several establishments, so within a cell its noise does not cancel."""
    values = np.array([10.0, 20, 5, 40, 7, 1, 300])
    firm, cell = np.array([0, 0, 1, 0, 2, 3, 4]), np.array([0, 0, 0, 2, 2, 2, 3])
    noise, random = FactorNoise(a=A, b=B, own_magnitudes=own), np.random.default_rng(3)
    copies = 40_000
    many = (firm + 5 * np.arange(copies)[:, None]).ravel()
    factors = draw(noise, random, many).reshape(copies, -1)
    drawn = np.array([totals_with_factors(values, row, cell, 5) for row in factors])
    stated = cell_variance(noise, values, firm, cell, 5)
    assert stated[1] == stated[4] == 0  # nobody is there
    truth = np.bincount(cell, values, 5)
    for c in (0, 2, 3):
        square = (drawn[:, c] - truth[c]) ** 2
        off = 5 * float(np.std(square)) / sqrt(copies)  # false alarm 6·10⁻⁷
        assert abs(float(np.mean(square)) - stated[c]) < off
        assert abs(float(np.mean(drawn[:, c])) - truth[c]) < 5 * sqrt(stated[c] / copies)
    other = cell_variance(FactorNoise(a=A, b=B, own_magnitudes=not own), values, firm, cell, 5)
    square = (drawn[:, 0] - truth[0]) ** 2
    assert abs(float(np.mean(square)) - other[0]) > 5 * float(np.std(square)) / sqrt(copies)  # the twin
    as_firms = cell_variance(noise, values, np.arange(7), cell, 5)  # the twin that takes establishments for firms
    assert as_firms[0] < 0.8 * stated[0]
    assert as_firms[3] == pytest.approx(stated[3])


def test_variances_by_hand() -> None:
    values, firm, cell = np.array([3.0, 4, 2]), np.array([0, 0, 1]), np.zeros(3, dtype=np.intp)
    one, own = (FactorNoise(a=1.1, b=1.4, own_magnitudes=each) for each in (False, True))
    assert one.variance == pytest.approx(0.01 + 0.02 + 0.015)
    assert cell_variance(one, values, firm, cell, 1)[0] == pytest.approx(0.045 * (49 + 4))
    assert cell_variance(own, values, firm, cell, 1)[0] == pytest.approx(0.04 * (49 + 4) + 0.005 * (9 + 16 + 4))


def test_flags_tell_how_far_a_cell_was_moved() -> None:
    truth = np.array([100.0, 100, 100, 100, 100, 0, 1000])
    published = np.array([100.0, 101.9, 98, 104.9, 95, 0, 1051])
    assert flags(published, truth).tolist() == ["G", "G", "H", "H", "J", "G", "J"]


def test_a_cell_of_one_establishment_is_known_to_within_the_factors() -> None:
    random = np.random.default_rng(4)
    values = random.integers(1, 1000, 5000).astype(float)
    noise = FactorNoise(a=A, b=B)
    published = totals_with_factors(values, draw(noise, random, np.arange(5000)), np.arange(5000), 5000)
    assert set(flags(published, values)) == {"J"}  # never within 10 %, always within 25 %
    assert np.all((published / B <= values) & (values <= published / (2 - B)))


def test_microdata_with_factors_spread_as_stated() -> None:
    """Synthetic establishments of firms that are in many cells: over all cells, squared changes are their variances."""
    table, firm = records(20_000, seed=6), np.random.default_rng(6).integers(0, 4000, 20_000)
    values = table["employment"].to_numpy().astype(float)
    places = np.char.add(table["naics"].to_numpy().astype(str), table["county"].to_numpy().astype(str))
    cell = np.unique(places, return_inverse=True)[1].ravel()
    cells, truth = int(cell.max()) + 1, np.bincount(cell, values)
    for own in (False, True):
        noise = FactorNoise(a=A, b=B, own_magnitudes=own)
        variance = cell_variance(noise, values, firm, cell, cells)
        draws = [draw(noise, np.random.default_rng(seed), firm) for seed in range(300)]
        squares = np.array([(totals_with_factors(values, d, cell, cells) - truth) ** 2 / variance for d in draws])
        means = squares.mean(axis=1)  # firms join cells: only the draws are independent
        assert abs(float(means.mean()) - 1) < 5 * float(means.std()) / sqrt(len(draws))
        assert abs(float(means.mean()) - 1.12) > 5 * float(means.std()) / sqrt(len(draws))


WRONG = [(1.0, 1.2), (0.9, 1.2), (1.2, 1.2), (1.2, 1.1), (1.1, 2.1), (float("nan"), 1.2)]


@pytest.mark.parametrize(("a", "b"), WRONG)
def test_factors_that_could_be_one_are_refused(a: float, b: float) -> None:
    with pytest.raises(ValueError, match="1 < a < b"):
        FactorNoise(a=a, b=b)


SIGMA, COUNTIES = 40.0, 5  # of Rhode Island


@pytest.fixture(scope="module")
def by_county(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return a plan of Rhode Island that measures counties by NAICS 6, and derives states by industry."""
    made = prdp.generate_like("cbp-2011", tmp_path_factory.mktemp("today") / "like", states=["44"])
    data = prdp.load_plan(made).source
    data["domain"] = {key: str(made.parent / "domain" / file) for key, file in FILES.items()}
    data["dataset"]["keys"] = {"naics": "naics", "county": "county"}
    noise = {"kind": "gaussian", "sigma": SIGMA}
    statistics = {"est": {"count": "records"}, "emp": {"sum": "employment"}, "ap": {"sum": "payroll"}}
    data["queries"] = [
        {"name": f"co_{name}", **statistic, "by": ["county", "naics6"], "mechanism": noise}
        for name, statistic in statistics.items()
    ]
    data["derived"] = [
        {"name": f"st_{name}_{digits}", **statistic, "by": ["state", f"naics{digits}"]}
        for name, statistic in statistics.items()
        for digits in range(2, 7)
    ]
    return {key: value for key, value in data.items() if key != "budget"}


FILES = {"naics": "naics.csv", "county": "counties.csv"}


def test_derived_tables_are_judged_once_reconciled_in_closed_form(by_county: dict[str, Any], tmp_path: Path) -> None:
    """A state is the sum of its five counties alone: its standard error is sqrt(5)·40."""
    beside = prdp.beside_today("cbp-2011", prdp.load_plan(by_county, folder=tmp_path))
    known, level = published("cbp-2011"), beside["levels"][-1]
    place = known.level(6)
    judged = (known.establishments[place] > 0) & (known.flag[place] != "")
    totals = allocated(known).employment[place][judged].astype(float)
    withheld = np.isin(known.flag[place][judged], ["D", "S"])
    assert beside["reconciled"]
    assert level["tables"]["employment"] == "st_emp_6"

    def shares(error: float) -> tuple[float, float, float]:
        chances = 2 * stats.norm.cdf(0.3 * totals[withheld] / error) - 1
        worse = np.mean(error > 0.05 * totals[~withheld])
        return float(chances.mean()), float(np.mean(error <= 0.3 * totals[withheld])), float(worse)

    stated = [level[name] for name in ("usable_employment", "usable_cells", "worse_cells")]
    assert stated == pytest.approx(shares(sqrt(COUNTIES) * SIGMA), abs=0.01)
    assert stated != pytest.approx(shares(SIGMA), abs=0.01)  # the twin: the noise of one county


def test_a_plan_that_measures_all_is_judged_as_asked(by_county: dict[str, Any], tmp_path: Path) -> None:
    noise = {"kind": "gaussian", "sigma": SIGMA}
    tables = [{**table, "mechanism": noise} for table in by_county["derived"]]
    measured = {**by_county, "queries": [*by_county["queries"], *tables]}
    plan = prdp.load_plan({key: value for key, value in measured.items() if key != "derived"}, folder=tmp_path)
    released, reconciled = (prdp.beside_today("cbp-2011", plan, reconciled=each) for each in (False, True))
    assert [each["reconciled"] for each in (released, reconciled)] == [False, True]
    one, other = (each["levels"][-1] for each in (released, reconciled))
    assert one["usable_cells"] < other["usable_cells"]
    assert one["worse_cells"] > other["worse_cells"]


def test_reconciled_goes_with_a_plan() -> None:
    with pytest.raises(PlanError, match="reconciled=: it goes with beside="):
        today("cbp-2011", reconciled=True)
