"""The synthetic economy, after Statistics of U.S. Businesses 2021: sizes, industries and places of establishments."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from udfs.records.codes import roll_up

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TABLE: Final = Path(__file__).resolve().parents[3] / "conf" / "economy" / "susb_2021.csv"
MEASURES: Final = ("firms", "establishments", "employment", "payroll")
NATION: Final = "00"
HEAD_OFFICES: Final = "55"  # the sector whose establishments manage other establishments of their firm


@dataclass(frozen=True)
class SizeClass:
    """A class of firms by the employment of all their establishments together, both ends included."""

    name: str
    least: int
    most: int


QUANTILES: Final = 512  # of each law of size: a draw picks one, all equally likely
LAWS: Final = 201  # of different means, in each class
SMALLEST_FIRMS: Final = (0.22, 0.37, 0.18, 0.13, 0.10)  # shares of firms of 0 to 4 employees: mean 1.5, the table's
OPEN_END: Final = 10_000_000
CLASSES: Final = (
    SizeClass("0-4", 0, 4),
    SizeClass("5-9", 5, 9),
    SizeClass("10-19", 10, 19),
    SizeClass("20-99", 20, 99),
    SizeClass("100-499", 100, 499),
    SizeClass("500+", 500, OPEN_END),
)


@dataclass(frozen=True)
class Susb:
    """Figures by size class of the firm (first axis), sector (second) and state (third); payroll in $1,000.

    `firms` has no third axis: a firm counts once in each sector where it has establishments, whatever their states.
    All firms, establishments, employment and payroll of a class and sector are positive; those of a state may be 0.
    """

    sectors: tuple[str, ...]
    states: tuple[str, ...]
    firms: Floats
    establishments: Floats
    employment: Floats
    payroll: Floats


def susb() -> Susb:
    """Return the table with every sector divided by size class.

    Three sectors (31-33, 44-45, 48-49) come with totals alone: `divide` estimates their classes, state by state, from
    the other sectors of the same state, head offices aside. The states add up to the nation but for cells of fewer
    than three firms, which are not published: 2 establishments in 100,000.
    """
    totals, classes = _read()
    sectors = tuple(sorted({sector for _, sector in classes} | {sector for _, sector in totals}))
    states = tuple(sorted({state for state, _ in classes} - {NATION}))
    by_state = np.stack([_of_state(totals, classes, sectors, state) for state in states], axis=-1)
    nation = _of_state(totals, classes, sectors, NATION)
    firms = by_state[1].sum(axis=-1) * nation[0] / nation[1]
    return Susb(sectors, states, firms, *by_state[1:])


def divide(donors: Floats, totals: Floats) -> Floats:
    """Return an estimate of a sector's figures by size class, which add up to its `totals` of the four measures.

    `donors` are the figures of other sectors, one row a measure, one column a class. Kept from them are the employment
    of the classes' mean firm; the classes' numbers of firms are tilted by a power of that employment until firms and
    employment fit. The donors' establishments beyond one a firm, and their mean pay, are scaled by one number each.
    """
    firms, establishments, employment, payroll = donors
    size = employment / firms
    shares = firms / firms.sum()

    def tilted(power: float) -> Floats:
        weights: Floats = shares * size**power
        weights /= weights.sum()
        return weights

    # the mean firm grows with the power, from below one employee to thousands
    power = brentq(lambda power: tilted(power) @ size - totals[2] / totals[0], -5, 5)
    count = totals[0] * tilted(power)  # of firms
    beyond = count * (establishments / firms - 1)
    pay = count * size * (payroll / employment)
    beyond *= (totals[1] - totals[0]) / beyond.sum()
    return np.array([count, count + beyond, count * size, pay * totals[3] / pay.sum()])


Cells = dict[tuple[str, str], Floats]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a list in conf/."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _read() -> tuple[Cells, Cells]:
    numbers = {size.name: k for k, size in enumerate(CLASSES)}
    totals: Cells = {}
    classes: Cells = {}
    for row in read_rows(TABLE):
        cell = (row["state"], row["sector"])
        figures = np.array([float(row[measure]) for measure in MEASURES])
        if row["size"] == "total":
            totals[cell] = figures
        else:
            by_class = classes.setdefault(cell, np.zeros((len(MEASURES), len(CLASSES))))
            by_class[:, numbers[row["size"]]] = figures
    return totals, classes


def _of_state(totals: Cells, classes: Cells, sectors: tuple[str, ...], state: str) -> Floats:
    """Return measures × classes × sectors; a sector of which the state shows nothing is left at 0."""
    figures = np.zeros((len(MEASURES), len(CLASSES), len(sectors)))
    donors = np.sum([cell for (s, sector), cell in classes.items() if s == state and sector != HEAD_OFFICES], axis=0)
    for j, sector in enumerate(sectors):
        if (state, sector) in totals:
            figures[:, :, j] = divide(donors, totals[state, sector])
        elif (state, sector) in classes:
            figures[:, :, j] = classes[state, sector]
    return figures


class WithinClass:
    """Employment of a firm in a class that ends: Zipf's law n⁻², tilted exponentially to a mean.

    There are `LAWS` laws, with means from close to the least to close to the most of the class.
    """

    def __init__(self, size: SizeClass) -> None:
        self.values = np.arange(size.least, size.most + 1)
        base = np.array(SMALLEST_FIRMS) if size.least == 0 else self.values**-2.0
        height = np.linspace(0, 1, len(self.values))
        tilts = np.linspace(-30, 30, LAWS)[:, None]
        weights = base * np.exp(tilts * height - np.maximum(tilts, 0))
        laws = weights / weights.sum(axis=1, keepdims=True)
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        ends = np.cumsum(laws, axis=1)
        quantiles = [self.values[np.minimum(np.searchsorted(law, middles), len(law) - 1)] for law in ends]
        self.quantiles = np.array(quantiles, dtype=np.int64)  # law × quantile, in people
        self.means = self.quantiles.mean(axis=1)
        self.empty = (self.quantiles == 0).mean(axis=1)  # chance of nobody

    def law(self, mean: Floats) -> Ints:
        """Return the number of the law with the mean nearest to each of `mean`."""
        after = np.clip(np.searchsorted(self.means, mean), 1, LAWS - 1)
        nearer_before = mean - self.means[after - 1] < self.means[after] - mean
        laws: Ints = after - nearer_before
        return laws

    def draw(self, rng: np.random.Generator, laws: Ints) -> Ints:
        """Return the employment of one firm of each of `laws`."""
        drawn: Ints = self.quantiles.ravel()[laws * QUANTILES + rng.integers(0, QUANTILES, len(laws))]
        return drawn


class Pareto:
    """Numbers n ≥ 1 with P(n) ∝ n^−(1+index), at most `most`; the index is the one that gives `mean`."""

    def __init__(self, mean: float, most: int) -> None:
        log_n = np.log(np.arange(1, most + 1))

        def law(index: float) -> Floats:
            weights: Floats = np.exp(-(1 + index) * log_n)
            weights /= weights.sum()
            return weights

        self.index = brentq(lambda index: law(index) @ np.exp(log_n) - mean, -0.9, 20)
        self.ends = np.cumsum(law(self.index))
        self.ends[-1] = 1.0

    def at(self, chance: Floats) -> Ints:
        """Return the quantiles at `chance` in [0, 1)."""
        return np.searchsorted(self.ends, chance, side="right") + 1


POPULATION: Final = TABLE.with_name("counties_2022.csv")
LARGEST_INDUSTRIES: Final = TABLE.with_name("largest_industries.csv")
LARGEST: Final = len(CLASSES) - 1  # the class without an end


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the table leaves open: shares and chances in [0, 1], employment in people, payroll in $1,000."""

    weights_seed: int = 20220312  # fixes industries, counties and the balance of sectors, alike for every seed
    industry_spread: float = 1.2  # σ of the log-normal weights of the industries inside a sector
    industry_wages: float = 0.25  # σ of the log-normal wages of the industries inside a sector
    county_spread: float = 0.35  # σ of the log-normal factor of a sector in a county, beside the population
    most_of_population: float = 2.5  # Manhattan's establishments per inhabitant, as multiple of others'

    chain_means: tuple[float, ...] = (2.0, 2.1, 2.3, 3.0, 6.0)  # establishments of firms with several, by class
    most_establishments: int = 10_000  # of one firm in one sector, of the nation's 8.1 million …
    most_of_sector: float = 0.05  # … and as a share of the sector's establishments of firms of 500 or more
    diversified: float = 0.45  # sectors where a firm of 500 or more has establishments beside its main one
    stay_in_state: float = 0.9  # establishments of firms below 500 in the state of the firm …
    stay_in_state_largest: float = 0.5  # … and of larger firms with up to 100 establishments in a sector
    stay_in_industry: float = 0.8  # establishments of a firm in its main industry of the sector

    split_spread: float = 0.6  # σ of the log-normal shares of establishments in firms below 500
    tail_index: float = 1.5  # Pareto index of establishments' employment in firms of 500 or more …
    body_spread: float = 1.0  # … times a log-normal body of this σ …
    firm_spread: float = 0.5  # … and of this σ, common to a firm's establishments in a sector
    tail_end: float = 75_000.0  # no single site is larger: sizes beyond are mirrored at this one
    least_spread: float = 0.5  # firms of 500 or more have at least 500·(1 + this · a standard exponential)

    wage_spread: float = 0.35  # σ of the log-normal noise around the cell's wage, of mean 1
    no_staff_years: float = 0.5  # without staff in March, payroll is that of half an employee


