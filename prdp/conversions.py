"""From a zCDP loss rho to (ε, δ), and back: what one number says as the other, whatever the mechanism."""

from fractions import Fraction

from pipeline.base.errors import PlanError
from udfs.numbers.exact import exact, up_float

Number = int | float | str | Fraction
LARGEST = 10**300


def epsilon(*, rho: Number, delta: Number) -> float:
    """Return the least ε that Rényi orders give: who loses at most `rho` (zCDP) has (ε, δ)-differential privacy.

        ε = min over α > 1 of  αρ + ln((α − 1)/α) − (ln δ + ln α)/(α − 1)

    Rounded up. It holds for every mechanism of this loss; where a plan's noise is known, `prdp explain` states less.

    Args:
        rho: The loss, above 0.
        delta: Above 0 and below 1.

    Examples:
        >>> round(epsilon(rho=0.1, delta=1e-6), 5), round(epsilon(rho=1, delta="1e-6"), 5)
        (2.14194, 7.76622)
    """
    from pipeline.accounting.convert import approximate_epsilon  # noqa: PLC0415 — NumPy

    return approximate_epsilon(up_float(_number("rho", rho)), _delta(delta))


def rho(*, epsilon: Number, delta: Number) -> float:
    """Return the largest rho of which `prdp.epsilon` says at most `epsilon` at `delta`, rounded down.

    Args:
        epsilon: Above 0.
        delta: Above 0 and below 1.

    Examples:
        >>> largest = rho(epsilon=1, delta=1e-6)
        >>> round(largest, 4), epsilon(rho=largest, delta=1e-6) <= 1
        (0.0244, True)
    """
    from pipeline.accounting.convert import largest_rho  # noqa: PLC0415 — NumPy

    return largest_rho(_below(_number("epsilon", epsilon)), _delta(delta))


def _number(name: str, value: Number) -> Fraction:
    try:
        number = exact(value)
    except (TypeError, ValueError):
        raise PlanError(f"{name}: must be a number") from None
    if not 0 < number <= LARGEST:
        raise PlanError(f"{name}: must be above 0 and at most 1e300")
    return number


def _delta(delta: Number) -> float:
    """Return δ, rounded down."""
    number = _below(_number("delta", delta))
    if not 0 < number < 1:
        raise PlanError("delta: must be above 0 and below 1")
    return number


def _below(number: Fraction) -> float:
    return -up_float(-number)
