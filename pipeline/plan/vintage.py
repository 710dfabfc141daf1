"""What is wrong with the vintage that a plan declares, or with its domain under that vintage; all of it is public."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.dimension import Dimension
from pipeline.domain import Domain
from pipeline.plan.messages import Mistake
from pipeline.plan.schema import VintageSpec
from pipeline.vintages import Vintage, vintage_of, vintages
from udfs.codes import LEVELS

MOST_SHOWN = 5


def vintage_mistakes(spec: VintageSpec) -> Iterator[Mistake]:
    """Yield the years that have no list, and two years that cannot be those of the same data."""
    years = {key: year for key in LEVELS if (year := getattr(spec, key, None)) is not None}
    found = {key: vintage_of(key, year) for key, year in years.items()}
    for key in years:
        if found[key] is None:
            known = ", ".join(map(str, vintages(key)))
            yield Mistake(("domain", "vintage", key), f"no list of this year; known years: {known}; or leave it out")
    naics = found.get("naics")
    if naics is not None and found.get("county") is not None and not naics.of_data(years["county"]):
        rule = f"counties of {years['county']} do not go with NAICS {years['naics']}, which is for data of"
        yield Mistake(
            ("domain", "vintage"), f"{rule} {naics.years_of_data}; give both the year of the data, or leave one out"
        )


def alien_codes(domain: Domain, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each key of the domain that has codes beyond the declared vintage; `files` names its file."""
    for dimension in (domain.naics, domain.county):
        year = domain.vintage.get(dimension.key)
        vintage = None if year is None else vintage_of(dimension.key, year)
        alien = [] if vintage is None else vintage.lacks(dimension.listed, dimension.level)
        if alien:
            shown = ", ".join(alien[:MOST_SHOWN]) + (f", … ({len(alien)} in all)" if len(alien) > MOST_SHOWN else "")
            what = f"no {dimension.key} codes of the vintage {year}: {shown}; {_advice(dimension, alien)}"
            yield f"{files[dimension.key]}: {what}"


def _advice(dimension: Dimension, alien: list[str]) -> str:
    whole, part = (_only(dimension, codes) for codes in (dimension.listed, alien))
    if whole is not None:
        return (
            f"the whole list is of {whole}: take another list, or write such a year as domain.vintage.{dimension.key}"
        )
    if part is not None:
        return f"they are of {part}, and a list must not mix vintages: mend it"
    return f"mend the list, or leave domain.vintage.{dimension.key} out"


def _only(dimension: Dimension, codes: tuple[str, ...] | list[str]) -> Vintage | None:
    """Return the vintage that has all of `codes`, if there is one."""
    return next((vintage for vintage in vintages(dimension.key) if vintage.holds(codes, dimension.level)), None)
