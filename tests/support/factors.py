"""Multiplicative noise, drawn: what the closed forms of pipeline.planning.study are checked against."""

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.study.equal_mechanisms import FLAGS, HIGH, LOW
from pipeline.planning.study.todays_practice import FactorNoise

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]


def draw(noise: FactorNoise, random: np.random.Generator, firm: Codes) -> Floats:
    """Return a factor for each establishment, whose firms are numbered from 0."""
    firms = int(firm.max(initial=-1)) + 1
    direction = random.choice((-1.0, 1.0), firms)[firm]
    drawn = random.random(len(firm)) if noise.own_magnitudes else random.random(firms)[firm]
    t = 1 - np.sqrt(drawn)  # P(T > t) = (1 − t)²
    factors: Floats = 1 + direction * (noise.a - 1 + (noise.b - noise.a) * t)
    return factors


def cell_variance(noise: FactorNoise, values: Floats, firm: Codes, cell: Codes, cells: int) -> Floats:
    """Return the variance of each cell's published total, of `cells` cells numbered from 0, from single records.

    With firm totals X in the cell and establishments x: Var δ·ΣX², or with own magnitudes in one direction

        (E|δ − 1|)²·ΣX² + Var|δ − 1|·Σx².
    """
    pairs, pair = np.unique(np.column_stack([cell, firm]), axis=0, return_inverse=True)
    totals = _sums(values, pair.ravel(), len(pairs))
    squares = _sums(totals**2, pairs[:, 0], cells)
    if not noise.own_magnitudes:
        return np.multiply(squares, noise.variance)
    return np.add(noise.magnitude**2 * squares, noise.magnitude_variance * _sums(values**2, cell, cells))


def totals_with_factors(values: Floats, factors: Floats, cell: Codes, cells: int) -> Floats:
    """Return each cell's total of values times factors."""
    return _sums(values * factors, cell, cells)


def flags(published: Floats, truth: Floats) -> NDArray[np.str_]:
    """Return for each cell G, H or J: its total was changed by under 2 %, by 2 to 5 %, or by 5 % or more.

    A cell whose total is 0 was not changed: G. Cells flagged J are published in some years, suppressed in others.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(published == truth, 0.0, np.abs(published - truth) / np.abs(truth))
    return np.array(FLAGS)[np.searchsorted((LOW, HIGH), change, side="right")]


def _sums(values: Floats, code: Codes, codes: int) -> Floats:
    return np.bincount(code, weights=values, minlength=codes).astype(np.float64)
