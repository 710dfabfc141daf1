"""study.html: the whole study on one self-contained page."""

import base64
import csv
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engines.protocol import Engine
from pipeline.errors import PlanError, PrdpError
from pipeline.microdata import source
from pipeline.preparation.duplicates import scratch
from pipeline.report.page import STYLE
from pipeline.report.page import html_list as items
from pipeline.report.page import html_table as rows
from pipeline.study.draw import Picture, errors_picture, losses_picture
from pipeline.study.equal import Line, lines_of
from pipeline.study.errors import PanelErrors, described_errors, panel_errors
from pipeline.study.losses import Collected, PanelLosses, collect, described, panel_losses
from pipeline.study.model import Study
from pipeline.study.spec import written

LOOK = (
    "<style>main { max-width: 76rem; } img { max-width: 100%; height: auto; } .wide th { white-space: normal; }</style>"
)
SHOWN = ("0.1", "0.5", "0.9", "0.99", "0.9999")


def study_page(made: Mapping[str, Any], pictures: Sequence[Picture]) -> str:
    """Return the page for a study's document and its pictures."""
    by_name = {picture.name: picture for picture in pictures}
    body = [
        f"<h1>{escape(made['title'])}</h1>",
        f"<p class=lead>{escape(_lead(made))}</p>",
        items(made["notes"]),
    ]
    for panel in made["panels"]:
        body += [f"<h2>{escape(panel['title'])}</h2>", _image(by_name[f"losses-{panel['name']}"]), *_panel(panel, made)]
        picture = by_name.get(f"errors-{panel['name']}")
        if picture is not None:
            body += ["<h3>Errors of published totals</h3>", _image(picture), *_errors_section(panel["errors"])]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{STYLE}{LOOK}'
    text = "\n".join(body)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>{escape(made["title"])}</title></head>'
        f"<body><main>{text}</main></body></html>\n"
    )


def _lead(made: Mapping[str, Any]) -> str:
    table = f"{made['measure']} by {' × '.join(made['by'])}"
    return (
        f"{made['records']:,} synthetic records ({made['data']['synthetic']}, seed {made['data']['seed']}); {table}: "
        f"{made['cells']['with_records']:,} of {made['cells']['in_all']:,} cells have records."
    )


def _panel(panel: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    sizes = [loss["influence"] for loss in panel["entries"][0]["losses"]]
    limits = [f"{within['rho']:g}" for within in panel["entries"][0]["within"]]
    return [
        f"<p>Loss ρ of a record by its {escape(made['measure'])}:</p>",
        _table(
            panel,
            ["parameters", "variance", *(f"{size:,}" for size in sizes), "× from 1,000 to 10,000"],
            lambda entry: [
                _parameters(entry["mechanism"]) + ("" if entry["releasable"] else " (for comparison only)"),
                "none" if entry["variance"] is None else number(entry["variance"]),
                *(number(loss["rho"]) for loss in entry["losses"]),
                number(entry["growth"]["factor"]),
            ],
        ),
        "<p>Losses of the records: quantiles, and the share of records that lose at most so much, in %:</p>",
        _table(
            panel,
            [*(f"{float(q) * 100:g} %" for q in SHOWN), "largest", *(f"ρ ≤ {limit}" for limit in limits)],
            lambda entry: [
                *(number(entry["quantiles"].get(q)) for q in SHOWN),
                number(entry["largest"]),
                *(f"{100 * within['share']:.2f}" for within in entry["within"]),
            ],
        ),
    ]


def _table(panel: Mapping[str, Any], header: Sequence[str], cells: Callable[[Mapping[str, Any]], list[str]]) -> str:
    body = [[entry["label"], *cells(entry)] for entry in panel["entries"]]
    text = 2 if header[0] == "parameters" else 1
    return rows(["mechanism", *header], body, range(text, len(header) + 1))


def _errors_section(errors: Mapping[str, Any]) -> list[str]:
    labels = list(errors["flags"])
    by_class = [
        [f"{row['total_from']:,}", f"{row['cells']:,}", *(number(row["standard_error"].get(label)) for label in labels)]
        for row in errors["classes"]
    ]
    flags = [[label, *(f"{100 * share:.1f}" for share in shares.values())] for label, shares in errors["flags"].items()]
    names = list(next(iter(errors["flags"].values()), {}))
    return [
        "<p>Root of the mean variance, by the true total of a cell from:</p>",
        rows(["total", "cells", *labels], by_class, range(len(labels) + 2)),
        "<p>Cells with a total above 0, in %, by the flag that their relative standard error would get "
        "(G below 2 %, H below 5 %, J from 5 %):</p>",
        rows(["mechanism", *names], flags, range(1, len(names) + 1)),
    ]


def _parameters(mechanism: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in mechanism.items() if name not in ("kind", "policy", "estimator")}
    if shown.get("lattice") == "measure":  # as everywhere else
        del shown["lattice"]
    return ", ".join(_shown(name, value) for name, value in shown.items())


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{name} {value['kind']} ({_parameters(value)})"
    return f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"


def number(value: float | None) -> str:
    """Return a figure in four digits, as people read it."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _image(picture: Picture) -> str:
    data = base64.b64encode(picture.files["svg"]).decode()
    return f'<p><img alt="{escape(picture.title)}" src="data:image/svg+xml;base64,{data}"></p>'


# The steps of a study: synthetic microdata, exact counts on an engine, equal mechanisms, figures, pictures, a page.


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
    say: Callable[[str], None] = lambda stage: None


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
            job.say("losses and errors")
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
    job.say("synthetic microdata")
    microdata, layout = written(job.study, folder / "data")
    job.say("influences and cells")
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
    job.say("pictures")
    pictures = list(_pictures(found))
    for picture in pictures:
        for form, data in picture.files.items():
            (folder / f"{picture.name}.{form}").write_bytes(data)
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


def _pictures(found: _Found) -> Iterable[Picture]:
    for losses in found.panels:
        yield losses_picture(losses, found.collected, found.study.measure)
        errors = found.errors.get(losses.panel.name)
        if errors is not None and found.collected.cells.totals.any():
            title = f"Errors of published totals: {losses.panel.title}"
            yield errors_picture(errors, title, found.collected.cells, found.study.measure)


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
