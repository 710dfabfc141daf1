"""How many standard errors an interval takes: from what is known of the error's law, never more than is known.

Result: `multiplier(q, law)` is a k with P(|error| > k·σ) ≤ q for every error of that law with mean 0 and standard
deviation σ. Proofs and sources: docs/mathematics.md, section 15.
"""

import math
from collections.abc import Iterable
from enum import IntEnum
from statistics import NormalDist


class Law(IntEnum):
    """What is known of an error's law, from the most to the least."""

    GAUSSIAN = 0
    SYMMETRIC = 1  # one peak, the same to both sides: every sum of such noise is so too (Wintner 1938)
    UNIMODAL = 2  # one peak
    ANY = 3  # a variance


def combined(laws: Iterable[Law]) -> Law:
    """Return what is known of a linear combination of independent errors.

    Gaussian noise leaves any other law its one peak (Ibragimov 1956); two laws that are not symmetric may make two.
    """
    known = list(laws)
    if Law.ANY in known or known.count(Law.UNIMODAL) > 1:
        return Law.ANY
    if Law.UNIMODAL in known and Law.SYMMETRIC in known:
        return Law.ANY
    return max(known, default=Law.GAUSSIAN)


def multiplier(q: float, law: Law) -> float:
    """Return k for 0 < q < 1, the probability of an error beyond k standard deviations.

    Gaussian: its quantile. Symmetric with one peak (Gauss 1823, Camp-Meidell 1922): √(4/(9q)), or √3·(1 − q) for
    q > 1/3. One peak (Vysochanskij and Petunin 1980): √(4/(9q)), or 2/√(3q + 1) for q > 1/6. Any: 1/√q (Chebyshev).
    """
    if not 0 < q < 1:
        raise ValueError("q: it lies between 0 and 1")
    if law is Law.GAUSSIAN:
        return -NormalDist().inv_cdf(q / 2)
    if law is Law.ANY:
        return 1 / math.sqrt(q)
    if law is Law.SYMMETRIC:
        return math.sqrt(4 / (9 * q)) if q <= 1 / 3 else math.sqrt(3) * (1 - q)
    return math.sqrt(4 / (9 * q)) if q <= 1 / 6 else 2 / math.sqrt(3 * q + 1)
