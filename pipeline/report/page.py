"""The look of the public page: plain, readable, printable, with nothing loaded from elsewhere."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.plan.model import Part, Plan, Query
from pipeline.report.policy_document import public_policy
from pipeline.storage.location import Place, opened, parquet_files
from pipeline.tables.files import VALUES
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.groupwise import GroupwiseLog
from udfs.numbers.exact import up_text

STYLE = """<style>
body { font: 16px/1.55 Georgia, "Times New Roman", serif; color: #1c1c1c; background: #fff; margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem; }
.lead { font-size: 1.1rem; color: #444; margin-top: 0; }
.small { font-size: .85rem; color: #555; overflow-wrap: anywhere; }
.formula { font-family: "Cambria Math", "STIX Two Math", Georgia, serif; background: #f5f5f2; padding: .6rem .8rem; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font: 14px/1.45 system-ui, "Segoe UI", Arial, sans-serif; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; vertical-align: top; border-bottom: 1px solid #e4e4e0; }
th { font-weight: 600; border-bottom: 1px solid #999; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
li { margin: .25rem 0; }
</style>"""


# Parts of a page: tables and lists, with every text escaped.


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table as HTML; the columns `numbers` are set to the right."""
    right = set(numbers)

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in right else ''}>{escape(str(cell))}</{tag}>" for i, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{line('th', header)}</tr></thead><tbody>{body}</tbody></table></div>"


def html_list(texts: Iterable[str]) -> str:
    """Return a list as HTML."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in texts) + "</ul>"


# report.html: one self-contained page that tells readers what the tables are, how noisy, and what is promised.


LARGEST_SHOWN = 10

HOW_TO_READ = (
    ("value", "the published figure: the true total of the cell plus random noise, so single cells can be well off"),
    ("lower, upper", "an interval that holds the true total with at least the stated probability, cell by cell"),
    ("standard_error", "the typical size of the error; of log, root, groupwise kinds it is estimated from the figure"),
)
ODDITIES = (
    "Every public cell has a row, also those without any establishment: a figure in an empty cell is noise alone.",
    "Figures can be negative, and need not be whole numbers. They are left so: cutting or rounding them would bias "
    "every sum made from them.",
    "The largest figures of a table have, on average, noise that raised them.",
    "Figures of different tables do not add up to each other: each table has noise of its own.",
    "For a sum of n cells, standard errors add as the root of the sum of their squares.",
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
    "<p>A record's privacy loss is a public function of its own size: P(Δ), Δ being its influence. λ is the step "
    "of the noise's lattice (policy.json). Upper bounds of the loss (rho) for records of some sizes; a smaller "
    "record loses less, a larger one more:</p>"
)
OF_FIRMS = (
    "<p>A firm's privacy loss is a public function of its own records: in each cell P(Δ), Δ being what they add to it "
    "together, and these add up over cells and tables. λ is the step of the noise's lattice (policy.json). Upper "
    "bounds of the loss (rho) for firms of some records; a firm with fewer or smaller records loses less, any other "
    "more:</p>"
)


def report_page(plan: Plan, staged: Place) -> str:
    """Return the page for the plan's released tables, which lie in `staged`/tables; reads nothing confidential."""
    policy = public_policy(plan)
    body = [
        f"<h1>{escape(plan.release)}</h1>",
        f"<p class=lead>Totals of establishment microdata ({escape(plan.dataset.name)}), released under "
        f"{_protection(plan.dataset.owner)}.</p>",
        "<h2>Tables</h2>",
        _overview(plan),
        "<h2>How to read them</h2>",
        html_table(("column", "meaning"), HOW_TO_READ),
        f"<p>The intervals have coverage {float(plan.interval):.4g}.</p>",
        html_list(oddities(plan)),
        f"<h2>What each {'record' if plan.dataset.owner is None else 'firm'} is promised</h2>",
        _promises(policy, plan.dataset.owner),
        *(_largest(query, staged / "tables" / query.name) for query in plan.queries),
        "<h2>The guarantee</h2>",
        f"<p>{escape(policy['guarantee']['words'])}</p><p class=formula>{escape(policy['guarantee']['formula'])}</p>",
        "<p>It rests on:</p>" + html_list(policy["guarantee"]["assumptions"]),
        f"<p class=small>Plan {escape(plan.digest)}. Mechanisms and policy functions as data: policy.json.</p>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{STYLE}'
    title = f"<title>{escape(plan.release)}</title>"
    page = f'<html lang="en"><head>{head}{title}</head><body><main>\n{_joined(body)}\n</main></body></html>'
    return f"<!doctype html>\n{page}\n"


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(parts)


def oddities(plan: Plan) -> list[str]:
    """Return what readers should know of the plan's tables, by what its mechanisms are like."""
    mechanisms = [mechanism for query in plan.queries for mechanism in query.mechanisms]
    estimators = {mechanism.describe().get("estimator") for mechanism in mechanisms}
    told = {
        OF_MEANS: "mean" in estimators or any(mechanism.kind == GroupwiseLog.kind for mechanism in mechanisms),
        OF_MEDIANS: "median" in estimators,
        OF_INFINITE: not all(isfinite(mechanism.variance(0.0)) for mechanism in mechanisms),
        OF_OTHER: bool(plan.domain.other),
    }
    return [*ODDITIES, *(text for text, holds in told.items() if holds)]


def _overview(plan: Plan) -> str:
    rows = [
        (
            query.name,
            query.statistic.label,
            " × ".join(query.by) + _where(query),
            f"{plan.domain.query_cells(query.by, query.where).size:,}",
            "; ".join(_part(query, part) + _mechanism(part.mechanism) for part in query.parts),
        )
        for query in plan.queries
    ]
    return html_table(("table", "statistic", "by", "cells", "mechanism"), rows, numbers=[3])


def _where(query: Query) -> str:
    return "".join(f", {level} in {', '.join(codes)}" for level, codes in query.where.items())


def _part(query: Query, part: Part) -> str:
    return "" if query.split is None else f"{query.split} {part.name}: "


def _mechanism(mechanism: Mechanism) -> str:
    described = mechanism.describe()
    return f"{described['kind']} ({', '.join(f'{k} {v}' for k, v in described.items() if k != 'kind')})"


def _protection(owner: str | None) -> str:
    if owner is None:
        return "per-record differential privacy"
    return f"differential privacy of whole firms: a firm is all records with one value of {escape(owner)}"


def _at(at: dict[str, Any] | list[dict[str, Any]]) -> str:
    records = at if isinstance(at, list) else [at]
    return "; ".join(", ".join(f"{name} {value}" for name, value in record.items()) for record in records)


def _promises(policy: dict[str, Any], owner: str | None) -> str:
    references = policy["references"]
    header = ["table", *(_at(r["at"]) for r in references)]
    rows = [
        (query["name"], *(_shown(r["queries"][query["name"]]["rho"]) for r in references))
        for query in policy["queries"]
    ]
    rows.append(("together", *(_shown(r["total"]["rho"]) for r in references)))
    formulas = [
        (" ".join(filter(None, (query["name"], part.get("part")))), part["influence"], part["policy"]["rho"])
        for query in policy["queries"]
        for part in query.get("parts", [query])
    ]
    shown = html_table(header, rows, numbers=range(1, len(header)))
    return ((OF_RECORDS if owner is None else OF_FIRMS) + shown if references else "") + html_table(
        ("table", "Δ", "P(Δ)"), formulas
    )


def _shown(rho: float) -> str:
    return up_text(Fraction(rho), 4)


def _largest(query: Query, folder: Place) -> str:
    """Return the cells with the largest published values, as a table."""
    tops = []
    for part in parquet_files(folder):
        with opened(part) as raw, pq.ParquetFile(raw) as file:
            for batch in file.iter_batches():
                table = pa.Table.from_batches([batch])
                tops.append(table.take(pc.select_k_unstable(table, LARGEST_SHOWN, [("value", "descending")])))
    if not tops:
        return ""
    every = pa.concat_tables(tops)
    order = [("value", "descending"), *((key, "ascending") for key in query.by)]
    largest = every.sort_by(order).slice(0, LARGEST_SHOWN).to_pylist()
    columns = (*query.by, *VALUES)
    rows = [[row[key] for key in query.by] + [_figure(row[name]) for name in VALUES] for row in largest]
    heading = f"<h2>{escape(query.name)}: the largest published figures</h2>"
    return heading + html_table(columns, rows, numbers=range(len(query.by), len(columns)))


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if abs(value) < 1e15 else f"{value:.3g}"
