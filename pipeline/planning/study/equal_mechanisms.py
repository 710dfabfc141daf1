"""Mechanisms made equal: each entry's noise scale, so that all have one variance at one true total.

Catalogue mechanisms are calibrated on the lattice that is sampled (pipeline.accounting.calibrate). Where no variance
exists, the noise gets the quartiles that Gaussian noise on the same curve has once that one is made equal: quartiles of
every median-unbiased value, at every total, are then equal too, since a monotone map keeps them. `equal: continuous`
takes the density's variance instead of the lattice's, as one computes on paper: on whole numbers it is another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtri

from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.base.errors import PlanError
from pipeline.planning.study.study_model import PAPER, Entry, Equal, Panel
from pipeline.planning.study.transformed_additive import transformed_noise, unit_noise, unit_variance_terms
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import up_text

CLOSE = 1e-4  # relative, of variances that count as equal
DIGITS = 8  # of a scale
WIDEST = 300.0  # of a scale's logarithm
STEP = Fraction(1)  # of the measure


class StudyMechanism(Protocol):
    """What a study evaluates of a mechanism, be it one that prdp releases or one for comparison."""

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of the PRzCDP loss."""

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return upper bounds of the PRzCDP loss, an array for an array."""

    def variance(self, total: float) -> float:
        """Return the variance of the value at a true total."""

    def describe(self) -> dict[str, object]:
        """Return it as JSON values."""


@dataclass(frozen=True)
class Line:
    """One curve of a panel: the solved mechanism of one of its entries, by number, under one policy.

    `releasable`: whether a plan may name it.
    """

    entry: int
    label: str
    policy: str
    mechanism: StudyMechanism
    releasable: bool
    equal_by: str


def lines_of(panel: Panel) -> list[Line]:
    """Return the panel's curves, in order; raises PlanError where an entry cannot be made equal."""
    lines = [line for number in range(len(panel.entries)) for line in _lines(number, panel)]
    wrong = unequal(lines, panel.equal)
    if wrong:
        raise PlanError(f"panel {panel.name}: no equal variance with {', '.join(wrong)}: choose another equality")
    return lines


def unequal(lines: list[Line], equal: Equal) -> list[str]:
    """Return the labels of curves that are to be equal by variance and are not."""
    target, total = float(equal.variance), float(equal.total)
    return [
        line.label
        for line in lines
        if line.equal_by == "variance" and not abs(line.mechanism.variance(total) / target - 1) <= CLOSE
    ]


def _lines(number: int, panel: Panel) -> list[Line]:
    entry = panel.entries[number]
    releasable = not isinstance(entry.mechanism.get("noise"), Mapping)
    try:
        solved = _catalogue(entry, panel.equal) if releasable else _composed(entry, panel.equal)
    except (CalibrationError, ParameterError) as error:
        raise PlanError(f"panel {panel.name}: {entry.label}: {error}") from None
    labels = {policy: f"{entry.label}, {policy}" if len(solved) > 1 else entry.label for policy in solved}
    return [
        Line(number, labels[policy], policy, mechanism, releasable, entry.equal) for policy, mechanism in solved.items()
    ]


def _catalogue(entry: Entry, equal: Equal) -> dict[str, StudyMechanism]:
    fixed = {name: value for name, value in entry.mechanism.items() if name != "kind"}
    if entry.equal == "continuous":
        trial = build({**entry.mechanism, "sigma": Fraction(1)}, STEP)
        sigma = math.sqrt(equal.variance / Fraction(float(unit_noise(trial).moment(2))))
        solved = build({**entry.mechanism, "sigma": _rounded(sigma)}, STEP)
    else:
        solved = solve(str(entry.mechanism["kind"]), fixed, STEP, _target(equal))
    return {policy: _under(solved, policy) for policy in entry.policies}


def _under(mechanism: Mechanism, policy: str) -> Mechanism:
    described = mechanism.describe()
    if described.get("policy", PAPER) == policy:  # curves have one policy, and no name for it
        return mechanism
    return build(described | {"policy": policy}, mechanism.step)


def _composed(entry: Entry, equal: Equal) -> dict[str, StudyMechanism]:
    curve = {name: value for name, value in entry.mechanism.items() if name != "noise"}
    noise = dict(entry.mechanism["noise"])
    sigma = _by_quartiles(curve, noise, equal) if entry.equal == "quartiles" else _by_variance(curve, noise, equal)
    return {PAPER: transformed_noise(curve, noise, sigma)}


def _by_variance(curve: dict[str, Any], noise: dict[str, Any], equal: Equal) -> Fraction:
    """Solve Σ_i c_i·σ^{2(k−i)}·v^{2i} = variance for σ: all terms are ≥ 0 and grow with σ."""
    trial = transformed_noise(curve, noise, Fraction(1))
    k, v = int(curve["k"]), trial.curve.transform(float(equal.total))
    terms = unit_variance_terms(k, trial.noise)
    if not all(map(math.isfinite, terms)):
        raise CalibrationError("this noise has too few moments: its value has no variance")
    with np.errstate(divide="ignore"):
        logs = np.log(terms) + 2 * np.arange(k) * (np.log(v) if v > 0 else -np.inf)
    logs[0] = math.log(terms[0])
    powers, target = 2.0 * (k - np.arange(k)), math.log(equal.variance)
    log_sigma = brentq(lambda log: float(logsumexp(logs + powers * log)) - target, -WIDEST, WIDEST, xtol=1e-13)
    return _rounded(math.exp(log_sigma))


def _by_quartiles(curve: dict[str, Any], noise: dict[str, Any], equal: Equal) -> Fraction:
    fixed = {name: value for name, value in curve.items() if name != "kind"}
    gaussian = solve(str(curve["kind"]), fixed, STEP, _target(equal))
    quartile = float(ndtri(0.75)) * float(str(gaussian.describe()["sigma"]))
    of_unit = float(unit_noise(transformed_noise(curve, noise, Fraction(1)).noise).tail_quantile(0.25))
    return _rounded(quartile / of_unit)


def _rounded(sigma: float) -> Fraction:
    return Fraction(up_text(Fraction(sigma), DIGITS))


def _target(equal: Equal) -> Target:
    variance = Decimal(equal.variance.numerator) / Decimal(equal.variance.denominator)
    return Target.of("standard_error", standard_error=Fraction(Context(prec=28).sqrt(variance)), total=equal.total)
