"""The α of symmetric stable noise at which, of all scales that meet a target, the error or the loss is least.

Small α spares large records, α near 2 small ones, and the scale that meets a target depends on α: so does what is best
(docs/noise.md). Every noise that is tried is calibrated by its own certified policy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import inf

from pipeline.accounting.calibrate import Number, solve
from pipeline.accounting.targets import CalibrationError, Target
from udfs.mechanisms.base import Mechanism
from udfs.noise.weights import beyond

KIND = "symmetric_stable"
ALPHAS = (*(1 + Fraction(n, 100) for n in range(100)), Fraction("1.995"), Fraction("1.999"))
FIRST = (0, 5, 15, 30, 45, 60, 75, 90, len(ALPHAS) - 1)  # of ALPHAS; then what lies beside the best of them
LEAST: Mapping[str, str] = {
    "error": "mean absolute error",
    "interval": "width of the interval",
    "loss": "loss (rho)",
}
Score = tuple[float, ...]
NONE: Score = (inf,)  # of an α at which nothing meets the target, or what is to be least is infinite


@dataclass(frozen=True, kw_only=True)
class Least:
    """What is to be least: the error or the interval (of `coverage`), or the loss of a record of `influence`."""

    what: str
    coverage: Fraction = Fraction("0.95")
    influence: Fraction | None = None

    def require(self, target: Target) -> None:
        """Raise CalibrationError unless it goes with the target: an error with a loss, a loss with an error."""
        if self.what not in LEAST:
            raise CalibrationError(f"best alpha: must be one of {', '.join(LEAST)}")
        if (self.what == "loss") == target.at_record:
            raise CalibrationError("best alpha: error and interval go with a loss or epsilon, loss with an accuracy")
        if self.what == "loss" and self.influence is None:
            raise CalibrationError("best alpha: loss needs at, the influence of the record")

    def score(self, mechanism: Mechanism) -> Score:
        """Return what is least for the best mechanism; of equal widths, the interval that is left most rarely."""
        if self.influence is not None and self.what == "loss":
            return (float(mechanism.loss_at(self.influence)),)
        if self.what == "error":
            return (mechanism.mean_absolute_error(0.0),)
        lower, upper = mechanism.interval_around(0.0, self.coverage)
        return upper - lower, beyond(mechanism.log_weights, int(Fraction(upper - lower) / 2 // mechanism.step))


@dataclass(frozen=True)
class BestAlpha:
    """The mechanism with the best α, and what was tried: mechanisms in the order of α, with what is to be least."""

    mechanism: Mechanism
    tried: Sequence[tuple[Mechanism, float]]


def best_alpha(
    fixed: Mapping[str, Number],
    step: Fraction,
    target: Target,
    least: Least,
    on_try: Callable[[int], None] = lambda tried: None,
) -> BestAlpha:
    """Return the α of ALPHAS, with the scale that meets `target`, at which `least` is least.

    FIRST is tried, then α between the neighbours of the best, halving: a fall and then a rise is followed to its end.
    `on_try`(n) is called before the n-th. Raises CalibrationError where no α meets the target, or `least` does not go
    with it; ParameterError as `solve`.
    """
    least.require(target)
    if "alpha" in fixed:
        raise CalibrationError("alpha is what is looked for; leave it out")
    found: dict[int, tuple[Mechanism, Score]] = {}
    refused: list[CalibrationError] = []

    @cache
    def score(n: int) -> Score:
        on_try(len(found) + len(refused))
        try:
            mechanism = solve(KIND, {**fixed, "alpha": ALPHAS[n]}, step, target)
        except CalibrationError as error:
            refused.append(error)
            return NONE
        found[n] = mechanism, least.score(mechanism)
        return found[n][1]

    place = min(range(len(FIRST)), key=lambda i: score(FIRST[i]))
    low, best, high = (FIRST[max(0, min(len(FIRST) - 1, i))] for i in (place - 1, place, place + 1))
    while high - low > 2 or (high - low == 2 and best != low + 1):
        left, right = (low + best) // 2, (best + high + 1) // 2
        if score(left) < score(best):
            best, high = left, best
        elif score(right) < score(best):
            low, best = best, right
        else:
            low, high = left, right
    if score(best) == NONE:
        raise refused[-1] if refused else CalibrationError(f"the noise has no {LEAST[least.what]}")
    return BestAlpha(found[best][0], [(mechanism, value[0]) for _, (mechanism, value) in sorted(found.items())])
