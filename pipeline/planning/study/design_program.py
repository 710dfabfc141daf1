"""The program that a designed noise solves: least error under limits on losses, in log-weights at knots.

With p the noise's probabilities and v its log-weights at the knots, straight between them,

    minimise    ln Σ_k c(|k|)·p(k),                     c(k) = k², k, or 1 beyond a distance,
    such that   D_α(p ‖ p shifted by Δ_i) ≤ α·ρ_i       for every limit i and every order α of a grid,
                v does not rise with the distance.

In p the program is convex: f(p) = Σ p^α·q^{1−α} is jointly convex in (p, q), and the rest is linear. It is solved in v,
where probabilities of all sizes are numbers of one size, by Newton steps on a logarithmic barrier (docs/design.md,
section 4). Every f is summed exactly, piece by piece; only the error is a sum over points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udfs.numbers.arrays import Floats

_NEAR_ONE = [1.0001, 1.05, 1.15, 1.3, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5]
ORDERS = np.array([*_NEAR_ONE, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 25, 30, 40, 50, 70, 100])
EXCESSES = np.append(0.0, ORDERS - 1)[:, None]  # the first is of the normaliser
SCALES = (ORDERS - 1) * ORDERS
FLAT = 1e-5  # nats: pieces that fall by less are summed as flat ones
LARGEST_EXPONENT = 600.0  # of doubles without overflow
DENSE = 64  # distances up to it are points of their own
POINTS = 192  # in a distance's growth by the factor e, beyond
WEIGHTS = 1e-2 * 0.2 ** np.arange(8)  # of the barrier, relative to the error
MOST_STEPS = 60  # at one weight
CENTRED = 0.1  # of the weight, a knot: what the last step may gain
LEAST_STEP = 2.0**-20
ARMIJO = 1e-4  # of the gain that is promised: what a step must bring
LEFT = 0.05  # of each slack and multiplier, after a step
WITHIN = 1e8  # how far multipliers may be from weight/slack


@dataclass(frozen=True)
class Cost:
    """c(k): a power of the distance, or, with `beyond`, 1 beyond that distance and 0 up to it."""

    power: int = 0
    beyond: int | None = None

    def at(self, distances: Floats) -> Floats:
        """Return c at distances."""
        if self.beyond is None:
            return distances**self.power
        return (distances > self.beyond).astype(np.float64)

    @property
    def points(self) -> Floats:
        """The distances beside a jump: with both, a function with the jump is straight between points."""
        return np.array([] if self.beyond is None else [self.beyond, self.beyond + 1.0])


@dataclass(frozen=True)
class Knots:
    """Distances where log-weights are free, then those of the tail, whose fall from the last free one is fixed."""

    free: NDArray[np.int64]  # from the first above 0
    tail: NDArray[np.int64]
    fall: Floats  # ≤ 0, of each knot of the tail below the last free one

    @property
    def all(self) -> NDArray[np.int64]:
        """All of them, 0 first."""
        return np.concatenate([[0], self.free, self.tail])

    def lines(self, x: Floats, ahead: NDArray[np.int64] | int = 1) -> tuple["_Linear", "_Linear"]:
        """Return w at whole numbers x, and its change a step from there to x + `ahead`, which is ± 1."""
        knots, rows = self.all, np.arange(len(x))
        inner = np.minimum(np.abs(x), np.abs(x + ahead))
        left = np.clip(np.searchsorted(knots, inner, side="right") - 1, 0, len(knots) - 2)
        gap = (knots[left + 1] - knots[left]).astype(np.float64)
        values, slopes = np.zeros((2, len(x), len(knots)))
        share = (np.abs(x) - knots[left]) / gap
        values[rows, left], values[rows, left + 1] = 1 - share, share
        change = (np.abs(x + ahead) - np.abs(x)) / gap
        slopes[rows, left], slopes[rows, left + 1] = -change, change
        return self._linear(values), self._linear(slopes)

    def _linear(self, matrix: Floats) -> "_Linear":
        free = len(self.free)
        tail = matrix[:, free + 1 :]
        matrix[:, free] += tail.sum(axis=1)
        return _Linear(np.ascontiguousarray(matrix[:, 1 : free + 1]), tail @ self.fall)


@dataclass(frozen=True, eq=False)
class _Linear:
    """matrix·v + offset."""

    matrix: Floats
    offset: Floats

    def at(self, v: Floats) -> Floats:
        """Return its values."""
        result: Floats = self.matrix @ v + self.offset
        return result


@dataclass(frozen=True, eq=False)
class _Sums:
    """What ln f of one limit is, less the logarithm of the normaliser, at ORDERS."""

    logs: Floats
    shares: Floats  # of each piece in f
    means: Floats  # steps from each piece's start to its mean under them


class Limit:
    """A limit at all orders: pieces of the integers on which ln p and ln q, shifted by Δ, are straight."""

    def __init__(self, knots: Knots, shift: int, rho: float) -> None:
        x = knots.all
        cuts = np.unique(np.concatenate([x, -x, x + shift, shift - x]))
        starts, ahead = np.append(cuts[0] - 1, cuts), np.append(-1, np.ones(len(cuts), dtype=np.int64))
        self.count = np.concatenate([[np.inf], np.diff(cuts), [np.inf]])
        self.start_p, self.slope_p = knots.lines(starts, ahead)
        self.start_q, self.slope_q = knots.lines(starts - shift, ahead)
        self.limits = SCALES * rho

    def sums(self, v: Floats) -> _Sums:
        """Return the sums of geometric sequences e^{a + b·j}, j < n."""
        a, b, a_q, b_q = (line.at(v) for line in (self.start_p, self.slope_p, self.start_q, self.slope_q))
        a, b = a + EXCESSES * (a - a_q), b + EXCESSES * (b - b_q)
        ended = np.isfinite(self.count)
        last, fall = np.where(ended, self.count - 1, 0.0), np.abs(b)
        flat = (fall * self.count < FLAT) | (self.count == 1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            logs = np.log(np.where(flat, self.count, np.expm1(-fall * self.count) / np.expm1(-fall)))
            means = 1 / np.expm1(fall) - np.where(ended, self.count / np.expm1(fall * self.count), 0.0)
        logs += a + np.where(flat, b / 2, np.maximum(b, 0)) * last
        means = np.where(flat, last / 2, means)
        top = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - top)
        total = shares.sum(axis=1, keepdims=True)
        logs = (np.log(total) + top)[:, 0]
        return _Sums(logs[1:] - logs[0], shares / total, np.where(b > 0, last - means, means))

    def ratio(self, v: Floats) -> float:
        """Return the largest of what is lost over what may be, ψ/((α − 1)·α·ρ), of all orders."""
        return float((self.sums(v).logs / self.limits).max())

    def slacks(self, sums: _Sums) -> tuple[Floats, Floats]:
        """Return 1 − (f − 1)/(T − 1), T the limit of f, and f/(T − 1)."""
        ratios = np.exp(np.minimum(sums.logs - self.limits, LARGEST_EXPONENT)) / -np.expm1(-self.limits)
        return 1 + ratios * np.expm1(-sums.logs), ratios

    def gradients(self, sums: _Sums) -> Floats:
        """Return those of ln f, a row for each order."""
        each = sums.shares * sums.means
        p = sums.shares @ self.start_p.matrix + each @ self.slope_p.matrix
        q = sums.shares @ self.start_q.matrix + each @ self.slope_q.matrix
        moved = p + EXCESSES * (p - q)
        result: Floats = moved[1:] - moved[0]
        return result

    def curvature(self, sums: _Sums, factors: Floats) -> Floats:
        """Return Σ factor·f″/f: with p changed by p·d, f″ = α(α − 1)·Σ p^α·q^{1−α}·(d(x) − d(x − Δ))²."""
        each = (SCALES * factors)[:, None] * sums.shares[1:]
        mass = each.sum(axis=0)
        middle = np.divide((each * sums.means[1:]).sum(axis=0), mass, out=np.zeros_like(mass), where=mass > 0)
        last = np.where(np.isfinite(self.count), self.count - 1, np.inf)
        near = np.minimum(middle, last - middle)
        spread = np.minimum(near * (1 + near), last**2 / 12) * mass
        slope = self.slope_p.matrix - self.slope_q.matrix
        rows = (self.start_p.matrix - self.start_q.matrix + middle[:, None] * slope) * np.sqrt(mass)[:, None]
        slope *= np.sqrt(spread)[:, None]
        result: Floats = rows.T @ rows + slope.T @ slope
        return result


class Program:
    """ln of the error, and slacks ≥ 0 of all that is asked, as functions of v."""

    def __init__(self, knots: Knots, limits: Sequence[tuple[int, float]], cost: Cost) -> None:
        self.knots = knots
        points = np.union1d(_distances(knots), cost.points)
        self.points = knots.lines(points)[0]
        gaps = np.diff(points)
        # a point stands for half the gaps beside it, on both sides of 0
        self.log_mass = np.log(np.append(gaps, 0.0) + np.append(0.0, gaps))
        self.cost = cost.at(points)
        self.pairs = [Limit(knots, shift, rho) for shift, rho in limits]
        size = len(knots.free)
        self.falls = -np.eye(size) + np.eye(size, k=-1)

    def objective(self, v: Floats) -> tuple[float, Floats]:
        """Return ln E c(|Z|) and its gradient."""
        logs = self.log_mass + self.points.at(v)
        p = np.exp(logs - logs.max())
        p /= p.sum()
        value = float(self.cost @ p)
        return float(np.log(value)), self.points.matrix.T @ ((self.cost / value - 1) * p)

    def slack(self, v: Floats) -> Floats:
        """Return the slack of each limit at each order, and of each fall between knots: below 0 where it is broken."""
        return np.concatenate([*(pair.slacks(pair.sums(v))[0] for pair in self.pairs), self.falls @ v])

    def slack_gradient(self, v: Floats) -> Floats:
        """Return its gradients, a row each."""
        return self._slack_rows([(pair, pair.sums(v)) for pair in self.pairs])

    def _slack_rows(self, known: Sequence[tuple[Limit, _Sums]]) -> Floats:
        rows = [-pair.slacks(sums)[1][:, None] * pair.gradients(sums) for pair, sums in known]
        return np.concatenate([*rows, self.falls])

    def barrier(self, v: Floats, weight: float, least: Floats | float = 0.0) -> float:
        """Return ln E c − weight·Σ ln(slack); infinite where a slack is not above its least."""
        slack = self.slack(v)
        return self.objective(v)[0] - weight * float(np.log(slack).sum()) if np.all(slack > least) else np.inf

    def solve(self, start: Floats) -> Floats:
        """Return the log-weights where the barrier of the last weight is least, from a start with slack everywhere.

        A step d changes p by p·d, for which error and normaliser are linear and each f is convex: so only the curvature
        of the f, and of logarithms, enters. Multipliers have steps of their own (Nocedal, Wright 2006, section 19.3).
        """
        v, multipliers = start, WEIGHTS[0] / self.slack(start)
        for weight in WEIGHTS.tolist():
            for _ in range(MOST_STEPS):
                slack, value = self.slack(v), self.barrier(v, weight)
                rows, curvature = self._model(v, multipliers)
                gradient = self.objective(v)[1] - (weight / slack) @ rows
                step = -np.linalg.solve(curvature + rows.T @ ((multipliers / slack)[:, None] * rows), gradient)
                gain, size = -float(gradient @ step), 1.0
                while not self.barrier(v + size * step, weight, LEFT * slack) <= value - ARMIJO * size * gain:
                    size /= 2
                    if size < LEAST_STEP:
                        break
                else:
                    v = v + size * step
                change = (weight - multipliers * (rows @ step)) / slack - multipliers
                longest = (1 - LEFT) / max(1 - LEFT, float(np.max(-change / multipliers)))
                near = weight / self.slack(v)
                multipliers = np.clip(multipliers + longest * change, near / WITHIN, near * WITHIN)
                if size < LEAST_STEP or gain < CENTRED * weight * len(v):
                    break
        return v

    def _model(self, v: Floats, multipliers: Floats) -> tuple[Floats, Floats]:
        """Return the gradients of the slacks, and the curvature of all limits, each times its multiplier."""
        known = [(pair, pair.sums(v)) for pair in self.pairs]
        of_limits = multipliers[: -len(v)].reshape(len(known), -1)
        curvature = sum(
            pair.curvature(sums, some * pair.slacks(sums)[1])
            for (pair, sums), some in zip(known, of_limits, strict=True)
        )
        return self._slack_rows(known), np.asarray(curvature)


def _distances(knots: Knots) -> NDArray[np.int64]:
    """Return points of the distances: all up to DENSE, then POINTS an e-fold up to the last free knot; all knots."""
    last = float(knots.free[-1])
    near = np.exp(np.arange(np.log(DENSE), np.log(4 * last), 1 / POINTS))
    far = np.exp(np.arange(np.log(4 * last), np.log(float(knots.tail[-1])), 0.25))
    return np.unique(np.concatenate([np.arange(DENSE), near.astype(np.int64), far.astype(np.int64), knots.all]))
