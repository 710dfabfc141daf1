"""diagnostics.json: all that diagnostics found, as data. The same microdata and plan give the same bytes."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
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
from pipeline.report.page import STYLE
from pipeline.report.page import html_list as items
from pipeline.report.page import html_table as rows
from pipeline.report.plots import Axis, Points, lines

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


# report.html of diagnostics: one self-contained page, marked confidential wherever it is read or printed.


MARK = "CONFIDENTIAL"
MARKED = """<style>
.mark { position: sticky; top: 0; z-index: 1; background: #922b21; color: #fff; text-align: center; padding: .35rem;
  font: 600 15px/1.3 system-ui, "Segoe UI", Arial, sans-serif; letter-spacing: .12em; }
svg { max-width: 100%; height: auto; font: 12px system-ui, "Segoe UI", Arial, sans-serif; fill: #1c1c1c; }
.sheet { width: 100%; table-layout: fixed; font: inherit; } .sheet > tbody > tr > td { padding: 0; border: 0; }
.sheet > thead .mark { text-align: center; padding: .35rem; }
.wide th { white-space: normal; vertical-align: bottom; } .wide td:first-child { white-space: nowrap; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
@media print { .mark { position: static; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { padding: .5rem 0; } h2, h3 { break-after: avoid; } svg, tr { break-inside: avoid; }
  .wide { overflow: visible; } .wide table { font-size: 10px; } .wide th, .wide td { padding-right: .45rem; } }
</style>"""
SHOWN = ("0.1", "0.5", "0.9", "0.99", "0.9999")
WARNING = (
    "This page shows true counts, losses and errors of the microdata. It is no release: nothing here is protected, and "
    "none of it may be published.",
    "A plan that is changed because of what is seen here is outside the guarantee. The ledger records this run.",
    "Losses are upper bounds (rho, per-record zCDP). Quantiles are ends of bins, high by less than one part in 64.",
)
OBSERVED = (
    ("bias", "bias"),
    ("standard_error", "standard error"),
    ("mean_absolute_error", "mean abs. error"),
    ("mean_relative_error", "mean rel. error"),
)


def diagnostics_page(made: Mapping[str, Any]) -> str:
    """Return the page for a diagnostics document."""
    title = f"Diagnostics of {made['release']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=lead>Losses of the actual records of {escape(made['dataset'])}, and errors against the truth.</p>",
        items(WARNING),
        *_records(made["records"]),
        *_losses_section("records", made["losses"], made["size_measure"]),
        *(_firms(made["firms"], made["size_measure"]) if made["firms"] else []),
        *_accuracy(made["accuracy"]),
        f"<p class=small>Plan {escape(made['plan_digest'])}. All figures as data: diagnostics.json.</p>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{STYLE}{MARKED}'
    # A table's head is printed on top of every sheet of paper.
    sheet = f"<table class=sheet><thead><tr><th class=mark>{MARK}</th></tr></thead><tbody><tr><td><main>"
    text = "\n".join(body)
    page = f"{sheet}\n{text}\n</main></td></tr></tbody></table>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{MARK}: {escape(title)}</title></head>'
        f"<body>{page}</body></html>\n"
    )


def _records(counts: Mapping[str, int]) -> list[str]:
    named = {
        "in_domain": "in a cell of the domain",
        "outside_domain": "outside the domain: in no table",
        "dropped": "dropped, since they break the contract",
        "read": "read in all",
    }
    return [
        "<h2>Records</h2>",
        rows(("records", "count"), [(words, f"{counts[name]:,}") for name, words in named.items()], [1]),
    ]


def _losses_section(what: str, losses: Mapping[str, Any], size: str | None) -> list[str]:
    one = {"all together": losses["total"]} | dict(losses["by_query"])
    body = [
        f"<h2>Losses of {what}</h2>",
        _curves({name: found for name, found in one.items() if found["count"]}, f"share of {what}"),
        _quantiles("table", one),
        *_by_paper_section(what, losses),
    ]
    for key, words in (("by_size", f"size ({size})"), ("by_sector", "sector")):
        if losses.get(key):
            body += [
                f"<h2>Losses of {what} in all tables together, by {escape(words)}</h2>",
                _curves(losses[key], f"share of {what}"),
                _quantiles(words, losses[key]),
            ]
    return body


def _by_paper_section(what: str, losses: Mapping[str, Any]) -> list[str]:
    """Return the stated losses beside those that the paper's bound states of the same noise, where they differ."""
    other = losses["by_paper"]
    if other is None:
        return []
    pairs = {"all together": (losses["total"], other["total"])}
    pairs |= {name: (losses["by_query"][name], found) for name, found in other["by_query"].items()}
    in_turn = _in_turn({name: pair for name, pair in pairs.items() if pair[0]["count"]})
    sizes = {name: (found, other["by_size"][name]) for name, found in losses["by_size"].items()}
    return [
        f"<h2>Losses of {what}: what tight policies gain</h2>",
        "<p>The same noise by two bounds: the plan's tight policies, which bind, and the paper's, tanh(P/2)·P.</p>",
        _curves(in_turn, f"share of {what}", pairs=True),
        _quantiles("table", in_turn),
        *([_quantiles("size, all tables together", _in_turn(sizes))] if sizes else []),
    ]


def _in_turn(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    names = ("tight", "paper")
    return {
        f"{name}, {policy}": found for name, pair in pairs.items() for policy, found in zip(names, pair, strict=True)
    }


def _firms(firms: Mapping[str, Any], size: str | None) -> list[str]:
    told = f"<p>{firms['count']:,} firms have a record in the domain. In a cell a firm's records lose together.</p>"
    heading, *rest = _losses_section("firms", firms, f"{size} of the whole firm")
    return [heading, told, *rest]


def _curves(found: Mapping[str, Any], label: str, *, pairs: bool = False) -> str:
    series = {name: [(x, y) for x, y in each["curve"] if x is not None] for name, each in found.items()}
    losses = [x for points in series.values() for x, _ in points]
    return lines(
        series,
        Axis.over("loss (rho), at most", losses, logarithmic=True),
        Axis(label, 0.0, 1.0, False),
        steps=True,
        pairs=pairs,
    )


def _quantiles(what: str, found: Mapping[str, Any]) -> str:
    header = (what, "count", *(f"{float(q) * 100:g} %" for q in SHOWN), "largest")
    body = [
        (name, f"{each['count']:,}", *(_number(each["quantiles"].get(q)) for q in SHOWN), _number(each["largest"]))
        for name, each in found.items()
    ]
    return rows(header, body, range(1, len(header)))


def _accuracy(accuracy: Mapping[str, Any]) -> list[str]:
    compared = accuracy["compared_with"]
    told = (
        f"Published values of attempt {compared} beside exact totals, by the size of the true total."
        if compared
        else "No release of the plan is held against the truth: shown is what the noise makes of each true total."
    )
    body = ["<h2>Accuracy against the truth</h2>", f"<p>{escape(told)}</p>"]
    for query, classes in accuracy["queries"].items():
        body += [f"<h3>{escape(query)}</h3>", _errors(classes, bool(compared)), _error_table(classes, bool(compared))]
    return body


def _errors(classes: list[dict[str, Any]], compared: bool) -> str:
    """Return a plot of standard errors over the mean true total of each class, where that is known."""
    if not compared:
        return ""
    known = [row for row in classes if row["total"] != "all" and row["mean_total"] > 0]
    series: dict[str, Points] = {
        words: [(row["mean_total"], row[name]) for row in known if row[name]]
        for name, words in (("expected_standard_error", "expected"), ("standard_error", "found"))
    }
    errors = [y for points in series.values() for _, y in points]
    totals = Axis.over("mean true total of a class", [row["mean_total"] for row in known], logarithmic=True)
    return lines(series, totals, Axis.over("standard error", errors, logarithmic=True)) if errors else ""


def _error_table(classes: Iterable[dict[str, Any]], compared: bool) -> str:
    header = ["true total", "cells", "expected standard error"]
    if compared:
        header += [words for _, words in OBSERVED] + ["coverage", "within 1 %", "5 %", "10 %"]
    body = []
    for row in classes:
        cells = [row["total"], f"{row['cells']:,}", _number(row["expected_standard_error"])]
        if compared:
            within = row["within"].values() if row["within"] else (None, None, None)
            cells += [_number(row[name]) for name, _ in OBSERVED] + [_share(s) for s in (row["coverage"], *within)]
        body.append(cells)
    return rows(header, body, range(1, len(header)))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %"
