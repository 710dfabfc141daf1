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
from numpy.typing import NDArray

from pipeline.planning.study.design_program import ORDERS, Cost
from udfs.losses.nodes import log_moment, pure_exactly
from udfs.noise.piecewise import PiecewiseWeights
from udfs.numbers.arrays import Floats

LARGEST = 1 << 14  # steps of the largest limit for which a bound is sought
REACH = 16  # times the largest limit, or Δ/√ρ: distances taken one by one
LEAST_REACH = 1 << 12
ACTIVE = 0.9  # of a limit: orders that come nearer to it get a multiplier
LIMITING = 1e-6  # α − 1 that stands for α = 1 where it is asked which orders are active
FALLS = (1.5, 3.0, 4.0, 5.0, 6.0, 7.0, 7.5, 8.0, 8.5, 9.0, 10.0, 12.0)  # of p* in the largest limit's influence, nats
EXPONENTS = 600.0  # of doubles without overflow
TINY = 2.0**-900  # far above what underflow loses
ROUNDING = 2.0**-46  # relatively, of a term, for each unit of its exponents
ROUNDS = 8  # of linear programs
ROWS = 50  # of the linear program, in a distance's growth by the factor e
DENSE = 256  # distances up to it have a row each


@dataclass(frozen=True)
class _Slope:
    """∇f(p*)/T of one limit and order: means over |x| ≤ n, their errors, and a lower bound beyond the last n."""

    means: Floats
    errors: Floats
    beyond: float


