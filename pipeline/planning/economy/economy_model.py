"""The model of the synthetic economy: sizes, industries and locations of establishments, all from public figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from pipeline.planning.economy.susb import (
    CLASSES,
    HEAD_OFFICES,
    TABLE,
    Floats,
    Ints,
    Pareto,
    Susb,
    WithinClass,
    read_rows,
    susb,
)
from udfs.records.codes import roll_up

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
        """Employment of the mean firm and the mean establishment; wages."""
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
    """Return the states of establishments of groups k · sectors + j."""
    classes, sectors, states = table.establishments.shape
    cells = table.establishments.reshape(classes * sectors, states)
    return Choice([np.arange(states)] * len(cells), list(cells))


def population(figures: Figures) -> dict[str, float]:
    """Return the inhabitants of each county of 2022 that an establishment's county is drawn by."""
    people = {row["county"]: float(row["population"]) for row in read_rows(POPULATION)}
    people["36061"] *= figures.most_of_population  # New York County: Manhattan
    return people
