"""Synthetic establishments that add up to published County Business Patterns, by state and six-digit industry.

What is published for a cell holds exactly; everything inside a cell is assumed (`Assumed`), and drawn state by state,
each from the seed and the state alone.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import counted
from pipeline.planning.economy import Figures, Floats, Ints, population, read_rows
from pipeline.planning.economy.generate import CHAIN_NUMBERS_FROM, CONF, DOMAIN, Generated, codes, ids, write_parquet
from pipeline.planning.economy.published import INDUSTRIES, Allocated, Bools, Published, allocated, published
from pipeline.storage.paths import filled, require_new

PLAN: Final = CONF / "plans" / "cbp.yaml"
STREAM: Final = 3  # of the seed: other synthetic data have 0 to 2
FORMS: Final = {  # legal forms of organization, as County Business Patterns names them
    "C": "Corporations",
    "G": "Government",
    "N": "Nonprofit organizations",
    "O": "Other",
    "P": "Partnerships",
    "S": "Sole proprietorships",
    "Z": "S-corporations",
}


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What the figures leave open: shares and chances in [0, 1]; spreads are σ of a log-normal factor."""

    size_spread: float = 1.35  # of establishments' sizes within a cell
    wage_spread: float = 0.35  # of pay an employee within a cell
    no_staff_years: float = 0.5  # without staff in March, payroll is that of half an employee
    first_quarter: float = 0.24  # of the year's payroll, on average …
    quarter_spread: float = 0.05  # … with this standard deviation, never above …
    most_in_quarter: float = 0.6

    chained: tuple[float, ...] = (0.13, 0.3, 0.6)  # chance of belonging to a firm with several establishments …
    chained_from: tuple[int, ...] = (5, 20)  # … up to 4, from 5, and from 20 employees
    chain_mean: float = 6.0  # establishments of such a firm, on average …
    chain_power: float = 0.6  # … by Zipf's law: its n-th largest firm has a share ∝ n^−0.6 of the industry group's

    people_a_zip: float = 10_000.0  # inhabitants of a made-up ZIP code's area …
    zip_power: float = 1.5  # … of which a county's first have most: number k · u^1.5, u uniform
    forms: tuple[float, ...] = (0.27, 0.0, 0.02, 0.01, 0.11, 0.14, 0.45)  # shares, in the order of FORMS …
    forms_nonprofit: tuple[float, ...] = (0.12, 0.01, 0.6, 0.01, 0.05, 0.04, 0.17)  # … where many are nonprofits
    nonprofit: tuple[str, ...] = ("61", "623", "624", "712", "813")
    largest_proprietor: int = 19  # employees; larger sole proprietorships, and those of chains, are corporations


def generate_like(name: str, seed: int, out: Path, *, states: Sequence[str] = ()) -> Generated:
    """Write establishments whose sums by state and NAICS 6 are the published ones, with their domain and plan.

    A state's records are the same whichever other states are written; the same seed gives the same bytes under one
    version of NumPy and PyArrow on one kind of processor.

    Args:
        name: A key of published.FIGURES.
        seed: At least 0.
        out: The folder to write, absent or empty.
        states: Two-digit codes of the states to write; none: all.

    Raises:
        PlanError: There are no figures of this name or state, or the seed is negative.
        StateError: `out` is neither absent nor an empty folder.
        PrdpError: `out` cannot be written.
    """
    if not seed >= 0:
        raise PlanError(f"{arg('seed')}: a whole number of at least 0 is needed")
    require_new(out)
    economy = Economy(published(name), Assumed(), seed)
    known = economy.figures.states
    unknown = [state for state in states if state not in known]
    if unknown:
        raise PlanError(f"{arg('states')}: {unknown[0]} is no state of the figures; known: {', '.join(known)}")
    chosen = tuple(sorted(set(states or known)))
    records = 0
    with filled(out) as folder:
        _write_public(folder, name, chosen, economy)
        (folder / "microdata").mkdir()
        for file, state in enumerate(counted("writing files", chosen, len(chosen))):  # one a state
            table = economy.draw(known.index(state))
            path = folder / "microdata" / f"part-{file:05d}.parquet"
            write_parquet([table], path, ["naics", "county", "zip", "lfo", "employment"])
            records += table.num_rows
    return Generated.at(out, records=records, files=len(chosen), seed=seed)