class Choice:
    """Items of several groups, of which one of a group can be drawn with chances in proportion to its weights."""

    def __init__(self, items: Sequence[Ints], weights: Sequence[Floats]) -> None:
        self.items = np.concatenate(items)
        # one rising list for all groups: group + cumulative share
        shares = [np.cumsum(weight) / weight.sum() for weight in weights]
        self.ends = np.concatenate([group + share for group, share in enumerate(shares)])
        self.ends[np.cumsum([len(share) for share in shares]) - 1] = np.arange(1, len(shares) + 1)

    def pick(self, groups: Ints, chance: Floats) -> Ints:
        """Return an item of each of `groups`, the one at `chance` from [0, 1)."""
        # 2⁻³⁰ below the group's end, so that rounding of the sum cannot reach the next group
        index = np.searchsorted(self.ends, groups + np.minimum(chance, 1 - 2**-30), side="right")
        picked: Ints = self.items[index]
        return picked


class Economy:
    """The model of all establishments of the nation, as arrays over size class k, sector j and state s.

    A share `chained[k, j]` of establishments belongs to firms that are drawn with all of theirs (firms.py); the others
    are their own firm. Employment and payroll are such that the expected sums by k, j and s are the table's, or close
    to it where a class leaves no room.
    """

    def __init__(self, industries: Sequence[str], counties: Sequence[str], figures: Figures) -> None:
        """Six-digit NAICS codes and five-digit county codes: some of every sector and of every state."""
        self.figures = figures
        self.table: Susb = susb()
        self.head_offices = self.table.sectors.index(HEAD_OFFICES)
        rng = np.random.default_rng(figures.weights_seed)
        self._industries(rng, industries)
        self._counties(rng, counties)
        self._firms()
        self._means()
        self.states = _states(self.table)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of size classes, sectors and states."""
        k, j, s = self.table.establishments.shape
        return k, j, s

    def _industries(self, rng: np.random.Generator, industries: Sequence[str]) -> None:
        homes = np.array([self.table.sectors.index(roll_up(code, "naics2")) for code in industries])
        weights = np.exp(self.figures.industry_spread * rng.standard_normal(len(industries)))
        wages = np.exp(self.figures.industry_wages * rng.standard_normal(len(industries)))
        groups = [np.flatnonzero(homes == j) for j in range(self.shape[1])]
        index = {code: i for i, code in enumerate(industries)}
        largest = [row["code"] for row in read_rows(LARGEST_INDUSTRIES)]
        for group in groups:
            leaders = [index[code] for code in largest if index.get(code) in group]
            others = rng.permutation(np.setdiff1d(group, leaders))
            largest_first = np.sort(weights[group])[::-1]
            weights[leaders], weights[others] = np.split(largest_first, [len(leaders)])
            # the mean wage of the sector stays 1
            wages[group] /= np.average(wages[group], weights=weights[group])
        self.industries = Choice(groups, [weights[group] for group in groups])
        self.industry_wages = wages

    def _counties(self, rng: np.random.Generator, counties: Sequence[str]) -> None:
        """Groups are s · sectors + j: a sector's counties in a state."""
        people = population(self.figures)
        base = np.array([people[code] for code in counties])
        weights = base * np.exp(self.figures.county_spread * rng.standard_normal((self.shape[1], len(counties))))
        homes = np.array([self.table.states.index(code[:2]) for code in counties])
        groups = [np.flatnonzero(homes == s) for s in range(self.shape[2])]
        self.counties = Choice(
            [group for group in groups for _ in range(self.shape[1])],
            [weights[j, group] for group in groups for j in range(self.shape[1])],
        )

    def _firms(self) -> None:
        """Shares of establishments of firms drawn with all of theirs, and those firms' numbers of establishments."""
        firms, establishments = self.table.firms, self.table.establishments.sum(axis=2)
        self.chained = np.ones(self.shape[:2])
        self.chain_mean = establishments / firms
        for k, mean in enumerate(self.figures.chain_means):
            # with the mean m of firms with several establishments, E − F = (m − 1) · (number of those firms)
            several = np.minimum((establishments[k] - firms[k]) / (mean - 1), firms[k])
            beyond = establishments[k] - firms[k]
            small_head_offices = k < 3  # too few to join: they are taken for firms of their own
            for j in range(self.shape[1]):
                if j == self.head_offices:
                    self.chained[k, j] = 0.0 if small_head_offices else 1.0
                else:
                    self.chained[k, j] = (several[j] + beyond[j]) / establishments[k, j]
                    self.chain_mean[k, j] = 1 + beyond[j] / several[j]
        self.largest_lengths = [
            Pareto(mean, int(min(self.figures.most_establishments, self.figures.most_of_sector * total)))
            for mean, total in zip(self.chain_mean[LARGEST], establishments[LARGEST], strict=True)
        ]

    def _means(self) -> None:
        table = self.table
        establishments, employment = table.establishments.sum(axis=2), table.employment.sum(axis=2)
        mean = employment / establishments
        with np.errstate(invalid="ignore"):
            ratio = table.employment / table.establishments / mean[:, :, None]
            wage = table.payroll / table.employment
        self.state_ratio = np.clip(np.nan_to_num(ratio, nan=1.0), 0.3, 3.0)
        self.wage = np.nan_to_num(wage)
        firm = employment / table.firms
        self.branch_mean = firm / self.chain_mean  # of an establishment of such a firm
        self.classes = [WithinClass(size) for size in CLASSES[:LARGEST]]
        self.single_laws = np.array(
            [law.law(firm[k, :, None] * self.state_ratio[k]) for k, law in enumerate(self.classes)]
        )
        # head offices that belong to firms below 500 take their people from the firm's total
        chained = self.chained * employment
        offices = chained[:, self.head_offices]
        room = 1 + offices / (chained.sum(axis=1) - offices)
        self.chain_laws = np.array(
            [law.law(room[k] * firm[k, :, None] * self.state_ratio[k]) for k, law in enumerate(self.classes)]
        )
        # the smallest firms' payroll is shared with those that have nobody in March
        years = self.classes[0].means + self.figures.no_staff_years * self.classes[0].empty
        with np.errstate(invalid="ignore"):
            self.wage[0] = np.nan_to_num(table.payroll[0] / table.establishments[0] / years[self.single_laws[0]])

    @cached_property
    def singles(self) -> Floats:
        """Shares of all establishments that are their own firm, flat over k, j, s."""
        table = self.table.establishments
        shares: Floats = ((1 - self.chained[:, :, None]) * table / table.sum()).ravel()
        return shares

    @cached_property
    def chains(self) -> Floats:
        """Shares of all establishments that belong to firms drawn with all of theirs, by k and j."""
        table = self.table.establishments
        shares: Floats = self.chained * table.sum(axis=2) / table.sum()
        return shares

    def payroll(self, rng: np.random.Generator, cells: Ints, industry: Ints, employment: Ints) -> Ints:
        """Return payroll in whole $1,000 of establishments in flat `cells` k, j, s."""
        years = np.where(employment == 0, self.figures.no_staff_years, employment)
        wages = self.wage.ravel()[cells] * self.industry_wages[industry]
        # E exp(s·Z − s²/2) = 1, so the cell's wage stays the mean wage
        spread = self.figures.wage_spread
        noise = np.exp(spread * rng.standard_normal(len(cells)) - spread**2 / 2)
        return np.rint(years * wages * noise).astype(np.int64)


def _states(table: Susb) -> Choice:
    classes, sectors, states = table.establishments.shape
    cells = table.establishments.reshape(classes * sectors, states)
    return Choice([np.arange(states)] * len(cells), list(cells))


def population(figures: Figures) -> dict[str, float]:
    """Return the inhabitants of each county of 2022 that an establishment's county is drawn by."""
    people = {row["county"]: float(row["population"]) for row in read_rows(POPULATION)}
    people["36061"] *= figures.most_of_population  # New York County: Manhattan
    return people
