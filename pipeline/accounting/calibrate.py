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

The condition is decided exactly at every decimal that matters; a float, its gap, only leads the search there quickly.
The search is our own: scipy's brentq needs a finite gap at both ends and a sign change, but gaps here are ±∞ where a
scale has no mechanism, and where conditions change more than once the decimal reached depends on the steps taken,
which plans' digests hold.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import floor, inf, isfinite, log, log10

from pipeline.accounting.targets import CalibrationError, Target, shown
from udfs.mechanisms.base import SMALLEST, Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.exact import bound_text, exact, up_text

Number = Fraction | int | float | str
Fixed = tuple[tuple[str, Number], ...]

SCALES = {"sigma": 1, "gamma": 1, "rho": -1}  # what is solved for; -1: the noise falls as it grows
STARTS = (Fraction(1), Fraction(1, 4), Fraction(1, 1000))  # scales, one of which a family surely takes
OFFSET, GROUPED = "a", "groupwise_log"  # the kind whose loss falls with the group, by its offset
OFFSETS = (Fraction(1, 1000), Fraction(10**6))  # between which it is looked for
OVERSHOOT = 1e-5  # relative, of an error that can be met

DIGITS = 8
UNITS = 10_000_000  # of the last digit in 1
A_DECADE = 9 * UNITS  # how many decimals of DIGITS digits lie in [1, 10)
LOWEST, HIGHEST = -50 * A_DECADE, 50 * A_DECADE  # 10⁻⁵⁰ and 10⁵⁰
WIDEN = 8  # factor by which the longest step outward grows
FINER = 10_000_000  # decimals of 15 digits, the most that plans take, from one of 8 to the next
MOST_REPEATS = 3  # steps that may move the same end of a bracket

Point = tuple[int, float]  # a number, and the gap there
Gap = Callable[[int], float]
Holds = Callable[[int], bool]


def decimal(n: int) -> Fraction:
    """Return the n-th decimal of DIGITS significant digits: 1 for n = 0, growing with n."""
    decade, units = divmod(n, A_DECADE)
    ten = Fraction(10**decade) if decade >= 0 else Fraction(1, 10**-decade)
    return Fraction(UNITS + units, UNITS) * ten


def number_below(number: Fraction) -> int:
    """Return an n whose decimal is at most `number` and next to it, as far as doubles tell."""
    return number_of(log10(number))


def crossing(gap: Gap, holds: Holds, start: int) -> int | None:
    """Return n with holds(n) and not holds(n − 1), LOWEST < n ≤ HIGHEST; None if it holds at LOWEST.

    Where it holds nowhere, HIGHEST + 1. `gap`(n) is a logarithm, below 0 about where the condition does not hold, that
    grows with n. A condition that changes once changes there; of another, it is one of its changes.
    """
    return _decided(holds, *_by_gap(gap, start))


def _by_gap(gap: Gap, start: int) -> tuple[int, int]:
    """Return (n − 1, n) about the change of the gap's sign, or the end up to which it does not change, twice."""
    low, high = _bracket(gap, start, gap(start))
    repeats, side = 0, 0
    while high[0] - low[0] > 1:
        n = (low[0] + high[0]) // 2
        if repeats < MOST_REPEATS and isfinite(low[1]) and isfinite(high[1]):
            # where one end alone moves, step ever farther past the zero of the line; then halve
            past = -side * 4**repeats if repeats else 0
            n = max(low[0] + 1, min(high[0] - 1, _between(low, high) + past))
        point = (n, gap(n))
        moved = -1 if point[1] < 0 else 1
        repeats, side = (repeats + 1 if moved == side else 0), moved
        low, high = (point, high) if moved < 0 else (low, point)
    return low[0], high[0]


def _bracket(gap: Gap, n: int, value: float) -> tuple[Point, Point]:
    """Return two numbers with their gaps, the first's below 0 and not the second's, or the same end twice."""
    way, stride, last = (1 if value < 0 else -1), A_DECADE, (n, value)
    while (last[1] < 0) == (way > 0):
        n, value = last
        end = HIGHEST if way > 0 else LOWEST
        if n == end:
            return last, last
        # where the gap would be 0 if it grew with the number's logarithm, and a little beyond
        far = 1.2 * abs(value) / log(10) * A_DECADE + A_DECADE // 100
        n = max(LOWEST, min(HIGHEST, n + way * int(min(stride, far))))
        before, last, stride = last, (n, gap(n)), stride * WIDEN
    return (before, last) if way > 0 else (last, before)


def _between(low: Point, high: Point) -> int:
    x, y = log10_of(low[0]), log10_of(high[0])
    return number_of(x + (y - x) * low[1] / (low[1] - high[1])) if low[1] < high[1] else (low[0] + high[0]) // 2


def log10_of(n: int) -> float:
    """Return the logarithm of the n-th decimal."""
    decade, units = divmod(n, A_DECADE)
    return decade + log10(1 + units / UNITS)


def number_of(x: float) -> int:
    """Return the number of a decimal next to 10^x."""
    decade: int = floor(x)
    return decade * A_DECADE + min(A_DECADE - 1, floor((float(10 ** (x - decade)) - 1) * UNITS))


