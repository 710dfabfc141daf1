"""report.html of diagnostics: one self-contained page, marked confidential wherever it is read or printed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.report.html import SHOWN, Table, bound, number, percent, rendered
from pipeline.report.plots import DASHES, Draw, Picture, can_draw, line_style, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK = "CONFIDENTIAL"
WARNINGS = (
    "This page shows true counts, losses and errors of the microdata. It is no release: nothing here is protected, and "
    "none of it may be published.",
    "A plan that is changed because of what is seen here is outside the guarantee. The ledger records this run.",
    "Losses are upper bounds (rho, per-record zCDP). Quantiles are ends of bins, high by less than one part in 64.",
)
NO_PLOTS = "Plots are left out: they need matplotlib (pip install 'prdp[plots]')."
COUNTS = {
    "in_domain": "in a cell of the domain",
    "outside_domain": "outside the domain: in no table",
    "dropped": "dropped, since they break the contract",
    "read": "read in all",
}
OBSERVED = {
    "bias": "bias",
    "standard_error": "standard error",
    "mean_absolute_error": "mean abs. error",
    "mean_relative_error": "mean rel. error",
}
OF_PAPER = "The same noise by two bounds: the plan's tight policies, which bind, and the paper's, tanh(P/2)·P."

Json = Mapping[str, Any]


def diagnostics_page(document: Json) -> str:
    """Return the page for a diagnostics document; without matplotlib it has tables alone, and says so."""
    size = document["size_measure"]
    sections = [*_sections("records", document["losses"], size)]
    if document["firms"]:
        first, *others = _sections("firms", document["firms"], f"{size} of the whole firm")
        count = f"{document['firms']['count']:,}"
        text = f"{count} firms have a record in the domain. In a cell a firm's records lose together."
        sections += [first | {"text": text}, *others]
    accuracy = document["accuracy"]
    attempt = accuracy["compared_with"]
    compared = "No published release is compared with the truth: the tables show what the noise makes of a true total."
    if attempt:
        compared = f"Published values of attempt {attempt} beside exact totals, by the size of the true total."
    return rendered(
        "diagnostics.html",
        mark=MARK,
        figures=True,
        title=f"Diagnostics of {document['release']}",
        dataset=document["dataset"],
        warnings=WARNINGS if can_draw() else (*WARNINGS, NO_PLOTS),
        records=Table(
            ("records", "count"), [(text, f"{document['records'][key]:,}") for key, text in COUNTS.items()], [1]
        ),
        sections=sections,
        compared=compared,
        accuracy=[
            (query, _errors_picture(query, classes) if attempt else None, _error_table(classes, bool(attempt)))
            for query, classes in accuracy["queries"].items()
        ],
        plan_digest=document["plan_digest"],
    )


def _sections(unit: str, losses: Json, size: str | None) -> Iterator[dict[str, Any]]:
    """Yield headings, texts, pictures and tables: of the queries, of tight policies, by size and by sector."""
    queries = {"all together": losses["total"]} | losses["by_query"]
    yield _section(f"Losses of {unit}", queries, unit, "table")
    paper = losses["by_paper"]
    if paper is not None:
        names = {"all together": (losses["total"], paper["total"])}
        names |= {name: (losses["by_query"][name], bound) for name, bound in paper["by_query"].items()}
        sizes = {name: (stated, paper["by_size"][name]) for name, stated in losses["by_size"].items()}
        section = _section(f"Losses of {unit}: what tight policies gain", _paired(names), unit, "table", paired=True)
        tables = [*section["tables"], *([_quantiles("size, all tables together", _paired(sizes))] if sizes else [])]
        yield section | {"text": OF_PAPER, "tables": tables}
    for key, label in (("by_size", f"size ({size})"), ("by_sector", "sector")):
        if losses.get(key):
            yield _section(f"Losses of {unit} in all tables together, by {label}", losses[key], unit, label)


def _section(heading: str, losses: Json, unit: str, label: str, *, paired: bool = False) -> dict[str, Any]:
    curves = {name: loss["curve"] for name, loss in losses.items() if loss["count"]}
    drawn = _picture(heading, lambda panels: draw_shares(panels[0], curves, unit, paired=paired))
    return {"heading": heading, "text": "", "picture": drawn, "tables": [_quantiles(label, losses)]}


def _paired(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    policies = ("tight", "paper")
    return {f"{name}, {policies[i]}": losses for name, pair in pairs.items() for i, losses in enumerate(pair)}


def draw_shares(
    axes: "Axes", curves: Mapping[str, Sequence[tuple[float | None, float]]], unit: str, *, paired: bool
) -> None:
    """Draw the share of units that lose at most so much; `paired`: every second line is the one before, in dashes."""
    for i, (name, curve) in enumerate(curves.items()):
        finite = [(loss, share) for loss, share in curve if loss is not None]
        losses, shares = zip((finite[0][0] if finite else 0.0, 0.0), *finite, strict=True)
        style = line_style(i // 2, DASHES[i % 2]) if paired else line_style(i)
        axes.step(losses, shares, where="post", label=name, **style)
    positive = [loss for curve in curves.values() for loss, _ in curve if loss] or [1.0]
    axes.set(xscale="log", xlim=(min(positive) / 2, 2 * max(positive)), ylim=(0, 1.02))
    axes.set(xlabel="loss (rho), at most", ylabel=f"share of {unit}")


def _errors_picture(query: str, classes: Iterable[Json]) -> Picture | None:
    """Return standard errors over the mean true total of each class, of those above 0; None where there are none."""
    known = [row for row in classes if row["total"] != "all" and row["mean_total"] > 0]
    series = {
        label: [(row["mean_total"], row[key]) for row in known if row[key]]
        for key, label in (("expected_standard_error", "expected"), ("standard_error", "observed"))
    }

    def draw(panels: Sequence["Axes"]) -> None:
        for i, (label, points) in enumerate(series.items()):
            panels[0].loglog(*zip(*points, strict=True), label=label, marker="o", markersize=3, **line_style(i))
        panels[0].set(xlabel="mean true total of a class", ylabel="standard error")

    series = {label: points for label, points in series.items() if points}
    return _picture(f"Standard errors of {query}", draw) if series else None


def _picture(title: str, draw: Draw) -> Picture | None:
    return picture(title, draw, size=(9.5, 4.6)) if can_draw() else None


def _quantiles(label: str, losses: Json) -> Table:
    header = (label, "count", *(f"{float(q) * 100:g} %" for q in SHOWN), "largest")
    rows = [
        (name, f"{loss['count']:,}", *(bound(loss["quantiles"].get(q)) for q in SHOWN), bound(loss["largest"]))
        for name, loss in losses.items()
    ]
    return Table(header, rows, range(1, len(header)))


def _error_table(classes: Iterable[Json], compared: bool) -> Table:
    header = ["true total", "cells", "expected standard error"]
    if compared:
        header += [*OBSERVED.values(), "coverage", "within 1 %", "5 %", "10 %"]
    rows = []
    for row in classes:
        cells = [row["total"], f"{row['cells']:,}", number(row["expected_standard_error"])]
        if compared:
            within = row["within"].values() if row["within"] else (None, None, None)
            cells += [number(row[key]) for key in OBSERVED] + [percent(s) for s in (row["coverage"], *within)]
        rows.append(cells)
    return Table(header, rows, range(1, len(header)))
