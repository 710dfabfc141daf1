"""The program that a designed noise solves: least error under limits on losses, in log-weights at knots.

With p the noise's probabilities and v its log-weights at the knots, straight between them,

    minimise    ln Σ_k c(|k|)·p(k),                     c(k) = k², k, or 1 beyond a distance,
    such that   D_α(p ‖ p shifted by Δ_i) ≤ α·ρ_i       for every limit i and every order α of a grid,
                v does not rise with the distance.

In p the program is convex: Σ p^α·q^{1−α} is jointly convex in (p, q), and the rest is linear. Solved in v, where
probabilities of all sizes are numbers of one size. Sums over the lattice are sums over points with the lengths of the
gaps between them as masses; what they leave out is certified afterwards (pipeline.study.design).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from udfs.numbers.arrays import Floats

ORDERS = np.array([1.001, 1.05, 1.15, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10, 14, 20, 30, 50, 100])
DENSE = 64  # distances up to it are points of their own
POINTS = 48  # in a distance's growth by the factor e, beyond
TOLERANCE = 1e-9
MOST_ITERATIONS = 500


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
    def all(self) -> Floats:
        """All of them as doubles, 0 first."""
        knots: Floats = np.concatenate([[0.0], self.free, self.tail])
        return knots

    def lines(self, x: Floats) -> tuple[Floats, Floats]:
        """Return A and b with w(x) = A·v + b at points."""
        knots, distance, free = self.all, np.abs(x), len(self.free)
        left = np.clip(np.searchsorted(knots, distance, side="right") - 1, 0, len(knots) - 2)
        share = (distance - knots[left]) / (knots[left + 1] - knots[left])
        rows, matrix = np.arange(len(x)), np.zeros((len(x), len(knots)))
        matrix[rows, left] = 1 - share
        matrix[rows, left + 1] = share
        tail = matrix[:, free + 1 :]
        offset = tail @ self.fall
        matrix[:, free] += tail.sum(axis=1)
        return np.ascontiguousarray(matrix[:, 1 : free + 1]), offset


def _masses(points: Floats) -> Floats:
    """Return what each point stands for where a function is straight between neighbours: half the gaps beside it."""
    gaps = np.diff(points)
    masses: Floats = (np.append(gaps, 0.0) + np.append(0.0, gaps)) / 2
    return masses


class Program:
    """Objective and constraints as functions of v, with their gradients."""

    def __init__(self, knots: Knots, limits: Sequence[tuple[int, float]], cost: Cost) -> None:
        self.knots = knots
        points = np.union1d(_distances(knots), cost.points)
        self.matrix, self.offset = knots.lines(points)
        self.log_mass = np.log(2 * _masses(points))  # half a gap at 0, twice: once
        self.cost = cost.at(points)
        self.loss_limits = np.array([rho for _, rho in limits])
        self.pairs = [self._pair(points, shift) for shift, _ in limits]
        size = len(knots.free)
        self.falls = -np.eye(size) + np.eye(size, k=-1)
        self._last: tuple[bytes, Floats, Floats] | None = None

    def _pair(self, points: Floats, shift: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        x = np.unique(np.concatenate([points, -points, shift - points, shift + points]))
        return (np.log(_masses(x)), *self.knots.lines(x), *self.knots.lines(x - shift))

    def _normalised(self, v: Floats) -> tuple[float, Floats]:
        logs = self.log_mass + self.matrix @ v + self.offset
        top = float(logs.max())
        parts = np.exp(logs - top)
        total = float(parts.sum())
        return top + float(np.log(total)), parts / total

    def objective(self, v: Floats) -> tuple[float, Floats]:
        """Return ln E c(|Z|) and its gradient."""
        _, p = self._normalised(v)
        value = float(self.cost @ p)
        return float(np.log(value)), self.matrix.T @ ((self.cost / value - 1) * p)

    def slack(self, v: Floats) -> Floats:
        """Return (ρ_i − D_α/α)/ρ_i for all limits and orders: below 0 where a limit is broken."""
        return self._constraints(v)[0]

    def slack_gradient(self, v: Floats) -> Floats:
        """Return its gradients, a row each."""
        return self._constraints(v)[1]

    def _constraints(self, v: Floats) -> tuple[Floats, Floats]:
        key = v.tobytes()
        if self._last is not None and self._last[0] == key:
            return self._last[1:]
        normaliser, p = self._normalised(v)
        of_normaliser = self.matrix.T @ p
        order, slacks, gradients = ORDERS[:, None], [], []
        for (log_mass, matrix_p, offset_p, matrix_q, offset_q), rho in zip(self.pairs, self.loss_limits, strict=True):
            logs = log_mass + order * (matrix_p @ v + offset_p) - (order - 1) * (matrix_q @ v + offset_q)
            top = logs.max(axis=1, keepdims=True)
            parts = np.exp(logs - top)
            total = parts.sum(axis=1, keepdims=True)
            loss = (np.log(total[:, 0]) + top[:, 0] - normaliser) / (ORDERS - 1) / ORDERS
            shares = parts / total
            moved = order * (shares @ matrix_p) - (order - 1) * (shares @ matrix_q) - of_normaliser
            slacks.append((rho - loss) / rho)
            gradients.append(-moved / ((order - 1) * order * rho))
        self._last = (key, np.concatenate(slacks), np.concatenate(gradients))
        return self._last[1:]

    def solve(self, start: Floats) -> Floats:
        """Return the log-weights that the search ends with, from a start that keeps the limits."""
        from scipy.optimize import minimize  # noqa: PLC0415 — SciPy, for a design alone

        falls = {"type": "ineq", "fun": lambda v: self.falls @ v, "jac": lambda v: self.falls}
        losses = {"type": "ineq", "fun": self.slack, "jac": self.slack_gradient}
        options = {"maxiter": MOST_ITERATIONS, "ftol": TOLERANCE}
        found = minimize(self.objective, start, jac=True, method="SLSQP", constraints=[losses, falls], options=options)
        result: Floats = found.x
        return result


def _distances(knots: Knots) -> Floats:
    """Return points of the distances: all up to DENSE, then POINTS an e-fold up to the last free knot; all knots."""
    last = float(knots.free[-1])
    near = np.floor(np.exp(np.arange(np.log(DENSE), np.log(4 * last), 1 / POINTS)))
    far = np.floor(np.exp(np.arange(np.log(4 * last), np.log(float(knots.tail[-1])), 0.25)))
    return np.unique(np.concatenate([np.arange(DENSE), near, far, knots.all]))
