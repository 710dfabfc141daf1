"""What a release's tables are made of, for everyone: structure.json, written from the plan and read back without it.

All of it is public and fixed by the plan: measures, keys with all their codes and levels, and each table's statistic
and levels. So whoever holds the files of a release knows which cells are parts of which, and which tables leave records
out that have no listed code in a key.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipeline.base.errors import PlanError
from pipeline.base.plain import plain_json
from pipeline.plan.cells import QueryCells
from pipeline.plan.domain import Domain
from pipeline.plan.model import Plan, Query
from pipeline.storage.staging import STRUCTURE
from udfs.numbers.exact import as_json, exact
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


@dataclass(frozen=True, eq=False)
class Structure:
    """The public facts of a release: its dataset, measures (by name: column, type, step), domain and tables."""

    dataset: str
    measures: Mapping[str, Mapping[str, Any]]
    domain: Domain
    interval: Fraction
    tables: Mapping[str, TableFacts]

    @classmethod
    def of(cls, plan: Plan) -> "Structure":
        """Return the structure of a plan's release."""
        return cls(
            plan.dataset.name,
            plan.dataset.facts()["measures"],
            plan.domain,
            plan.interval,
            {query.name: _facts(query) for query in plan.queries},
        )

    @classmethod
    def from_json(cls, text: str | bytes, file: str = STRUCTURE) -> "Structure":
        """Return what `to_json` wrote; PlanError names `file` where it is something else."""
        try:
            read = plain_json(text)
            steps = {name: exact(measure["step"]) for name, measure in read["measures"].items()}
            domain = Domain.from_json(read["domain"], steps)
            tables = {each["name"]: _table(each) for each in read["tables"]}
            structure = cls(str(read["dataset"]), read["measures"], domain, exact(read["interval"]), tables)
            for table in tables.values():
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
                {
                    "name": each.name,
                    "statistic": each.statistic.to_json(),
                    "by": each.by,
                    "where": dict(each.where),
                    "split": each.split,
                    "parts": [{"part": part, "codes": codes} for part, codes in each.parts.items()],
                }
                for each in self.tables.values()
            ],
        }
        return json.dumps(facts, ensure_ascii=False, allow_nan=False) + "\n"


def _facts(query: Query) -> TableFacts:
    parts = {part.name: part.codes for part in query.parts}
    return TableFacts(query.name, query.statistic, query.by, query.where, query.split, parts)


def _table(facts: Mapping[str, Any]) -> TableFacts:
    where = {level: tuple(codes) for level, codes in facts["where"].items()}
    parts = {each["part"]: tuple(each["codes"]) for each in facts["parts"]}
    return TableFacts(
        str(facts["name"]), statistic_of(facts["statistic"]), tuple(facts["by"]), where, facts["split"], parts
    )
