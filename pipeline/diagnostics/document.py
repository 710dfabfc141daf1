"""diagnostics.json: all that diagnostics found, as data. The same microdata and plan give the same bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.diagnostics.accuracy import Sums
from pipeline.diagnostics.accuracy import described as accuracy_of
from pipeline.diagnostics.losses import (
    PAPER_QUERY,
    PAPER_SIZE,
    PAPER_TOTAL,
    QUERY,
    SECTOR,
    SIZE,
    TOTAL,
    Counts,
    LossSpec,
    described,
    size_labels,
)
from pipeline.diagnostics.records import FirmSummary, RecordSummary
from pipeline.plan.model import Plan

NOTICE = (
    "Confidential: true counts, losses and errors of the microdata. A plan that is tuned on them is outside the "
    "guarantee."
)

Distributions = Mapping[tuple[str, int], Counts]


def document(
    plan: Plan,
    spec: LossSpec,
    records: RecordSummary,
    firms: FirmSummary | None,
    accuracy: tuple[str | None, Sequence[Sequence[Sums]]],
) -> dict[str, Any]:
    """Return the document; `accuracy`: the attempt held against the truth, and the sums of each query's files."""
    compared, of_queries = accuracy
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
        "losses": _losses(spec, records.counts) | {"by_sector": _of_family(records.counts, SECTOR, spec.sectors)},
        "firms": None if firms is None else {"count": firms.firms} | _losses(spec, firms.counts),
        "accuracy": {
            "compared_with": compared,
            "queries": {q.name: accuracy_of(files) for q, files in zip(plan.queries, of_queries, strict=True)},
        },
    }


def _losses(spec: LossSpec, counts: Distributions) -> dict[str, Any]:
    return {
        "total": described(counts.get((TOTAL, 0))),
        "by_query": {q.name: described(counts.get((QUERY, i))) for i, q in enumerate(spec.queries)},
        "by_size": _of_family(counts, SIZE, size_labels()),
        "by_paper": _by_paper(spec, counts) if spec.by_paper else None,
    }


def _by_paper(spec: LossSpec, counts: Distributions) -> dict[str, Any]:
    """Return what the paper's bound says of the same noise and records: in all, by size, and of each tight query."""
    return {
        "total": described(counts.get((PAPER_TOTAL, 0))),
        "by_query": {spec.queries[i].name: described(counts.get((PAPER_QUERY, i))) for i in spec.by_paper},
        "by_size": _of_family(counts, PAPER_SIZE, size_labels()),
    }


def _of_family(counts: Distributions, family: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the distributions of a family by name, of the groups that have any losses."""
    return {name: described(counts[family, i]) for i, name in enumerate(names) if (family, i) in counts}
