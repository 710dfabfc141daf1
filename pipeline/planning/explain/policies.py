"""Policy functions at growing sizes, in groups of records, and beside the paper's bound of the same noise."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from pipeline.accounting.references import Reference
from pipeline.base.columns import WIDTH, aligned
from pipeline.plan.model import Plan, Query
from pipeline.plan.total_policy import losses_at, policy_of
from udfs.numbers.exact import bound_text, up_float

SIZES = tuple(10**power for power in range(8))  # influences that a table shows, in the measure's unit
COUNTS = (1, 10, 100, 1_000, 10_000)  # sizes of groups of records


def loss_lines(plan: Plan) -> list[str]:
    """Return what records of the influences SIZES lose, query by query, as lines of aligned columns."""
    rows = [["rho at an influence of", *(f"{size:,}" for size in SIZES)]]
    for query in policy_of(plan).queries:
        sizes = (1,) if query.statistic.counts else SIZES  # on a count, every record has influence 1
        losses = [bound_text(query.mechanism.loss_at(Fraction(size)), 4) for size in sizes]
        rows.append([query.label, *losses, *[""] * (len(SIZES) - len(losses))])
    whole, half = aligned(rows, numbers=True), 1 + len(SIZES) // 2
    if max(map(len, whole)) <= WIDTH:
        return whole
    later = [[row[0], *row[half:]] for row in rows if any(row[half:])]
    return aligned([row[:half] for row in rows], numbers=True) + aligned(later, numbers=True)


def group_losses(query: Query) -> list[dict[str, Any]]:
    """Return as JSON what one record loses at most in groups of COUNTS records, of parts with group-wise losses.

    Larger groups lose less (docs/noise.md). At public counts only: the count of an actual cell is confidential, and
    so is the group-wise loss that it implies.
    """
    return [
        ({} if part.name is None else {"part": part.name}) | {"count": count, "rho": up_float(loss)}
        for part in query.parts
        for count in COUNTS
        if (loss := part.mechanism.group_loss_at(Fraction(count))) is not None
    ]


def paper_losses(plan: Plan, references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Return rho by the paper's policy at each reference, of each query and in total; nothing where no policy is tight.

    The noise is the same: only the bound that states its loss is another.
    """
    if not tight_queries(plan):
        return []
    paper = replace(plan, queries=tuple(_with_paper_policy(query) for query in plan.queries))
    policy = policy_of(paper)
    return [
        {
            "at": at.to_json(),
            "queries": {query.name: up_float(loss.rho) for query, (_, loss) in zip(plan.queries, each, strict=True)},
            "rho": up_float(total.rho),
        }
        for at in references
        for each, total in [losses_at(paper, policy, at)]
    ]


def tight_queries(plan: Plan) -> list[str]:
    """Return the names of the queries with a tight policy."""
    return [query.name for query in plan.queries if any(part.mechanism.tight for part in query.parts)]


def _with_paper_policy(query: Query) -> Query:
    parts = (replace(part, mechanism=part.mechanism.by_paper()) for part in query.parts)
    return replace(query, parts=tuple(parts))
