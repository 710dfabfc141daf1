"""report.html of diagnostics: one self-contained page, marked confidential wherever it is read or printed."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.base.plain import SHOWN, Table, bound, number, percent, rendered
from pipeline.base.plots import DASHES, Draw, Picture, can_draw, line_style, picture
from pipeline.plan.model import UnitNames

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK = "CONFIDENTIAL"
WARNINGS = (
    "This page shows true counts, losses and errors of the microdata. It is no release: nothing here is protected, and "
    "none of it may be published.",
    "A plan that is changed because of what is seen here is outside the guarantee. The ledger records this run.",
    "Losses are upper bounds (rho, per-record zCDP). Quantiles and medians are ends of bins, high by less than one "
    "part in 64.",
)
NO_PLOTS = "Plots are left out: they need matplotlib (pip install 'prdp[plots]')."
COUNTS = {
    "in_domain": "in a cell of the domain",
    "outside_domain": "outside the domain: in no table",
    "dropped": "dropped, since they break the contract",
    "read": "read in all",
}
ACCURACY = "Accuracy against the truth"
OBSERVED = {
    "bias": "bias",
    "standard_error": "standard error",
    "mean_absolute_error": "mean abs. error",
    "mean_relative_error": "mean rel. error",
    "median_relative_error": "median rel. error",
}
LABELS = {"total": "true total", "naics2": "industry (naics2)"}  # of groups of cells; others: classes of a measure
LEDGER = "What all releases of this dataset have spent, and what officers decided: prdp ledger page."
OF_PAPER = "The same noise by two bounds: the plan's tight policies, which bind, and the paper's, tanh(P/2)·P."

CLOSE = (1.02, 0.01)  # curves that differ by less lie on each other in a picture
SPOKEN = 3  # lines that a picture's alternative text tells

Json = Mapping[str, Any]
Curve = Sequence[tuple[float | None, float]]


def diagnostics_page(document: Json) -> str:
    """Return the page for a diagnostics document; without matplotlib it has tables alone, and says so."""
    size, names = document["size_measure"], UnitNames.of_resolved(document)
    (record, records), (owner, owners) = names.record, names.owner
    sections = [*_sections(records, document["losses"], size)]
    if document["firms"]:
        first, *others = _sections(owners, document["firms"], f"{size} of the whole {owner}")
        count = f"{document['firms']['count']:,}"
        text = f"{count} {owners} have a {record} in the domain. In a cell its {records} lose together. {first['text']}"
        sections += [first | {"text": text.strip()}, *others]
    accuracy = document["accuracy"]
    attempt = accuracy["compared_with"]
    compared = "No published release is compared with the truth: the tables show what the noise makes of a true total."
    if attempt:
        compared = f"Published values of attempt {attempt} beside exact totals, by the size of the true total."
    queries = [
        _of_query(query, classes, accuracy["groups"][query], bool(attempt))
        for query, classes in accuracy["queries"].items()
    ]
    numbered = [each | {"id": f"losses-{i}"} for i, each in enumerate(sections)]
    return rendered(
        "diagnostics.html",
        mark=MARK,
        figures=True,
        title=f"Diagnostics of {document['release']}",
        dataset=document["dataset"],
        of=records,
        warnings=[*(WARNINGS if can_draw() else (*WARNINGS, NO_PLOTS)), LEDGER],
        headings=[
            ("records", records.capitalize()),
            *((each["id"], each["heading"]) for each in numbered),
            ("accuracy", ACCURACY),
            *((f"query-{each['query']}", each["query"]) for each in queries),
        ],
        records=Table(
            (records, "count"), [(text, f"{document['records'][key]:,}") for key, text in COUNTS.items()], [1]
        ),
        sections=numbered,
        compared=compared,
        overview=_error_table(
            [(query, rows[-1]) for query, rows in accuracy["queries"].items()], bool(attempt), "table"
        ),
        accuracy=queries,
        plan_digest=document["plan_digest"],
    )


def _of_query(
    query: str, classes: Sequence[Json], groups: Mapping[str, Sequence[Json]], compared: bool
) -> dict[str, Any]:
    """Return the errors of a query's table: a picture where there is a line to see, and tables by group of cells."""
    drawn, alt = _errors_picture(query, classes) if compared else (None, "")
    tables = [
        _error_table([(row[name], row) for row in rows], compared, LABELS.get(name, name))
        for name, rows in ({"total": classes} | dict(groups)).items()
    ]
    return {"query": query, "picture": drawn, "alt": alt, "tables": tables}


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
    groups = [[name] for name in curves] if paired else lying_together(curves)
    drawn, alt, same = None, "", ""
    if len(groups) > 1 or any(len(curve) > 1 for curve in curves.values()):  # otherwise all lose the same
        names = (group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} more" for group in groups)
        shown = {name: curves[group[0]] for name, group in zip(names, groups, strict=True)}
        drawn = _picture(heading, lambda panels: draw_shares(panels[0], shown, unit, paired=paired))
        spoken = ((name, losses[name]) for name in list(curves)[:SPOKEN])
        lines = (
            f"{name}: half at most {bound(loss['quantiles']['0.5'])}, all at most {bound(loss['largest'])}"
            for name, loss in spoken
        )
        alt = f"{heading}: the share of {unit} that lose at most so much. {'; '.join(lines)}."
        together = [" = ".join(group) for group in groups if len(group) > 1]
        same = f"Drawn as one line, since they lie on each other: {'; '.join(together)}." if together else ""
    return {"heading": heading, "text": same, "picture": drawn, "alt": alt, "tables": [_quantiles(label, losses)]}


