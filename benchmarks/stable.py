"""The figures of the paper on symmetric stable noise, and its table of errors: pictures and CSV in docs/stable/.

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

from udfs.mechanisms.additive_kinds import SymmetricStable
from udfs.noise.heavy_weights import StableWeights
from udfs.noise.stable_density import curve

DOCS = Path(__file__).parents[1] / "docs" / "stable"
Floats = NDArray[np.float64]
OUTPUTS = np.round(np.linspace(-20, 20, 801), 3)
SCALES = np.geomspace(1e-2, 1e2, 161)
SIX, SEVEN, EIGHT = (1.0, 1.5, 1.8, 1.9, 1.99), (0.5, 1.0, 2.0, 4.0), (1.0, 1.2, 1.5, 1.8, 1.9, 1.99)
TABLE = (1.2, 1.5, 1.8, 1.9, 1.95, 1.99, 1.999)


def main() -> None:
    """Compute, draw, write."""
    DOCS.mkdir(exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    _two_totals()
    _densities()
    _integrand()
    _moved()
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
    _gamma()
    _distortion()


def _log_density(alpha: float, x: Floats) -> Floats:
    """Return ln p, but for a constant."""
    return -np.log1p(x**2) if alpha == 1 else curve(Fraction(str(alpha))).log_ratio(np.abs(x))


def _density(alpha: float, x: Floats) -> Floats:
    """Return p, for γ = 1; p(0) = Γ(1 + 1/α)/π."""
    log = -(x**2) / 4 if alpha == 2 else _log_density(alpha, x)
    return np.exp(log) * gamma(1 + 1 / alpha) / pi


def _loss_at(alpha: float, scale: float) -> Floats:
    """Return ln[p(x − ½)/p(x + ½)], p of this scale: Δ = 1, the two totals at ±½."""
    return _log_density(alpha, (OUTPUTS - 0.5) / scale) - _log_density(alpha, (OUTPUTS + 0.5) / scale)


def _largest(alpha: float) -> Floats:
    """Return the loss that is stated at Δ = 1 for each scale."""
    found = [
        SymmetricStable(alpha=Fraction(str(alpha)), gamma=Fraction(float(g))).pure_loss_at(Fraction(1)) for g in SCALES
    ]
    return np.array([float(loss) for loss in found if loss is not None])


def _two_totals() -> None:
    """Figure 1: the released value with one record and without it."""
    x = np.linspace(-6, 6, 241)
    without, with_it = _density(1.5, x + 0.5), _density(1.5, x - 0.5)
    figure, (axes,) = _figure(1)
    axes.plot(x, without, lw=1.2, label="without the record: total −½")
    axes.plot(x, with_it, lw=1.2, label="with it: total ½")
    at, low, high = 2.0, float(_density(1.5, np.array([2.5]))[0]), float(_density(1.5, np.array([1.5]))[0])
    loss = np.log(high / low)
    axes.plot([at, at], [low, high], "k.-", lw=1, label=f"loss at x = 2: ln({high:.3f}/{low:.3f}) = {loss:.2f}")
    axes.set(xlabel="output x", ylabel="density (α = 1.5, γ = 1)", ylim=(0, 0.38))
    _finish(figure, [axes], "figure-1")
    _write("figure-1", ["x", "without", "with"], [x, without, with_it])


def _densities() -> None:
    """Figure 3: densities, and their tails, which the paper does not draw."""
    x, far = np.linspace(-6, 6, 241), np.geomspace(0.5, 100, 161)
    figure, (left, right) = _figure(2)
    named = {1.0: "α = 1 (Cauchy)", 1.5: "α = 1.5", 2.0: "α = 2 (Gaussian)"}
    for alpha, label in named.items():
        left.plot(x, _density(alpha, x), lw=1.2, label=label)
        right.loglog(far, _density(alpha, far), lw=1.2)
    left.set(xlabel="noise z, in units of γ", ylabel="density")
    right.set(xlabel="noise z, in units of γ", ylabel="density, logarithmic", ylim=(1e-7, 1))
    _finish(figure, [left, right], "figure-3")
    _write("figure-3", ["z", *named.values()], [x, *(_density(alpha, x) for alpha in named)])


def _integrand() -> None:
    """Figure 4: what would have to be integrated for the density at x = 10."""
    t = np.linspace(-4, 4, 801)
    value = np.exp(-(np.abs(t) ** 1.5)) * np.cos(10 * t)
    figure, (axes,) = _figure(1)
    axes.plot(t, value, lw=1.2)
    axes.set(xlabel="t", ylabel="exp(−|t|^1.5)·cos(10t)")
    _finish(figure, [axes], "figure-4")
    _write("figure-4", ["t", "integrand"], [t, value])


def _moved() -> None:
    """Figure 5: a total that is moved away from the other one, by 1, and the output with it."""
    x = np.linspace(-5, 7, 241)
    totals = {"p₂, total −1": -1.0, "p₁, total 0": 0.0, "p₁ moved by ε = 1": 1.0}
    figure, (axes,) = _figure(1)
    for (label, total), style in zip(totals.items(), ("-", "-", ":"), strict=True):
        axes.plot(x, _density(1.5, x - total), style, lw=1.2, label=label)
    for at, upper, name in ((1.0, 0.0, "x*"), (2.0, 1.0, "x* + ε")):
        high, low = (float(_density(1.5, np.array([at - total]))[0]) for total in (upper, -1.0))
        axes.plot([at, at], [low, high], "k.-", lw=1, label=f"loss at {name}: {np.log(high / low):.2f}")
        axes.annotate(name, (at, high), (4, 2), textcoords="offset points")
    axes.set(xlabel="output x", ylabel="density (α = 1.5, γ = 1)", ylim=(0, 0.38))
    _finish(figure, [axes], "figure-5")
    _write("figure-5", ["x", *totals], [x, *(_density(1.5, x - total) for total in totals.values())])


def _gamma() -> None:
    """Figure 10: Γ, of which the mean absolute error takes the part below ½; and the error by α, which is our own."""
    y, alpha = np.linspace(0.1, 3.5, 171), np.linspace(1.05, 2, 96)
    of_y, error = np.array([gamma(v) for v in y]), np.array([2 / pi * gamma(1 - 1 / a) for a in alpha])
    figure, (left, right) = _figure(2)
    left.axvspan(0, 0.5, color="0.9", label="1 − 1/α for 1 ≤ α ≤ 2")
    left.plot(y, of_y, lw=1.2)
    left.plot(1.4616, 0.8856, "k.", label="least: Γ(1.462) = 0.886")
    left.set(xlabel="y", ylabel="Γ(y)", xlim=(0, 3.5), ylim=(0, 10))
    right.plot(alpha, error, lw=1.2)
    right.axhline(2 / np.sqrt(pi), color="k", ls="--", lw=1, label="Gaussian: 2/√π = 1.128")
    right.set(xlabel="α", ylabel="mean absolute error over γ", ylim=(0, 14))
    _finish(figure, [left, right], "figure-10")
    _write("figure-10", ["alpha", "error over gamma"], [alpha, error])


def _outputs(name: str, parameter: str, losses: dict[str, Floats]) -> None:
    figure, (axes,) = _figure(1)
    for value, loss in losses.items():
        axes.plot(OUTPUTS, loss, "k--" if value.startswith("2 (") else "-", lw=1.2, label=f"{parameter} = {value}")
    axes.set_ylim(-3, 3) if name == "figure-6" else None
    axes.set_xlabel("output x, the totals being −½ and ½")
    axes.set_ylabel("loss ln[p(x − ½)/p(x + ½)]")
    _finish(figure, [axes], name)
    _write(name, ["x", *(f"{parameter} = {value}" for value in losses)], [OUTPUTS, *losses.values()])


def _scales(name: str, losses: dict[str, Floats], limits: dict[str, Callable[[Floats], Floats]]) -> None:
    figure, (axes,) = _figure(1)
    for label, loss in losses.items():
        axes.loglog(SCALES, loss, "k--" if label.startswith("Laplace") else "-", lw=1.2, label=label)
    drawn = {label: limit(SCALES) for label, limit in limits.items()}
    for label, line in drawn.items():
        axes.loglog(SCALES[line > 0], line[line > 0], ":", lw=1.2, label=label)
    axes.set_ylim(5e-3, 200)
    axes.set_xlabel("scale γ, at Δ = 1")
    axes.set_ylabel("largest loss P(1)")
    _finish(figure, [axes], name)
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


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(6.5, 3.8) if panels == 1 else (9, 3.8), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _finish(figure: Figure, panels: Sequence[Axes], name: str) -> None:
    for axes in panels:
        if axes.get_legend_handles_labels()[1]:
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
