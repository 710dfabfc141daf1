"""Arbitrary precision: one mpmath context per thread and precision, since mpmath's own is shared by all threads."""

import threading
from fractions import Fraction
from typing import Any

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
