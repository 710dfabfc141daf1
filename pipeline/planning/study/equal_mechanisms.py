"""What a study compares: mechanisms whose noise scales are chosen so that all have one variance at one true total.

Catalogue mechanisms are calibrated on the lattice that is sampled (pipeline.accounting.calibrate). Where no variance
exists, the noise gets the quartiles that Gaussian noise on the same curve has once that one is made equal: quartiles of
every median-unbiased value, at every total, are then equal too, since a monotone map keeps them. `equal: continuous`
takes the density's variance instead of the lattice's, as one computes on paper: on whole numbers it is another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtri

from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.base.errors import PlanError
from pipeline.planning.study.todays_practice import FactorNoise
from udfs.mechanisms.additive import AdditiveMechanism
from udfs.mechanisms.additive_kinds import ExponentialPolylog, GeneralizedGaussian
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.transformed import TransformedMechanism
from udfs.noise.continuous import ContinuousNoise
from udfs.noise.powers import variance_of_power
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, up_text

PAPER = "paper"
LOW, HIGH = 0.02, 0.05  # relative changes from which a cell is flagged H, and J
FLAGS = ("G", "H", "J")
EqualBy = Literal["variance", "quartiles", "continuous"]


@dataclass(frozen=True)
class Equal:
    """The variance that all mechanisms of a panel have at a true total, in the measure's unit squared."""

    variance: Fraction
    total: Fraction


@dataclass(frozen=True)
class Entry:
    """A mechanism without its noise scale, which equality decides, under one or several policies.

    `mechanism`: kind and parameters, as plans have them; a transformation's `noise` may be a mapping that names a
    heavy-tailed kind and its shape. `equal`: by variance, or, where there is none, by the quartiles of the noise;
    `continuous`: by the variance of the noise's density, which additive noise on whole numbers then has not.
    """

    label: str
    mechanism: Mapping[str, Any]
    policies: tuple[str, ...] = (PAPER,)
    equal: EqualBy = "variance"


@dataclass(frozen=True)
class Panel:
    """Entries that are shown together, all equal in one sense; `errors`: also the errors of published totals."""

    name: str
    title: str
    equal: Equal
    entries: tuple[Entry, ...]
    errors: bool


@dataclass(frozen=True)
class Data:
    """Synthetic microdata: which kind, how many records, which seed."""

    synthetic: str
    records: int
    seed: int


@dataclass(frozen=True)
class Study:
    """A study of one table: the sum of `measure` by the levels `by`.

    `sizes`: influences at which losses are stated; `limits`: losses of which the share of records within is stated;
    `today`: the multiplicative noise that mechanisms are compared with.
    """

    name: str
    title: str
    data: Data
    measure: str
    by: tuple[str, ...]
    sizes: tuple[int, ...]
    limits: tuple[Fraction, ...]
    panels: tuple[Panel, ...]
    today: FactorNoise | None


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


Heavy = GeneralizedGaussian | ExponentialPolylog
HEAVY = (GeneralizedGaussian.kind, ExponentialPolylog.kind)
BITS = 200  # of the moments: variances are sums in which they cancel


