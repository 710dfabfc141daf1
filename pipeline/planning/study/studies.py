"""The steps of a study: synthetic microdata, exact counts on an engine, equal mechanisms, figures, pictures, a page."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.base.errors import require_package
from pipeline.base.log import Log
from pipeline.base.plots import Picture
from pipeline.engines.totals import Layout
from pipeline.planning.study.equal_mechanisms import lines_of
from pipeline.planning.study.study_errors import PanelErrors, errors_json, panel_errors
from pipeline.planning.study.study_losses import Aggregates, PanelLosses, panel_json
from pipeline.planning.study.study_model import Study
from pipeline.planning.study.study_page import study_page
from pipeline.planning.study.study_pictures import errors_picture, losses_picture
from pipeline.planning.study.study_spec import write_microdata
from pipeline.storage.folders import filled
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import Staging, scratch

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
        errors = {p.panel.name: panel_errors(p, data.cells, job.study.today) for p in panels if p.panel.errors}
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
    for name, picture in pictures.items():
        for suffix, data in picture.files.items():
            (folder / f"{name}{suffix}").write_bytes(data)
    for losses in results.panels:
        _write_csv(folder / f"losses-{losses.panel.name}.csv", *_loss_rows(losses, results.data))
    for panel in made["panels"]:
        if panel["errors"] is not None:
            _write_csv(folder / f"errors-{panel['name']}.csv", *_error_rows(panel["errors"]))
    text = json.dumps(made, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    (folder / DOCUMENT).write_text(text, encoding="utf-8")
    (folder / PAGE).write_text(study_page(made, pictures), encoding="utf-8")
    return made


def document(results: Results) -> dict[str, Any]:
    """Return the study's figures as JSON."""
    study, data = results.study, results.data
    errors = {name: errors_json(panel, data.cells) for name, panel in results.errors.items()}
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
        "panels": [panel_json(p, data, study) | {"errors": errors.get(p.panel.name)} for p in results.panels],
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


def _loss_rows(panel: PanelLosses, data: Aggregates) -> tuple[list[str], Iterable[list[Any]]]:
    header = ["influence", "records", "share_at_most", *(f"rho: {line.label}" for line in panel.lines)]
    shares = np.cumsum(data.counts) / max(data.records, 1)
    columns = [data.influences, data.counts, shares, *panel.losses]
    return header, (list(row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _error_rows(errors: dict[str, Any]) -> tuple[list[str], Iterable[list[Any]]]:
    labels = list(errors["flags"])
    rows = [
        [row["total_from"], row["cells"], *(row["standard_error"][label] for label in labels)]
        for row in errors["classes"]
    ]
    return ["total_from", "cells", *(f"standard_error: {label}" for label in labels)], rows


def _write_csv(path: Path, header: list[str], rows: Iterable[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
