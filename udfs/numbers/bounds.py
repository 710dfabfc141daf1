"""Upper bounds of elementary functions as rational numbers: what policies are stated with.

Each result is at least the true value and within one part in 10¹⁹ of it. Python's decimal module computes ln and exp
correctly rounded; SLACK covers every rounding here many times over.
"""

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache

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
