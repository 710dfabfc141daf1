"""Pictures of a study: cumulative distributions of losses beside policy functions, and errors of published totals."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.base.plots import FORMATS, PRACTICES, Picture, family_styles, picture
from pipeline.planning.study.study_errors import TODAY, PanelErrors
from pipeline.planning.study.study_losses import Aggregates, Cells, PanelLosses
from pipeline.planning.study.study_model import FLAGS, HIGH, LOW, Entry
from udfs.numbers.arrays import Floats, Int64s

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTHS = {"paper": 0.8, "tight": 2.0}  # of the lines of entries with both policies
SHOWN = (1e-2, 1e4)  # losses: beyond, no two mechanisms are worth telling apart
SMALLEST_SHARE = 5e-4  # steps of a curve below it are not drawn: no eye sees them
POINTS = 200  # of a policy function


def losses_picture(panel: PanelLosses, data: Aggregates, measure: str) -> Picture:
    """Return the share of records that lose at most so much, beside the loss over the influence."""
    largest = float(max(data.influences.max(initial=0), 10))
    influences = np.unique(np.rint(np.geomspace(1, largest, POINTS)))
    policies = Counter(line.entry for line in panel.lines)
    styles = family_styles([entry.mechanism for entry in panel.panel.entries])
    low = min((float(loss[loss > 0].min(initial=SHOWN[1])) for loss in panel.losses), default=SHOWN[0])
    high = max((float(loss.max(initial=0)) for loss in panel.losses), default=SHOWN[1])

    def draw(panels: Sequence["Axes"]) -> None:
        left, right = panels
        for line, losses in zip(panel.lines, panel.losses, strict=True):
            wide = {"linewidth": WIDTHS[line.policy]} if policies[line.entry] > 1 else {}
            style = styles[line.entry] | wide
            left.step(*cumulative(losses, data.counts), where="post", label=line.label, **style)
            right.loglog(influences, line.mechanism.loss(influences), **style)
        limits = max(SHOWN[0], low / 2), min(SHOWN[1], 1.5 * max(high, 10 * low))
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
            at: Floats = distinct.astype(np.float64)
            error = errors[positive][first]
            style = looks.get(label, {})
            if label == TODAY:
                at, error = _medians(totals, errors[positive])
                label = f"{label} (median cell)"  # noqa: PLW2901
                style = {"marker": "o", "linestyle": "", "markersize": 4, "color": PRACTICES[TODAY]}
            left.loglog(at, error, label=label, **style)
            right.loglog(at, 100 * error / at, **style)
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
