"""Pictures of a study: cumulative distributions of losses beside policy functions, and errors of published totals."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.study.errors import TODAY, PanelErrors
from pipeline.study.losses import Cells, Collected, PanelLosses
from pipeline.study.model import FLAGS, HIGH, LOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

COLOURS = ("#1b4f72", "#b9770e", "#1e8449", "#922b21", "#6c3483", "#117a65", "#7b7d7d", "#d35400")
LINES = ("-", "--", "-.", ":")  # so that curves are told apart without colours
POLICIES, LONE = {"paper": ":", "tight": "-"}, "-."  # of entries with both, and of those with one beside them
SHOWN = (1e-2, 1e4)  # losses: beyond, no two mechanisms are worth telling apart
SMALLEST_SHARE = 5e-4  # steps of a curve below it are not drawn: no eye sees them
ALIKE = 1e-3  # relative: such curves lie on each other
POINTS = 200  # of a policy function
FORMATS = ("svg", "png")


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of its files, by format."""

    name: str
    title: str
    files: dict[str, bytes]


def losses_picture(panel: PanelLosses, found: Collected, measure: str) -> Picture:
    """Return the share of records that lose at most so much, beside the loss over the influence."""
    figure = _figure(11.5, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    largest = float(max(found.influences.max(initial=0), 10))
    influences = np.unique(np.rint(np.geomspace(1, largest, POINTS)))
    policies = Counter(line.entry for line in panel.lines)
    alone = max(policies.values()) == 1  # no entry has several
    for line, losses in zip(panel.lines, panel.losses, strict=True):
        style = POLICIES.get(line.policy, "-") if policies[line.entry] > 1 else LONE
        look = _look(line.entry, None if alone else style)
        left.step(*cumulative(losses, found.counts), where="post", label=line.label, **look)
        right.loglog(influences, line.mechanism.loss(influences), **look)
    low = min((float(loss[loss > 0].min(initial=SHOWN[1])) for loss in panel.losses), default=SHOWN[0])
    high = max((float(loss.max(initial=0)) for loss in panel.losses), default=SHOWN[1])
    left.set_xscale("log")
    left.set_xlim(max(SHOWN[0], low / 2), min(SHOWN[1], 1.5 * max(high, 10 * low)))
    left.set_ylim(0, 1.005)
    left.set_xlabel("loss ρ (per-record zCDP)")
    left.set_ylabel("share of records that lose at most ρ")
    right.set_xlabel(f"influence: the record's {measure}")
    right.set_ylabel("loss ρ")
    return _saved(figure, f"losses-{panel.panel.name}", panel.panel.title, (left, right))


def errors_picture(panel: PanelErrors, title: str, cells: Cells, measure: str) -> Picture:
    """Return standard errors over the true total, and relative ones: lines of mechanisms, points of today's noise."""
    figure = _figure(11.5, 4.4)
    left, right = figure.subplots(1, 2)
    kept = np.flatnonzero(cells.totals > 0)
    totals = cells.totals[kept]
    distinct, first = np.unique(totals, return_index=True)
    for i, (label, errors) in enumerate(_distinct(panel).items()):
        of_cell = errors[kept]
        if label == TODAY:
            edges, middle = _middles(totals, of_cell)
            look: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 4, "color": "black"}
            left.loglog(edges, middle, label=f"{label} (median cell)", **look)
            right.loglog(edges, 100 * middle / edges, **look)
        else:
            left.loglog(distinct, of_cell[first], label=label, **_look(i))
            right.loglog(distinct, 100 * of_cell[first] / distinct, **_look(i))
    for flag, limit in zip(FLAGS, (LOW, HIGH), strict=False):
        right.axhline(100 * limit, color="0.6", linewidth=0.8, linestyle=":")
        place = right.get_yaxis_transform()  # across: of the axes, up: of the values
        right.text(0.01, 97 * limit, f"below: flag {flag}", fontsize=7.5, va="top", transform=place)
    left.set_xlabel(f"true total of the cell: {measure}")
    left.set_ylabel("standard error")
    right.set_xlabel(f"true total of the cell: {measure}")
    right.set_ylabel("relative standard error, in %")
    return _saved(figure, f"errors-{panel.name}", title, (left, right))


def cumulative(losses: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return losses and the shares of records that lose at most those, without steps too small to be seen."""
    order = np.argsort(losses, kind="stable")
    shares = np.cumsum(counts[order]) / counts.sum()
    ends = np.append(np.diff(losses[order]) > 0, True)[: len(order)]  # equal losses are one step
    x, y = losses[order][ends], shares[ends]
    drawn = np.append(True, np.diff(np.floor(y / SMALLEST_SHARE)) > 0)[: len(y)]
    drawn[-1:] = True
    return np.maximum(x[drawn], SHOWN[0] / 10), y[drawn]


def _distinct(panel: PanelErrors) -> dict[str, Floats]:
    """Return the errors under the labels of all mechanisms that have the same."""
    found: dict[str, Floats] = {}
    for label, errors in panel.errors.items():
        same = next((other for other, known in found.items() if np.allclose(errors, known, rtol=ALIKE, atol=0)), None)
        if same is None:
            found[label] = errors
        else:
            found = {f"{other}; {label}" if other == same else other: known for other, known in found.items()}
    return found


def _middles(totals: NDArray[np.int64], errors: Floats) -> tuple[Floats, Floats]:
    """Return median totals and errors of classes of cells, four to a tenfold."""
    place = np.floor(4 * np.log10(totals)).astype(int)
    groups = [place == group for group in np.unique(place)]
    return (
        np.array([np.median(totals[group]) for group in groups]),
        np.array([np.median(errors[group]) for group in groups]),
    )


def _look(i: int, style: str | None = None) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": style or LINES[i % len(LINES)], "linewidth": 1.5}


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 — the half second of its import is for pictures alone

    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: "Figure", name: str, title: str, panels: Sequence["Axes"]) -> Picture:
    import matplotlib as mpl  # noqa: PLC0415

    figure.suptitle(title, fontsize=11)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    for axes in panels:
        axes.grid(visible=True, which="major", color="0.93")
        axes.spines[["top", "right"]].set_visible(False)
    files = {}
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        for form in FORMATS:
            whole = io.BytesIO()
            figure.savefig(
                whole, format=form, dpi=120, metadata={"Date": None} if form == "svg" else {"Software": None}
            )
            files[form] = whole.getvalue()
    return Picture(name, title, files)
