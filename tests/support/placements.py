"""Every placement of a firm's records into the cells that their codes allow, and what it loses, by codes alone."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from pipeline.accounting.placements import one_cell, tight
from pipeline.accounting.references import Reference
from pipeline.plan.model import Plan
from tests.support.firms import CELLS
from udfs.records.codes import roll_up


def true_losses(plan: Plan, placed: Sequence[tuple[tuple[str, str], Fraction]]) -> list[Fraction]:
    """Return what records in these cells of these sizes lose in each query, by codes alone: no masks, no places.

    In a cell that is the policy at their summed influence. A policy that is a table may state somewhat more there than
    the group bound makes of the records' losses: then it is the latter.
    """
    losses = []
    for query in plan.queries:
        cells: dict[tuple[str, ...], tuple[Any, list[Fraction]]] = {}
        for (naics, county), size in placed:

            def code(level: str, naics: str = naics, county: str = county) -> str:
                return roll_up(naics if level.startswith("naics") else county, level)

            if any(code(level) not in codes for level, codes in query.where.items()):
                continue
            part = next(part for part in query.parts if query.split is None or code(query.split) in part.codes)
            key = tuple(code(level) for level in query.by)
            influences = cells.setdefault(key, (part.mechanism, []))[1]
            influences.append(query.statistic.influence({"employment": size}))
        of_cells = (one_cell(mechanism.loss_at, tight, influences) for mechanism, influences in cells.values())
        losses.append(sum(of_cells, Fraction(0)))
    return losses


def placements(
    at: Reference, domain: Sequence[tuple[str, str]] = CELLS
) -> Iterator[list[tuple[tuple[str, str], Fraction]]]:
    allowed = []
    for record in at.records:
        codes = record.keys.items()
        allowed.append(
            [c for c in domain if all(roll_up(c[not level.startswith("naics")], level) == x for level, x in codes)]
        )
    sizes = [record.values["employment"] for record in at.records]
    for cells in product(*allowed):
        yield list(zip(cells, sizes, strict=True))
