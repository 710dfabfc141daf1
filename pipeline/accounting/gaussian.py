"""How wide Gaussian noise must be for (ε, δ)-DP of a record of given influence: in closed form, and exactly.

Both hold for continuous noise of scale σ, added to a total that the record changes by `influence`. On a lattice that is
coarse against σ the exact condition is another one. Sources: paper 3 for the closed form; Balle and Wang 2018, theorem
8, for the exact condition:

    Φ(Δ/(2σ) − εσ/Δ) − e^ε·Φ(−Δ/(2σ) − εσ/Δ) ≤ δ
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf, log, log1p, pi, sqrt

from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import context

SLACK = 1e-13  # relative, above the error of a handful of operations on doubles
BITS = 330  # the two terms of the condition may agree in some sixty of them
HALVINGS = 60


def closed_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return a scale σ that is enough for (ε, δ)-DP, in the unit of `influence`, rounded up.

        σ = Δ/(ε√2)·(√(az + ε) + s·√(az)),   z = −ln(4δ(1 − δ)),   (a, s) = (1, 1) for δ ≤ ½, else (π/4, −1)

    Raises ParameterError unless ε > 0, 0 < δ < 1 and influence > 0, all finite.
    """
    _require(epsilon, delta, influence)
    surprise = _surprise(delta)
    if delta <= 0.5:
        scale = influence / sqrt(2) * ((sqrt(surprise + epsilon) + sqrt(surprise)) / epsilon)
    else:  # √(az + ε) − √(az) cancels; it is ε/(√(az + ε) + √(az))
        around = pi / 4 * surprise
        scale = influence / sqrt(2) / (sqrt(around + epsilon) + sqrt(around))
    return scale * (1 + SLACK)


def classical_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return Δ·√(2·ln(1.25/δ))/ε, rounded up: proved for ε < 1 (Dwork and Roth 2014, theorem A.1).

    It is not enough for every ε: not for 10. Arguments and errors as of `closed_scale`.
    """
    _require(epsilon, delta, influence)
    return influence * sqrt(2 * (log(1.25) - log(delta))) / epsilon * (1 + SLACK)


@dataclass(frozen=True)
class GaussianScales:
    """Scales of continuous Gaussian noise for (ε, δ) of a record of `influence`, in its unit, all rounded up."""

    epsilon: float
    delta: float
    influence: float
    exact: float
    closed: float
    classical: float

    @property
    def classical_is_enough(self) -> bool:
        """Whether the classical scale is at least the exact one, which it is proved to be for ε < 1."""
        return self.classical >= self.exact

    def to_json(self) -> dict[str, float | bool]:
        """Return the scales, the ratio of the classical to the closed one, and the classical one's condition."""
        ratio = self.classical / self.closed
        return {**asdict(self), "ratio": ratio, "classical_is_enough": self.classical_is_enough}


def gaussian_scales(epsilon: float, delta: float, influence: float = 1.0) -> GaussianScales:
    """Return the exact, the closed and the classical scale; arguments and errors as of `closed_scale`."""
    given = epsilon, delta, influence
    return GaussianScales(*given, exact_scale(*given), closed_scale(*given), classical_scale(*given))


@lru_cache(maxsize=256)
def exact_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return the least scale σ that is enough for (ε, δ)-DP, within one part in 10¹⁵ and never below it.

    The condition falls in σ, and is decided in high precision at the number that is returned. Arguments and errors as
    of `closed_scale`.
    """
    _require(epsilon, delta, influence)
    high = 1 / closed_scale(epsilon, delta)  # as Δ/σ: what a record moves the noise, in its scale
    low = high
    while not _meets(low, epsilon, delta):
        low /= 2
    while _meets(high, epsilon, delta):
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _meets(middle, epsilon, delta) else (low, middle)
    return influence / low * (1 + 2**-51)  # above the rounding of the division: a larger σ is only safer


def _surprise(delta: float) -> float:
    """z = −ln(4δ(1 − δ)) ≥ 0, to a few parts in 10¹⁵ also where it is nearly 0: 4δ(1 − δ) = 1 − (1 − 2δ)²."""
    if 0.25 <= delta <= 0.75:
        return -log1p(-((1 - 2 * delta) ** 2))
    return -(log(4) + log(delta) + log1p(-delta))


def _meets(shift: float, epsilon: float, delta: float) -> bool:
    """Whether noise of scale 1 that is moved by `shift` meets the condition."""
    ctx = context(BITS)
    mu, e = ctx.mpf(shift), ctx.mpf(epsilon)
    return bool(ctx.ncdf(mu / 2 - e / mu) - ctx.exp(e) * ctx.ncdf(-mu / 2 - e / mu) <= delta)


def _require(epsilon: float, delta: float, influence: float) -> None:
    if not 0 < epsilon < inf:
        raise ParameterError("epsilon", "a finite number above 0")
    if not 0 < delta < 1:
        raise ParameterError("delta", "above 0 and below 1")
    if not 0 < influence < inf:
        raise ParameterError("influence", "a finite number above 0")
