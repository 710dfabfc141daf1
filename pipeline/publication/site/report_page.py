"""report.html of a release: one self-contained page on what the tables are, how noisy, and what is promised.

It reads the plan and published files alone, so nothing confidential can enter it.
"""

from math import isfinite
from typing import Any

from pipeline.accounting.left_out import NAME, LeftOutTest
from pipeline.base.columns import mechanism_text
from pipeline.base.html import Table, rendered
from pipeline.engines.writers import PARQUET
from pipeline.plan.model import VALUES, Plan, Query
from pipeline.publication.policy_document import composition, public_policy
from pipeline.storage.location import Location
from udfs.numbers.exact import bound_text

LARGEST_SHOWN = 10

COLUMNS = (
    ("value", "the published figure: the true total of the cell plus random noise, so single cells can be well off"),
    ("lower, upper", "an interval that holds the true total with at least the stated probability, cell by cell"),
    ("standard_error", "the typical size of the error; of log, root, groupwise kinds it is estimated from the figure"),
)
NOT_ADDING = (
    "Figures of different tables do not add up to each other: each table has noise of its own. The command prdp "
    "reconcile estimates all of them together, so that they do."
)
SUMS = "For a sum of n cells, standard errors add as the root of the sum of their squares."
ODDITIES = (
    "Every public cell has a row, also those without any establishment: a figure in an empty cell is noise alone.",
    "Figures can be negative, and need not be whole numbers. They are left so: cutting or rounding them would bias "
    "every sum made from them.",
    "The largest figures of a table have, on average, noise that raised them.",
    NOT_ADDING,
    SUMS,
)
OF_MEANS = (
    "A figure of a log or root mechanism with estimator mean, or of groupwise_log, is unbiased, while its interval is "
    "centred on the median: small figures can lie outside their own interval."
)
OF_MEDIANS = (
    "A figure with estimator median is as often too high as too low, and not right on average: sums made from such "
    "figures are biased."
)
OF_INFINITE = (
    "A standard error of inf is no mistake: the noise of that table has tails too heavy for one. Its intervals hold."
)
OF_OTHER = (
    "The code other stands for all codes that the plan's lists do not name: its establishments are in no row of their "
    "own sector or state, only in the nation's and in tables without that key."
)

OF_RECORDS = (
    "A record's privacy loss is a public function of its own size: P(Δ), Δ being its influence. λ is the step of the "
    "noise's lattice (policy.json). Upper bounds of the loss (rho) for records of some sizes"
)
SMALLER_RECORDS = "; a smaller record loses no more, a larger one may:"
OF_FIRMS = (
    "A firm's privacy loss is a public function of its own records: in each cell P(Δ), Δ being what they add to it "
    "together, and these add up over cells and tables. λ is the step of the noise's lattice (policy.json). Upper "
    "bounds of the loss (rho) for firms of some records"
)
SMALLER_FIRMS = "; a firm with fewer or smaller records loses no more, any other may:"
NO_LARGER = "all no larger, together"


def report_page(plan: Plan, staged: Location, test: LeftOutTest) -> str:
    """Return the page for the plan's released tables, which lie in `staged`/tables; reads nothing confidential."""
    policy, owner = public_policy(plan, test), plan.dataset.owner
    protection = "per-record differential privacy"
    if owner is not None:
        protection = f"differential privacy of whole firms: a firm is all records with one value of {owner}"
    largest = ((query.name, _largest(query, staged / "tables")) for query in plan.queries)
    return rendered(
        "release.html",
        title=plan.release,
        dataset=plan.dataset.name,
        protection=protection,
        tables=_tables(plan),
        columns=Table(("column", "meaning"), COLUMNS),
        coverage=f"{float(plan.interval):.4g}",
        oddities=oddities(plan),
        unit="record" if owner is None else "firm",
        of_losses=_of_losses(policy, owner),
        losses=_losses(policy),
        policies=_policies(policy),
        composition=composition(plan),
        largest=[(query, table) for query, table in largest if table is not None],
        guarantee=policy["guarantee"],
        plan_digest=plan.digest,
    )


