"""Calibration: from an accuracy or a loss that is wanted of a mechanism to its noise scale.

Result: the scale is a decimal of at most 8 significant digits (of 15 for a loss that is a formula), rounded towards
more noise, so that the mechanism is never less private than the exact solution:

- loss: the smallest noise whose certified loss at the influence is at most the wanted one; a digit less exceeds it;
- standard error, mean absolute error: the smallest noise whose error is at least the wanted one, in the lattice noise
  that is drawn; it exceeds it by what one step of the eighth digit changes, less than one part in 10⁵ unless it grows a
  hundred times as fast as the scale (as that of a few stray steps does);
- interval: the most noise whose interval is not wider than wanted. Widths of lattice noise are whole steps;
- relative error: the most noise whose error is below the wanted one; with a group's loss also the offset `a`.

Only public numbers enter: no microdata are read (docs/calibration.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import inf, isfinite, log

from pipeline.accounting.targets import CalibrationError, Target, shown
from udfs.mechanisms.base import SMALLEST, Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.noise.weights import beyond
from udfs.numbers import exact as numbers

Number = Fraction | int | float | str
Fixed = tuple[tuple[str, Number], ...]

SCALES = {"sigma": 1, "gamma": 1, "rho": -1}  # what is solved for; -1: the noise falls as it grows
STARTS = (Fraction(1), Fraction(1, 4), Fraction(1, 1000))  # scales, one of which a family surely takes
OFFSET, GROUPED = "a", "groupwise_log"  # the kind whose loss falls with the group, by its offset
OFFSETS = (Fraction(1, 1000), Fraction(10**6))  # between which it is looked for
OVERSHOOT = 1e-5  # relative, of an error that can be met
FINER = 10_000_000  # decimals of 15 digits, the most that plans take, from one of 8 to the next


def scale_of(kind: type[Mechanism]) -> str | None:
    """Return the name of the parameter that calibration solves for, or None where the kind has none."""
    return next((name for name in SCALES if name in kind.parameters()), None)


def solve(kind: str, fixed: Mapping[str, Number], step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism of `kind` with the parameters `fixed`, on `step`, whose noise scale meets `target`.

    Raises CalibrationError where the target cannot be met, with the best that can be had; ParameterError on an unknown
    kind, or a fixed parameter that is unknown, missing or breaks its rule.
    """
    step = numbers.exact(step)
    if not SMALLEST <= step <= 1 / SMALLEST:
        raise ParameterError("step", "between 1e-50 and 1e50")
    if kind not in CATALOGUE:
        build({"kind": kind}, step)  # raises, naming the nearest known kind
    name = scale_of(CATALOGUE[kind])
    if name is None:
        raise CalibrationError(f"{kind} has no noise scale to calibrate")
    solved = {name, OFFSET} if target.quantity == "group_loss" else {name}
    if twice := sorted(solved & fixed.keys()):
        raise CalibrationError(f"{twice[0]} is what calibration solves for; leave it out")
    if target.quantity == "group_loss":
        return _solved_group(kind, tuple(sorted(fixed.items())), step, target)
    return _solved(kind, name, tuple(sorted(fixed.items())), step, target)


def offset_of(kind: type[Mechanism]) -> str | None:
    """Return the name of the parameter that calibration to a group's loss solves for beside the scale, if any."""
    return OFFSET if kind.kind == GROUPED else None


