"""What a release's tables are made of, for everyone: structure.json, written from the plan and read back without it.

All of it is public and fixed by the plan: measures, keys with all their codes and levels, and each table's statistic
and levels. So whoever holds the files of a release knows which cells are parts of which, and which tables leave records
out that have no listed code in a key.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, isfinite, sqrt
from typing import Any

from pipeline.base.errors import PlanError
from pipeline.base.plain import plain_json
from pipeline.plan.domain import Domain, rank
from pipeline.plan.domain.cells import Base, QueryCells
from pipeline.plan.model import Plan, Query
from pipeline.storage.staging import STRUCTURE
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, exact, up_text
from udfs.records.statistics import Statistic, statistic_of


@dataclass(frozen=True, eq=False)
class TableFacts:
    """What one table shows: a statistic of the records of each cell by the levels `by`, of cells that meet `where`.

    Its parts have mechanisms of their own, told apart by their codes at the level `split`: by name their codes, one
    part without a name where there is no such level.
    """

    name: str
    statistic: Statistic
    by: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]]
    split: str | None
    parts: Mapping[str | None, tuple[str, ...]]

    @classmethod
    def derived(
        cls, name: str, statistic: Statistic, by: tuple[str, ...], where: Mapping[str, tuple[str, ...]]
    ) -> "TableFacts":
        """Return what a table shows that has no noise of its own: one part."""
        return cls(name, statistic, by, where, None, {None: ()})

    def to_json(self) -> dict[str, Any]:
        """Return what it shows as JSON, without its parts."""
        shown = {"name": self.name, "statistic": self.statistic.to_json()}
        return shown | {"by": self.by, "where": dict(self.where)}

    def keys(self, domain: Domain) -> frozenset[str]:
        """Return the keys in whose lists a record must have a code to be in the table: those used, of everyone's none.

        Where a domain's tables use all keys it is the same for each of them.
        """
        used = domain.levels.values() if domain.uses_all_keys else (domain.levels[x] for x in (*self.by, *self.where))
        dimensions = (domain.dimensions[number] for number in used)
        return frozenset(each.key for each in dimensions if not each.everyone)

    def cells(self, domain: Domain) -> QueryCells:
        """Return its public cells."""
        return domain.query_cells(self.by, self.where)

    def shows_what(self, other: "TableFacts") -> bool:
        """Whether another table shows the same figures, be its keys in another order."""
        return (self.statistic, {*self.by}, dict(self.where)) == (other.statistic, {*other.by}, dict(other.where))


@dataclass(frozen=True, eq=False)
class Structure:
    """The public facts of a release: its dataset, measures (by name: column, type, step), domain and tables.

    `derived`: tables that it publishes but does not measure: `prdp reconcile` makes them.
    """

    dataset: str
    measures: Mapping[str, Mapping[str, Any]]
    domain: Domain
    interval: Fraction
    tables: Mapping[str, TableFacts]
    derived: Mapping[str, TableFacts] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> "Structure":
        """Return the structure of a plan's release."""
        return cls(
            plan.dataset.name,
            plan.dataset.facts()["measures"],
            plan.domain,
            plan.interval,
            {
                query.name: TableFacts(
                    query.name,
                    query.statistic,
                    query.by,
                    query.where,
                    query.split,
                    {part.name: part.codes for part in query.parts},
                )
                for query in plan.queries
            },
            {each.name: TableFacts.derived(each.name, each.statistic, each.by, each.where) for each in plan.derived},
        )

    @classmethod
    def from_json(cls, text: str | bytes, file: str = STRUCTURE) -> "Structure":
        """Return what `to_json` wrote; PlanError names `file` where it is something else."""
        try:
            read = plain_json(text)
            steps = {name: exact(measure["step"]) for name, measure in read["measures"].items()}
            domain = Domain.from_json(read["domain"], steps)
            tables = {each["name"]: _table(each) for each in read["tables"]}
            derived = {each["name"]: _table(each) for each in read.get("derived", ())}
            structure = cls(str(read["dataset"]), read["measures"], domain, exact(read["interval"]), tables, derived)
            for table in (*tables.values(), *derived.values()):
                table.cells(domain)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, PlanError):
            raise PlanError(f"{file}: is no structure of a release as prdp writes it") from None
        return structure

    def to_json(self) -> str:
        """Return the text of structure.json."""
        facts = {
            "dataset": self.dataset,
            "measures": dict(self.measures),
            "interval": as_json(self.interval),
            "domain": self.domain.to_json(),
            "tables": [
                each.to_json()
                | {"split": each.split, "parts": [{"part": part, "codes": codes} for part, codes in each.parts.items()]}
                for each in self.tables.values()
            ],
        } | ({"derived": [each.to_json() for each in self.derived.values()]} if self.derived else {})
        return json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n"


def _table(facts: Mapping[str, Any]) -> TableFacts:
    where = {level: tuple(codes) for level, codes in facts["where"].items()}
    shown = str(facts["name"]), statistic_of(facts["statistic"]), tuple(facts["by"]), where
    if "parts" not in facts:
        return TableFacts.derived(*shown)
    return TableFacts(*shown, facts["split"], {each["part"]: tuple(each["codes"]) for each in facts["parts"]})


def closing(domain: Domain, keys: Collection[str]) -> str:
    """Return what makes tables that use these keys leave nobody out, in words; each of them leaves somebody out."""
    open_lists = sorted(key for key in keys if not domain.keys[key].has_other)
    optional = sorted(key for key in keys if domain.keys[key].optional)
    others = ", ".join(sorted({*domain.other, *open_lists}, key=rank))
    texts = [f"add other: [{others}] to the plan's domain"] if open_lists else []
    texts += [f"a record without a code of {key}, which is optional, is in no cell, nor in `other`" for key in optional]
    return "; ".join(texts)


