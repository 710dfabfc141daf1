"""What a study of a whole publication found, for people: columns of text and one picture."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.base.plots import FORMATS, family_styles, picture
from pipeline.storage.folders import filled
from udfs.numbers.exact import bound_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCUMENT: Final = "publication.json"
SHOWN: Final = ("0.5", "0.99", "largest")
OWN: Final[Mapping[str, Any]] = {"color": "black", "linestyle": ":", "zorder": 3}  # the plan's own noise
LEAST: Final = 1e-4  # a loss below it is drawn as this


def columns(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of a table of text: what records and firms lose with each kind, and what was drawn."""
    groups = [name for name in ("records", "firms") if document["entries"][0]["losses"][name]]
    heads = [f"{name[:-1]}: {of}" for name in groups for of in ("half lose", "99 %", "largest")]
    yield ["noise", *heads, "bias / its error", "coverage", "relative error: median", "90 %"]
    for entry in document["entries"]:
        losses = [entry["losses"][name] for name in groups]
        figures = [(each["quantiles"] | each)[name] for each in losses for name in SHOWN]
        finest = max(entry["tables"], key=lambda table: table["cells"])["classes"][-1]
        errors = [finest.get(f"{name}_relative_error") for name in ("median", "ninety")]
        yield [
            entry["name"],
            *("infinite" if loss is None else bound_text(loss, 3) for loss in figures),
            "-" if entry["bias_in_mc"] is None else f"{entry['bias_in_mc']:.1f}",
            "-" if entry["coverage"] is None else f"{entry['coverage']:.1%}",
            *("-" if error is None else f"{error:.1%}" for error in errors),
        ]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return what is to be known of the figures, and which kinds are left out, and why."""
    equal = document["equal"].replace("_", " ")
    return [
        f"All tables have the plan's {equal} at a typical true total; losses (rho) are of all tables together.",
        "bias / its error: the largest of all tables, in standard errors of the draws; coverage: of intervals of "
        f"{document['interval']:.0%};",
        "relative error: of the table with most cells, over cells and draws.",
        *(f"Left out: {name}: {why}." for name, why in document["left_out"].items()),
    ]


def write(document: Mapping[str, Any], out: Path) -> None:
    """Write the document and the picture into `out`, a folder that is absent or empty; raises as `filled` does."""
    entries = document["entries"]
    styles = family_styles([entry["mechanism"] for entry in entries[1:]])

    def draw(panels: Sequence["Axes"]) -> None:
        for axes, name in zip(panels, ("records", "firms"), strict=True):
            for i, entry in enumerate(entries):
                points = (entry["losses"][name] or {"curve": []})["curve"]
                curve = np.array([point for point in points if point[0] is not None]).reshape(-1, 2)
                style = styles[i - 1] if i else OWN
                label = entry["name"] if name == "records" else None
                axes.step(np.maximum(curve[:, 0], LEAST), curve[:, 1], where="post", label=label, **style)
            axes.set(xscale="log", ylim=(0, 1.005), xlabel="loss ρ in all tables together")
            axes.set(ylabel=f"share of {name} that lose at most ρ")

    equal = document["equal"].replace("_", " ")
    drawn = picture(f"{document['plan']}: equal by {equal}", draw, panels=2, formats=FORMATS)
    with filled(out) as folder:
        text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        (folder / DOCUMENT).write_text(text, encoding="utf-8")
        for suffix, data in drawn.files.items():
            (folder / f"publication{suffix}").write_bytes(data)
