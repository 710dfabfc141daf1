"""Exact probabilities of noise whose log-weights are straight between knots (docs/design.md), in high precision."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from tests.support.lattice import CTX, LatticeNoise, real


@dataclass(frozen=True)
class Piecewise(LatticeNoise):
    """w(k) = v(k/scale), v through the points (steps[i], logs[i]), straight between them and beyond the last."""

    steps: tuple[int, ...]
    logs: tuple[Fraction, ...]
    scale: Fraction = Fraction(1)

    @property
    def slope(self) -> Fraction:
        """The fall a step beyond the last knot, where weights are one geometric sequence."""
        return (self.logs[-1] - self.logs[-2]) / (self.steps[-1] - self.steps[-2]) / self.scale

    def exactly(self, k: int) -> Fraction:
        distance = abs(k) / self.scale
        if distance >= self.steps[-1]:
            return self.logs[-1] + self.slope * self.scale * (distance - self.steps[-1])
        i = max(i for i, step in enumerate(self.steps) if step <= distance)
        share = (distance - self.steps[i]) / (self.steps[i + 1] - self.steps[i])
        return self.logs[i] + share * (self.logs[i + 1] - self.logs[i])

    def log_weight(self, k: int) -> Any:
        return real(self.exactly(k))

    @property
    def last(self) -> int:
        """From it on the weights are that sequence."""
        return ceil(self.steps[-1] * self.scale)

    def weight_from(self, k: int) -> Any:
        end = max(k, self.last)
        geometric = self.weight(end) / -CTX.expm1(real(self.slope))
        return CTX.fsum(self.weight(j) for j in range(k, end)) + geometric

    def moment(self, order: int) -> Any:
        """Up to the last knot term by term, then Σ (n + j)^m·r^j from Σ r^j, Σ j·r^j and Σ j²·r^j."""
        n, r = self.last, CTX.exp(real(self.slope))
        sums = [1 / (1 - r), r / (1 - r) ** 2, r * (1 + r) / (1 - r) ** 3]
        beyond = CTX.fsum(CTX.binomial(order, m) * n ** (order - m) * sums[m] for m in range(order + 1))
        near = CTX.fsum(self.weight(k) * k**order for k in range(1, n))
        return 2 * (near + self.weight(n) * beyond) / self.normaliser

    def beside(self, shift: int) -> Iterable[int]:
        """A largest difference lies at a knot of p or of q."""
        return {x for k in self.steps for x in (k, -k, shift - k, shift + k)}

    def pure(self, shift: int) -> Fraction:
        """At every point near a small shift; a large one leaves straight lines between the knots of both."""
        reach = self.steps[-1] + shift
        points = range(-reach, reach + 1) if shift < 100 else self.beside(shift)
        return max(abs(self.exactly(x) - self.exactly(x - shift)) for x in points)


def of_table(table: Any) -> Piecewise:
    """The noise of a table as a plan writes it."""
    return Piecewise(tuple(table["steps"]), tuple(Fraction(str(log)) for log in table["log_weights"]))
