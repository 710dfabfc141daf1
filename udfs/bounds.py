"""Upper bounds of elementary functions as rational numbers: what policies are stated with.

Each result is at least the true value and within one part in 10¹⁹ of it. Python's decimal module computes ln and exp
correctly rounded; SLACK covers every rounding here many times over.
"""

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction

DIGITS = Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)
SLACK = 1 + Fraction(1, 10**30)
SMALL = Fraction(1, 10**29)  # below it the leading term of the series is the bound
LARGE = 200  # beyond it tanh is 1 to 10⁻¹⁷³


def log1p_above(x: Fraction) -> Fraction:
    """Return an upper bound of ln(1 + x), x ≥ 0; it is 0 at 0."""
    if x < SMALL:
        return x  # ln(1 + x) ≤ x
    return Fraction(DIGITS.ln(_decimal(1 + x))) * SLACK


def tanh_above(x: Fraction) -> Fraction:
    """Return an upper bound of tanh x, x ≥ 0; it is 0 at 0, and never above 1 or x."""
    if x < SMALL:
        return x  # tanh x ≤ x
    if x > LARGE:
        return Fraction(1)
    # tanh x = 1 − 2/(e^{2x} + 1)
    bound = 1 - 2 / (Fraction(DIGITS.exp(_decimal(2 * x))) * SLACK + 1)
    return min(bound, x, Fraction(1))


def _decimal(number: Fraction) -> Decimal:
    return DIGITS.divide(Decimal(number.numerator), Decimal(number.denominator))
