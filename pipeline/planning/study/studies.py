"""The steps of a study: synthetic microdata, exact counts on an engine, equal mechanisms, figures, pictures, a page."""

import csv
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.base.errors import require_package
from pipeline.base.log import Log
from pipeline.base.plain import SHOWN, Table, bound, number, rendered
from pipeline.base.plots import FORMATS, PRACTICES, Picture, family_styles, picture
from pipeline.engines.totals import Layout
from pipeline.planning.study import study_figures
from pipeline.planning.study.equal_mechanisms import FLAGS, HIGH, LOW, Entry, Study, lines_of
from pipeline.planning.study.study_figures import Aggregates, Cells, PanelErrors, PanelLosses
from pipeline.planning.study.study_spec import write_microdata
from pipeline.storage.local import LocalPath
from pipeline.storage.paths import filled
from pipeline.storage.staging import Staging, scratch
from udfs.numbers.arrays import Floats, Int64s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT, PAGE = "study.json", "study.html"
NOTES = (
    "Synthetic microdata: no figure here is an estimate about real establishments or farms, nor confidential.",
    "Losses are upper bounds under per-record zCDP (rho). All mechanisms of a panel have the same variance at its "
    "total; where a value has none, its noise has the quartiles of Gaussian noise on the same curve. Those that are "
    "equal by their densities have another variance on whole numbers.",
    "Entries marked for comparison only are no mechanisms of plans: prdp releases nothing with them.",
)


@dataclass(frozen=True, kw_only=True)
class StudyJob:
    """One run of a study into `out`, a folder that is absent or empty; `scan` counts what it needs of its microdata."""

    study: Study
    out: Path
    scan: Callable[[Path, Layout, Staging], Aggregates]
    log: Log = field(default_factory=Log)


@dataclass(frozen=True, eq=False)
class Results:
    """A study's losses, and its errors by the name of the panel, of the panels that state them."""

    study: Study
    data: Aggregates
    panels: Sequence[PanelLosses]
    errors: Mapping[str, PanelErrors]


def evaluate(job: StudyJob) -> dict[str, Any]:
    """Write the study to `job.out` and return its document, study.json.

    The same study gives the same figures, tables and pictures on every engine.

    Raises:
        PlanError: An entry cannot be made equal.
        StateError: `out` is neither absent nor an empty folder.
        PrdpError: The study cannot be written.
    """
    require_package("matplotlib", "a study")  # before anything is computed
    lines = [lines_of(panel) for panel in job.study.panels]  # before anything is written
    with filled(job.out) as folder:
        data = _aggregates(job, folder)
        job.log.progress("losses and errors")
        panels = [PanelLosses.of(*pair, data) for pair in zip(job.study.panels, lines, strict=True)]
        errors = {
            p.panel.name: study_figures.panel_errors(p, data.cells, job.study.today) for p in panels if p.panel.errors
        }
        return _write(job, Results(job.study, data, panels, errors), folder)


def _aggregates(job: StudyJob, folder: Path) -> Aggregates:
    job.log.progress("synthetic microdata")
    microdata, layout = write_microdata(job.study, folder / "data")
    job.log.progress("influences and cells")
    with scratch(LocalPath((folder / "scratch").absolute()), job.study.name, "study") as between:
        data = job.scan(microdata, layout, between)
    for done in ("data", "scratch"):
        shutil.rmtree(folder / done, ignore_errors=True)
    return data


def _write(job: StudyJob, results: Results, folder: Path) -> dict[str, Any]:
    made = document(results)
    job.log.progress("pictures")
    pictures = dict(_pictures(results))
    study_figures.write_study(folder, "study", made, pictures)
    for losses in results.panels:
        _write_csv(folder / f"losses-{losses.panel.name}.csv", _loss_rows(losses, results.data))
    for panel in made["panels"]:
        if panel["errors"] is not None:
            head = ["total_from", "cells", *(f"standard_error: {label}" for label in panel["errors"]["flags"])]
            _write_csv(folder / f"errors-{panel['name']}.csv", [head, *_error_rows(panel["errors"])])
    (folder / PAGE).write_text(study_page(made, pictures), encoding="utf-8")
    return made


def document(results: Results) -> dict[str, Any]:
    """Return the study's figures as JSON."""
    study, data = results.study, results.data
    errors = {name: study_figures.errors_json(panel, data.cells) for name, panel in results.errors.items()}
    return {
        "study": study.name,
        "title": study.title,
        "notes": list(NOTES),
        "data": {"synthetic": study.data.synthetic, "records": study.data.records, "seed": study.data.seed},
        "measure": study.measure,
        "by": list(study.by),
        "records": data.records,
        "largest_influence": int(data.influences.max(initial=0)),
        "cells": {"in_all": data.cells_in_all, "with_records": len(data.cells.cells)},
        "panels": [
            study_figures.panel_json(p, data, study) | {"errors": errors.get(p.panel.name)} for p in results.panels
        ],
    }


