"""Errors of published totals: those of a panel's mechanisms at the cells' true totals, beside today's practice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.planning.study.equal_mechanisms import StudyMechanism
from pipeline.planning.study.study_losses import Cells, PanelLosses
from pipeline.planning.study.study_model import FLAGS, HIGH, LOW, FactorNoise
from udfs.numbers.arrays import Floats

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
    """Return the shares of cells with a total above 0 that get each flag."""
    if not len(relative):
        return {}
    shares = np.bincount(np.searchsorted((LOW, HIGH), relative, side="right"), minlength=len(FLAGS)) / len(relative)
    return dict(zip(FLAGS, shares.tolist(), strict=True))
