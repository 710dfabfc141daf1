"""What a study needs of synthetic microdata, exactly, and the losses of mechanisms on it.

A loss is a function of the influence alone. So counts of influences, which are whole numbers, are the exact
distribution of any mechanism's losses, whatever the engine and however the data are cut.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.accounting.convert import classical_scale, closed_scale
from pipeline.base.plain import QUANTILES
from pipeline.base.plots import REFERENCE, Picture, line_style, write_picture
from pipeline.planning.study.equal_mechanisms import FLAGS, HIGH, LOW, Line, Panel, Study, StudyMechanism
from pipeline.planning.study.todays_practice import FactorNoise
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import up_float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROWTH = (1_000, 10_000)  # influences between which the growth of a loss is stated


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Sums of the cells that have records, in the order of the cells' numbers, in the measure's unit.

    `squares`: of records; `firm_squares`: of each firm's total in the cell; `records` and `firms`: how many.
    """

    cells: Int64s
    totals: Int64s
    records: Int64s
    firms: Int64s
    squares: Floats
    firm_squares: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Aggregates:
    """How many records (`counts`) have each of the distinct ascending `influences`, and the cells that have records.

    `cells_in_all` counts the cells without records too.
    """

    influences: Int64s
    counts: Int64s
    cells: Cells
    cells_in_all: int

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def share(self, chosen: Mask) -> float:
        """Return the share of records whose influence is chosen; 0 without records."""
        return float(self.counts[chosen].sum() / self.records) if self.records else 0.0


@dataclass(frozen=True, eq=False)
class PanelLosses:
    """A panel's curves, and each one's losses at the distinct influences of the records."""

    panel: Panel
    lines: tuple[Line, ...]
    losses: tuple[Floats, ...]

    @classmethod
    def of(cls, panel: Panel, lines: Sequence[Line], data: Aggregates) -> "PanelLosses":
        """Return the losses of a panel: upper bounds, within one part in 10⁹."""
        influences = data.influences.astype(np.float64)
        return cls(panel, tuple(lines), tuple(line.mechanism.loss(influences) for line in lines))


def write_study(folder: Path, name: str, document: Mapping[str, Any], pictures: Mapping[str, Picture]) -> None:
    """Write a study's document as `name`.json, and its pictures by their names, into a folder."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    for title, drawn in pictures.items():
        for suffix, data in drawn.files.items():
            (folder / f"{title}{suffix}").write_bytes(data)


def quantile(losses: Floats, counts: Int64s, share: Fraction) -> float:
    """Return the least loss that at least `share` of all records do not exceed: exact, from counts."""
    order = np.argsort(losses, kind="stable")
    cumulative = np.cumsum(counts[order])
    needed = -(-int(cumulative[-1]) * share.numerator // share.denominator)
    return float(losses[order][np.searchsorted(cumulative, needed)])


def panel_json(panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    """Return a panel's losses as JSON."""
    equal = panel.panel.equal
    return {
        "name": panel.panel.name,
        "title": panel.panel.title,
        "equal": {"variance": float(equal.variance), "total": float(equal.total)},
        "entries": [
            _line_json(line, losses, panel, data, study) | _compared_with(panel.losses[0], losses, data)
            for line, losses in zip(panel.lines, panel.losses, strict=True)
        ],
    }