def _pictures(results: Results) -> Iterator[tuple[str, Picture]]:
    cells, measure = results.data.cells, results.study.measure
    for losses in results.panels:
        name, title = losses.panel.name, losses.panel.title
        yield f"losses-{name}", losses_picture(losses, results.data, measure)
        errors = results.errors.get(name)
        if errors is not None and cells.totals.any():
            yield (
                f"errors-{name}",
                errors_picture(errors, losses.panel.entries, f"Errors of published totals: {title}", cells, measure),
            )


def _loss_rows(panel: PanelLosses, data: Aggregates) -> Iterator[Sequence[Any]]:
    yield ["influence", "records", "share_at_most", *(f"rho: {line.label}" for line in panel.lines)]
    shares = np.cumsum(data.counts) / max(data.records, 1)
    columns = [data.influences, data.counts, shares, *panel.losses]
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _error_rows(errors: Mapping[str, Any]) -> Iterator[list[Any]]:
    for row in errors["classes"]:
        yield [row["total_from"], row["cells"], *(row["standard_error"][label] for label in errors["flags"])]


def _write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


Json = Mapping[str, Any]


def study_page(document: Json, pictures: Mapping[str, Picture]) -> str:
    """Return the page for a study's document and its pictures, by the names of their files."""
    data, cells = document["data"], document["cells"]
    return rendered(
        "study.html",
        figures=True,
        title=document["title"],
        lead=f"{document['records']:,} synthetic records ({data['synthetic']}, seed {data['seed']}); "
        f"{document['measure']} by {' × '.join(document['by'])}: {cells['with_records']:,} of {cells['in_all']:,} "
        "cells have records.",
        notes=document["notes"],
        measure=document["measure"],
        panels=[_panel(panel, pictures) for panel in document["panels"]],
    )


