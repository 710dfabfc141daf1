"""The Gaussian scales of paper 3 beside each other: its two figures (docs/noise.md)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr

from pipeline.accounting.convert import classical_scale, closed_scale
from pipeline.base.plots import REFERENCE, line_style, write_picture
from udfs.numbers.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELTAS = (0.99, 0.1, 1e-2, 1e-5, 1e-9)
LONGEST = 12.0  # ε up to which the classical scale is tried
POINTS = 200
Margin = Callable[[float, float, float], float]


def sufficient_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − P(|N| > εσ − 1/(2σ))/δ: below 0 where the condition of its proof fails (the paper's (7))."""
    return float(1 - 2 * ndtr(-(epsilon * scale - 0.5 / scale)) / delta)


def exact_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − δ(ε)/δ, δ(ε) = Φ(1/(2σ) − εσ) − e^ε·Φ(−1/(2σ) − εσ): below 0 where (ε, δ) itself fails (its (11))."""
    first, second = 0.5 / scale - epsilon * scale, -0.5 / scale - epsilon * scale
    return float(1 - (np.exp(log_ndtr(first)) - np.exp(epsilon + log_ndtr(second))) / delta)


def ratio(epsilon: float, delta: float) -> float:
    """Return the classical scale over the closed one."""
    return classical_scale(epsilon, delta) / closed_scale(epsilon, delta)


def ratio_bounds(delta: Floats) -> tuple[Floats, Floats]:
    """Return the ratio's limits as ε → 0 and ε → 1: √(ln(1.25/δ)/z) and 2·√(ln(1.25/δ))/(√(z + 1) + √z), δ ≤ ½."""
    surprise, classical = -np.log(4 * delta * (1 - delta)), np.log(1.25 / delta)
    return np.sqrt(classical / surprise), 2 * np.sqrt(classical) / (np.sqrt(surprise + 1) + np.sqrt(surprise))


def plot_scales(target: Path) -> None:
    """Write paper 3's figures 1 and 2 to `target`, an SVG or PNG file; PlanError for another kind or no such place."""

    def draw(panels: Sequence["Axes"]) -> None:
        longer, shorter = np.linspace(0.05, LONGEST, POINTS), np.linspace(0.005, 1, POINTS)
        for axes, margin in zip(panels[:2], (sufficient_margin, exact_margin), strict=True):
            for i, delta in enumerate(DELTAS):
                drawn = [margin(epsilon, delta, classical_scale(epsilon, delta)) for epsilon in longer.tolist()]
                axes.plot(longer, drawn, **line_style(i))
            axes.axhline(0.0, **REFERENCE)
            axes.set(xlabel="ε", ylim=(-1, 1.02))
        for i, delta in enumerate(DELTAS):
            shown = shorter if delta <= 0.5 else shorter[:0]  # its limits are for δ ≤ ½
            ratios = [ratio(epsilon, delta) for epsilon in shown.tolist()]
            panels[2].plot(shown, ratios, label=f"δ = {delta:g}", **line_style(i))
        panels[2].set(xlabel="ε")
        deltas = np.geomspace(1e-12, 0.1, POINTS)
        for bound, name, dash in zip(ratio_bounds(deltas), ("ε → 0", "ε → 1"), ("-", "--"), strict=True):
            panels[3].semilogx(deltas, bound, label=name, **line_style(len(DELTAS), dash))
        panels[3].set(xlabel="δ")
        for axes, title in zip(panels, TITLES, strict=True):
            axes.set_title(title, fontsize=9)

    write_picture(target, "The classical scale of Gaussian noise for (ε, δ)", draw, panels=4, size=(16, 4.6))


TITLES = (
    "1 (a) 1 − P(|N| > εσ − 1/(2σ))/δ: the condition of its proof",
    "1 (b) 1 − δ(ε)/δ: (ε, δ) itself",
    "2 (a) over the closed scale",
    "2 (b) its limits",
)
