"""Log-weights that are straight lines between knots: noise designed for a policy, given as a table of numbers.

Between two knots, and beyond the last, weights are geometric sequences, whose sums are known in closed form. So
everything about the noise is exact: normaliser, tails and moments need no integral and no cut-off.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, final

import numpy as np

from udfs.noise.weights import LogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, real

LAST = 2**52  # the last knot: distances up to it and their differences are exact in doubles
MOST_KNOTS = 5000
MOST_LOG = 10_000  # nats from the first weight to the last knot's
BITS = 600  # of moments, whose closed forms cancel
FLAT = Fraction(1, 2**200)  # sequences that fall by less are summed as flat ones: others cancel 400 bits at most


@final
@dataclass(frozen=True, kw_only=True)
class PiecewiseWeights(LogWeights):
    """w is `logs[i]` at the distance `steps[i]`, a straight line between, and goes on straight beyond the last knot.

    Steps rise from 0, logs fall from 0 or stay, and fall at the end. Raises ValueError otherwise: weights that do not
    rise with the distance are what makes losses grow with the shift (docs/design.md, section 2).
    """

    scale: ClassVar[Fraction] = Fraction(1)

    steps: tuple[int, ...]
    logs: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.steps) == len(self.logs) <= MOST_KNOTS:
            raise ValueError(f"as many log-weights as steps are needed, from 2 to {MOST_KNOTS}")
        if not (self.steps[0] == 0 and all(low < high for low, high in pairwise(self.steps))):
            raise ValueError("steps must rise from 0")
        if self.steps[-1] > LAST:
            raise ValueError("steps must be at most 2⁵²")
        if not (self.logs[0] == 0 and all(low >= high for low, high in pairwise(self.logs))):
            raise ValueError("log-weights must begin with 0 and must not rise")
        if not self.logs[-1] < self.logs[-2]:
            raise ValueError("log-weights must fall at the end, beyond which they go on as straight")
        if not -self.logs[-1] <= MOST_LOG:
            raise ValueError(f"log-weights must be at least -{MOST_LOG}")

    @cached_property
    def slopes(self) -> tuple[Fraction, ...]:
        """The fall of w a step, ≤ 0, from each knot on."""
        falls = [
            (high - low) / (end - start)
            for (start, end), (low, high) in zip(pairwise(self.steps), pairwise(self.logs), strict=True)
        ]
        return (*falls, falls[-1])

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return tuple(np.array([float(x) for x in values]) for values in (self.steps, self.logs, self.slopes))  # type: ignore[return-value]

    def fast(self, k: Floats) -> Floats:
        """Return w; what is added is ≤ 0, and differences up to 2⁵² are exact, so that few last bits are lost."""
        steps, logs, slopes = self._arrays
        segment = np.searchsorted(steps, k, side="right") - 1
        result: Floats = logs[segment] + slopes[segment] * (k - steps[segment])
        return result

    def slope(self, k: Floats) -> Floats:
        """Return the change of w from each distance `k` ≥ 0 to the next one."""
        steps, _, slopes = self._arrays
        result: Floats = slopes[np.searchsorted(steps, k, side="right") - 1]
        return result

    def fast_at_log(self, t: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return self.fast(np.exp(t))

    def at(self, k: int) -> Fraction:
        """Return w(k) exactly."""
        i = self._segment(k)
        return self.logs[i] + self.slopes[i] * (k - self.steps[i])

    def high(self, k: int, ctx: Any) -> Any:
        return real(ctx, self.at(k))

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound Σ e^{w(j)} over j ≥ k, a sum of geometric sums Σ_{j<n} e^{a + b·j} = e^a·(e^{bn} − 1)/(e^b − 1)."""
        parts = []
        for _, count, log, slope in self._sequences(k):
            ratio = real(ctx, slope)
            if count is None:
                parts.append(ctx.exp(real(ctx, log)) / -ctx.expm1(ratio))
            elif slope == 0:
                parts.append(ctx.exp(real(ctx, log)) * count)
            else:
                parts.append(ctx.exp(real(ctx, log)) * ctx.expm1(ratio * count) / ctx.expm1(ratio))
        total = ctx.fsum(parts)
        error = ctx.ldexp(1 + abs(self.high(max(k, self.steps[-1]), ctx)), 16 - ctx.prec)
        return total * (1 - error), total * (1 + error)

    def log_sum(self, n: int, order: int) -> float:
        """Return ln Σ k^order·e^{w(k)} over k ≥ n ≥ 1, order 0, 1 or 2, in closed form."""
        ctx = context(BITS)
        known = self._tails
        total = ctx.fsum(self._moment(sequence, order, ctx) for sequence in self._sequences(n, one=True))
        total += known[order][self._segment(n) + 1]
        return float(ctx.log(total)) if total > 0 else -math.inf

    @cached_property
    def _tails(self) -> list[list[Any]]:
        """By order, the sums of k^order·e^w over all segments from each one on."""
        ctx = context(BITS)
        result = []
        for order in range(3):
            sums = [ctx.mpf(0)]
            for i in reversed(range(len(self.steps))):
                (sequence,) = self._sequences(self.steps[i], one=True)
                sums.append(sums[-1] + self._moment(sequence, order, ctx))
            result.append(sums[::-1])
        return result

    def __hash__(self) -> int:
        """Return that of the numbers, computed once: what is remembered by weights asks for it often."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.steps, self.logs))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed in high precision: it is only kept."""
        return {"steps": self.steps, "logs": self.logs}

    def _segment(self, k: int) -> int:
        low, high = 0, len(self.steps)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.steps[middle] <= k else (low, middle)
        return low

    def _sequences(self, k: int, one: bool = False) -> list[tuple[int, int | None, Fraction, Fraction]]:
        """Return the geometric sequences from the distance k on, or the first `one`: start, terms, log, slope."""
        first = self._segment(k)
        result = []
        for i in range(first, first + 1 if one else len(self.steps)):
            start = max(k, self.steps[i])
            count = self.steps[i + 1] - start if i + 1 < len(self.steps) else None
            result.append((start, count, self.logs[i] + self.slopes[i] * (start - self.steps[i]), self.slopes[i]))
        return result

    @staticmethod
    def _moment(sequence: tuple[int, int | None, Fraction, Fraction], order: int, ctx: Any) -> Any:
        """Return Σ_{j<n} (s + j)^order·e^{a + b·j}, n infinite beyond the last knot.

        S_m = Σ_{j<n} j^m·r^j, r = e^b: sums of (j + 1)^m·r^{j+1} − j^m·r^j telescope to n^m·r^n, so that, where r < 1,

            S_0 = (1 − r^n)/(1 − r),   S_1 = (r·S_0 − n·r^n)/(1 − r),   S_2 = (r·(2·S_1 + S_0) − n²·r^n)/(1 − r).
        """
        start, count, log, slope = sequence
        n = count or 0
        if count is not None and -slope * count < FLAT:
            s0, s1, s2 = ctx.mpf(n), ctx.mpf(n * (n - 1) // 2), ctx.mpf((n - 1) * n * (2 * n - 1) // 6)
        else:
            r, less = ctx.exp(real(ctx, slope)), -ctx.expm1(real(ctx, slope))
            last = ctx.mpf(0) if count is None else r**count
            s0 = (1 - last) / less
            s1 = (r * s0 - n * last) / less
            s2 = (r * (2 * s1 + s0) - n * n * last) / less
        moments = (s0, start * s0 + s1, start**2 * s0 + 2 * start * s1 + s2)
        return ctx.exp(real(ctx, log)) * moments[order]
