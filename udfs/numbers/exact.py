"""Exact numbers: a plan's mean their shortest decimals, bounds round against ourselves, searches end at one."""

import math
import sys
import threading
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from math import floor, isfinite, log, log10
from typing import Any

LARGEST_EXPONENT = 330  # as a rational, 1e99999999 would take all memory


def exact(number: int | float | str | Decimal | Fraction) -> Fraction:
    """Return the rational number that `number` stands for; a float stands for its shortest decimal.

    So 0.01 means one hundredth, in the noise as in the policy. Raises ValueError on NaN, infinity and text that is
    no decimal number, TypeError on anything else (also bool).
    """
    if isinstance(number, bool) or not isinstance(number, int | float | str | Decimal | Fraction):
        raise TypeError(f"a number is needed, not {type(number).__name__}")
    if isinstance(number, int | Fraction):
        return Fraction(number)
    try:
        decimal = Decimal(repr(number) if isinstance(number, float) else number)
    except InvalidOperation:
        raise ValueError("not a decimal number") from None
    if not decimal.is_finite():
        raise ValueError("a finite number is needed")
    if decimal and abs(decimal.adjusted()) > LARGEST_EXPONENT:
        raise ValueError("the number is beyond the doubles")
    return Fraction(decimal)


def as_json(number: Fraction) -> int | float:
    """Return the JSON number that `exact` reads back as `number`; raises ValueError where there is none."""
    if number.denominator == 1:
        return int(number)
    nearest = float(number)
    if exact(nearest) != number:
        raise ValueError("the number has more digits than a double can hold: write at most 15")
    return nearest


def up_float(number: Fraction) -> float:
    """Return the smallest double that is at least `number` (infinity above the largest double)."""
    try:
        nearest = float(number)
    except OverflowError:
        return math.inf if number > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def up_decimal(number: Fraction) -> int | float:
    """Return a JSON number that `exact` reads back as at least `number`, and as it where it has so few digits."""
    if number.denominator == 1:
        return int(number)
    nearest = float(number)
    return nearest if exact(nearest) >= number else math.nextafter(nearest, math.inf)


# Every bound that people read is printed by the next four: none is shown as less than it is, or than JSON says.


def bound_text(bound: Fraction | float, digits: int = 6) -> str:
    """Return an upper bound of a loss in at most `digits` digits, rounded up: never below the number that JSON holds.

    That is the shortest decimal of the double that `up_float` makes of it: of 0.04505 0.04505000000000001.
    """
    double = up_float(bound) if isinstance(bound, Fraction) else float(bound)
    if not math.isfinite(double):
        return "infinite"
    held = exact(double)
    return up_text(max(held, bound) if isinstance(bound, Fraction) else held, digits)


def up_text(number: Fraction | float, digits: int = 6) -> str:
    """Return a number in at most `digits` significant digits, rounded up; a double means its exact value."""
    if isinstance(number, float) and not math.isfinite(number):
        return "infinite"
    return _text(Fraction(number), digits, ROUND_CEILING)


def up_probability(bound: float) -> str:
    """Return an upper bound of a probability in four decimals, rounded up; "> 0.9999" where that would be 1."""
    ceiling = math.ceil(Fraction(bound) * 10_000)
    return "> 0.9999" if ceiling > 9999 else f"0.{ceiling:04d}"


def down_text(number: Fraction, digits: int = 6) -> str:
    """Return `number` in so many digits, rounded down: what is left is never shown as more than it is, or JSON says."""
    return _text(min(number, exact(-up_float(-number))), digits, ROUND_FLOOR)


def _text(number: Fraction, digits: int, rounding: str) -> str:
    rounded = Context(prec=digits, rounding=rounding).divide(Decimal(number.numerator), Decimal(number.denominator))
    return f"{rounded:.{digits}g}"


# Arbitrary precision: one mpmath context per thread and precision, since mpmath's own is shared by all threads.

_contexts = threading.local()
_constants = threading.Lock()


