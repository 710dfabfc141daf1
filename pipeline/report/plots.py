"""A picture of a plan's policy functions: loss over influence, on logarithmic axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import PlanError
from pipeline.plan.model import Plan
from pipeline.report.losses import policy_curves
from udfs.records.statistics import Statistic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
LINES = ("-", "--", "-.", ":")  # so that curves are told apart without colours


def plot_curves(plan: Plan, target: Path) -> None:
    """Write the curves of the plan's queries, a panel for each measure, to `target`, an SVG or PNG file.

    Raises PlanError for another kind of file, or one that cannot be written.
    """
    require_format(target)
    import matplotlib as mpl  # noqa: PLC0415 — the half second of its import is for pictures alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = policy_curves(plan)
    statistics = list(dict.fromkeys(curve.statistic for curve in found))
    with mpl.rc_context({"svg.hashsalt": "prdp", "font.size": 9}):
        figure = Figure(figsize=(6.4 * max(len(statistics), 1), 4.8), layout="constrained")
        figure.suptitle(f"Release {plan.release}: what a record can lose in each query")
        panels = figure.subplots(1, max(len(statistics), 1), squeeze=False)[0]
        for axes, statistic in zip(panels, statistics, strict=False):
            curves = [curve for curve in found if curve.statistic == statistic]
            for i, curve in enumerate(curves):
                line = {"color": f"C{i % 10}", "linestyle": LINES[i // 10 % len(LINES)]}
                axes.loglog(curve.influence, curve.rho, label=curve.label, **line)
            for size in _references(plan, statistic):
                axes.axvline(size, color="0.8", linewidth=0.8, zorder=0)
            axes.set_xlabel(f"influence: the record's {statistic.formula.strip('|')}")
            axes.set_ylabel("loss ρ (per-record zCDP)")
            axes.grid(visible=True, which="major", color="0.93")
            axes.legend(frameon=False)
        saved(figure, target)


def require_format(target: Path) -> None:
    """Raise PlanError unless `target` is named as a picture that can be drawn."""
    if target.suffix.lower() not in FORMATS:
        raise PlanError(f"--plot {target}: name a file that ends in {' or '.join(FORMATS)}")


def saved(figure: "Figure", target: Path) -> None:
    """Write a figure, the same bytes every time; raises PlanError where it cannot be written."""
    try:
        figure.savefig(target, dpi=150, metadata={"Date": None} if target.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise PlanError(f"--plot {target}: it cannot be written ({error.strerror})") from None


def _references(plan: Plan, statistic: Statistic) -> set[float]:
    """Return the influences ≥ 1 of the plan's reference records."""
    found = set()
    for limit in plan.budget:
        for record in limit.at if isinstance(limit.at, tuple) else (limit.at,):
            values = {name: value for name, value in record.items() if not isinstance(value, str)}
            if values.keys() >= {*statistic.measures}:
                found.add(float(statistic.influence(values)))
    return {size for size in found if size >= 1}


# Line plots as SVG text: logarithmic axes, a legend beside them, nothing loaded from elsewhere.


WIDTH, HEIGHT = 620, 300  # of the plot's frame
LEFT, TOP, BOTTOM, LEGEND = 84, 12, 46, 260
COLOURS = ("#1b4f72", "#b9770e", "#1e8449", "#922b21", "#6c3483", "#117a65", "#7b7d7d", "#d35400", "#2e86c1", "#a04000")
DASHES = ("", "6 3", "2 3")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and from where to where; powers of ten are marked on a logarithmic one."""

    label: str
    low: float
    high: float
    logarithmic: bool

    @classmethod
    def over(cls, label: str, values: Sequence[float], *, logarithmic: bool) -> "Axis":
        """Return the axis that holds all values, on a logarithmic one those above 0."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not logarithmic)] or [1.0]
        if not logarithmic:
            return cls(label, min(0.0, *kept), max(*kept, 1e-9) if len(kept) > 1 else max(kept[0], 1e-9), False)
        low, high = math.floor(math.log10(min(kept))), math.ceil(math.log10(max(kept)))
        return cls(label, 10.0**low, 10.0 ** max(high, low + 1), True)

    def at(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; what lies outside is moved to the end."""
        if self.logarithmic:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return min(max(value, 0.0), 1.0)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The marked values and their labels."""
        if not self.logarithmic:
            step = (self.high - self.low) / 5
            return [(self.low + i * step, f"{self.low + i * step:.3g}") for i in range(6)]
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        every = -(-(last - first) // 8)
        return [(10.0**n, f"{10.0**n:g}") for n in range(first, last + 1, every)]


def lines(series: Mapping[str, Points], x: Axis, y: Axis, *, steps: bool = False, pairs: bool = False) -> str:
    """Return a plot of named lines; `steps`: values hold from their point on, as shares of a cumulative curve do.

    `pairs`: every second line belongs to the one before, and is that line in dashes.
    """
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>'
    drawn = [frame, *_grid(x, y)]
    for i, (name, points) in enumerate(series.items()):
        colour, dashes = divmod(i, 2) if pairs else (i, i // len(COLOURS))
        look = f'stroke="{COLOURS[colour % len(COLOURS)]}" stroke-dasharray="{DASHES[dashes % len(DASHES)]}"'
        drawn.append(f'<path d="{_path(points, x, y, steps)}" fill="none" stroke-width="1.6" {look}/>')
        down = TOP + 10 + 17 * i
        right = LEFT + WIDTH + 14
        drawn.append(f'<line x1="{right}" x2="{right + 22}" y1="{down}" y2="{down}" stroke-width="2" {look}/>')
        drawn.append(f'<text x="{right + 28}" y="{down + 4}">{escape(name)}</text>')
    height = max(TOP + HEIGHT + BOTTOM, TOP + 20 + 17 * len(series))
    size = f'viewBox="0 0 {LEFT + WIDTH + LEGEND} {height}" width="{LEFT + WIDTH + LEGEND}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{"".join(drawn)}</svg>'


def _grid(x: Axis, y: Axis) -> list[str]:
    drawn = []
    for value, label in x.ticks:
        place = LEFT + WIDTH * x.at(value)
        drawn.append(f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#e4e4e0"/>')
        drawn.append(f'<text x="{place:.1f}" y="{TOP + HEIGHT + 17}" text-anchor="middle">{label}</text>')
    for value, label in y.ticks:
        place = TOP + HEIGHT * (1 - y.at(value))
        drawn.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{place:.1f}" y2="{place:.1f}" stroke="#e4e4e0"/>')
        drawn.append(f'<text x="{LEFT - 7}" y="{place + 4:.1f}" text-anchor="end">{label}</text>')
    middle = TOP + HEIGHT / 2
    drawn.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">{escape(x.label)}</text>')
    turned = f'transform="rotate(-90 14 {middle})" text-anchor="middle"'
    drawn.append(f'<text x="14" y="{middle}" {turned}>{escape(y.label)}</text>')
    return drawn


def _path(points: Points, x: Axis, y: Axis, steps: bool) -> str:
    words = [f"M{LEFT + WIDTH * x.at(points[0][0]):.1f} {TOP + HEIGHT}"] if steps and points else []
    for px, py in points:
        right, down = LEFT + WIDTH * x.at(px), TOP + HEIGHT * (1 - y.at(py))
        words.append(("M" if not words else f"H{right:.1f}L" if steps else "L") + f"{right:.1f} {down:.1f}")
    return "".join(words)