def _decided(holds: Holds, low: int, high: int) -> int | None:
    """Return the change of the condition that is nearest above or below: by ever larger steps, then by halves."""
    stride = 1
    while not (reached := holds(high)) and high < HIGHEST:
        low, high, stride = high, min(HIGHEST, high + stride), stride * 2
    if not reached:
        return HIGHEST + 1
    stride = 1
    low = min(low, high - 1)
    while low >= LOWEST and holds(low):
        low, high, stride = max(LOWEST - 1, low - stride), low, stride * 2
    if low < LOWEST and holds(LOWEST):
        return None
    low = max(low, LOWEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def scale_of(kind: type[Mechanism]) -> str | None:
    """Return the name of the parameter that calibration solves for, or None where the kind has none."""
    return next((name for name in SCALES if name in kind.parameters()), None)


def solve(kind: str, fixed: Mapping[str, Number], step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism of `kind` with the parameters `fixed`, on `step`, whose noise scale meets `target`.

    Raises CalibrationError where the target cannot be met, with the best that can be had; ParameterError on an unknown
    kind, or a fixed parameter that is unknown, missing or breaks its rule.
    """
    step = exact(step)
    if not SMALLEST <= step <= 1 / SMALLEST:
        raise ParameterError("step", "between 1e-50 and 1e50")
    if kind not in CATALOGUE:
        build({"kind": kind}, step)  # raises, naming the nearest known kind
    name = scale_of(CATALOGUE[kind])
    if name is None:
        raise CalibrationError(f"{kind} has no noise scale to calibrate")
    solved = {name, OFFSET} if target.quantity == "group_loss" else {name}
    for given in sorted(solved & fixed.keys()):
        raise CalibrationError(f"{given} is what calibration solves for; leave it out")
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

    def at(n: int) -> Mechanism:
        return solve(kind, {**dict(fixed), OFFSET: decimal(n)}, step, of_error)

    def met(n: int) -> bool:
        return loss(at(n)) <= target["group_loss"]

    def loss(mechanism: Mechanism) -> Fraction:
        of_group = mechanism.group_loss_at(target["group"])
        assert of_group is not None
        return of_group

    ends = number_below(OFFSETS[0]), number_below(OFFSETS[1])
    # v(group) falls with the offset in groups up to the total at which the error is met
    kept, refused = ends if target["group"] > target.total else ends[::-1]
    if not met(kept):
        least = bound_text(loss(at(kept)))
        raise CalibrationError(f"cannot be had: the least loss in a group of {up_text(target['group'])} is {least}")
    if met(refused):
        return at(refused)
    while abs(refused - kept) > 1:
        middle = (kept + refused) // 2
        kept, refused = (middle, refused) if met(middle) else (kept, middle)
    return at(kept)


@lru_cache(maxsize=512)
def _solved(kind: str, name: str, fixed: Fixed, step: Fraction, target: Target) -> Mechanism:
    family = Family(kind, name, fixed, step, may_be_narrow=target.may_be_narrow)

    def gap(n: int) -> float:
        mechanism = family.at(n)
        return family.beyond(n) if mechanism is None else target.gap(mechanism)

    def reached(n: int) -> bool:
        mechanism = family.at(n)
        return family.beyond(n) > 0 if mechanism is None else target.reached(mechanism)

    least, largest = target.extremes
    first = crossing(gap, reached, family.start)
    if first is None:
        raise _cannot(target, least, family.at(LOWEST), "")
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

    k = _decided(reached, max(0, start - 1), min(FINER, max(1, start)))
    assert k is not None  # it does not hold at 0
    return family.between(first, k)


class Family:
    """The mechanisms of one kind by the number of their scale; more noise as it grows.

    `times`: scales are so many times the number's decimal.
    """

    def __init__(  # noqa: PLR0913 — what a mechanism is made of
        self,
        kind: str,
        name: str,
        fixed: Fixed,
        step: Fraction,
        *,
        may_be_narrow: bool,
        times: Fraction = Fraction(1),
    ) -> None:
        self.kind, self.name, self.fixed, self.step = kind, name, dict(fixed), step
        self.may_be_narrow, self.times = may_be_narrow, times
        self.objection = ""  # why the scale last tried is none
        self.refused: ParameterError | None = None  # by which parameter's rule, where it was one
        self.known: dict[int, Mechanism | None] = {}
        self.start = self._start()

    def log_noise(self, n: int) -> float:
        """Return ln of the n-th mechanism's noise, as far as its scale says it."""
        return SCALES[self.name] * log10_of(SCALES[self.name] * n) * log(10)

    def log_noise_of(self, mechanism: Mechanism) -> float:
        """Return the same of a mechanism of this kind with the scale 1 · decimal: `times` is taken off."""
        return SCALES[self.name] * log(getattr(mechanism, self.name) / self.times)

    def number_at(self, log_noise: float) -> int:
        """Return the number of a mechanism whose `log_noise` is next to this."""
        return SCALES[self.name] * number_of(SCALES[self.name] * log_noise / log(10))

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
        for scale in STARTS[:-1]:
            try:
                return self._number(scale * unit)
            except ParameterError:
                continue
        return self._number(STARTS[-1] * unit)

    def _number(self, scale: Fraction) -> int:
        n = SCALES[self.name] * number_below(scale)
        self._build(n)
        return n

    def _build(self, n: int) -> Mechanism:
        scale = decimal(SCALES[self.name] * n) * self.times
        return build({"kind": self.kind, **self.fixed, self.name: scale}, self.step)

    def between(self, n: int, k: int) -> Mechanism:
        """Return the mechanism k of FINER steps on the way from the (n − 1)-th to the n-th."""
        low, high = decimal(SCALES[self.name] * (n - 1)), decimal(SCALES[self.name] * n)
        scale = low + (high - low) * Fraction(k, FINER)
        return build({"kind": self.kind, **self.fixed, self.name: scale}, self.step)

    def _try(self, n: int) -> Mechanism | None:
        try:
            mechanism = self._build(n)
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
