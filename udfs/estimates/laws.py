"""What is known of the error of a published value: from the mechanism that drew its noise."""

import math
from fractions import Fraction

from udfs.estimates.multipliers import Law
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.gaussian import GaussianNoise
from udfs.mechanisms.log import LogCurve
from udfs.mechanisms.transformed import Transformed

WIDE = Fraction(4)  # steps of the measure: Gaussian noise this wide is Gaussian to within half a step


def law_of(mechanism: Mechanism) -> Law:
    """Return the law of a value's error about the true total.

    All noise has its one peak at 0 and is symmetric; e^noise keeps the peak, powers of it may not.
    """
    form, noise = mechanism.form, mechanism.form.noise
    if mechanism.additive:
        return Law.GAUSSIAN if isinstance(noise, GaussianNoise) and noise.scale >= WIDE * noise.step else Law.SYMMETRIC
    of_logarithm = isinstance(form, Transformed) and isinstance(form.curve, LogCurve)
    return Law.UNIMODAL if of_logarithm and form.estimator == "mean" else Law.ANY


def half_step(*steps_in_errors: float) -> float:
    """Return what a multiplier grows by for noise on steps: half a step of each part, of the whole's standard error.

    The arguments are each part's step over its standard error, which bounds (Σ h·λ/2)/√(Σ h²σ²) for all factors h.
    """
    return math.sqrt(sum(share**2 for share in steps_in_errors)) / 2
