"""Exact numbers: a number written in a plan means its shortest decimal, and bounds round against ourselves."""

import math
import sys
import threading
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
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


def down_text(number: Fraction) -> str:
    """Return `number` in six digits, rounded down: what is left is never shown as more than it is, or JSON says."""
    return _text(min(number, exact(-up_float(-number))), 6, ROUND_FLOOR)


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
    magnitude: Fraction = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude
