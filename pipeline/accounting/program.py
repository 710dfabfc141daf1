"""A geometric program of separate terms, as an allocation solves them one after another.

It is solved by our own Newton's method: SciPy's SLSQP, tried first, leaves scales as they are whose errors do not show
in the sum.
"""

from dataclasses import dataclass
from math import inf, log

import numpy as np

from udfs.numbers.arrays import Floats, Mask

LARGEST = 2.0  # move of a scale's logarithm in one program
NEWTON, FAR, EXACT = 100, 3.0, 1e-9  # rounds and the largest step of Newton's method, and what counts as met there


@dataclass(frozen=True, eq=False)
class Program:
    """Minimise Σ_v exp(logs_v + rises_v·d_v) with fixed_k + Σ_v amounts_kv·exp(−slopes_kv·d_v) ≤ limits_k.

    Its solution is where rises·exp(logs + rises·d) = Σ_k λ_k·amounts_k·slopes_k·exp(−slopes_k·d) in every v, with
    multipliers λ_k ≥ 0 that are 0 where a limit is not reached. Both sides are taken as logarithms, so that tables
    of small errors are as exact as those of large ones.
    """

    logs: Floats  # (v,)
    rises: Floats
    limits: Floats  # (k,)
    fixed: Floats
    amounts: Floats  # (k, v)
    slopes: Floats

    def solved(self) -> Floats:
        """Return d by Newton's method on the logarithms of the multipliers of the limits that are reached."""
        number = len(self.limits)
        total = float(np.logaddexp.reduce(self.logs))
        multipliers = total - np.log(self.limits) - log(number)
        active = np.ones(number, dtype=bool)
        moves, pulls = self._moves(multipliers, active)
        for _ in range(NEWTON):
            excess, spent = self._excess(moves)
            missed = active & (excess < -EXACT) & (pulls.max(axis=1, initial=0.0) < EXACT)
            entering = ~active & (excess > EXACT)
            multipliers[entering] = np.max(multipliers[active], initial=-inf) if active.any() else total
            multipliers[entering] += log(EXACT)
            active = (active & ~missed) | entering
            if not active.any() or not np.abs(excess[active]).max() > EXACT:
                break
            falls = self.slopes * spent / (self.fixed + spent.sum(axis=1))[:, None]
            free = np.abs(moves) < LARGEST
            stiff = self.rises + (pulls * self.slopes).sum(axis=0)
            slope = (falls[active] * np.where(free, 1 / stiff, 0.0)) @ pulls[active].T
            steps = np.linalg.lstsq(slope, excess[active], rcond=1e-12)[0]
            multipliers[active] += np.clip(steps, -FAR, FAR)
            moves, pulls = self._moves(multipliers, active)
        return moves

    def _excess(self, moves: Floats) -> tuple[Floats, Floats]:
        """Return ln of what is spent of each limit, as a share of it, and of which each unknown spends how much."""
        spent = self.amounts * np.exp(-self.slopes * moves)
        return np.log((self.fixed + spent.sum(axis=1)) / self.limits), spent

    def _moves(self, multipliers: Floats, active: Mask) -> tuple[Floats, Floats]:
        """Return d for the multipliers' logarithms, within ±LARGEST, and the share of each limit in each unknown."""
        with np.errstate(divide="ignore"):
            forces = np.where(active, multipliers, -inf)[:, None] + np.log(self.amounts * self.slopes)
        moves = np.zeros_like(self.logs)
        for _ in range(NEWTON):
            pulls = forces - self.slopes * moves
            together = np.logaddexp.reduce(pulls, axis=0)
            shares = np.exp(pulls - np.where(together > -inf, together, 0.0))
            gap = np.log(self.rises) + self.logs + self.rises * moves - together
            steps = np.clip(gap / (self.rises + (shares * self.slopes).sum(axis=0)), -FAR, FAR)
            moved = np.clip(moves - steps, -LARGEST, LARGEST)
            if np.abs(moved - moves).max() < EXACT:
                break
            moves = moved
        return moved, shares