def oddities(plan: Plan) -> list[str]:
    """Return what readers should know of the plan's tables, by what its mechanisms are like."""
    mechanisms = [mechanism for query in plan.queries for mechanism in query.mechanisms]
    estimators = {mechanism.estimator for mechanism in mechanisms}
    texts = {
        OF_MEANS: "mean" in estimators,
        OF_MEDIANS: "median" in estimators,
        OF_INFINITE: not all(isfinite(mechanism.variance(0.0)) for mechanism in mechanisms),
        OF_OTHER: bool(plan.domain.other),
    }
    return [*ODDITIES, *(text for text, holds in texts.items() if holds)]


def _tables(plan: Plan) -> Table:
    rows = [
        (
            query.name,
            query.statistic.label,
            " × ".join(query.by) + "".join(f", {level} in {', '.join(codes)}" for level, codes in query.where.items()),
            f"{plan.domain.query_cells(query.by, query.where).size:,}",
            "; ".join(mechanisms_of(query)),
        )
        for query in plan.queries
    ]
    return Table(("table", "statistic", "by", "cells", "mechanism"), rows, numbers=[3])


def mechanisms_of(query: Query) -> list[str]:
    """Return the mechanism of each part of a query in words."""
    names = ("" if part.name is None else f"{query.split} {part.name}: " for part in query.parts)
    return [name + mechanism_text(part.mechanism.describe()) for name, part in zip(names, query.parts, strict=True)]


def _losses(policy: dict[str, Any]) -> Table | None:
    """Return the losses of each query, and of all together, at the references; None without references."""
    references = policy["references"]
    names = [query["name"] for query in policy["queries"]]
    rows = [(name, *(_loss(reference["queries"][name]) for reference in references)) for name in names]
    rows.append((NAME, *(_loss(reference["left_out_test"]) for reference in references)))
    rows.append(("together", *(_loss(reference["total"]) for reference in references)))
    if "of_classes" in policy["sum"]:
        rows.append((NO_LARGER, *(_loss(each.get("no_larger", each["total"])) for each in references)))
    header = ["table", *(_reference(reference["at"]) for reference in references)]
    return Table(header, rows, range(1, len(header))) if references else None


def _of_losses(policy: dict[str, Any], owner: str | None) -> str:
    """Return what the losses are; where classes of a measure decide, smaller records may lose more."""
    text, smaller = (OF_RECORDS, SMALLER_RECORDS) if owner is None else (OF_FIRMS, SMALLER_FIRMS)
    if "of_classes" in policy["sum"]:
        smaller = f". {policy['sum']['of_classes'].replace('`no_larger`', f'“{NO_LARGER}”')}"
    return text + smaller


def _reference(at: dict[str, Any] | list[dict[str, Any]]) -> str:
    records = at if isinstance(at, list) else [at]
    return "; ".join(", ".join(f"{name} {value}" for name, value in record.items()) for record in records)


def _loss(loss: dict[str, Any]) -> str:
    return bound_text(loss["rho"], 4)


def _policies(policy: dict[str, Any]) -> Table:
    rows = [
        (" ".join(filter(None, (query["name"], part.get("part")))), part["influence"], part["policy"]["rho"])
        for query in policy["queries"]
        for part in query.get("parts", [query])
    ]
    test = policy["left_out_test"]
    return Table(("table", "Δ", "P(Δ)"), [*rows, (NAME, test["influence"], test["policy"]["rho"])])


def _largest(query: Query, tables: Location) -> Table | None:
    """Return the cells with the largest published values; None where no file is there."""
    found = PARQUET.largest(tables, query.name, LARGEST_SHOWN)
    if found is None:
        return None
    cells = found.to_pylist()
    rows = [[cell[key] for key in query.by] + [_figure(cell[name]) for name in VALUES] for cell in cells]
    columns = (*query.by, *VALUES)
    return Table(columns, rows, range(len(query.by), len(columns)))


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) < 1e15 else f"{value:.3g}"
