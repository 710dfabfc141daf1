"""How large a release is, by public facts alone: its cells, and the sums from which they are made."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.base.errors import PlanError
from pipeline.plan.cells import Base, QueryCells
from pipeline.plan.model import Plan

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
    needed = [(of_query, query.statistic.addend) for query, of_query in zip(plan.queries, cells, strict=True)]
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
