"""study.html: the whole study on one self-contained page."""

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from pipeline.report.parts import items, rows
from pipeline.report.style import STYLE
from pipeline.study.draw import Picture

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
            body += ["<h3>Errors of published totals</h3>", _image(picture), *_errors(panel["errors"])]
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


def _errors(errors: Mapping[str, Any]) -> list[str]:
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