# Tables that a plan derives: each must be made of unions of a measured table's cells.


def unweighted(mechanisms: Iterable[Mechanism]) -> str | None:
    """Return why a table of these mechanisms can carry no weight in estimates, in words; None where it can."""
    for mechanism in mechanisms:
        if mechanism.estimator == "median":
            return "its estimates are median-unbiased: weighted means of them are biased"
        if mechanism.variance(0.0) == inf:
            return "its noise has no variance"
    return None


# How large a release is, by public facts alone: its cells, and the sums from which they are made.

MOST_CELLS = 500_000_000  # that a release keeps, where the site does not say how many
BYTES = 8  # of a sum or total


@dataclass(frozen=True)
class Size:
    """The numbers that a release keeps: `cells` of all tables, and the `sums` of which these are roll-ups."""

    tables: int
    cells: int
    sums: int

    @property
    def kept(self) -> int:
        """How many numbers are kept at most at one time, by the engine that keeps them in memory."""
        return self.cells + self.sums

    @property
    def gibibytes(self) -> float:
        """The memory that they take."""
        return self.kept * BYTES / 2**30

    def to_json(self) -> dict[str, float]:
        """Return the size as JSON."""
        return {"tables": self.tables, "cells": self.cells, "sums": self.sums, "gibibytes": round(self.gibibytes, 3)}


def cells_and_bases(plan: Plan) -> tuple[Sequence[QueryCells], tuple[Base, ...]]:
    """Return the cells of each query, and the bases by which records are summed."""
    cells = [plan.domain.query_cells(query.by, query.where) for query in plan.queries]
    needed = [(of_query, query.addend) for query, of_query in zip(plan.queries, cells, strict=True)]
    return cells, plan.domain.bases_for(needed)


def size_of(plan: Plan) -> Size:
    """Return the size of a plan's release; memory is that of its lists."""
    cells, bases = cells_and_bases(plan)
    return Size(len(cells), sum(each.size for each in cells), sum(each.size * len(each.addends) for each in bases))


def require_size(plan: Plan, most: int) -> None:
    """Return if a release keeps no more than `most` numbers; raises PlanError, which names the largest table."""
    size = size_of(plan)
    if size.kept > most:
        largest = max(plan.queries, key=lambda query: plan.domain.query_cells(query.by, query.where).size)
        cells = plan.domain.query_cells(largest.by, largest.where).size
        raise PlanError(
            f"release {plan.release}: its {size.cells:,} cells and {size.sums:,} sums are more than the {most:,} that "
            f"this site allows: the largest table, {largest.name} by {' × '.join(largest.by)}, has {cells:,} cells; "
            "use coarser levels or a filter, or have max_cells raised"
        )


# The accuracy of a plan's tables: the errors of the lattice noise that is drawn, and warnings where they mislead.

TOTALS = (0.0, 100.0, 10_000.0, 1_000_000.0)  # at which errors that grow with the total are shown
RARE = 1e-9  # values may be held at the ends of their range this often without a warning
NOTICED = 0.01  # share of the variance that may be lost there without a warning


def accuracy(query: Query, interval: Fraction) -> list[dict[str, Any]]:
    """Return, for each part of the query and each of some true totals, the errors of a released value as JSON.

    Additive noise is stated at total 0 alone: its errors are the same at all. null stands for an infinite one.
    """
    return [
        ({} if part.name is None else {"part": part.name}) | errors_at(part.mechanism, total, interval)
        for part in query.parts
        for total in (TOTALS[:1] if part.mechanism.additive else TOTALS)
    ]


def warnings(query: Query) -> list[str]:
    """Return a line for each mechanism of the query whose stated errors are not those of the released values."""
    names = {part.name: query.name if part.name is None else f"{query.name} ({part.name})" for part in query.parts}
    return [f"query {names[part.name]}: {text}" for part in query.parts for text in _warnings(part.mechanism)]


def infinite_error(mechanism: Mechanism) -> str | None:
    """Return a warning where values have no standard error by their noise's scale alone: with less noise they have."""
    if mechanism.additive or isfinite(mechanism.variance(0.0)):
        return None
    return (
        "the standard error of its values is infinite: judge them by the interval or the mean error, or choose less "
        "noise (a larger loss), or noise: gaussian"
    )


def _warnings(mechanism: Mechanism) -> Iterator[str]:
    infinite = infinite_error(mechanism)
    if infinite is not None:
        yield infinite
    if mechanism.saturation > RARE:
        yield (
            f"a value is held at ±(2⁶³ − 1) steps of its noise with probability {up_text(mechanism.saturation, 2)}, "
            "which changes its mean and its errors; choose lighter tails"
        )
    if mechanism.too_narrow:
        yield (
            "sigma is so small that rounding shows beside the noise: errors are larger than stated, though intervals "
            "and losses count it"
        )
    lost = mechanism.log_weights.moments.variance_beyond
    if lost > NOTICED and isfinite(mechanism.variance(0.0)):
        yield (
            f"{lost:.0%} of the variance lies beyond ±(2⁶³ − 1) steps of the noise, where values are held: the "
            "standard error is that of the noise before"
        )


def errors_at(mechanism: Mechanism, total: float, interval: Fraction) -> dict[str, Any]:
    """Return the errors of a released value at a true total as JSON; null stands for an infinite one."""
    lower, upper = mechanism.interval_around(total, interval)
    return {
        "total": total,
        "standard_error": _finite(sqrt(mechanism.variance(total))),
        "mean_absolute_error": _finite(mechanism.mean_absolute_error(total)),
        "lower": lower,
        "upper": upper,
    }


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