def context(bits: int) -> Any:
    """Return this thread's mpmath context of `bits` binary digits; its functions err by a few last bits."""
    known: dict[int, Any] = _contexts.__dict__.setdefault("by_bits", {})
    if bits not in known:
        from mpmath import MPContext  # noqa: PLC0415 — a tenth of a second that `prdp explain` does not need

        known[bits] = MPContext()
        with _constants:  # mpmath keeps its constants for all threads: they are computed here, one thread at a time
            known[bits].prec = bits + 128
            for constant in ("pi", "ln2", "ln10", "e"):
                +getattr(known[bits], constant)
        known[bits].prec = bits
    return known[bits]


def real(ctx: Any, number: Fraction) -> Any:
    """Return `number` in `ctx`, within one last bit."""
    return ctx.mpf(number.numerator) / number.denominator


def fraction(number: Any) -> Fraction:
    """Return the rational number that a finite mpf holds."""
    sign, mantissa, exponent, _ = number._mpf_
    if not mantissa and exponent:
        raise ValueError("a finite number is needed")
    signed = -int(mantissa) if sign else int(mantissa)
    return Fraction(signed << exponent) if exponent > 0 else Fraction(signed, 1 << -exponent)


# Upper bounds of elementary functions as rational numbers: what policies are stated with.
#
# Each result is at least the true value and within one part in 10¹⁹ of it. Python's decimal module computes ln and exp
# correctly rounded; SLACK covers every rounding here many times over.

DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
MORE_DIGITS = Context(prec=120, Emax=MAX_EMAX, Emin=MIN_EMIN)
SLACK = 1 + Fraction(1, 10**30)
SMALL = Fraction(1, 10**29)  # below it the leading term of the series is the bound
LARGE = 200  # beyond it tanh is 1 to 10⁻¹⁷³


def log1p_above(x: Fraction) -> Fraction:
    """Return an upper bound of ln(1 + x), x ≥ 0; it is 0 at 0."""
    if x < SMALL:
        return x  # ln(1 + x) ≤ x
    return Fraction(DIGITS.ln(_decimal(1 + x))) * SLACK


def asinh_above(x: Fraction) -> Fraction:
    """Return an upper bound of arsinh x, x ≥ 0; it is 0 at 0, and never above x by more than one part in 10²⁹."""
    if x < SMALL:
        return x  # arsinh x ≤ x
    # arsinh x = ln(1 + x + (√(1 + x²) − 1)),  √(1 + x²) − 1 = x²/(1 + √(1 + x²))
    root = Fraction(DIGITS.sqrt(_decimal(1 + x**2))) / SLACK
    return log1p_above(x + x**2 / (1 + root))


def tanh_above(x: Fraction) -> Fraction:
    """Return an upper bound of tanh x, x ≥ 0; it is 0 at 0, and never above 1 or x."""
    if x < SMALL:
        return x  # tanh x ≤ x
    if x > LARGE:
        return Fraction(1)
    # tanh x = 1 − 2/(e^{2x} + 1)
    bound = 1 - 2 / (Fraction(DIGITS.exp(_decimal(2 * x))) * SLACK + 1)
    return min(bound, x, Fraction(1))


def power_above(x: Fraction, p: Fraction) -> Fraction:
    """Return an upper bound of x^p, x ≥ 0, p > 0; exact where p is 1, and 0 at 0."""
    if p == 1 or not x:
        return x
    return _power(x, p) * SLACK


def log_power_rise_above(x: Fraction, a: Fraction, p: Fraction) -> Fraction:
    """Return an upper bound of ln(x·a + a)^p − ln(a)^p, x ≥ 0, a > 1, p ≥ 1; it is 0 at 0."""
    if p == 1 or not x:
        return log1p_above(x)
    rise = log1p_above(x)
    log_a = Fraction(MORE_DIGITS.ln(_decimal(a, MORE_DIGITS)))
    if rise < SMALL * log_a:
        # (L + r)^p − L^p ≤ p·r·(L + r)^{p−1}: the mean value, tight for small r
        return p * rise * power_above(log_a * SLACK + rise, p - 1)
    # r is at least a part in 10²⁹ of L: of 120 digits 29 may cancel
    return (_power(log_a + rise, p) - _power(log_a, p)) * SLACK


def root_rise_above(x: Fraction, a: Fraction, k: int) -> Fraction:
    """Return an upper bound of (x + a)^{1/k} − a^{1/k}, x ≥ 0, a ≥ 0; it is 0 at 0."""
    p = Fraction(1, k)
    if k == 1 or not a or not x:
        return power_above(x, p)
    if x < SMALL * a:
        return power_above(a, p) * (x / a) / k  # the root is concave: below its tangent
    return (_power(x + a, p) - _power(a, p)) * SLACK


