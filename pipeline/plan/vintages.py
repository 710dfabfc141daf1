"""Vintages: which public codes are in effect in a year, by the lists in conf/codes and by nothing else.

A plan may declare the years of its code lists; its domain must then hold codes of those years alone. All of it is
public.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from itertools import groupby
from pathlib import Path
from zipfile import Path as Zipped

from pipeline.plan.domain import Domain
from pipeline.plan.keys import Dimension
from pipeline.plan.messages import Mistake
from pipeline.plan.plan_schema import VintageSpec
from udfs.records.codes import LEVELS, roll_up

HOME = Path(__file__).resolve().parents[2]  # the checkout, the installation, or the file that jobs.pack made
CONF: Traversable = Zipped(HOME, "conf/") if HOME.is_file() else HOME / "conf"
LISTS = CONF.joinpath("codes")
TABLE = "vintages.csv"  # key, first, last, published, file: a vintage's codes are those of all its files
MOST_SHOWN = 5  # codes that a message names


@dataclass(frozen=True)
class Vintage:
    """The codes of one key, "naics" or "county", in the years `first` to `last` (None: until a later list is added).

    `published`: the last year whose data were still published by these codes, which can be later than `last`.
    """

    key: str
    first: int
    last: int | None
    published: int | None
    files: tuple[str, ...]

    def __contains__(self, year: int) -> bool:
        return self.first <= year and (self.last is None or year <= self.last)

    def of_data(self, year: int) -> bool:
        """Return whether data of a year may be published by these codes."""
        return self.first <= year and (self.published is None or year <= self.published)

    @property
    def years_of_data(self) -> str:
        """The years whose data may be published by these codes, in words."""
        return _span(self.first, self.published)

    def __str__(self) -> str:
        return _span(self.first, self.last)

    def holds(self, code: str, level: str) -> bool:
        """Return whether a code is one at `level` in this vintage."""
        return code in _codes(self, level)

    def lacks(self, codes: Iterable[str], level: str) -> list[str]:
        """Return those of `codes` that are no code at `level` in this vintage, in their order."""
        valid = _codes(self, level)
        return [code for code in codes if code not in valid]


@cache
def vintages(key: str) -> tuple[Vintage, ...]:
    """Return the known vintages of a key, oldest first."""
    rows = [row for row in _rows(TABLE) if row["key"] == key]
    spans = groupby(rows, lambda row: (int(row["first"]), _year(row["last"]), _year(row["published"])))
    return tuple(Vintage(key, *span, tuple(row["file"] for row in rows)) for span, rows in spans)


def vintage_of(key: str, year: int) -> Vintage | None:
    """Return the vintage of a key in a year; None where conf/codes has no list of that year."""
    return next((vintage for vintage in vintages(key) if year in vintage), None)


@cache
def _codes(vintage: Vintage, level: str) -> frozenset[str]:
    return frozenset(roll_up(row["code"], level) for file in vintage.files for row in _rows(file))


def _span(first: int, last: int | None) -> str:
    return f"{first} and later" if last is None else f"{first} to {last}"


def _year(text: str) -> int | None:
    return int(text) if text else None


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(LISTS.joinpath(file).read_text(encoding="utf-8").splitlines()))


def vintage_mistakes(spec: VintageSpec) -> Iterator[Mistake]:
    """Yield the years that have no list, and two years that cannot be those of the same data."""
    years = {key: year for key in LEVELS if (year := getattr(spec, key)) is not None}
    declared = {key: vintage_of(key, year) for key, year in years.items()}
    for key, vintage in declared.items():
        if vintage is None:
            known = ", ".join(map(str, vintages(key)))
            yield Mistake(("domain", "vintage", key), f"no list of this year; known years: {known}; or leave it out")
    naics = declared.get("naics")
    if naics is not None and declared.get("county") is not None and not naics.of_data(years["county"]):
        rule = f"counties of {years['county']} do not go with NAICS {years['naics']}, which is for data of"
        yield Mistake(
            ("domain", "vintage"), f"{rule} {naics.years_of_data}; give both the year of the data, or leave one out"
        )


def foreign_codes(domain: Domain, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each key of the domain that has codes beyond the declared vintage; `files` names its file."""
    for dimension in domain.dimensions:
        year = domain.vintage.get(dimension.key)
        vintage = None if year is None else vintage_of(dimension.key, year)
        foreign = [] if vintage is None else vintage.lacks(dimension.listed, dimension.level)
        if foreign:
            shown = ", ".join(foreign[:MOST_SHOWN]) + (
                f", … ({len(foreign)} in all)" if len(foreign) > MOST_SHOWN else ""
            )
            what = f"no {dimension.key} codes of the vintage {year}: {shown}; {_advice(dimension, foreign)}"
            yield f"{files[dimension.key]}: {what}"


def _advice(dimension: Dimension, foreign: list[str]) -> str:
    latest_first = vintages(dimension.key)[::-1]
    for_all, for_some = (
        next((vintage for vintage in latest_first if not vintage.lacks(codes, dimension.level)), None)
        for codes in (dimension.listed, foreign)
    )
    if for_all is not None:
        year = f"write such a year as domain.vintage.{dimension.key}"
        return f"the whole list is of {for_all}: take another list, or {year}"
    if for_some is not None:
        return f"they are of {for_some}, and a list must not mix vintages: correct it"
    return f"correct the list, or leave domain.vintage.{dimension.key} out"
