"""The synthetic economy against the real table of 2021, and its laws against what they are called."""

import numpy as np
import pandas as pd
import pytest

from pipeline.planning.economy import CLASSES, Choice, Economy, Figures, Ints, Pareto, SizeClass, WithinClass, susb
from pipeline.planning.economy.firms import Firms, evenly, rounded
from pipeline.planning.economy.generate import (
    BATCHES_A_NATION,
    CHAIN_NUMBERS_FROM,
    DOMAIN,
    FIRMS_A_NATION,
    MOST_RECORDS,
    RECORDS_A_BATCH,
    Batches,
    generate,
    ids,
)
from tests.support.economy import DIVIDED, MEASURES, TABLE, classified, gaps, misfits, read, real

RECORDS = 300_000


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return read(generate(RECORDS, 7, tmp_path_factory.mktemp("generated")).microdata)


@pytest.fixture(scope="module")
def firms() -> Firms:
    industries, counties = (pd.read_csv(path, dtype=str)["code"].tolist() for path in DOMAIN.values())
    return Firms(Economy(industries, counties, Figures()))


def test_the_table_is_the_published_one() -> None:
    table = pd.read_csv(TABLE, dtype={"state": str, "sector": str}).set_index(["state", "sector", "size"])
    # read by hand from the published table
    for place, figures in {
        ("00", "23", "0-4"): (512_417, 512_461, 792_489, 42_289_591),
        ("00", "31-33", "total"): (238_851, 283_015, 11_710_424, 785_195_521),
        ("00", "51", "500+"): (1_226, 66_070, 2_483_223, 413_131_356),
        ("11", "54", "500+"): (394, 1_210, 53_053, 9_447_974),
        ("11", "61", "100-499"): (62, 94, 9_185, 650_582),
    }.items():
        assert tuple(table.loc[place]) == figures
    # the published totals of sectors are sums of their classes, and the nation's the sums of the states' totals
    assert real("sector").loc["62"].tolist() == [947_570, 20_681_593, 1_188_600_694]
    assert real("sector").loc["44-45"].tolist() == [1_036_879, 15_530_630, 541_353_646]
    assert real("sector")["establishments"].sum() == 8_148_606 - 10_440  # without industries not classified
    assert table.index.is_unique
    assert len(table.index.unique("state")) == 52
    assert len(table.index.unique("sector")) == 19


def test_every_sector_is_divided_and_adds_up() -> None:
    divided, nation = susb(), real("sector")
    assert divided.sectors == tuple(nation.index)
    for measure in MEASURES:
        figures = getattr(divided, measure)
        assert figures.shape == (6, 19, 51)
        assert (figures >= 0).all()
        # cells of fewer than three firms are missing, most of them in mining, utilities and agriculture
        assert figures.sum(axis=(0, 2)) == pytest.approx(nation[measure].to_numpy(), rel=0.006)
        assert figures.sum() == pytest.approx(nation[measure].sum(), rel=0.0002)
    for sector in DIVIDED:
        j = divided.sectors.index(sector)
        firms, people = divided.firms[:, j], divided.employment[:, j].sum(axis=1)
        assert firms.sum() == pytest.approx(real_firms(sector), rel=0.06)
        for size, mean in zip(CLASSES, people / firms, strict=True):
            assert size.least <= mean <= size.most
        assert (np.diff(people) > 0)[:3].all()
        assert 0.5 < people[-1] / people.sum() < 0.75  # most people work in firms of 500 or more


def real_firms(sector: str) -> float:
    table = pd.read_csv(TABLE, dtype={"state": str, "sector": str})
    return float(table.loc[(table["state"] == "00") & (table["sector"] == sector), "firms"].sum())


def test_generated_shares_are_the_table_s(records: pd.DataFrame) -> None:
    assert misfits(records) == []


def test_sizes_of_other_sectors_do_not_fit(records: pd.DataFrame) -> None:
    order = np.random.default_rng(1).permutation(len(records))
    drawn = {measure: records[measure].to_numpy()[order] for measure in ("employment", "payroll")}
    assert {"employment by sector", "payroll by sector", "employment by size"} <= set(
        misfits(classified(records.assign(**drawn)))
    )


def test_a_tail_that_is_cut_does_not_fit(records: pd.DataFrame) -> None:
    cut = classified(records.assign(employment=records["employment"].clip(upper=1_000)))
    assert "employment by size" in misfits(cut)
    assert gaps(cut, "size").loc["500+", "employment"] < -0.02
    assert not heavy(cut["employment"].to_numpy())


def hill(employment: Ints, top: int) -> float:
    """The Hill estimate of the Pareto index from the `top` largest values: small = heavy."""
    largest = np.sort(employment)[-top - 1 :].astype(float)
    return 1 / float(np.mean(np.log(largest[1:] / largest[0])))


