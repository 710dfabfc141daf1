"""diagnostics.json: all results of diagnostics, as data. The same microdata and plan give the same bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.diagnostics.accuracy import BY_TOTAL, AccuracyTask, Added, accuracy_json
from pipeline.diagnostics.distributions import (
    NO_LOSSES,
    PAPER_QUERY,
    PAPER_SIZE,
    PAPER_TOTAL,
    QUERY,
    SECTOR,
    SIZE,
    TOTAL,
    Counts,
    Key,
)
from pipeline.diagnostics.losses import LossSpec, size_labels
from pipeline.diagnostics.records import FirmSummary, RecordSummary
from pipeline.plan.model import Plan

NOTICE = (
    "Confidential: true counts, losses and errors of the microdata. A plan that is tuned on them is outside the "
    "guarantee."
)

Distributions = Mapping[Key, Counts]


def document(
    plan: Plan,
    spec: LossSpec,
    records: RecordSummary,
    firms: FirmSummary | None,
    accuracy: tuple[str | None, Sequence[tuple[AccuracyTask, Sequence[Mapping[str, Added]]]]],
) -> dict[str, Any]:
    """Return the document; `accuracy`: the attempt compared with the truth, and of each query task and results."""
    attempt, results = accuracy
    of_queries = [accuracy_json(task, files) for task, files in results]
    groups = ({name: rows for name, rows in each.items() if name != BY_TOTAL} for each in of_queries)
    inside = records.counts.get((TOTAL, 0))
    return {
        "notice": NOTICE,
        "release": plan.release,
        "dataset": plan.dataset.name,
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "size_measure": spec.size.name if spec.size else None,
        "records": {
            "read": records.records,
            "dropped": records.dropped,
            "outside_domain": records.outside,
            "in_domain": int(inside.counts.sum()) if inside else 0,
        },
        "losses": _losses(spec, records.counts) | {"by_sector": _family(records.counts, SECTOR, spec.sectors)},
        "firms": None if firms is None else {"count": firms.firms} | _losses(spec, firms.counts),
        "accuracy": {
            "compared_with": attempt,
            "queries": {q.name: each[BY_TOTAL] for q, each in zip(plan.queries, of_queries, strict=True)},
            "groups": {q.name: each for q, each in zip(plan.queries, groups, strict=True)},
        },
    }


def _losses(spec: LossSpec, counts: Distributions) -> dict[str, Any]:
    """Return losses in all, by query and by size, and where a policy is tight the paper's bound of the same noise."""
    paper = {
        "total": _json(counts, PAPER_TOTAL),
        "by_query": {spec.queries[i].name: _json(counts, PAPER_QUERY, i) for i in spec.paper_queries},
        "by_size": _family(counts, PAPER_SIZE, size_labels()),
    }
    return {
        "total": _json(counts, TOTAL),
        "by_query": {query.name: _json(counts, QUERY, i) for i, query in enumerate(spec.queries)},
        "by_size": _family(counts, SIZE, size_labels()),
        "by_paper": paper if spec.paper_queries else None,
    }


def _json(counts: Distributions, family: str, number: int = 0) -> dict[str, Any]:
    return counts[family, number].to_json() if (family, number) in counts else dict(NO_LOSSES)


def _family(counts: Distributions, family: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the distributions of a family by name, of the groups that have any losses."""
    return {name: _json(counts, family, i) for i, name in enumerate(names) if (family, i) in counts}
