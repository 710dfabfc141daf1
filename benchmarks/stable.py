"""Figures 6 to 9 of the paper on symmetric stable noise, and its table of errors: pictures and CSV in docs/stable/.

    python -m benchmarks.stable

Losses at one output are differences of log-densities; the largest ones are those that prdp states (certified bounds).
"""

import csv
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import gamma, pi
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from udfs.mechanisms.stable import SymmetricStable
from udfs.noise.stable import StableWeights
from udfs.noise.stable_density import curve

DOCS = Path(__file__).parents[1] / "docs" / "stable"
Floats = NDArray[np.float64]
OUTPUTS = np.round(np.linspace(-20, 20, 801), 3)
SCALES = np.geomspace(1e-2, 1e2, 161)
SIX, SEVEN, EIGHT = (1.0, 1.5, 1.8, 1.9, 1.99), (0.5, 1.0, 2.0, 4.0), (1.0, 1.2, 1.5, 1.8, 1.99)
TABLE = (1.2, 1.5, 1.8, 1.9, 1.95, 1.99, 1.999)


def main() -> None:
    """Compute, draw, write."""
    DOCS.mkdir(exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    _outputs("figure-6", "α", {f"{a:g}": _loss_at(a, 1.0) for a in SIX} | {"2 (Gaussian)": OUTPUTS / 2})
    _outputs("figure-7", "γ", {f"{g:g}": _loss_at(1.5, g) for g in SEVEN})
    largest = {f"α = {a:g}": _largest(a) for a in EIGHT}
    _scales("figure-8", largest | {"Laplace, Δ/γ": 1 / SCALES}, {})
    limits: dict[str, Callable[[Floats], Floats]] = {
        "1/γ": lambda g: 1 / g,
        "2·ln(1/γ)": lambda g: 2 * np.log(1 / g),
        "2·ln(√2/γ), as printed in eq. 95": lambda g: 2 * np.log(np.sqrt(2) / g),
    }
    _scales("figure-9", {"α = 1": largest["α = 1"]}, limits)
    _distortion()


def _log_density(alpha: float, x: Floats) -> Floats:
    """Return ln p, but for a constant."""
    return -np.log1p(x**2) if alpha == 1 else curve(Fraction(str(alpha))).log_ratio(np.abs(x))


def _loss_at(alpha: float, scale: float) -> Floats:
    """Return ln[p(x − ½)/p(x + ½)], p of this scale: Δ = 1, the two totals at ±½."""
    return _log_density(alpha, (OUTPUTS - 0.5) / scale) - _log_density(alpha, (OUTPUTS + 0.5) / scale)


def _largest(alpha: float) -> Floats:
    """Return the loss that is stated at Δ = 1 for each scale."""
    found = [
        SymmetricStable(alpha=Fraction(str(alpha)), gamma=Fraction(float(g))).pure_loss_at(Fraction(1)) for g in SCALES
    ]
    return np.array([float(loss) for loss in found if loss is not None])


def _outputs(name: str, parameter: str, losses: dict[str, Floats]) -> None:
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for value, loss in losses.items():
        axes.plot(OUTPUTS, loss, "k--" if value.startswith("2 (") else "-", lw=1.2, label=f"{parameter} = {value}")
    axes.set_ylim(-5, 5) if name == "figure-6" else None
    axes.set_xlabel("output x, the totals being −½ and ½")
    axes.set_ylabel("loss ln[p(x − ½)/p(x + ½)]")
    _finish(figure, axes, name)
    _write(name, ["x", *(f"{parameter} = {value}" for value in losses)], [OUTPUTS, *losses.values()])


def _scales(name: str, losses: dict[str, Floats], limits: dict[str, Callable[[Floats], Floats]]) -> None:
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for label, loss in losses.items():
        axes.loglog(SCALES, loss, "k--" if label.startswith("Laplace") else "-", lw=1.2, label=label)
    drawn = {label: limit(SCALES) for label, limit in limits.items()}
    for label, line in drawn.items():
        axes.loglog(SCALES[line > 0], line[line > 0], ":", lw=1.2, label=label)
    axes.set_ylim(5e-3, 200)
    axes.set_xlabel("scale γ, at Δ = 1")
    axes.set_ylabel("largest loss P(1)")
    _finish(figure, axes, name)
    _write(name, ["gamma", *losses, *drawn], [SCALES, *losses.values(), *drawn.values()])


def _distortion() -> None:
    """Write E|noise|/γ of continuous noise, and of noise on the integers at three scales."""
    scales = (1, 10, 1000)
    columns = [np.array([2 / pi * gamma(1 - 1 / a) for a in TABLE])]
    for scale in scales:
        weights = [StableWeights(alpha=Fraction(str(a)), scale=Fraction(scale)) for a in TABLE]
        columns.append(np.array([w.moments.mean_abs / scale for w in weights]))
    header = ["alpha", "continuous", *(f"on the integers at gamma = {scale}" for scale in scales)]
    _write("distortion", header, [np.array(TABLE), *columns])


def _finish(figure: Figure, axes: Axes, name: str) -> None:
    axes.legend(frameon=False)
    axes.grid(alpha=0.2)
    figure.savefig(DOCS / f"{name}.png", dpi=100, metadata={"Software": None})


def _write(name: str, header: Sequence[str], columns: Sequence[Floats]) -> None:
    with (DOCS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows([f"{value:.6g}" for value in row] for row in zip(*columns, strict=True))


if __name__ == "__main__":
    main()