def heavy(employment: Ints) -> bool:
    largest = np.sort(employment)[-len(employment) // 1000 :]
    return bool(largest[-1] > 10_000 and largest.sum() > 0.1 * employment.sum() and 1 < hill(employment, 300) < 2)


def test_employment_has_a_heavy_tail(records: pd.DataFrame) -> None:
    employment = records["employment"].to_numpy()
    assert heavy(employment)
    assert not heavy(np.minimum(employment, 5_000))
    assert employment.max() <= Figures().tail_end
    assert 0.08 < (employment == 0).mean() < 0.15
    assert np.median(employment) == 4


def test_the_tail_of_many_giants_has_its_index_and_its_end(firms: Firms) -> None:
    drawn = firms.draw(np.random.default_rng(3), 8_000_000)
    employment = drawn.employment
    assert drawn.firm.max() < FIRMS_A_NATION / 2
    giants = np.sort(employment[employment >= 2_000])
    assert 80 < (giants >= 10_000).sum() < 250
    assert giants.max() <= Figures().tail_end
    assert (giants == giants.max()).sum() < 3  # cut off, not piled up
    assert 1.3 < hill(employment, 1_000) < 1.9  # a little above the index, for the tail ends


def test_firms_have_many_establishments(records: pd.DataFrame) -> None:
    owned = records.groupby("firm_id").agg(
        establishments=("establishments", "sum"),
        people=("employment", "sum"),
        sectors=("sector", "nunique"),
        states=("state", "nunique"),
        counties=("county", "nunique"),
    )
    several = owned[owned["establishments"] > 1]
    assert 0.02 < len(several) / len(owned) < 0.05
    assert 0.2 < several["establishments"].sum() / RECORDS < 0.3
    largest = owned.loc[owned["establishments"].idxmax()]
    assert largest["establishments"] > 500
    assert largest["states"] > 30
    assert largest["counties"] > 200
    assert (several["sectors"] > 1).mean() > 0.05
    assert owned["people"].max() > 50_000


def test_small_firms_are_local_and_large_ones_are_not(records: pd.DataFrame) -> None:
    several = records[records.groupby("firm_id")["firm_id"].transform("size") > 5]
    states = several.groupby(["size", "firm_id"])["state"].nunique().groupby("size").mean()
    assert states["100-499"] < 3
    assert states["500+"] > 6


def test_payroll_follows_industry_and_size(records: pd.DataFrame) -> None:
    sums = records.groupby("sector")[["employment", "payroll"]].sum()
    real_sums = real("sector")
    for sector in ("44-45", "54", "62", "72"):
        wage = sums.loc[sector, "payroll"] / sums.loc[sector, "employment"]
        assert wage == pytest.approx(real_sums.loc[sector, "payroll"] / real_sums.loc[sector, "employment"], rel=0.2)
    by_size = records[records["sector"] == "42"].groupby("size")[["employment", "payroll"]].sum()
    wages = by_size["payroll"] / by_size["employment"]
    assert wages["500+"] > 1.2 * wages["20-99"]  # 98 and 72 thousand in the table
    unstaffed = records.loc[records["employment"] == 0, "payroll"]
    assert 5 < unstaffed.median() < 60
    assert (unstaffed > 1_000).mean() < 0.001


def test_cells_are_skewed(records: pd.DataFrame) -> None:
    for key, cells in (("county", 3143), ("naics", 925)):
        counts = records[key].value_counts()
        assert len(counts) > 0.9 * cells
        assert counts.iloc[: cells // 10].sum() / RECORDS > 0.4  # equal cells would give 0.1
    counties = records["county"].value_counts()
    assert counties.index[0] == "06037"  # Los Angeles
    assert {"17031", "48201", "04013", "36061"} <= set(counties.index[:8])


def test_a_few_records_are_an_economy_too(firms: Firms) -> None:
    for size in (0, 1, 2, 10, 100):
        for seed in range(20):
            drawn = firms.draw(np.random.default_rng(seed), size)
            assert 0 <= len(drawn) <= size
            assert (drawn.employment >= 0).all()
    lengths = [len(firms.draw(np.random.default_rng(seed), 10)) for seed in range(200)]
    assert np.mean(lengths) == pytest.approx(10 * firms.economy.chains.sum(), abs=0.1)


def test_small_economies_have_the_same_mean(firms: Firms) -> None:
    # the table's mean establishment has 15.8 employees; a row of whole firms in each would have 39
    nations = [Batches(firms, records=100, count=1, seed=seed).draw(0) for seed in range(400)]
    means = [nation.employment.mean() for nation in nations]
    assert np.mean(means) == pytest.approx(15.8, abs=2)
    medians = [np.median(nation.employment) for nation in nations]
    assert 3 <= np.median(medians) <= 5


@pytest.mark.parametrize("size", CLASSES[:5])
def test_laws_within_a_class_have_their_means(size: SizeClass) -> None:
    law = WithinClass(size)
    least, most = law.values[0], law.values[-1]
    assert law.quantiles.min() == least
    assert law.quantiles.max() == most
    wanted = least + (most - least) * np.array([0.1, 0.25, 0.4, 0.6])
    laws = law.law(wanted)
    assert law.means[laws] == pytest.approx(wanted, abs=0.02 * (most - least))
    drawn = law.draw(np.random.default_rng(5), np.full(40_000, laws[1]))
    assert drawn.mean() == pytest.approx(wanted[1], abs=0.03 * (most - least))
    assert drawn.min() >= least
    assert drawn.max() <= most


@pytest.mark.parametrize(("mean", "most"), [(3.9, 20), (24.5, 3_000), (105, 9_000)])
def test_numbers_of_establishments_have_their_mean(mean: float, most: int) -> None:
    law = Pareto(mean, most)
    chance = (np.arange(1_000_000) + 0.5) / 1_000_000
    drawn = law.at(chance)
    assert drawn.mean() == pytest.approx(mean, rel=0.001)
    assert (drawn.min(), drawn.max()) == (1, most)
    ratio = (drawn == 1).sum() / (drawn == 2).sum()
    assert ratio == pytest.approx(2 ** (1 + law.index), rel=0.01)


def test_even_numbers_and_rounding() -> None:
    rng = np.random.default_rng(4)
    spread = evenly(rng, 1_000)
    assert sorted((spread * 1_000).astype(int)) == list(range(1_000))
    assert not (np.diff(spread) > 0).all()
    sizes = rng.random(50)
    counts = np.array([rounded(rng, sizes) for _ in range(4_000)])
    assert counts.mean(axis=0) == pytest.approx(sizes, abs=0.05)
    assert np.abs(counts.cumsum(axis=1) - sizes.cumsum()).max() < 1
    assert {int(rounded(rng, sizes * 25 / sizes.sum(), 25).sum()) for _ in range(100)} == {25}


def test_a_choice_keeps_to_its_group() -> None:
    choice = Choice(
        [np.array([3, 1]), np.array([7]), np.array([2, 5, 4])], [np.array([1.0, 3]), np.ones(1), np.ones(3)]
    )
    groups = np.repeat([0, 1, 2], 30_000)
    chance = np.tile(np.concatenate([[0.0, 1 - 2**-53], np.linspace(0, 1, 29_998, endpoint=False)]), 3)
    picked = choice.pick(groups, chance)
    shares = [dict(zip(*np.unique(picked[groups == group], return_counts=True), strict=True)) for group in range(3)]
    assert [set(share) for share in shares] == [{1, 3}, {7}, {2, 4, 5}]
    assert shares[0][1] == pytest.approx(22_500, abs=5)
    assert shares[2][4] == pytest.approx(10_000, abs=5)


def test_firms_span_the_batches_of_their_nation_and_no_more(firms: Firms) -> None:
    batches = Batches(firms, records=40_000, count=20, seed=5)
    drawn = [batches.draw(batch) for batch in (19, *range(19))]  # whatever the order
    drawn = drawn[1:] + drawn[:1]
    assert np.array_equal(np.concatenate([batch.number for batch in drawn]), np.arange(1, 40_001))
    owners = [set(batch.firm[batch.firm >= CHAIN_NUMBERS_FROM]) for batch in drawn]
    nations = [set.union(*owners[start : start + BATCHES_A_NATION]) for start in (0, 8, 16)]
    assert all(nations)
    assert len(set.union(*nations)) == sum(map(len, nations))
    assert owners[0] & owners[1] & owners[7]
    for batch in drawn:
        single = batch.firm < CHAIN_NUMBERS_FROM
        assert np.array_equal(batch.firm[single], batch.number[single])
        assert 0.2 < 1 - single.mean() < 0.3
    again = batches.draw(12)
    assert np.array_equal(again.payroll, drawn[12].payroll)
    assert not np.array_equal(again.payroll, drawn[11].payroll)


@pytest.mark.parametrize(("records", "digits"), [(CHAIN_NUMBERS_FROM - 1, 9), (MOST_RECORDS, 12)])
def test_firms_of_all_nations_have_numbers(firms: Firms, records: int, digits: int) -> None:
    count = -(-records // RECORDS_A_BATCH)
    last = Batches(firms, records=records, count=count, seed=1).draw(count - 1)
    assert last.digits == digits
    assert last.number[-1] == records
    chained = last.firm[last.firm > records]
    nations = -(-count // BATCHES_A_NATION)
    assert int(f"9{0:0{digits - 1}}") <= chained.min()
    assert chained.max() < int(f"9{0:0{digits - 1}}") + nations * FIRMS_A_NATION < 10**digits
    written = ids("E", last.number[-2:], digits).to_pylist()
    assert written == [f"E{number:0{digits}}" for number in (records - 1, records)]
