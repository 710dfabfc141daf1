"""The synthetic economy: what an establishment looks like; every figure is public, none is from microdata."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from udfs.codes import roll_up

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHAIN_NUMBERS_FROM: Final = 900_000_000
"""Firms below this number own the establishment of that number alone; from here on they are chains."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of the model: shares and chances in [0, 1], employment in people, payroll in $1,000."""

    weights_seed: int = 20220312  # fixes the sizes of industries and counties, alike for every seed
    industry_spread: float = 1.2  # σ of the log-normal weights of the industries inside a sector
    county_spread: float = 1.75  # σ of the counties' weights: the mean is about 4.6 times the median

    no_staff: float = 0.04  # establishments with payroll in the year, but nobody in the week of 12 March
    body_median: float = 5.0  # log-normal body of employment …
    body_spread: float = 1.35  # … whose largest of a million is about 3,000
    tail_chance: float = 0.004  # establishments drawn from the Pareto tail instead of the body
    tail_from: float = 200.0  # smallest employment in the tail
    tail_index: float = 1.5  # Pareto index: one establishment in 90,000 passes 10,000 employees
    tail_end: float = 75_000.0  # the tail is cut off (not piled up) here: no single site is larger

    wage_spread: float = 0.35  # σ of the log-normal noise around the sector's wage, of mean 1
    no_staff_years: float = 0.5  # without staff in March, payroll is that of half an employee

    chain_share: float = 0.2  # establishments that belong to chains; all others are their own firm
    chain_mean: float = 6.0  # mean establishments of a chain
    chain_skew: float = 2.5  # 1 = all chains alike; at 2.5 the largest of 8 million records owns about 10,000


@dataclass(frozen=True)
class Sector:
    """A NAICS sector: its share of establishments (in any unit) and its mean yearly wage in $1,000."""

    code: str
    share: float
    wage: float


# Round figures of the order of those that County Business Patterns publishes for the nation.
SECTORS: Final = (
    Sector("11", 23, 50),
    Sector("21", 25, 105),
    Sector("22", 19, 115),
    Sector("23", 760, 70),
    Sector("31-33", 285, 65),
    Sector("42", 400, 82),
    Sector("44-45", 1040, 34),
    Sector("48-49", 260, 56),
    Sector("51", 160, 115),
    Sector("52", 480, 105),
    Sector("53", 420, 62),
    Sector("54", 920, 97),
    Sector("55", 55, 120),
    Sector("56", 420, 46),
    Sector("61", 105, 45),
    Sector("62", 910, 55),
    Sector("71", 145, 42),
    Sector("72", 740, 23),
    Sector("81", 750, 37),
)


@dataclass(frozen=True)
class Establishments:
    """A batch of n records, each column of length n; `number` and `firm` are the digits of the ids."""

    number: Ints
    firm: Ints
    industry: Ints  # positions in the list of industries
    county: Ints  # positions in the list of counties
    employment: Ints  # people, ≥ 0
    payroll: Ints  # thousands of dollars, ≥ 0


@dataclass(frozen=True)
class Economy:
    """Draws establishments; the same numbers from the same generator state, whatever else runs."""

    industries: Floats  # cumulative shares by industry, the last is 1
    counties: Floats  # cumulative shares by county, the last is 1
    wages: Floats  # by industry, thousands of dollars a year
    figures: Figures

    def draw(self, rng: np.random.Generator, numbers: Ints, chains: int) -> Establishments:
        """Return one establishment for each of `numbers`, in random cell order, over `chains` ≥ 1 chains.

        The numbers, from 1 to below `CHAIN_NUMBERS_FROM`, become the ids; nothing else depends on them.
        """
        size = len(numbers)
        industry = np.searchsorted(self.industries, rng.random(size), side="right")
        county = np.searchsorted(self.counties, rng.random(size), side="right")
        employment = _employment(rng, size, self.figures)
        return Establishments(
            number=numbers,
            firm=_firms(rng, numbers, chains, self.figures),
            industry=industry,
            county=county,
            employment=employment,
            payroll=_payroll(rng, employment, self.wages[industry], self.figures),
        )


def economy(industries: Sequence[str], counties: Sequence[str], figures: Figures) -> Economy:
    """Return the economy over these six-digit NAICS codes, of `SECTORS` only, and five-digit county codes."""
    rng = np.random.default_rng(figures.weights_seed)
    sectors = {sector.code: sector for sector in SECTORS}
    homes = [sectors[roll_up(code, "naics2")] for code in industries]
    weights = np.exp(figures.industry_spread * rng.standard_normal(len(industries)))
    in_sector = dict.fromkeys(sectors, 0.0)
    for home, weight in zip(homes, weights, strict=True):
        in_sector[home.code] += weight
    shares = [home.share * weight / in_sector[home.code] for home, weight in zip(homes, weights, strict=True)]
    return Economy(
        industries=_cumulative(np.array(shares)),
        counties=_cumulative(np.exp(figures.county_spread * rng.standard_normal(len(counties)))),
        wages=np.array([home.wage for home in homes]),
        figures=figures,
    )


def _cumulative(weights: Floats) -> Floats:
    sums: Floats = np.cumsum(weights)
    shares: Floats = sums / sums[-1]  # ends at 1 exactly, so no draw falls beyond
    return shares


def _employment(rng: np.random.Generator, size: int, figures: Figures) -> Ints:
    kind = rng.random(size)
    body = figures.body_median * np.exp(figures.body_spread * rng.standard_normal(size))
    employment = np.maximum(np.rint(body), 1).astype(np.int64)
    tail = np.flatnonzero(kind < figures.tail_chance)
    # Pareto by inversion, u uniform on (kept, 1]:  x = from · u^(−1/index),  kept = (from/end)^index
    kept = (figures.tail_from / figures.tail_end) ** figures.tail_index
    u = 1 - (1 - kept) * rng.random(len(tail))
    employment[tail] = np.rint(figures.tail_from * u ** (-1 / figures.tail_index)).astype(np.int64)
    employment[kind >= 1 - figures.no_staff] = 0
    return employment


def _payroll(rng: np.random.Generator, employment: Ints, wage: Floats, figures: Figures) -> Ints:
    years = np.where(employment == 0, figures.no_staff_years, employment)
    # E exp(s·Z − s²/2) = 1, so the sector's wage stays the mean wage
    spread = figures.wage_spread
    noise = np.exp(spread * rng.standard_normal(len(employment)) - spread**2 / 2)
    return np.rint(years * wage * noise).astype(np.int64)


def _firms(rng: np.random.Generator, numbers: Ints, chains: int, figures: Figures) -> Ints:
    in_chain = rng.random(len(numbers)) < figures.chain_share
    # chain ⌊chains · u^skew⌋: skew > 1 crowds establishments into the chains of low number
    chain = (chains * rng.random(len(numbers)) ** figures.chain_skew).astype(np.int64)
    return np.where(in_chain, CHAIN_NUMBERS_FROM + chain, numbers)