def _panel(panel: Json, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    name, errors = panel["name"], panel["errors"]
    # a study whose cells are all 0 has no picture of errors
    shown = {} if errors is None else {"errors": pictures.get(f"errors-{name}"), "flags": _flags(errors)}
    return shown | {
        "title": panel["title"],
        "losses": pictures[f"losses-{name}"],
        "by_size": _by_size(panel["entries"]),
        "quantiles": _quantiles(panel["entries"]),
        "classes": _classes(errors) if shown.get("errors") else None,
    }


def _by_size(entries: list[Json]) -> Table:
    sizes = (f"{loss['influence']:,}" for loss in entries[0]["losses"])
    header = ["mechanism", "parameters", "variance", *sizes, "× from 1,000 to 10,000"]
    rows = [
        [
            entry["label"],
            _parameters(entry["mechanism"]) + ("" if entry["releasable"] else " (for comparison only)"),
            "none" if entry["variance"] is None else number(entry["variance"]),
            *(bound(loss["rho"]) for loss in entry["losses"]),
            number(entry["growth"]["factor"]),
        ]
        for entry in entries
    ]
    return Table(header, rows, range(2, len(header)))


def _quantiles(entries: list[Json]) -> Table:
    limits = (f"ρ ≤ {within['rho']:g}" for within in entries[0]["within"])
    header = ["mechanism", *(f"{float(q) * 100:g} %" for q in SHOWN), "largest", *limits]
    rows = [
        [
            entry["label"],
            *(bound(entry["quantiles"].get(q)) for q in SHOWN),
            bound(entry["largest"]),
            *(f"{100 * within['share']:.2f}" for within in entry["within"]),
        ]
        for entry in entries
    ]
    return Table(header, rows, range(1, len(header)))


def _classes(errors: Json) -> Table:
    rows = [[f"{least:,}", f"{cells:,}", *map(number, shown)] for least, cells, *shown in _error_rows(errors)]
    return Table(["total", "cells", *errors["flags"]], rows, range(len(errors["flags"]) + 2))


def _flags(errors: Json) -> Table:
    names = list(next(iter(errors["flags"].values()), {}))
    rows = [[label, *(f"{100 * share:.1f}" for share in shares.values())] for label, shares in errors["flags"].items()]
    return Table(["mechanism", *names], rows, range(1, len(names) + 1))


def _parameters(mechanism: Json) -> str:
    hidden = {"kind", "policy", "estimator"} | ({"lattice"} if mechanism.get("lattice") == "measure" else set())
    shown = {name: value for name, value in mechanism.items() if name not in hidden}
    return ", ".join(f"{name} {_value(value)}" for name, value in shown.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value['kind']} ({_parameters(value)})"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


WIDTHS = {"paper": 0.8, "tight": 2.0}  # of the lines of entries with both policies
LOSSES_SHOWN = (1e-2, 1e4)  # losses: beyond, no two mechanisms are worth telling apart
SMALLEST_SHARE = 5e-4  # steps of a curve below it are not drawn: no eye sees them
POINTS = 200  # of a policy function


def losses_picture(panel: PanelLosses, data: Aggregates, measure: str) -> Picture:
    """Return the share of records that lose at most so much, beside the loss over the influence."""
    largest = float(max(data.influences.max(initial=0), 10))
    influences = np.unique(np.rint(np.geomspace(1, largest, POINTS)))
    policies = Counter(line.entry for line in panel.lines)
    styles = family_styles([entry.mechanism for entry in panel.panel.entries])
    low = min((float(loss[loss > 0].min(initial=LOSSES_SHOWN[1])) for loss in panel.losses), default=LOSSES_SHOWN[0])
    high = max((float(loss.max(initial=0)) for loss in panel.losses), default=LOSSES_SHOWN[1])

    def draw(panels: Sequence["Axes"]) -> None:
        left, right = panels
        for line, losses in zip(panel.lines, panel.losses, strict=True):
            wide = {"linewidth": WIDTHS[line.policy]} if policies[line.entry] > 1 else {}
            style = styles[line.entry] | wide
            left.step(*cumulative(losses, data.counts), where="post", label=line.label, **style)
            right.loglog(influences, line.mechanism.loss(influences), **style)
        limits = max(LOSSES_SHOWN[0], low / 2), min(LOSSES_SHOWN[1], 1.5 * max(high, 10 * low))
        left.set(xscale="log", xlim=limits, ylim=(0, 1.005))
        left.set(xlabel="loss ρ (per-record zCDP)", ylabel="share of records that lose at most ρ")
        right.set(xlabel=f"influence: the record's {measure}", ylabel="loss ρ")

    return picture(panel.panel.title, draw, panels=2, formats=FORMATS)


def errors_picture(panel: PanelErrors, entries: Sequence[Entry], title: str, cells: Cells, measure: str) -> Picture:
    """Return standard errors over the true total, and relative ones: lines of mechanisms, points of today's noise.

    `entries`: of the panel, which look as in its picture of losses. Lines that lie on each other are all drawn.
    """
    styles = family_styles([entry.mechanism for entry in entries])
    looks = {entry.label: style for entry, style in zip(entries, styles, strict=True)}
    positive = np.flatnonzero(cells.totals > 0)
    totals = cells.totals[positive]
    distinct, first = np.unique(totals, return_index=True)

    def draw(panels: Sequence["Axes"]) -> None:
        left, right = panels
        for label, errors in panel.errors.items():
            x: Floats = distinct.astype(np.float64)
            error = errors[positive][first]
            style = looks.get(label, {})
            if label == study_figures.TODAY:
                x, error = _medians(totals, errors[positive])
                label = f"{label} (median cell)"  # noqa: PLW2901
                style = {"marker": "o", "linestyle": "", "markersize": 4, "color": PRACTICES[study_figures.TODAY]}
            left.loglog(x, error, label=label, **style)
            right.loglog(x, 100 * error / x, **style)
        for flag, limit in zip(FLAGS, (LOW, HIGH), strict=False):
            right.axhline(100 * limit, color="0.6", linewidth=0.8, linestyle=":")
            across: Any = right.get_yaxis_transform()  # across: of the axes, up: of the values
            right.text(0.01, 97 * limit, f"below: flag {flag}", fontsize=7.5, va="top", transform=across)
        left.set(xlabel=f"true total of the cell: {measure}", ylabel="standard error")
        right.set(xlabel=f"true total of the cell: {measure}", ylabel="relative standard error, in %")

    return picture(title, draw, panels=2, formats=FORMATS)


def cumulative(losses: Floats, counts: Int64s) -> tuple[Floats, Floats]:
    """Return losses above 0 and the shares of records that lose at most those, without steps too small to be seen.

    The first loss stands there twice: with the share of records that lose less, and with its own.
    """
    order = np.argsort(losses, kind="stable")
    shares = np.cumsum(counts[order]) / counts.sum()
    ends = np.append(np.diff(losses[order]) > 0, True)[: len(order)]  # equal losses are one step
    x, y = losses[order][ends], shares[ends]
    drawn = np.append(True, np.diff(np.floor(y / SMALLEST_SHARE)) > 0)[: len(y)]
    drawn[-1:] = True
    least = y[x <= 0].max(initial=0.0)
    drawn &= x > 0
    x, y = x[drawn], y[drawn]
    return np.concatenate([x[:1], x]), np.concatenate([[least] * len(x[:1]), y])


def _medians(totals: Int64s, errors: Floats) -> tuple[Floats, Floats]:
    """Return the median totals and errors of classes of cells, four to a tenfold."""
    size = np.floor(4 * np.log10(totals)).astype(int)
    classes = [size == each for each in np.unique(size)]
    return (
        np.array([np.median(totals[members]) for members in classes]),
        np.array([np.median(errors[members]) for members in classes]),
    )
