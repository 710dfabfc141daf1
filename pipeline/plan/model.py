"""The resolved plan: frozen facts, every default explicit, every number exact; equal digests mean equal plans."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipeline.accounting.references import Limit
from pipeline.base import canonical
from pipeline.base.canonical import FrozenMap
from pipeline.plan.domain import Domain
from pipeline.storage.location import Location
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json
from udfs.records.statistics import Statistic

VALUES = ("value", "lower", "upper", "standard_error")  # columns of a table, beside its keys
RECORD = "record"  # the unit that is a single record


def owner_of(unit: str) -> str | None:
    """Return the column of the owner that a dataset's unit names; None where the unit is the record."""
    return None if unit == RECORD else unit


@dataclass(frozen=True)
class Texts:
    """What a plan says of its release, or of a table, to readers; they are published as they stand. None: nothing.

    A release has a title, what it is about, and a contact; a table has a title, what it is about, and its unit.
    """

    title: str | None = None
    about: str | None = None
    contact: str | None = None
    unit: str | None = None

    def stated(self) -> dict[str, str]:
        """Return the texts that are there, by key."""
        return {key: text for key, text in vars(self).items() if text is not None}


@dataclass(frozen=True)
class UnitNames:
    """What public texts call a record, and an owner: one, and several; `stated` in the plan, they are in its digest."""

    record: tuple[str, str] = ("record", "records")
    owner: tuple[str, str] = ("firm", "firms")
    stated: bool = False

    @classmethod
    def of_resolved(cls, plan: Mapping[str, Any]) -> "UnitNames":
        """Return those of a resolved plan."""
        stated = plan.get("unit_names")
        return cls() if stated is None else cls(tuple(stated["record"]), tuple(stated["owner"]), stated=True)

    def counted(self, statistic: Statistic) -> str:
        """Return what a statistic that counts counts: records, or owners where its totals do not add up."""
        return (self.record if statistic.adds_up else self.owner)[1]

    def resolved(self) -> dict[str, Any]:
        """Return them as the plan's digest has them."""
        return {"unit_names": {"record": list(self.record), "owner": list(self.owner)}} if self.stated else {}


@dataclass(frozen=True)
class Measure:
    """A number of every record; its values are whole numbers of `step` (1 for integers)."""

    name: str
    column: str
    type: Literal["integer", "decimal"]
    step: Fraction


@dataclass(frozen=True)
class Dataset:
    """The microdata and who is protected in them.

    They are files at `path`, which is absolute, or a `table` of Spark's catalog; where they are is part of no digest.
    """

    name: str
    path: Location | None
    table: str | None
    record: str
    duplicates: Literal["trust", "reject", "combine"]  # what rows of one id are: records each, none, or one
    unit: str  # RECORD, or the column that names a record's owner: all records of one owner are one unit
    bad_records: Literal["refuse", "drop"]
    keys: Mapping[str, str]  # key → column
    measures: tuple[Measure, ...]  # by name
    family: str | None = None  # over whose datasets the ledger adds losses up; None: as an officer registered it

    @property
    def owner(self) -> str | None:
        """The column whose every value is one protected unit, a firm; None where that is the single record."""
        return owner_of(self.unit)

    def facts(self) -> dict[str, Any]:
        """Return, as JSON, what all releases of the dataset share: what a record is, unit, columns, measures.

        Losses add up by the name of a measure, so a name must keep its column; and they are losses of records, so what
        a record is must not change either.
        """
        measures = {m.name: {"column": m.column, "type": m.type, "step": as_json(m.step)} for m in self.measures}
        facts = {name: getattr(self, name) for name in ("unit", "record", "duplicates", "bad_records")}
        return facts | {"keys": dict(self.keys), "measures": measures}

    def resolved(self) -> dict[str, Any]:
        """Return the dataset as JSON, without its path."""
        return self.facts() | {"name": self.name} | ({} if self.family is None else {"family": self.family})


OTHERS = "others"  # the name of the part that holds the cells which no other part does


@dataclass(frozen=True)
class Part:
    """Cells of a query that share a mechanism.

    `name`: the code that they have at the query's level `split`, or OTHERS, or None where the part is all cells;
    `codes`: all their codes at that level, sorted, at least one where there is a level.
    """

    name: str | None
    codes: tuple[str, ...]
    mechanism: Mechanism


