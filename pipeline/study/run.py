"""The steps of a study: synthetic microdata, exact counts on an engine, equal mechanisms, figures, pictures, a page."""

import csv
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engines.protocol import Engine
from pipeline.errors import PlanError, PrdpError
from pipeline.log import Log
from pipeline.microdata import source
from pipeline.preparation.duplicates import scratch
from pipeline.report.plots import Picture
from pipeline.study.draw import errors_picture, losses_picture
from pipeline.study.equal import Line, lines_of
from pipeline.study.errors import PanelErrors, described_errors, panel_errors
from pipeline.study.losses import Collected, PanelLosses, collect, described, panel_losses
from pipeline.study.model import Study
from pipeline.study.page import study_page
from pipeline.study.spec import written

DOCUMENT, PAGE = "study.json", "study.html"
NOTES = (
    "Synthetic microdata: no figure here is an estimate about real establishments or farms, nor confidential.",
    "Losses are upper bounds under per-record zCDP (rho). All mechanisms of a panel have the same variance at its "
    "total; where a value has none, its noise has the quartiles of Gaussian noise on the same curve.",
    "Entries marked for comparison only are no mechanisms of plans: prdp releases nothing with them.",
)


@dataclass(frozen=True, kw_only=True)
class StudyJob:
    """One run of a study into `out`, a folder that is absent or empty."""

    study: Study
    out: Path
    engine: Engine
    log: Log = field(default_factory=Log)


@dataclass(frozen=True, eq=False)
class _Found:
    """All that was found, before it is written."""

    panels: Sequence[PanelLosses]
    errors: Mapping[str, PanelErrors]  # by the panel's name, of those that are asked for
    collected: Collected
    study: Study


def evaluate(job: StudyJob) -> dict[str, Any]:
    """Write the study to `job.out` and return its document, study.json.

    The same study gives the same figures, tables and pictures on every engine. Raises PlanError where an entry cannot
    be made equal or `out` is no place for it, PrdpError where it cannot be written.
    """
    lines = [lines_of(panel) for panel in job.study.panels]  # before anything is written
    _require_empty(job.out)
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        # A killed run leaves nothing but this hidden folder.
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=job.out) as unfinished:
            collected = _collected(job, Path(unfinished))
            job.log.progress("losses and errors")
            made = _written(job, _found(job.study, lines, collected), Path(unfinished) / "study")
            for path in sorted((Path(unfinished) / "study").iterdir()):
                path.rename(job.out / path.name)
    except OSError as error:
        raise PrdpError(
            f"{job.out}: cannot write the study ({error.strerror or error}); choose another --out"
        ) from None
    return made


def _require_empty(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise PlanError(f"--out {out}: it is there and no empty folder; choose another")


def _collected(job: StudyJob, folder: Path) -> Collected:
    job.log.progress("synthetic microdata")
    microdata, layout = written(job.study, folder / "data")
    job.log.progress("influences and cells")
    chunks = list(source.chunks(source.find(microdata)))
    with scratch((folder / "scratch").absolute(), job.study.name, "study") as between:
        found = collect(job.engine, chunks, layout, between)
    shutil.rmtree(folder / "data")
    return found


def _found(study: Study, lines: Sequence[Sequence[Line]], collected: Collected) -> _Found:
    panels = [panel_losses(panel, own, collected) for panel, own in zip(study.panels, lines, strict=True)]
    asked = [losses for losses in panels if losses.panel.errors]
    errors = {losses.panel.name: panel_errors(losses, collected.cells, study.today) for losses in asked}
    return _Found(panels, errors, collected, study)


def _written(job: StudyJob, found: _Found, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    made = document(found)
    job.log.progress("pictures")
    pictures = dict(_pictures(found))
    for name, picture in pictures.items():
        for suffix, data in picture.files.items():
            (folder / f"{name}{suffix}").write_bytes(data)
    for losses in found.panels:
        _write_csv(folder / f"losses-{losses.panel.name}.csv", *_loss_rows(losses, found.collected))
    for panel in made["panels"]:
        if panel["errors"] is not None:
            _write_csv(folder / f"errors-{panel['name']}.csv", *_error_rows(panel["errors"]))
    text = json.dumps(made, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    (folder / DOCUMENT).write_text(text, encoding="utf-8")
    (folder / PAGE).write_text(study_page(made, pictures), encoding="utf-8")
    return made


def document(found: _Found) -> dict[str, Any]:
    """Return the study's figures as JSON."""
    study, collected = found.study, found.collected
    return {
        "study": study.name,
        "title": study.title,
        "notes": list(NOTES),
        "data": {"synthetic": study.data.synthetic, "records": study.data.records, "seed": study.data.seed},
        "measure": study.measure,
        "by": list(study.by),
        "records": collected.records,
        "largest_influence": int(collected.influences.max(initial=0)),
        "cells": {"in_all": collected.in_all, "with_records": len(collected.cells.cells)},
        "panels": [
            described(losses, collected, study) | {"errors": _errors(found, losses.panel.name)}
            for losses in found.panels
        ],
    }


def _errors(found: _Found, panel: str) -> dict[str, Any] | None:
    return described_errors(found.errors[panel], found.collected.cells) if panel in found.errors else None


def _pictures(found: _Found) -> Iterator[tuple[str, Picture]]:
    cells, measure = found.collected.cells, found.study.measure
    for losses in found.panels:
        name, title = losses.panel.name, losses.panel.title
        yield f"losses-{name}", losses_picture(losses, found.collected, measure)
        errors = found.errors.get(name)
        if errors is not None and cells.totals.any():
            yield f"errors-{name}", errors_picture(errors, f"Errors of published totals: {title}", cells, measure)


def _loss_rows(panel: PanelLosses, found: Collected) -> tuple[list[str], Iterable[list[Any]]]:
    header = ["influence", "records", "share_at_most", *(f"rho: {line.label}" for line in panel.lines)]
    shares = np.cumsum(found.counts) / max(found.records, 1)
    columns = [found.influences, found.counts, shares, *panel.losses]
    return header, (list(row) for row in zip(*(column.tolist() for column in columns), strict=True))


def _error_rows(errors: dict[str, Any]) -> tuple[list[str], Iterable[list[Any]]]:
    labels = list(errors["flags"])
    body = [
        [row["total_from"], row["cells"], *(row["standard_error"][label] for label in labels)]
        for row in errors["classes"]
    ]
    return ["total_from", "cells", *(f"standard_error: {label}" for label in labels)], body


def _write_csv(path: Path, header: list[str], body: Iterable[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(body)
