"""The noise that each kind of mechanism states, and what an influence loses: as in docs/mathematics.md, precisely.

Nothing of it is from udfs (tests/support/kinds.py holds the registry).
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.lattice import CTX, LatticeNoise, Noise, real
from tests.support.piecewise import of_table
from tests.support.stable import Stable

Numbers = Mapping[str, Fraction]
Losses = tuple[Any, Any]  # rho and the pure loss; None: there is none


# What noise each kind states.


def gaussian_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return Noise(2, number["sigma"] / step)


def laplace_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return Noise(1, number["sigma"] / step)


def named_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return Noise(1 if words["noise"] == "laplace" else 2, number["sigma"] / step)


def pieces_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    """σ² = T²/(2ρ), known to 60 digits."""
    return Noise(2, nearest(CTX.sqrt(real(number["threshold"] ** 2 / (2 * number["rho"])))) / step)


def stable_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return Stable(number["alpha"], number["gamma"] / step)


def table_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return of_table(words["weights"])


def generalized_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return GeneralizedGaussian(number["p"], number["sigma"] / step)


def polylog_noise(number: Numbers, words: Mapping[str, Any], step: Fraction) -> LatticeNoise:
    return Polylog(number["p"], number["d"], number["a"], number["sigma"] / step)


def nearest(number: Any) -> Fraction:
    """The rational number next to a positive real one, to 70 digits."""
    return Fraction(int(CTX.nint(CTX.ldexp(number, 233))), 1 << 233)


# What an influence loses, by each kind's policy.


def square(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    return real(influence) ** 2 / (2 * real(number["sigma"]) ** 2), None


def pieces_squared(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    return real(number["rho"]) * int(-(-influence // number["threshold"])) ** 2, None


def by_paper(pure: Any) -> Losses:
    return CTX.tanh(pure / 2) * pure, pure


def by_laplace(pure: Any, s: Any) -> Losses:
    return pure + s / CTX.sinh(s) * CTX.expm1(-pure), pure


def linear(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    pure = real(influence) / real(number["sigma"])
    return by_laplace(pure, real(step / number["sigma"])) if words.get("policy") == "tight" else by_paper(pure)


def power(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    return by_paper((real(influence) / real(number["sigma"])) ** real(number["p"]))


def polylogarithm(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    p, d, a, sigma = (real(number[name]) for name in ("p", "d", "a", "sigma"))
    return by_paper(d * (CTX.log(real(influence) / sigma + a) ** p - CTX.log(a) ** p))


def area_sinh(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    assert number["alpha"] == 1  # others have no closed form: tests/losses/test_stable_policy.py
    return by_paper(2 * CTX.asinh(real(influence) / (2 * real(number["gamma"]))))


def fall_of_table(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    assert words.get("policy") == "paper"  # the tight one: tests/losses/test_piecewise.py
    return by_paper(real(of_table(words["weights"]).pure(int(influence / step))))


def rise_of_root(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    x, a, exponent = real(influence), real(number["a"]), 1 / real(number["k"])
    rise = (x + a) ** exponent - a**exponent + real(step) if number["k"] > 1 else x
    return _of_rise(rise, number, words, step)


def rise_of_log(number: Numbers, words: Mapping[str, Any], step: Fraction, influence: Fraction) -> Losses:
    rise = CTX.log(1 + real(influence) / real(number["a"])) + real(step)
    return _of_rise(rise, number, words, step)


def _of_rise(rise: Any, number: Numbers, words: Mapping[str, Any], step: Fraction) -> Losses:
    sigma = real(number["sigma"])
    if words.get("noise") == "laplace":
        return by_laplace(rise / sigma, real(step) / sigma)
    return rise**2 / (2 * sigma**2), None
