"""Every placement of a firm's records into the cells that their codes allow, and what it loses, by codes alone."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from pipeline.accounting.references import Reference
from pipeline.plan.model import Plan
from tests.support.firms import CELLS
from udfs.records.codes import roll_up


def true_losses(plan: Plan, placed: Sequence[tuple[tuple[str, str], Fraction]]) -> list[Fraction]:
    """Return what records in these cells of these sizes lose in each query, by codes alone: no masks, no places."""
    losses = []
    for query in plan.queries:
        cells: dict[tuple[str, ...], tuple[Any, Fraction]] = {}
        for (naics, county), size in placed:

            def code(level: str, naics: str = naics, county: str = county) -> str:
                return roll_up(naics if level.startswith("naics") else county, level)

            if any(code(level) not in codes for level, codes in query.where.items()):
                continue
            part = next(part for part in query.parts if query.split is None or code(query.split) in part.codes)
            key = tuple(code(level) for level in query.by)
            before = cells.get(key, (None, Fraction(0)))[1]
            cells[key] = (part.mechanism, before + query.statistic.influence({"employment": size}))
        losses.append(sum((mechanism.loss_at(sum_) for mechanism, sum_ in cells.values()), Fraction(0)))
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