class Economy:
    """All establishments of the nation, drawn one state at a time."""

    def __init__(self, figures: Published, assumed: Assumed, seed: int) -> None:
        self.figures, self.assumed, self._seed = figures, assumed, seed
        self._cells: Allocated = allocated(figures)
        self._leaves = figures.level(6)
        self.industries = figures.codes[self._leaves]
        self.counties = codes(DOMAIN["counties.csv"])
        people = population(Figures())
        self.people = np.array([people[code] for code in self.counties])
        self.zips = np.maximum(np.rint(self.people / assumed.people_a_zip), 1).astype(np.int64)  # of each county
        nonprofit = [code.startswith(assumed.nonprofit) for code in self.industries]
        shares = np.array([assumed.forms, assumed.forms_nonprofit])
        self._forms = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)[np.array(nonprofit, dtype=int)]
        self._chains()

    def _chains(self) -> None:
        """Number the firms with several establishments, industry group by industry group, and give them a form."""
        counts = self.figures.establishments[self._leaves].sum(axis=1)
        _, group = np.unique([code[:4] for code in self.industries], return_inverse=True)
        share = np.average(self.assumed.chained, weights=(0.55, 0.31, 0.14))  # roughly, by size
        firms = np.maximum(np.rint(np.bincount(group, counts) * share / self.assumed.chain_mean), 1).astype(np.int64)
        first = np.cumsum(firms) - firms
        self._firms, self._first_firm = firms[group], first[group]
        self._firm_form = self._rng(0).random(firms.sum())

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(STREAM, stream)))

    def draw(self, state: int) -> pa.Table:
        """Return the establishments of a state, in random order."""
        rng, assumed = self._rng(1 + int(self.figures.states[state])), self.assumed
        count = self.figures.establishments[self._leaves, state]
        industry = np.repeat(np.arange(len(count)), count)
        employment = shared(
            rng, self._cells.employment[self._leaves, state], count, _factor(rng, assumed.size_spread, len(industry))
        )
        years = np.maximum(employment, assumed.no_staff_years)
        wages = years * _factor(rng, assumed.wage_spread, len(industry))
        payroll = shared(rng, self._cells.payroll[self._leaves, state], count, wages)
        quarter = assumed.first_quarter + assumed.quarter_spread * rng.standard_normal(len(industry))
        first_quarter = np.rint(payroll * np.clip(quarter, 0, assumed.most_in_quarter)).astype(np.int64)
        chained = (
            rng.random(len(industry))
            < np.array(assumed.chained)[np.searchsorted(assumed.chained_from, employment, side="right")]
        )
        firm = self._firm(rng, industry)
        form = self._form(rng, industry, employment, chained, firm)
        county, area = self._place(rng, self.figures.states[state], len(industry))

        numbers = 1 + self.figures.establishments[0, :state].sum() + rng.permutation(len(industry))
        order = np.argsort(numbers)
        firms = np.where(chained, CHAIN_NUMBERS_FROM + firm, numbers)
        coded = {
            "naics": (industry, self.industries),
            "county": (county, self.counties),
            "zip": (area, [_zip(number) for number in range(self.zips.sum())]),
            "lfo": (form, list(FORMS)),
        }
        return pa.table(
            {
                "establishment_id": ids("E", numbers[order]),
                "firm_id": ids("F", firms[order]),
                **{
                    name: pa.DictionaryArray.from_arrays(pa.array(values[order], pa.int32()), pa.array(names))
                    for name, (values, names) in coded.items()
                },
                "employment": pa.array(employment[order]),
                "payroll_q1": pa.array(first_quarter[order]),
                "payroll": pa.array(payroll[order]),
            }
        )

    def _firm(self, rng: np.random.Generator, industry: Ints) -> Ints:
        firms = self._firms[industry]
        # Zipf's law with power s < 1, nearly: rank = M · u^(1 / (1 − s))
        rank = np.floor(firms * rng.random(len(industry)) ** (1 / (1 - self.assumed.chain_power)))
        return self._first_firm[industry] + np.minimum(rank.astype(np.int64), firms - 1)

    def _form(self, rng: np.random.Generator, industry: Ints, employment: Ints, chained: Bools, firm: Ints) -> Ints:
        chance = np.where(chained, self._firm_form[firm], rng.random(len(industry)))
        form = np.minimum((chance[:, None] >= self._forms[industry]).sum(axis=1), len(FORMS) - 1)
        names = list(FORMS)
        large = chained | (employment > self.assumed.largest_proprietor)
        forms: Ints = np.where((form == names.index("S")) & large, names.index("C"), form)
        return forms

    def _place(self, rng: np.random.Generator, state: str, count: int) -> tuple[Ints, Ints]:
        """Return the counties of a state's establishments, by population, and their ZIP codes."""
        homes = np.flatnonzero([code.startswith(state) for code in self.counties])
        ends = np.cumsum(self.people[homes])
        county = homes[np.searchsorted(ends, rng.random(count) * ends[-1], side="right")]
        before = np.cumsum(self.zips) - self.zips
        area = before[county] + (self.zips[county] * rng.random(count) ** self.assumed.zip_power).astype(np.int64)
        return county, area


