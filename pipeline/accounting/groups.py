"""The loss of several records together, from the losses of each: bounds for a firm, or for any group of records.

Two databases that differ in J records are joined by J steps of one record each (docs/mathematics.md, section 5). For
losses P_1 … P_J that bound every order:

    simple:  D_α ≤ α·J·ΣP_j            (paper 1, its lemma on groups)
    tight:   D_α ≤ α·(Σ√P_j)²          never more, by Cauchy and Schwarz
    pure:    max divergence ≤ ΣP_j     (triangle inequality)

Proof of the tight form, for two steps P → Q → R with losses x and y: Hölder's inequality gives, for all p, q > 1 with
1/p + 1/q = 1, D_α(P‖R) ≤ (α − 1/p)/(α − 1)·D_{pα}(P‖Q) + D_{q(α − 1/p)}(Q‖R). With D_β ≤ βx and D_β ≤ βy and
s = (p − 1)α/(α − 1) the right side is α·((1 + s)x + (1 + 1/s)y), whose minimum over s > 0 is α·(√x + √y)². A step may
itself be a bound for several records; by induction the roots add up. The proof uses orders far above α: it does not
hold for losses that are bounds up to some order only, or up to an additive constant.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import isqrt

LONGEST = 1024  # bits of a denominator up to which a group's loss is kept exact
ROOT_BITS = 128  # a root is exact where it is rational, else above the true one by less than one part in 2¹²⁷


def simple(losses: Sequence[Fraction]) -> Fraction:
    """Return J·ΣP_j, exactly: what the group of records with these PRzCDP losses loses at most."""
    return len(losses) * sum(losses, Fraction(0))


def tight(losses: Iterable[Fraction]) -> Fraction:
    """Return an upper bound of (Σ√P_j)²: what the group of records with these PRzCDP losses ≥ 0 loses at most.

    It is exact for one loss, for equal ones, and where all products of two have rational roots, if these are not long.
    """
    group = Fraction(0)
    for one, times in Counter(losses).items():
        loss = one * times**2  # of equal ones: (n√P)²
        # (√x + √y)² = x + y + 2√(xy)
        root = root_above(group * loss)
        group = _short(group + loss + 2 * root) if root else group + loss
    return group


def pure(losses: Iterable[Fraction]) -> Fraction:
    """Return ΣP_j, exactly: what the group of records with these pure losses loses at most."""
    return sum(losses, Fraction(0))


def one_cell(
    policy: Callable[[Fraction], Fraction],
    together: Callable[[Iterable[Fraction]], Fraction],
    influences: Sequence[Fraction],
) -> Fraction:
    """Return what records of these influences on one cell of one query lose together under its `policy`.

    Their values add up before the mechanism sees them, so they lose what one record of their summed influence does:
    P(ΣΔ_j). Where that is more than `together` (`tight`, or `pure` for a pure policy) makes of their single losses, it
    is the latter.
    """
    summed = policy(sum(influences, Fraction(0)))
    return min(summed, together([policy(influence) for influence in influences])) if len(influences) > 1 else summed


def _short(x: Fraction) -> Fraction:
    """Return x ≥ 0, or, where its digits would slow all further steps, a bound above it by less than 1 in 2²⁵⁵."""
    if x.denominator.bit_length() <= LONGEST:
        return x
    m = max(0, 2 * ROOT_BITS + x.denominator.bit_length() - x.numerator.bit_length())
    return Fraction(-(-(x.numerator << m) // x.denominator), 1 << m)


def root_above(x: Fraction) -> Fraction:
    """Return an upper bound of √x, x ≥ 0: exact where it is rational, else within one part in 2¹²⁷."""
    if not x >= 0:
        raise ValueError("a root needs a number of at least 0")
    numerator, denominator = isqrt(x.numerator), isqrt(x.denominator)
    if numerator**2 == x.numerator and denominator**2 == x.denominator:
        return Fraction(numerator, denominator)
    # ⌈√⌈x·4^m⌉⌉/2^m, with m so large that the root has ROOT_BITS bits
    m = max(0, ROOT_BITS + (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1)
    scaled = -(-(x.numerator << 2 * m) // x.denominator)
    return Fraction(isqrt(scaled - 1) + 1, 1 << m)