@final
@dataclass(frozen=True, kw_only=True)
class TransformedNoise:
    """Heavy-tailed noise on a transformed total: for comparison in studies, not for releases.

    A `root` (k ≥ 2) or `log` for the curve, and a mechanism of HEAVY, on the curve's lattice, for the noise. The
    curve's own scale fixes the lattice step λ, near σ·2⁻³⁰ where it is the noise's, and nothing else.

    Guarantee. ṽ = ⌊f(q + a)/λ + ½⌋·λ + Z with f concave and increasing, contributions ≥ 0, and Z of density or lattice
    mass ∝ e^{w(|z|)}, w non-increasing and convex on [0, ∞). With D = f(Δ + a) − f(a) + λ for Δ > 0:

        PRDP with P(Δ) = w(0) − w(D),        PRzCDP with tanh(P/2)·P.

    Proof. Let q' = q + Δ. As f is concave, f(q' + a) − f(q + a) ≤ f(Δ + a) − f(a) for every q ≥ 0, with equality at
    q = 0, and rounding adds at most λ: ṽ moves by s ≤ D. The additive theorem (paper 1, theorem 5.3;
    docs/mathematics.md, section 3) bounds the max divergence of Z + s from Z in both directions by w(0) − w(s), which
    grows with s. What is computed from ṽ costs nothing. Without rounding P is tight: q = 0 and Z = 0 attain it.

    The value of a root is the mean-unbiased polynomial of udfs.noise.powers. A logarithm has none: E e^Z is infinite
    for every noise with a heavier tail than Laplace's, so that its value e^ṽ − a, which is median-unbiased, has no
    mean.
    """

    curve: TransformedMechanism
    noise: Heavy

    def __post_init__(self) -> None:
        if self.noise.step != self.curve.lattice_step:
            raise ValueError("noise: it must lie on the curve's lattice")

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of the PRzCDP loss; 0 at no influence."""
        return self.noise.loss_at(self.curve.shift_at(influence))

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return an upper bound of the PRDP loss w(0) − w(D); 0 at no influence."""
        return self.noise.pure_loss_at(self.curve.shift_at(influence))

    def loss(self, influence: Floats) -> Floats:
        """Return the PRzCDP loss of whole arrays, rounded up."""
        return self.noise.loss(self.curve.shift(influence))

    def variance(self, total: float) -> float:
        """Return the variance of the value at a true total; infinite for a logarithm.

        For a root Σ_i c_i·σ^{2(k−i)}·(q + a)^{2i/k}, of continuous noise, which the lattice's is to about 2⁻³⁰.
        """
        v: float = self.curve.transform(total)
        return sum(c * v ** (2 * i) for i, c in enumerate(self._variance_terms))

    def describe(self) -> dict[str, object]:
        """Return curve and noise as JSON values."""
        curve = {name: value for name, value in self.curve.describe().items() if name in ("kind", "k", "a")}
        return curve | {"noise": self.noise.describe()}

    @cached_property
    def _variance_terms(self) -> tuple[float, ...]:
        k, sigma = self.curve.power, float(self.noise.sigma)
        if k is None:
            return (math.inf,)
        return tuple(c * sigma ** (2 * (k - i)) for i, c in enumerate(unit_variance_terms(k, self.noise)))


def unit_variance_terms(k: int, noise: Heavy) -> tuple[float, ...]:
    """Return c_i ≥ 0, i < k, with Var g_k(ṽ) = Σ_i c_i·σ^{2(k−i)}·v^{2i}; infinite where a moment is."""
    ctx, unit = context(BITS), unit_noise(noise)
    moments = [1.0, *(unit.moment(2 * j) for j in range(1, k + 1))]
    if math.isinf(moments[-1]):
        return (math.inf,) * k
    return tuple(float(c) for c in variance_of_power(k, [ctx.mpf(moment) for moment in moments]))


def transformed_noise(curve: dict[str, object], noise: dict[str, object], sigma: Fraction) -> TransformedNoise:
    """Return the mechanism of `curve` (kind root or log, k, a) and `noise` (kind and shape) at the noise scale.

    It states the paper's bound. Raises ParameterError where a parameter breaks its rule.
    """
    shape = build({**curve, "sigma": sigma}, Fraction(1))
    assert isinstance(shape, TransformedMechanism)
    heavy = build({**noise, "sigma": sigma, "policy": PAPER}, shape.lattice_step)
    assert isinstance(heavy, Heavy)
    return TransformedNoise(curve=shape, noise=heavy)


def unit_noise(noise: Mechanism) -> ContinuousNoise:
    """Return the continuous noise of the same shape and scale 1."""
    assert isinstance(noise, AdditiveMechanism)
    unit: ContinuousNoise | None = replace(noise, sigma=Fraction(1), step=noise.step / noise.scale).continuous  # type: ignore[call-arg]
    assert unit is not None
    return unit
