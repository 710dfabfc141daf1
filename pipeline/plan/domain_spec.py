"""The part of a plan that names its public domain → the domain."""

from collections.abc import Iterator
from pathlib import Path

from pipeline.dimension import Dimension
from pipeline.domain import Domain
from pipeline.domain_files import read_cells, read_list
from pipeline.errors import PlanError
from pipeline.frozenmap import FrozenMap
from pipeline.plan.messages import Mistake, missing
from pipeline.plan.schema import DomainSpec


def domain_mistakes(spec: DomainSpec) -> Iterator[Mistake]:
    """Yield what is wrong with the choice of files, of a spec whose every value has the right shape or is absent."""
    if not is_readable(spec):
        return
    for key, file in (("naics", spec.naics), ("county", spec.county)):
        if file is not None and spec.cells is not None:
            yield Mistake(("domain", key), "must be left out beside cells")
        elif file is None and spec.cells is None:
            yield missing(("domain", key), " (give naics and county, or cells)")
    if spec.other and spec.cells is not None:
        yield Mistake(("domain", "other"), "must be left out beside cells; only lists of codes have other cells")
    for i, key in enumerate(spec.other):
        if key in spec.other[:i]:
            yield Mistake(("domain", "other", i), "this key stands twice")


def is_readable(spec: DomainSpec) -> bool:
    """Return whether all that decides the public cells has the right shape."""
    return all(hasattr(spec, key) for key in ("naics", "county", "cells", "other"))


def read_domain(spec: DomainSpec, folder: Path) -> Domain:
    """Return the domain that a spec without mistakes names; raises PlanError, one line for each file that is wrong."""
    years = dict(spec.vintage) if hasattr(spec, "vintage") else {}
    vintage = FrozenMap.of({key: year for key, year in years.items() if year is not None})
    if spec.cells is not None:
        return read_cells(folder / spec.cells, vintage)
    dimensions: list[Dimension] = []
    wrong: list[str] = []
    for key, file in (("naics", spec.naics), ("county", spec.county)):
        try:
            dimensions.append(read_list(folder / str(file), key))
        except PlanError as error:
            wrong.append(str(error))
    if wrong:
        raise PlanError("\n".join(wrong))
    naics, county = (each.with_other(declared=each.key in spec.other) for each in dimensions)
    return Domain(naics, county, None, vintage)


def files_of(spec: DomainSpec, folder: Path) -> dict[str, Path]:
    """Return the file of each key's codes, of a spec without mistakes."""
    return {key: folder / str(spec.cells or file) for key, file in (("naics", spec.naics), ("county", spec.county))}