@dataclass(frozen=True)
class Query:
    """One table: a statistic of the records of each cell, over the cells by `by` that meet `where`.

    `parts` are a partition of its cells, by the codes of the level `split`, of which the cells' own level in that key
    is a refinement: each cell lies in exactly one part. Without `split` one part holds all cells.
    """

    name: str
    statistic: Statistic
    integer: bool  # whether totals are integers, not decimals
    by: tuple[str, ...]  # levels, in key order
    where: Mapping[str, tuple[str, ...]]  # level → sorted codes
    split: str | None
    parts: tuple[Part, ...]  # by name, OTHERS last
    texts: Texts = Texts()

    @property
    def addend(self) -> str:
        """The name of what is summed: one for all queries of a statistic, unless its totals do not add up."""
        return self.statistic.addend if self.statistic.adds_up else f"{self.statistic.addend} {self.name}"

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The mechanisms of the parts."""
        return tuple(part.mechanism for part in self.parts)

    @property
    def filters(self) -> tuple[Mapping[str, tuple[str, ...]], ...]:
        """For each part what its cells meet: filters of the same form as `where`, which exclude each other."""
        if self.split is None:
            return (self.where,)
        return tuple(FrozenMap.of({**self.where, self.split: part.codes}) for part in self.parts)

    def described(self) -> dict[str, Any]:
        """Return the mechanism, or the mechanism of each part, as JSON of the form that a plan has."""
        by_name = {part.name: part.mechanism.describe() for part in self.parts}
        if self.split is None:
            return by_name[None]
        others = {OTHERS: by_name.pop(OTHERS)} if OTHERS in by_name else {}
        return {"by": self.split, "parts": by_name} | others

    def resolved(self) -> dict[str, Any]:
        """Return the query as JSON."""
        return _shown(self) | {"mechanism": self.described() | {"step": as_json(self.parts[0].mechanism.step)}}


@dataclass(frozen=True)
class DerivedTable:
    """A table that is published but not measured: reconciling makes it of queries' tables of the same records.

    It has no noise of its own and costs no record anything. What it shows is said as of a query.
    """

    name: str
    statistic: Statistic
    by: tuple[str, ...]  # levels, in key order
    where: Mapping[str, tuple[str, ...]]  # level → sorted codes
    texts: Texts = Texts()

    def resolved(self) -> dict[str, Any]:
        """Return the table as JSON."""
        return _shown(self)


def _shown(table: Query | DerivedTable) -> dict[str, Any]:
    return {
        "name": table.name,
        "sum": None,
        "count": None,
        "by": list(table.by),
        "where": {level: list(codes) for level, codes in table.where.items()},
    } | (table.statistic.to_json() | table.texts.stated())


@dataclass(frozen=True)
class Plan:
    """A whole release, fixed before any record is read."""

    release: str
    supersedes: str | None
    dataset: Dataset
    domain: Domain
    interval: Fraction
    max_left_out: Fraction | None  # the share of records that may be left out; None: as the site says
    queries: tuple[Query, ...]
    budget: tuple[Limit, ...]
    path: Path
    texts: Texts = Texts()
    derived: tuple[DerivedTable, ...] = ()
    unit_names: UnitNames = UnitNames()
    together: Mapping[str, str] = FrozenMap.of({})  # by table, the name of the one of several measures that it is of

    @property
    def protected(self) -> tuple[str, str]:
        """What one protected unit is called, and several: a record, or all records of an owner."""
        return self.unit_names.record if self.dataset.owner is None else self.unit_names.owner

    @property
    def published(self) -> tuple[Query | DerivedTable, ...]:
        """All tables that are published: measured ones first."""
        return (*self.queries, *self.derived)

    def resolved(self) -> dict[str, Any]:
        """Return all that shapes the release, as JSON: no paths, the domain by its digest."""
        return {
            "release": self.release,
            "supersedes": self.supersedes,
            **self.texts.stated(),
            **self.unit_names.resolved(),
            "dataset": self.dataset.resolved(),
            "domain": {
                "digest": self.domain.digest,
                "vintage": dict(self.domain.vintage),
                "other": list(self.domain.other),
            },
            "interval": as_json(self.interval),
            **({} if self.max_left_out is None else {"max_left_out": as_json(self.max_left_out)}),
            "queries": [query.resolved() for query in self.queries],
            **({"derived": [table.resolved() for table in self.derived]} if self.derived else {}),
            "budget": [{"at": limit.at.to_json(), "rho": as_json(limit.rho)} for limit in self.budget],
        }

    @cached_property
    def digest(self) -> str:
        """Return "sha256:…" over the canonical text of `resolved()`."""
        return canonical.digest(self.resolved())


def default_out(plan: Plan) -> Path:
    """Return the folder in which the plan's release is published by default."""
    return plan.path.parent / "releases"
