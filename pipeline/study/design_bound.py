"""What no noise within limits can do better: a lower bound of its error, by duality (docs/design.md, section 5).

For order α the sum f(p) = Σ_x p(x)^α·p(x − Δ)^{1−α}, for α = 1 the sum Σ_x p(x)·ln(p(x)/p(x − Δ)), is convex and
homogeneous of degree 1 in p. So at any noise p*

    f(p) ≥ Σ_x ∇f(p*)(x)·p(x),

and with T the limit of f and multipliers μ ≥ 0 every symmetric p within the limits, which does not rise with the
distance and so is a mixture of uniform distributions on −n … n, has

    Σ c·p ≥ min_n A_n − Σ μ,      A_n the mean over |x| ≤ n of c + Σ μ·∇f(p*)/T.

That holds for all p* and μ. Good ones are the noise that was found, and the solution of a linear program.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

from pipeline.study.design_program import ORDERS, Cost
from udfs.losses.piecewise import log_moment
from udfs.noise.piecewise import PiecewiseWeights
from udfs.numbers.arrays import Floats

LARGEST = 1 << 14  # steps of the largest limit for which a bound is sought
REACH = 16  # times the largest limit: distances taken one by one
LEAST_REACH = 1 << 12
ACTIVE = 0.9  # of a limit: orders that come nearer to it get a multiplier
LIMITING = 1e-6  # α − 1 that stands for α = 1 where it is asked which orders are active
EXPONENTS = 600.0  # of doubles without overflow
ROUNDING = 2.0**-46  # relatively, of a term, for each unit of its exponents
ROWS = 50  # of the linear program, in a distance's growth by the factor e
DENSE = 256  # distances up to it have a row each


@dataclass(frozen=True)
class _Slope:
    """∇f(p*)/T of one limit and order: means over |x| ≤ n, their errors, and a lower bound beyond the last n."""

    means: Floats
    errors: Floats
    beyond: float


class Certificate:
    """Lower bounds of the error of every noise within limits, from the weights of one such noise."""

    def __init__(self, weights: PiecewiseWeights, limits: Sequence[tuple[int, float]]) -> None:
        self.last = max(LEAST_REACH, REACH * limits[-1][0])
        self.distances = np.arange(self.last + 1, dtype=np.float64)
        slopes = [
            self._slope(weights, shift, order, rho)
            for shift, rho in limits
            for order in (1.0, *ORDERS[1:])
            if _active(weights, shift, order, rho)
        ]
        self.slopes = [slope for slope in slopes if slope is not None]

    def least(self, cost: Cost) -> float:
        """Return a number that Σ c·p of no noise within the limits is below; rounding errors are taken off."""
        return self.bound(cost, self.multipliers(cost))

    def bound(self, cost: Cost, multipliers: Floats) -> float:
        """Return the bound of these multipliers, any numbers ≥ 0."""
        costs = _means(cost.at(self.distances))
        total, size, errors = costs, costs, np.zeros_like(costs)
        beyond = float(cost.at(np.array([self.last + 1.0]))[0])
        for slope, multiplier in zip(self.slopes, multipliers.tolist(), strict=True):
            total = total + multiplier * slope.means
            size = size + multiplier * np.abs(slope.means)
            errors = errors + multiplier * slope.errors
            beyond += multiplier * slope.beyond
        lost = errors + size * ROUNDING * (1 + self.distances / 32)  # as much again in sums of costs
        least = min(float((total - lost).min()), beyond)
        price = float(multipliers.sum())
        return max(0.0, least - price - (abs(least) + price) * ROUNDING)

    def multipliers(self, cost: Cost) -> Floats:
        """Return multipliers of a large bound: those that are best at some of the distances; zeros where none help."""
        from scipy.optimize import linprog  # noqa: PLC0415 — SciPy, for a design alone

        none = np.zeros(len(self.slopes))
        if not self.slopes:
            return none
        spread = np.exp(np.arange(log(DENSE), log(self.last), 1 / ROWS)).astype(np.int64)
        rows = np.unique(np.concatenate([np.arange(DENSE), spread, [self.last]]))
        costs = np.append(_means(cost.at(self.distances))[rows], cost.at(np.array([self.last + 1.0])))
        columns = [np.append(slope.means[rows], slope.beyond) for slope in self.slopes]
        # greatest t − Σ μ with t ≤ c + Σ μ·column in every row, each row scaled to numbers of one size
        matrix = np.column_stack([*(-column for column in columns), np.ones(len(costs))])
        sizes = np.maximum(np.abs(matrix).max(axis=1), costs)
        found = linprog(
            np.append(np.ones(len(columns)), -1.0),
            A_ub=matrix / sizes[:, None],
            b_ub=costs / sizes,
            bounds=[(0, None)] * len(columns) + [(None, None)],
        )
        return np.maximum(found.x[:-1], 0.0) if found.success else none

    def _slope(self, weights: PiecewiseWeights, shift: int, order: float, rho: float) -> _Slope | None:
        """Return ∇f(p*)/T, with ln p*(x + Δ)/p*(x) outwards (≤ 0) and inwards, each ± x taken together.

        For α > 1, ∇f(x) = α·(p*(x)/p*(x − Δ))^{α−1} − (α − 1)·(p*(x + Δ)/p*(x))^α; for α = 1 its limit
        1 + ln(p*(x)/p*(x − Δ)) − p*(x + Δ)/p*(x).
        """
        here = weights.fast(self.distances)
        outward = weights.fast(self.distances + shift) - here
        inward = weights.fast(np.abs(self.distances - shift)) - here
        limit = rho if order == 1 else (order - 1) * order * rho
        # no ratio of points Δ apart, both beyond last − Δ, exceeds e^steepest
        steepest = shift * _steepest(weights, self.last - shift) * (1 + ROUNDING)
        if order * max(float(np.abs([outward, inward]).max()), steepest) > EXPONENTS or limit > EXPONENTS:
            return None
        if order == 1:
            terms = [-outward / limit, -inward / limit, -np.exp(outward) / limit, -np.exp(inward) / limit]
            terms.append(np.full_like(here, 2 / limit))
            beyond = (1 - steepest - exp(steepest)) / limit
        else:
            less = order - 1
            terms = [order * np.exp(-less * change - limit) for change in (outward, inward)]
            terms += [-less * np.exp(order * change - limit) for change in (outward, inward)]
            beyond = order * exp(-less * steepest - limit) - less * exp(-limit)
            beyond += order * exp(-limit) - less * exp(order * steepest - limit)
        exponents = 8 + limit + order * (np.abs(outward) + np.abs(inward))
        sizes = np.sum(np.abs(terms), axis=0) * exponents
        # a running sum of n numbers also loses n roundings of its size
        errors = _means(sizes / 2) * ROUNDING * (1 + self.distances / 32)
        return _Slope(_means(np.sum(terms, axis=0) / 2), errors, beyond / 2 - abs(beyond) * (8 + limit) * ROUNDING)


def _active(weights: PiecewiseWeights, shift: int, order: float, rho: float) -> bool:
    excess = max(order - 1, LIMITING)
    pure = float(-weights.at(weights.steps[-1] + shift))
    divergence = float(log_moment(weights, shift, pure)(np.array([excess]))[0]) / excess
    return divergence >= ACTIVE * order * rho


def _means(values: Floats) -> Floats:
    """Return the means over −n … n of a symmetric function, n = 0, 1, …, from its values at distances."""
    sums = 2 * np.cumsum(values) - values[0]
    means: Floats = sums / (2 * np.arange(len(values)) + 1.0)
    return means


def _steepest(weights: PiecewiseWeights, distance: int) -> float:
    """Return the largest fall a step of log-weights from a distance on."""
    first = int(np.searchsorted(np.array(weights.steps), distance, side="right")) - 1
    return float(-min(weights.slopes[first:]))