@lru_cache(maxsize=64)
def _solved_group(kind: str, fixed: Fixed, step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism with the offset at which the group's loss is just met, its scale solved for the error.

    Where v(group) grows with the offset the largest one is taken, which spares smaller groups; else the smallest, which
    spares larger ones. Each is met at every offset on one side of it.
    """
    if kind != GROUPED:
        raise CalibrationError(f"group_loss: {GROUPED} alone loses less in larger groups")

    of_error = Target.of("relative_error", relative_error=target["relative_error"], total=target.total)

    def solved_at(n: int) -> Mechanism:
        return solve(kind, {**dict(fixed), OFFSET: numbers.decimal(n)}, step, of_error)

    def met(n: int) -> bool:
        return loss(solved_at(n)) <= target["group_loss"]

    def loss(mechanism: Mechanism) -> Fraction:
        of_group = mechanism.group_loss_at(target["group"])
        assert of_group is not None
        return of_group

    ends = numbers.number_below(OFFSETS[0]), numbers.number_below(OFFSETS[1])
    # v(group) falls with the offset in groups up to the total at which the error is met
    kept, refused = ends if target["group"] > target.total else ends[::-1]
    if not met(kept):
        least = numbers.bound_text(loss(solved_at(kept)))
        raise CalibrationError(
            f"cannot be had: the least loss in a group of {numbers.up_text(target['group'])} is {least}"
        )
    if met(refused):
        return solved_at(refused)
    return solved_at(numbers.neighbours(kept, refused, met)[0])


@lru_cache(maxsize=512)
def _solved(kind: str, name: str, fixed: Fixed, step: Fraction, target: Target) -> Mechanism:
    family = Family(kind, name, fixed, step, may_be_narrow=target.at_record)

    def gap(n: int) -> float:
        mechanism = family.at(n)
        return family.beyond(n) if mechanism is None else target.gap(mechanism)

    def reached(n: int) -> bool:
        mechanism = family.at(n)
        return family.beyond(n) > 0 if mechanism is None else target.reached(mechanism)

    # its values with the least noise and with the most
    least, largest = ("largest", "least") if target.at_record else ("least", "largest")
    first = numbers.crossing(gap, reached, family.start)
    if first is None:
        raise _cannot(target, least, family.at(numbers.LOWEST), "")
    above, below = family.at(first), family.at(first - 1)
    if above is None and family.refused is not None and family.refused.parameter != name:
        raise family.refused  # another parameter rules out so much noise
    if above is None or target.gap(above) == inf:
        raise _cannot(target, largest, below, family.objection)
    if below is None and (target.widest or target.gap(above) > OVERSHOOT):
        raise _cannot(target, least, above, family.objection)
    if target.quantity == "loss" and below is not None and not above.tabled:
        return _finer(family, first, target)
    return below if target.widest and below is not None else above


def _finer(family: "Family", first: int, target: Target) -> Mechanism:
    """Return the mechanism of least noise that reaches the target, of the decimals of 15 digits from first − 1 on."""
    low, high = target.gap(family.between(first, 0)), target.gap(family.between(first, FINER))
    start = round(FINER * low / (low - high)) if isfinite(low) and low < high else FINER

    def reached(k: int) -> bool:
        return k >= FINER or (k > 0 and target.reached(family.between(first, k)))

    k = numbers.decided(reached, max(0, start - 1), min(FINER, max(1, start)))
    assert k is not None  # it does not hold at 0
    return family.between(first, k)


class Family:
    """The mechanisms of one kind by the number of their scale; more noise as it grows.

    `times`: scales are so many times the number's decimal.
    """

    def __init__(  # noqa: PLR0913 — what a mechanism is made of
        self, kind: str, name: str, fixed: Fixed, step: Fraction, *, may_be_narrow: bool, times: Fraction = Fraction(1)
    ) -> None:
        self.kind, self.name, self.fixed, self.step = kind, name, dict(fixed), step
        self.may_be_narrow, self.times = may_be_narrow, times
        self.objection = ""  # why the scale last tried is none
        self.refused: ParameterError | None = None  # by which parameter's rule, where it was one
        self.known: dict[int, Mechanism | None] = {}
        self.start = self._start()

    def log_noise(self, n: int) -> float:
        """Return ln of the n-th mechanism's noise, as far as its scale says it."""
        return SCALES[self.name] * numbers.log10_of(SCALES[self.name] * n) * log(10)

    def log_noise_of(self, mechanism: Mechanism) -> float:
        """Return ln of the noise of a mechanism of this kind without `times`: of its scale 1 · decimal."""
        return SCALES[self.name] * log(getattr(mechanism, self.name) / self.times)

    def number_at(self, log_noise: float) -> int:
        """Return the number of a mechanism whose `log_noise` is next to this."""
        return SCALES[self.name] * numbers.number_of(SCALES[self.name] * log_noise / log(10))

    def at(self, n: int) -> Mechanism | None:
        """Return the n-th mechanism; None where there is none, or where rounding shows beside its noise."""
        if n not in self.known:
            self.known[n] = self._try(n)
        return self.known[n]

    def beyond(self, n: int) -> float:
        """Return on which side of all mechanisms a number lies that has none: too much noise, +∞, or too little."""
        return inf if n > self.start else -inf

    def _start(self) -> int:
        unit = self.step if self.name != "rho" and CATALOGUE[self.kind].additive else Fraction(1)
        for scale in STARTS:
            n = SCALES[self.name] * numbers.number_below(scale * unit)
            try:
                self._build(self._scale(n) * self.times)
                return n
            except ParameterError:
                if scale == STARTS[-1]:
                    raise
        raise AssertionError  # the last one returns or raises

    def _scale(self, n: int) -> Fraction:
        return numbers.decimal(SCALES[self.name] * n)

    def _build(self, scale: Fraction) -> Mechanism:
        return build({"kind": self.kind, **self.fixed, self.name: scale}, self.step)

    def between(self, n: int, k: int) -> Mechanism:
        """Return the mechanism k of FINER steps on the way from the (n − 1)-th to the n-th."""
        low, high = self._scale(n - 1), self._scale(n)
        return self._build(low + (high - low) * Fraction(k, FINER))

    def _try(self, n: int) -> Mechanism | None:
        try:
            mechanism = self._build(self._scale(n) * self.times)
        except ParameterError as error:
            self.objection, self.refused = str(error), error
            return None
        if mechanism.too_narrow and not self.may_be_narrow:
            self.objection, self.refused = "with less noise rounding would show beside it", None
            return None
        return mechanism


def _cannot(target: Target, which: str, best: Mechanism | None, why: str) -> CalibrationError:
    reason = f" ({why})" if why else ""
    if best is None:
        return CalibrationError(f"a {target.what} of this size cannot be had with these parameters{reason}")
    value = target.value(best)
    if value == inf:
        return CalibrationError(f"the noise has no {target.what}; ask for an interval, a mean absolute error or a loss")
    return CalibrationError(f"cannot be had: the {which} {target.what} with these parameters is {shown(value)}{reason}")


# The α of symmetric stable noise at which, of all scales that meet a target, the error or the loss is least.
#
# Small α spares large records, α near 2 small ones, and the scale that meets a target depends on α: so does what is
# best (docs/noise.md). Every noise that is tried is calibrated by its own certified policy.

KIND = "symmetric_stable"
ALPHAS = (*(1 + Fraction(n, 100) for n in range(100)), Fraction("1.995"), Fraction("1.999"))
FIRST = (0, 5, 15, 30, 45, 60, 75, 90, len(ALPHAS) - 1)  # of ALPHAS; then what lies beside the best of them
LEAST: Mapping[str, str] = {"error": "mean absolute error", "interval": "width of the interval", "loss": "loss (rho)"}
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
    on_try: Callable[[int], None] = lambda number: None,
) -> BestAlpha:
    """Return the α of ALPHAS, with the scale that meets `target`, at which `least` is least.

    FIRST is tried, then α between the neighbours of the best, halving: a fall and then a rise is followed to its end.
    `on_try`(n) is called before the n-th. Raises CalibrationError where no α meets the target, or `least` does not go
    with it; ParameterError as `solve`.
    """
    least.require(target)
    if "alpha" in fixed:
        raise CalibrationError("alpha is what is looked for; leave it out")
    tried: dict[int, tuple[Mechanism, Score]] = {}
    refused: list[CalibrationError] = []

    @cache
    def score(n: int) -> Score:
        on_try(len(tried) + len(refused))
        try:
            mechanism = solve(KIND, {**fixed, "alpha": ALPHAS[n]}, step, target)
        except CalibrationError as error:
            refused.append(error)
            return NONE
        tried[n] = mechanism, least.score(mechanism)
        return tried[n][1]

    start = min(range(len(FIRST)), key=lambda i: score(FIRST[i]))
    low, best, high = (FIRST[max(0, min(len(FIRST) - 1, i))] for i in (start - 1, start, start + 1))
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
    return BestAlpha(tried[best][0], [(mechanism, value[0]) for _, (mechanism, value) in sorted(tried.items())])
