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
ROUNDS, POLISH, NOTICED = 400, 20, 1e-4  # of the multipliers; how often they are polished, and those that pull so much
DEEPEST = 60.0  # by which the logarithm of a multiplier falls at most


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
        """Return d. The multipliers rise and fall with what their limits are exceeded by, until a polish succeeds."""
        total = float(np.logaddexp.reduce(self.logs))
        multipliers = total - np.log(self.limits) - log(len(self.limits))
        least = multipliers - DEEPEST
        for n in range(ROUNDS):
            moves, pulls = self._moves(multipliers)
            excess, spent = self._excess(moves)
            if n % POLISH == POLISH - 1:
                polished = self._polished(multipliers, pulls.max(axis=1) > NOTICED)
                if polished is not None:
                    return polished
            rows = self._slopes(moves, pulls, spent).sum(axis=1)
            steps = np.clip(excess / np.maximum(rows, EXACT), -FAR, FAR)
            multipliers = np.maximum(multipliers + steps, least)
        return moves

    def _polished(self, multipliers: Floats, reached: Mask) -> Floats | None:
        """Return d with these limits reached exactly, by Newton's method; None where it does not keep all of them."""
        multipliers = np.where(reached, multipliers, -inf)
        for _ in range(POLISH):
            moves, pulls = self._moves(multipliers)
            excess, spent = self._excess(moves)
            if excess.max() < EXACT and np.abs(excess[reached]).max(initial=0.0) < EXACT:
                return moves
            slopes = self._slopes(moves, pulls, spent)[np.ix_(reached, reached)]
            steps = np.linalg.lstsq(slopes, excess[reached], rcond=1e-12)[0]
            multipliers[reached] += np.clip(steps, -FAR, FAR)
        return None

    def _slopes(self, moves: Floats, pulls: Floats, spent: Floats) -> Floats:
        """Return by how much ln of what is spent of each limit falls with the logarithm of each multiplier."""
        falls = self.slopes * spent / (self.fixed + spent.sum(axis=1))[:, None]
        stiff = self.rises + (pulls * self.slopes).sum(axis=0)
        slopes: Floats = (falls * np.where(np.abs(moves) < LARGEST, 1 / stiff, 0.0)) @ pulls.T
        return slopes

    def _excess(self, moves: Floats) -> tuple[Floats, Floats]:
        """Return ln of what is spent of each limit, as a share of it, and of which each unknown spends how much."""
        spent = self.amounts * np.exp(-self.slopes * moves)
        return np.log((self.fixed + spent.sum(axis=1)) / self.limits), spent

    def _moves(self, multipliers: Floats) -> tuple[Floats, Floats]:
        """Return d for the multipliers' logarithms, within ±LARGEST, and the share of each limit in each unknown."""
        with np.errstate(divide="ignore"):
            forces = multipliers[:, None] + np.log(self.amounts * self.slopes)
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
