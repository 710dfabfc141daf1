"""The resolved plan: frozen facts, every default explicit, every number exact; equal digests mean equal plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipeline import canonical
from pipeline.domain import Domain
from udfs.exact import as_json
from udfs.mechanisms.base import Mechanism


@dataclass(frozen=True)
class Measure:
    """A number of every record; its values are whole numbers of `step` (1 for integers)."""

    name: str
    column: str
    type: Literal["integer", "decimal"]
    step: Fraction


@dataclass(frozen=True)
class Dataset:
    """The microdata and who is protected in them; `path` is absolute and part of no digest."""

    name: str
    path: Path
    record: str
    duplicates: Literal["trust"]
    unit: Literal["record"]
    bad_records: Literal["refuse", "drop"]
    keys: Mapping[str, str]  # naics and county → column
    measures: tuple[Measure, ...]  # by name

    def facts(self) -> dict[str, Any]:
        """Return, as JSON, what all releases of the dataset share: unit, columns, measures, their types and steps.

        Losses add up by the name of a measure, so a name must keep its column.
        """
        measures = {m.name: {"column": m.column, "type": m.type, "step": as_json(m.step)} for m in self.measures}
        return {"unit": self.unit, "record": self.record, "keys": dict(self.keys), "measures": measures}

    def resolved(self) -> dict[str, Any]:
        """Return the dataset as JSON, without its path."""
        return self.facts() | {
            "name": self.name,
            "duplicates": self.duplicates,
            "bad_records": self.bad_records,
        }


@dataclass(frozen=True)
class Query:
    """One table: the sum of `measure` (None: the count of records) over the cells by `by` that meet `where`."""

    name: str
    measure: Measure | None
    by: tuple[str, ...]  # levels, in key order
    where: Mapping[str, tuple[str, ...]]  # level → sorted codes
    mechanism: Mechanism

    def resolved(self) -> dict[str, Any]:
        """Return the query as JSON."""
        return {
            "name": self.name,
            "sum": self.measure.name if self.measure else None,
            "count": None if self.measure else "records",
            "by": list(self.by),
            "where": {level: list(codes) for level, codes in self.where.items()},
            "mechanism": self.mechanism.describe() | {"step": as_json(self.mechanism.step)},
        }


@dataclass(frozen=True)
class Limit:
    """The loss `rho` that a record with the values `at` (measure → number, level → code) may accumulate."""

    at: Mapping[str, str | Fraction]
    rho: Fraction

    def resolved(self) -> dict[str, Any]:
        """Return the limit as JSON."""
        at = {name: as_json(value) if isinstance(value, Fraction) else value for name, value in self.at.items()}
        return {"at": at, "rho": as_json(self.rho)}


@dataclass(frozen=True)
class Plan:
    """A whole release, fixed before any record is read."""

    release: str
    supersedes: str | None
    dataset: Dataset
    domain: Domain
    interval: Fraction
    queries: tuple[Query, ...]
    budget: tuple[Limit, ...]
    path: Path

    def resolved(self) -> dict[str, Any]:
        """Return all that shapes the release, as JSON: no paths, the domain by its digest."""
        return {
            "release": self.release,
            "supersedes": self.supersedes,
            "dataset": self.dataset.resolved(),
            "domain": {"digest": self.domain.digest, "vintage": dict(self.domain.vintage)},
            "interval": as_json(self.interval),
            "queries": [query.resolved() for query in self.queries],
            "budget": [limit.resolved() for limit in self.budget],
        }

    @cached_property
    def digest(self) -> str:
        """Return "sha256:…" over the canonical text of `resolved()`."""
        return canonical.digest(self.resolved())