def shared(rng: np.random.Generator, totals: Ints, counts: Ints, weights: Floats) -> Ints:
    """Return whole numbers ≥ 0 in proportion to positive `weights`, up to rounding; each cell's add up to its total.

    Cells lie one after the other, each with its number of `counts`; those of no establishment have a total of 0.
    """
    cell = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)[counts > 0]
    sums = np.cumsum(weights)
    before = np.concatenate([[0.0], sums[ends - 1]])
    position = np.repeat(np.arange(len(ends)), counts[counts > 0])
    part = (sums - before[position]) / (before[position + 1] - before[position])
    # floor(total · part + u) with one start u in [0, 1) for the cell: each within 1 of its share
    reached = np.floor(totals[cell] * part + rng.random(len(counts))[cell]).astype(np.int64)
    reached[ends - 1] = totals[counts > 0]
    reached = np.clip(reached, 0, totals[cell])
    values: Ints = np.diff(reached, prepend=0)
    values[ends[:-1]] = reached[ends[:-1]]
    return values


def _factor(rng: np.random.Generator, spread: float, count: int) -> Floats:
    factors: Floats = np.exp(spread * rng.standard_normal(count))
    return factors


def _write_public(folder: Path, name: str, states: tuple[str, ...], economy: Economy) -> None:
    """Write the plan, and the public lists of its domain: of the counties and ZIP codes, those of the states."""
    cbsa = {row["code"]: row["cbsa"] for row in read_rows(CONF / "codes" / "county_levels.csv")}
    counties = [(row["code"], row["name"], cbsa[row["code"]]) for row in read_rows(DOMAIN["counties.csv"])]
    areas = [
        (f"Made-up ZIP code {k} of {title}", county)
        for (county, title, _), zips in zip(counties, economy.zips, strict=True)
        for k in range(1, zips + 1)
    ]
    lists: dict[str, list[tuple[str, ...]]] = {
        "naics": [("code", "name"), *((row["code"], row["name"]) for path in INDUSTRIES for row in read_rows(path))],
        "counties": [("code", "name", "cbsa"), *(row for row in counties if row[0].startswith(states))],
        "forms": [("code", "name"), *FORMS.items()],
        "zips": [
            ("code", "name", "county"),
            *((_zip(n), *area) for n, area in enumerate(areas) if area[1].startswith(states)),
        ],
    }
    (folder / "domain").mkdir()
    for file, rows in lists.items():
        with (folder / "domain" / f"{file}.csv").open("w", encoding="utf-8", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows(rows)
    plan = PLAN.read_text(encoding="utf-8").replace("cbp-synthetic", f"{name}-synthetic")
    (folder / "plan.yaml").write_text(plan, encoding="utf-8")


def _zip(number: int) -> str:
    return f"{number + 1:05d}"
