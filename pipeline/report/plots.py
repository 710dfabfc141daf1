"""Pictures: the one module that draws. Lines on logarithmic or linear axes, as SVG and PNG, the same bytes every time.

matplotlib is imported where a picture is drawn: its half second is for pictures alone, and installations may lack it.
"""

import base64
import io
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PlanError, require_package
from pipeline.plan.model import Plan
from pipeline.report.policies import policy_curves
from udfs.records.statistics import Statistic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
COLOURS = ("#1b4f72", "#b9770e", "#1e8449", "#922b21", "#6c3483", "#117a65", "#7b7d7d", "#d35400", "#2e86c1", "#a04000")
DASHES = ("-", "--", "-.", ":")  # lines are told apart without colours too
REFERENCE: Mapping[str, Any] = {"color": "0.8", "linewidth": 0.8, "zorder": 0}  # a line at a reference or a limit
SETTINGS: Any = {"svg.hashsalt": "prdp", "svg.fonttype": "path", "font.size": 9}

Draw = Callable[[Sequence["Axes"]], None]


@dataclass(frozen=True)
class Picture:
    """A picture as the bytes of its files, by their suffix."""

    title: str
    files: Mapping[str, bytes]

    @property
    def data_uri(self) -> str:
        """The SVG as an address that holds it, for a page that loads nothing."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.files[".svg"]).decode()


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def picture(
    title: str,
    draw: Draw,
    *,
    panels: int = 1,
    size: tuple[float, float] = (11.5, 4.4),
    formats: Iterable[str] = (".svg",),
) -> Picture:
    """Return what `draw` draws into that many panels beside each other, of `size` inches in all.

    One legend, below the panels, names all labelled lines. Raises PlanError unless `can_draw`.
    """
    require_package("matplotlib", "a picture")
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # not its word that it looks for fonts
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=11)
        axes: Sequence[Axes] = figure.subplots(1, panels, squeeze=False)[0]
        draw(axes)
        for each in axes:
            each.grid(visible=True, which="major", color="0.93")
            each.spines[["top", "right"]].set_visible(False)
        if any(each.get_lines() for each in axes):
            figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
        return Picture(title, {suffix: _bytes(figure, suffix) for suffix in formats})


def line_style(i: int, dash: str | None = None) -> dict[str, Any]:
    """Return how the i-th line of a picture looks: all its colours first, then the next dashes, or `dash`."""
    dash = DASHES[i // len(COLOURS) % len(DASHES)] if dash is None else dash
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def require_format(target: Path) -> None:
    """Raise PlanError unless `target` is named as a picture that can be drawn."""
    if target.suffix.lower() not in FORMATS:
        raise PlanError(f"--plot {target}: name a file that ends in {' or '.join(FORMATS)}")


def write_picture(target: Path, title: str, draw: Draw, **layout: Any) -> None:
    """Write the `picture` to the SVG or PNG file `target`; raises PlanError where that is neither or not writable."""
    require_format(target)
    suffix = target.suffix.lower()
    drawn = picture(title, draw, formats=[suffix], **layout)
    try:
        target.write_bytes(drawn.files[suffix])
    except OSError as error:
        raise PlanError(f"--plot {target}: it cannot be written ({error.strerror})") from None


def plot_policies(plan: Plan, target: Path) -> None:
    """Write the policy functions of the plan's queries, a panel for each statistic, to `target`, an SVG or PNG file.

    Raises PlanError for another kind of file, or one that cannot be written.
    """
    require_format(target)
    curves = policy_curves(plan)
    statistics = list(dict.fromkeys(curve.statistic for curve in curves))

    def draw(panels: Sequence["Axes"]) -> None:
        for axes, statistic in zip(panels, statistics, strict=False):
            for i, curve in enumerate(curves):
                if curve.statistic == statistic:
                    axes.loglog(curve.influence, curve.rho, label=curve.label, **line_style(i))
            for size in _references(plan, statistic):
                axes.axvline(size, **REFERENCE)
            axes.set_xlabel(f"influence: the record's {statistic.formula.strip('|')}")
            axes.set_ylabel("loss ρ (per-record zCDP)")

    count = max(len(statistics), 1)
    title = f"Release {plan.release}: what a record can lose in each query"
    write_picture(target, title, draw, panels=count, size=(6.4 * count, 4.8))


def _references(plan: Plan, statistic: Statistic) -> set[float]:
    """Return the influences ≥ 1 of the plan's reference records."""
    records = [record.values for limit in plan.budget for record in limit.at.records]
    sizes = {float(statistic.influence(values)) for values in records if values.keys() >= {*statistic.measures}}
    return {size for size in sizes if size >= 1}


def _bytes(figure: Any, suffix: str) -> bytes:
    file = io.BytesIO()
    metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
    figure.savefig(file, format=suffix[1:], dpi=120, metadata=metadata)
    return file.getvalue()
