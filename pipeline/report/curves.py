"""A picture of a plan's policy functions: loss over influence, on logarithmic axes."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.curves import curves
from pipeline.errors import PlanError
from pipeline.plan.model import Limit, Plan

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

    found = curves(plan)
    measures = list(dict.fromkeys(curve.measure for curve in found))
    with mpl.rc_context({"svg.hashsalt": "prdp", "font.size": 9}):
        figure = Figure(figsize=(6.4 * max(len(measures), 1), 4.8), layout="constrained")
        figure.suptitle(f"Release {plan.release}: what a record can lose in each query")
        for axes, measure in zip(figure.subplots(1, max(len(measures), 1), squeeze=False)[0], measures, strict=False):
            of_measure = [curve for curve in found if curve.measure == measure]
            for i, curve in enumerate(of_measure):
                line = {"color": f"C{i % 10}", "linestyle": LINES[i // 10 % len(LINES)]}
                axes.loglog(curve.influence, curve.rho, label=curve.label, **line)
            for size in _references(plan, measure):
                axes.axvline(size, color="0.8", linewidth=0.8, zorder=0)
            axes.set_xlabel(f"influence: the record's {measure}")
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


def _references(plan: Plan, measure: str) -> set[float]:
    return {size for limit in plan.budget for size in _values(limit, measure) if size >= 1}


def _values(limit: Limit, measure: str) -> list[float]:
    records = limit.at if isinstance(limit.at, tuple) else (limit.at,)
    values = (record.get(measure) for record in records)
    return [float(value) for value in values if value is not None and not isinstance(value, str)]