def _line_json(line: Line, losses: Floats, panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    mechanism, variance = line.mechanism, line.mechanism.variance(float(panel.panel.equal.total))
    growth = [mechanism.loss_at(Fraction(size)) for size in GROWTH]
    return {
        "label": line.label,
        "policy": line.policy,
        "mechanism": mechanism.describe(),
        "releasable": line.releasable,
        "equal_by": line.equal_by,
        "variance": variance if np.isfinite(variance) else None,
        "losses": [{"influence": size, "rho": up_float(mechanism.loss_at(Fraction(size)))} for size in study.sizes],
        "growth": {"from": GROWTH[0], "to": GROWTH[1], "factor": float(growth[1] / growth[0])},
        "quantiles": {q: quantile(losses, data.counts, Fraction(q)) for q in QUANTILES} if data.records else {},
        "largest": float(losses.max(initial=0.0)),
        "within": [{"rho": float(limit), "share": data.share(losses <= float(limit))} for limit in study.limits],
    }


def _compared_with(first: Floats, losses: Floats, data: Aggregates) -> dict[str, Any]:
    """Return how a curve compares with the panel's first: where it loses less, and what share of records does."""
    less = losses < first
    not_less = np.flatnonzero(~less)
    start = int(not_less[-1]) + 1 if len(not_less) else 0
    return {
        "loses_less_than_first": {
            "share": data.share(less),
            "from_influence": int(data.influences[start]) if start < len(less) else None,
            "share_from_there": data.share(np.arange(len(less)) >= start),
        }
    }


CLASSES = (1, 10, 100, 1_000, 10_000, 100_000)  # the least true total of each class; totals of 0 are in none
POINTS = 400  # of a variance as a function of the total
TODAY = "multiplicative noise"


@dataclass(frozen=True, eq=False)
class PanelErrors:
    """Standard errors of all cells that have records, by the label of their mechanism, in the cells' order."""

    name: str
    errors: Mapping[str, Floats]


def panel_errors(panel: PanelLosses, cells: Cells, today: FactorNoise | None) -> PanelErrors:
    """Return the standard errors of the panel's mechanisms that have variances, and of the multiplicative noise.

    An entry's policies have the same noise: it stands there once, under the entry's own label.
    """
    errors: dict[str, Floats] = {}
    for line in {line.entry: line for line in panel.lines}.values():
        variances = _variances(line.mechanism, cells.totals.astype(np.float64))
        if np.isfinite(variances).all():
            errors[panel.panel.entries[line.entry].label] = np.sqrt(variances)
    if today is not None:
        errors[TODAY] = np.sqrt(factor_variances(today, cells))
    return PanelErrors(panel.panel.name, errors)


def factor_variances(noise: FactorNoise, cells: Cells) -> Floats:
    """Return the variance of each cell's total under multiplicative noise, from the cells' sums.

    Var δ·ΣX² with firm totals X; with own magnitudes (E|δ − 1|)²·ΣX² + Var|δ − 1|·Σx² (docs/study.md).
    """
    if noise.own_magnitudes:
        return noise.magnitude**2 * cells.firm_squares + noise.magnitude_variance * cells.squares
    return noise.variance * cells.firm_squares


def errors_json(panel: PanelErrors, cells: Cells) -> dict[str, Any]:
    """Return classes of cells by their true total with root mean squared errors, and the shares of flags, as JSON."""
    number = np.searchsorted(CLASSES, cells.totals, side="right") - 1
    classes = [
        {
            "total_from": edge,
            "cells": int(np.count_nonzero(number == i)),
            "standard_error": {
                label: float(np.sqrt(np.mean(errors[number == i] ** 2))) for label, errors in panel.errors.items()
            },
        }
        for i, edge in enumerate(CLASSES)
        if (number == i).any()
    ]
    positive = cells.totals > 0
    flags = {label: _flags(errors[positive] / cells.totals[positive]) for label, errors in panel.errors.items()}
    return {"classes": classes, "flags": flags}


def _variances(mechanism: StudyMechanism, totals: Floats) -> Floats:
    """Return variances at true totals ≥ 0, between points interpolated in logarithms: within one part in 10⁴."""
    points = np.expm1(np.linspace(0, np.log1p(totals.max(initial=1.0)), POINTS))
    variances = np.array([mechanism.variance(float(point)) for point in points])
    interpolated: Floats = np.exp(np.interp(np.log1p(totals), np.log1p(points), np.log(variances)))
    return interpolated


def _flags(relative: Floats) -> dict[str, float]:
    if not len(relative):
        return {}
    shares = np.bincount(np.searchsorted((LOW, HIGH), relative, side="right"), minlength=len(FLAGS)) / len(relative)
    return dict(zip(FLAGS, shares.tolist(), strict=True))


# Figures of the classical scale of Gaussian noise (paper 3).

DELTAS = (0.99, 0.1, 1e-2, 1e-5, 1e-9)
LONGEST = 12.0  # ε up to which the classical scale is tried
AT_EPSILONS = 200


def sufficient_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − P(|N| > εσ − 1/(2σ))/δ: below 0 where the condition of its proof fails (the paper's (7))."""
    from scipy.special import ndtr  # noqa: PLC0415 — for the figures alone

    return float(1 - 2 * ndtr(-(epsilon * scale - 0.5 / scale)) / delta)


def exact_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − δ(ε)/δ, δ(ε) = Φ(1/(2σ) − εσ) − e^ε·Φ(−1/(2σ) − εσ): below 0 where (ε, δ) itself fails (its (11))."""
    from scipy.special import log_ndtr  # noqa: PLC0415

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
        longer, shorter = np.linspace(0.05, LONGEST, AT_EPSILONS), np.linspace(0.005, 1, AT_EPSILONS)
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
        deltas = np.geomspace(1e-12, 0.1, AT_EPSILONS)
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