def laplace_zcdp_above(pure: Fraction, s: Fraction) -> Fraction:
    """Return an upper bound of P − (s/sinh s)·(1 − e^{−P}), P = `pure` ≥ 0, s > 0; it is 0 at 0."""
    if pure < SMALL:
        return pure**2 / 2 + (1 - s_over_sinh(s)) * pure  # 1 − e^{−P} ≥ P − P²/2,  s/sinh s ≤ 1
    spared = 1 - _exp(-min(pure, Fraction(LARGE)))
    return (pure - s_over_sinh(s) * spared) * SLACK


def s_over_sinh(s: Fraction) -> Fraction:
    """Return s/sinh s, s > 0, from below, within one part in 10⁸⁴."""
    if s < SMALL:
        return 1 - s**2 / 6
    if s > LARGE:
        return Fraction(0)
    return s * 2 / (_exp(s) - _exp(-s)) * (1 - Fraction(1, 10**85))


def exp_above(x: Fraction) -> Fraction:
    """Return an upper bound of e^x, |x| ≤ 1000."""
    return _exp(x) * SLACK


@lru_cache(maxsize=4096)
def ln(x: Fraction) -> float:
    """Return ln x, x > 0, as the nearest double: also for an x near 1 and beyond the doubles."""
    return float(MORE_DIGITS.ln(_decimal(x, MORE_DIGITS)))


def _exp(x: Fraction) -> Fraction:
    return Fraction(MORE_DIGITS.exp(_decimal(x, MORE_DIGITS)))


def _power(x: Fraction, p: Fraction) -> Fraction:
    # x^p = e^{p·ln x}: an error of the exponent, of some hundreds, is one of the result
    log = MORE_DIGITS.ln(_decimal(x, MORE_DIGITS))
    return Fraction(MORE_DIGITS.exp(MORE_DIGITS.multiply(_decimal(p, MORE_DIGITS), log)))


def _decimal(number: Fraction, digits: Context = DIGITS) -> Decimal:
    return digits.divide(Decimal(number.numerator), Decimal(number.denominator))


# Where a condition changes that changes once: among decimals of eight digits, whole numbers or doubles.
#
# The condition is decided exactly at every number that matters; a float, its gap, only leads the search there quickly.
# The search is our own: scipy's brentq needs a finite gap at both ends and a sign change, but gaps here are ±∞ where a
# scale has no mechanism, and where conditions change more than once the decimal reached depends on the steps taken,
# which plans' digests hold.

SIGNIFICANT = 8
UNITS = 10_000_000  # of the last digit in 1
A_DECADE = 9 * UNITS  # how many decimals of SIGNIFICANT digits lie in [1, 10)
LOWEST, HIGHEST = -50 * A_DECADE, 50 * A_DECADE  # 10⁻⁵⁰ and 10⁵⁰
WIDEN = 8  # factor by which the longest step outward grows
MOST_REPEATS = 3  # steps that may move the same end of a bracket

Point = tuple[int, float]  # a number, and the gap there
Gap = Callable[[int], float]
Holds = Callable[[int], bool]


def decimal(n: int) -> Fraction:
    """Return the n-th decimal of SIGNIFICANT significant digits: 1 for n = 0, growing with n."""
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
    return decided(holds, *_by_gap(gap, start))


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


def decided(holds: Holds, low: int, high: int) -> int | None:
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
    return neighbours(high, low, holds)[0]


def neighbours(kept: int, refused: int, keeps: Holds) -> tuple[int, int]:
    """Return (kept, refused) next to each other, from two numbers of which the first keeps a condition."""
    while abs(refused - kept) > 1:
        middle = (kept + refused) // 2
        kept, refused = (middle, refused) if keeps(middle) else (kept, middle)
    return kept, refused


def halved(kept: float, refused: float, keeps: Callable[[float], bool], times: int) -> tuple[float, float]:
    """Return (kept, refused) with their distance halved so many times; the first keeps a condition."""
    for _ in range(times):
        middle = (kept + refused) / 2
        kept, refused = (middle, refused) if keeps(middle) else (kept, middle)
    return kept, refused
