"""Distances from masses: Newton's method held in a bracket, for noise that is log-concave in its log-distance."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Logs = Callable[[Floats], Floats]
LEAST, MOST = -744.0, 709.78  # ln of the smallest and of the largest double
ROUNDS = 200
DEEP = -1e4
CLOSE = 1e-9  # the error left after a Newton step of this size is about its square


def solve_distance(log_mass: Logs, log_density: Logs, goal: Floats) -> Floats:
    """Return the z > 0 with log_mass(z) = goal; 0 and infinity where it lies beyond the doubles.

    log_mass is the logarithm of P(Z > z) or of P(Z in [0, z]), log_density that of the density. In s = ln z all are
    concave when the density of s is log-concave, as it is for every family here, so that Newton's steps

        s ← s + (goal − log_mass)·mass/(±z·density)

    approach the root from one side. Steps that leave the bracket are replaced by its middle. Error of z: that of
    log_mass(z) times mass/(z·density).
    """
    ends = np.exp(np.array([LEAST, MOST]))
    at_least, at_most = log_mass(ends)
    sign = 1.0 if at_most > at_least else -1.0
    z = np.where(goal * sign >= at_most * sign, np.inf, np.where(goal * sign <= at_least * sign, 0.0, np.nan))
    open_ = np.flatnonzero(np.isnan(z))
    low, high = np.full(open_.size, LEAST), np.full(open_.size, MOST)
    s = (low + high) / 2
    for _ in range(ROUNDS):
        if not open_.size:
            return z
        at = np.exp(s)
        mass = log_mass(at)
        gap = (goal[open_] - mass) * sign  # > 0: the root is farther out
        low, high = np.where(gap > 0, s, low), np.where(gap > 0, high, s)
        # two large logarithms have no difference: there the middle of the bracket is next
        step = np.where(mass > DEEP, gap * np.exp(mass - s - log_density(at)), np.nan)
        done = np.abs(step) <= CLOSE
        z[open_[done]] = at[done] * np.exp(step[done])  # the product keeps digits that s = 700 + step has not
        inside = (s + step >= low) & (s + step <= high)
        s = np.where(inside, s + step, (low + high) / 2)[~done]
        open_, low, high = open_[~done], low[~done], high[~done]
    raise ArithmeticError("no distance was found for a probability: the mass is not monotone there")
