"""study.html: all of a study on one self-contained page."""

from collections.abc import Mapping
from typing import Any

from pipeline.base.html import SHOWN, Table, bound, number, rendered
from pipeline.base.plots import Picture

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
    labels = list(errors["flags"])
    rows = [
        [f"{row['total_from']:,}", f"{row['cells']:,}", *(number(row["standard_error"].get(label)) for label in labels)]
        for row in errors["classes"]
    ]
    return Table(["total", "cells", *labels], rows, range(len(labels) + 2))


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
