"""Symmetric densities in high precision, from their definition alone: nothing of udfs.

A law is ∝ exp(−fall(y)) with y = |z|/unit; all integrals are taken in s = ln y, where they are smooth, by panels of
Gauss–Legendre nodes, halved until the exponent is nearly a parabola of small range on each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from mpmath import MPContext
from mpmath.calculus.quadrature import GaussLegendre
from numpy.typing import NDArray

CTX: Any = MPContext()
CTX.prec = 110
LEFT = -50  # y = e^−50: the density is flat below it, to 20 digits
NODES = GaussLegendre(CTX).calc_nodes(4, CTX.prec)  # 24 of them, on [−1, 1]


def error(actual: NDArray[np.float64] | float, expected: Any) -> float:
    """The largest relative error of numbers against high-precision ones, none of them 0."""
    pairs = zip(np.ravel(actual), expected if isinstance(expected, list) else [expected], strict=True)
    return max((float(abs(CTX.mpf(float(a)) / e - 1)) for a, e in pairs), default=0.0)


@dataclass(frozen=True)
class Law:
    fall: Callable[[Any], Any]  # of y ≥ 0, 0 at 0
    unit: Any

    def density(self, z: float) -> Any:
        return CTX.exp(self.log_density(z))

    def log_density(self, z: float) -> Any:
        return -self.fall(abs(CTX.mpf(z)) / self.unit) - CTX.log(2 * self.unit * self.mass)

    def survival(self, z: float) -> Any:
        """P(Z > z) for z > 0."""
        return self._integral(CTX.log(CTX.mpf(z) / self.unit), 0) / (2 * self.mass)

    def moment(self, order: int) -> Any:
        """E |Z|^order."""
        return self.unit**order * self._integral(CTX.mpf(LEFT), order) / self.mass

    @cached_property
    def mass(self) -> Any:
        return CTX.exp(LEFT) + self._integral(CTX.mpf(LEFT), 0)

    def _integral(self, left: Any, order: int) -> Any:
        # ∫_left^∞ e^{(order+1)·s − fall(e^s)} ds
        def log(s: Any) -> Any:
            return (order + 1) * s - self.fall(CTX.exp(s))

        total, first, width, highest = CTX.mpf(0), log(left), CTX.mpf(1), log(left)
        while True:
            width = min(2 * width, max(CTX.mpf(2), left / 4))
            while True:
                middle, last = log(left + width / 2), log(left + width)
                if abs(last - first) < 12 and abs(last - 2 * middle + first) < 6:
                    break
                width /= 2
            total += width / 2 * CTX.fsum(w * CTX.exp(log(left + width * (1 + x) / 2)) for x, w in NODES)
            left, first, falls, highest = left + width, last, last < first, max(highest, last)
            if falls and last < highest - 50:
                return total


@lru_cache(maxsize=128)
def polylog(p: float, d: float, a: float, sigma: float) -> Law:
    at_zero = CTX.log(CTX.mpf(a)) ** CTX.mpf(p)
    return Law(lambda y: CTX.mpf(d) * (CTX.log(y + CTX.mpf(a)) ** CTX.mpf(p) - at_zero), CTX.mpf(sigma))