class Certificate:
    """Lower bounds of the error of every noise within limits, from the weights of one such noise.

    p* is that noise, but flatter far out: it does not fall below e^{−`fall`}·p*(x − D), D the influence of the largest
    limit. There the noise matters for no error, and ∇f asks only that p*(x − D)/p*(x) is not huge.
    """

    def __init__(self, weights: PiecewiseWeights, limits: Sequence[tuple[int, float]], fall: float) -> None:
        largest = limits[-1][0]
        wide = max(steps / rho**0.5 for steps, rho in limits)
        self.last = max(LEAST_REACH, REACH * largest, int(REACH * min(wide, LARGEST)))
        self.distances = np.arange(self.last + 1, dtype=np.float64)
        beyond, own = self.last + 1, weights.fast(np.arange(self.last + largest + 1, dtype=np.float64))
        self.logs = np.append(own[:beyond], np.full(largest, -np.inf))  # of p*
        for start in range(largest, len(own), largest):
            here = self.logs[start : start + largest]
            floor = self.logs[start - largest : start][: len(here)] - fall
            np.maximum(here, np.minimum(floor, self.logs[start - 1]), out=here)
        ahead = self.logs[-2 * largest - 1 :]
        # of p* in D, from last − D on: beyond `last` it falls by `fall` a D, or is the noise's own if it was before
        self.steepest = max(fall, float((ahead[: largest + 1] - ahead[largest:]).max()))
        steepest = largest * _steepest(weights, self.last - largest) * (1 + ROUNDING)
        if steepest <= fall and np.array_equal(self.logs[beyond - largest : beyond], own[beyond - largest : beyond]):
            self.logs[beyond:], self.steepest = own[beyond:], steepest
        slopes = [
            self._slope(shift, order, rho)
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
        return self._bound(cost, multipliers)[0]

    def _bound(self, cost: Cost, multipliers: Floats) -> tuple[float, int]:
        """Return the same, and the distance where the mean is least."""
        costs = _means(cost.at(self.distances))
        total, size, errors = costs, costs, np.zeros_like(costs)
        beyond = float(cost.at(np.array([self.last + 1.0]))[0])
        for slope, multiplier in zip(self.slopes, multipliers.tolist(), strict=True):
            total = total + multiplier * slope.means
            size = size + multiplier * np.abs(slope.means)
            errors = errors + multiplier * slope.errors
            beyond += multiplier * slope.beyond
        total = total - errors - size * ROUNDING * (1 + self.distances / 32)  # as much again in sums of costs
        worst = int(total.argmin())
        least, price = min(float(total[worst]), beyond), float(multipliers.sum())
        return max(0.0, least - price - (abs(least) + price) * ROUNDING), worst

    def multipliers(self, cost: Cost) -> Floats:
        """Return multipliers of a large bound: those that are best at some of the distances; zeros where none help."""
        best = np.zeros(len(self.slopes))
        if not self.slopes:
            return best
        spread = np.exp(np.arange(log(DENSE), log(self.last), 1 / ROWS)).astype(np.int64)
        rows = np.unique(np.concatenate([np.arange(DENSE), spread, [self.last]]))
        largest = 0.0
        for _ in range(ROUNDS):  # the distance where the last multipliers fail is looked at in the next program
            multipliers = self._program(cost, rows)
            if multipliers is None:
                break
            bound, worst = self._bound(cost, multipliers)
            if bound > largest:
                best, largest = multipliers, bound
            rows = np.union1d(rows, worst)
        return best

    def _program(self, cost: Cost, rows: NDArray[np.int64]) -> Floats | None:
        from scipy.optimize import linprog  # noqa: PLC0415 — SciPy, for a design alone

        costs = np.append(_means(cost.at(self.distances))[rows], cost.at(np.array([self.last + 1.0])))
        columns = [np.append(slope.means[rows], slope.beyond) for slope in self.slopes]
        # greatest t − Σ μ with t ≤ c + Σ μ·column in every row, each row scaled to numbers of one size
        matrix = np.column_stack([*(-column for column in columns), np.ones(len(costs))])
        sizes = np.maximum(np.abs(matrix).max(axis=1), costs)
        solution = linprog(
            np.append(np.ones(len(columns)), -1.0),
            A_ub=matrix / sizes[:, None],
            b_ub=costs / sizes,
            bounds=[(0, None)] * len(columns) + [(None, None)],
        )
        return np.maximum(solution.x[:-1], 0.0) if solution.success else None

    def _slope(self, shift: int, order: float, rho: float) -> _Slope | None:
        """Return ∇f(p*)/T, with ln p*(x ± Δ)/p*(x), each ± x taken together; None where doubles do not hold it.

        For α > 1, ∇f(x) = α·(p*(x)/p*(x − Δ))^{α−1} − (α − 1)·(p*(x + Δ)/p*(x))^α; for α = 1 its limit
        1 + ln(p*(x)/p*(x − Δ)) − p*(x + Δ)/p*(x).
        """
        here, size, steepest = self.logs[: self.last + 1], self.last + 1, self.steepest
        changes = [self.logs[shift:][:size] - here, self.logs[np.abs(np.arange(-shift, size - shift))] - here]
        limit = rho if order == 1 else (order - 1) * order * rho
        if order * max(steepest, *(float(np.abs(change).max()) for change in changes)) - limit > EXPONENTS:
            return None
        if order == 1:
            terms = [term for x in changes for term in (-x / limit, -np.exp(x) / limit)]
            terms.append(np.full_like(here, 2 / limit))
            beyond = (1 - steepest - exp(steepest)) / limit
        else:
            less = order - 1
            terms = [order * np.exp(-less * x - limit) for x in changes]
            terms += [-less * np.exp(order * x - limit) for x in changes]
            beyond = order * exp(-less * steepest - limit) - less * exp(-limit)
            beyond += order * exp(-limit) - less * exp(order * steepest - limit)
        exponents = 8 + limit + order * np.abs(changes).sum(axis=0)
        sizes = (np.sum(np.abs(terms), axis=0) + TINY) * exponents
        # a running sum of n numbers also loses n roundings of its size
        errors = _means(sizes / 2) * ROUNDING * (1 + self.distances / 32)
        lost = (abs(beyond) + TINY) * (8 + limit + 2 * order * steepest) * ROUNDING
        return _Slope(_means(np.sum(terms, axis=0) / 2), errors, beyond / 2 - lost)


def _active(weights: PiecewiseWeights, shift: int, order: float, rho: float) -> bool:
    excess = max(order - 1, LIMITING)
    pure = float(pure_exactly(weights, shift))
    divergence = float(log_moment(weights, shift, pure)(np.array([excess]))[0]) / excess
    return divergence >= ACTIVE * order * rho


def _means(values: Floats) -> Floats:
    sums = 2 * np.cumsum(values) - values[0]
    means: Floats = sums / (2 * np.arange(len(values)) + 1.0)
    return means


def _steepest(weights: PiecewiseWeights, distance: int) -> float:
    first = int(np.searchsorted(np.array(weights.steps), distance, side="right")) - 1
    return float(-min(weights.slopes[first:]))