def lying_together(curves: Mapping[str, Curve]) -> list[list[str]]:
    """Return the names of curves in groups that no reader can tell apart in a picture, in order.

    Each lies on the first of its group: within CLOSE[0] of a loss, as a factor, and CLOSE[1] of a share, everywhere.
    """
    groups: list[list[str]] = []
    for name, curve in curves.items():
        like = (group for group in groups if _below(curve, curves[group[0]]) and _below(curves[group[0]], curve))
        if (group := next(like, None)) is None:
            groups.append(group := [])
        group.append(name)
    return groups


def _below(one: Curve, other: Curve) -> bool:
    """Return whether at every loss of `one` the other's share is as high, up to CLOSE."""
    losses, shares = ([math.inf if loss is None else loss for loss, _ in other], [0.0, *(share for _, share in other)])
    return all(
        share <= shares[bisect_right(losses, math.inf if loss is None else CLOSE[0] * loss)] + CLOSE[1]
        for loss, share in one
    )


def _paired(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    policies = ("tight", "paper")
    return {f"{name}, {policies[i]}": losses for name, pair in pairs.items() for i, losses in enumerate(pair)}


def draw_shares(axes: "Axes", curves: Mapping[str, Curve], unit: str, *, paired: bool) -> None:
    """Draw the share of units that lose at most so much; `paired`: every second line is the one before, in dashes."""
    for i, (name, curve) in enumerate(curves.items()):
        finite = [(loss, share) for loss, share in curve if loss is not None]
        losses, shares = zip((finite[0][0] if finite else 0.0, 0.0), *finite, strict=True)
        style = line_style(i // 2, DASHES[i % 2]) if paired else line_style(i)
        axes.step(losses, shares, where="post", label=name, **style)
    positive = [loss for curve in curves.values() for loss, _ in curve if loss] or [1.0]
    axes.set(xscale="log", xlim=(min(positive) / 2, 2 * max(positive)), ylim=(0, 1.02))
    axes.set(xlabel="loss (rho), at most", ylabel=f"share of {unit}")


def _errors_picture(query: str, classes: Iterable[Json]) -> tuple[Picture | None, str]:
    """Return standard errors over the mean true total of each class above 0, and in words; None below two classes."""
    known = [row for row in classes if row["total"] != "all" and row["mean_total"] > 0]
    series = {
        label: [(row["mean_total"], row[key]) for row in known if row[key]]
        for key, label in (("expected_standard_error", "expected"), ("standard_error", "observed"))
    }

    def draw(panels: Sequence["Axes"]) -> None:
        for i, (label, points) in enumerate(series.items()):
            panels[0].loglog(*zip(*points, strict=True), label=label, marker="o", markersize=3, **line_style(i))
        panels[0].set(xlabel="mean true total of a class", ylabel="standard error")

    series = {label: points for label, points in series.items() if len(points) > 1}
    if not series:
        return None, ""
    title = f"Standard errors of {query}"
    caption = (
        f"{label}: {number(points[0][1])} where totals are {number(points[0][0])} on average, "
        f"{number(points[-1][1])} where they are {number(points[-1][0])}"
        for label, points in series.items()
    )
    return _picture(title, draw), f"{title}. {'; '.join(caption)}."


def _picture(title: str, draw: Draw) -> Picture | None:
    return picture(title, draw, size=(9.5, 3.8)) if can_draw() else None


def _quantiles(label: str, losses: Json) -> Table:
    header = (label, "count", *(f"{float(q) * 100:g} %" for q in SHOWN), "largest")
    rows = [
        (name, f"{loss['count']:,}", *(bound(loss["quantiles"].get(q)) for q in SHOWN), bound(loss["largest"]))
        for name, loss in losses.items()
    ]
    return Table(header, rows, range(1, len(header)))


def _error_table(rows_of: Iterable[tuple[str, Json]], compared: bool, label: str) -> Table:
    header = [label, "cells", "expected standard error"]
    if compared:
        header += [*OBSERVED.values(), "coverage", "within 1 %", "5 %", "10 %"]
    rows = []
    for name, row in rows_of:
        cells = [name, f"{row['cells']:,}", number(row["expected_standard_error"])]
        if compared:
            within = row["within"].values() if row["within"] else (None, None, None)
            cells += [number(row[key]) for key in OBSERVED] + [percent(s) for s in (row["coverage"], *within)]
        rows.append(cells)
    return Table(header, rows, range(1, len(header)))
