"""The accuracy of a plan's tables: the errors of the lattice noise that is drawn, and warnings where they mislead."""

from collections.abc import Iterator
from fractions import Fraction
from math import isfinite, sqrt
from typing import Any

from pipeline.plan.model import Query
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import up_text

TOTALS = (0.0, 100.0, 10_000.0, 1_000_000.0)  # at which errors that grow with the total are shown
RARE = 1e-9  # values may be held at the ends of their range this often without a warning
NOTICED = 0.01  # share of the variance that may be lost there without a warning


def accuracy(query: Query, interval: Fraction) -> list[dict[str, Any]]:
    """Return, for each part of the query and each of some true totals, the errors of a released value as JSON.

    Additive noise is stated at total 0 alone: its errors are the same at all. null stands for an infinite one.
    """
    return [
        ({} if part.name is None else {"part": part.name}) | errors_at(part.mechanism, total, interval)
        for part in query.parts
        for total in (TOTALS[:1] if part.mechanism.additive else TOTALS)
    ]


def warnings(query: Query) -> list[str]:
    """Return a line for each mechanism of the query whose stated errors are not those of the released values."""
    names = {part.name: query.name if part.name is None else f"{query.name} ({part.name})" for part in query.parts}
    return [f"query {names[part.name]}: {text}" for part in query.parts for text in _warnings(part.mechanism)]


def infinite_error(mechanism: Mechanism) -> str | None:
    """Return a warning where values have no standard error by their noise's scale alone: with less noise they have."""
    if mechanism.additive or isfinite(mechanism.variance(0.0)):
        return None
    return (
        "the standard error of its values is infinite: judge them by the interval or the mean error, or choose less "
        "noise (a larger loss), or noise: gaussian"
    )


def _warnings(mechanism: Mechanism) -> Iterator[str]:
    infinite = infinite_error(mechanism)
    if infinite is not None:
        yield infinite
    if mechanism.saturation > RARE:
        yield (
            f"a value is held at ±(2⁶³ − 1) steps of its noise with probability {up_text(mechanism.saturation, 2)}, "
            "which changes its mean and its errors; choose lighter tails"
        )
    if mechanism.too_narrow:
        yield (
            "sigma is so small that rounding shows beside the noise: errors are larger than stated, though intervals "
            "and losses count it"
        )
    lost = mechanism.log_weights.moments.variance_beyond
    if lost > NOTICED and isfinite(mechanism.variance(0.0)):
        yield (
            f"{lost:.0%} of the variance lies beyond ±(2⁶³ − 1) steps of the noise, where values are held: the "
            "standard error is that of the noise before"
        )


def errors_at(mechanism: Mechanism, total: float, interval: Fraction) -> dict[str, Any]:
    """Return the errors of a released value at a true total as JSON; null stands for an infinite one."""
    lower, upper = mechanism.interval_around(total, interval)
    return {
        "total": total,
        "standard_error": _finite(sqrt(mechanism.variance(total))),
        "mean_absolute_error": _finite(mechanism.mean_absolute_error(total)),
        "lower": lower,
        "upper": upper,
    }


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
