"""Calibration to a relative error, and to a group's loss: by closed forms of these tests, and to the last digit."""

from fractions import Fraction
from math import log1p
from typing import Any

import mpmath
import pytest

from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import CalibrationError, Target
from tests.accounting.test_calibrate import next_door
from tests.support.groupwise_analysis import sigma_for_relative_error

ONE, TENTH = Fraction(1), Fraction(1, 10)


def relative(m: Any, count: int) -> Any:
    """E|x̂ − x|/x of `groupwise_log` in closed form: 2(2Φ(σ/2) − 1)·(x + a)/x."""
    a, sigma = (mpmath.mpf(number.numerator) / number.denominator for number in (m.a, m.sigma))
    return 2 * mpmath.erf(sigma / mpmath.sqrt(8)) * (count + a) / count


def group_loss(m: Any, group: int) -> float:
    """v(n) in closed form, but for the lattice's step."""
    return log1p(1 / (group - 1 + float(m.a))) ** 2 / (2 * float(m.sigma) ** 2)


ERROR_AT_10 = Target.of("relative_error", relative_error=TENTH, total=Fraction(10))


def grouped(loss: str, group: int, total: int = 10) -> Target:
    return Target.of(
        "group_loss", relative_error=TENTH, total=Fraction(total), group_loss=Fraction(loss), group=Fraction(group)
    )


@pytest.mark.parametrize(("a", "total"), [("0.1", 1), ("1", 1), ("10", 10), ("100", 3)])
def test_the_relative_error_is_below_at_every_count_and_not_with_a_digit_more(a: str, total: int) -> None:
    target = Target.of("relative_error", relative_error=TENTH, total=Fraction(total))
    found = solve("groupwise_log", {"a": a}, ONE, target)
    assert all(relative(found, count) < 0.1 for count in (total, total + 1, 10 * total, 10**6))
    assert relative(next_door(found, more=True), total) >= 0.1 * (1 - 1e-12)
    assert total == 1 or relative(found, total - 1) > 0.1  # the twin: an error that is met one count too early
    if total == 1:
        assert float(found.lattice_noise.scale) == pytest.approx(
            float(sigma_for_relative_error(TENTH, Fraction(a))), rel=2e-6
        )


def test_other_kinds_have_relative_errors_too() -> None:
    for kind, fixed in (("gaussian", {}), ("laplace", {}), ("groupwise_noisy", {"r": "0.05"}), ("log", {"a": 5})):
        found = solve(kind, fixed, ONE, Target.of("relative_error", relative_error=TENTH, total=Fraction(100)))
        assert 9.99 < found.mean_absolute_error(100.0) < 10
        assert found.mean_absolute_error(1000.0) < 100


@pytest.mark.parametrize(
    ("loss", "group"), [("1", 1), ("0.4", 5), ("0.334", 10), ("0.3", 11), ("0.01", 100), ("1e-4", 1000)]
)
def test_a_groups_loss_is_kept_with_its_error_and_not_with_a_digit_more(loss: str, group: int) -> None:
    target = grouped(loss, group)
    found: Any = solve("groupwise_log", {}, ONE, target)
    kept = found.group_loss_at(Fraction(group))
    assert kept <= Fraction(loss)
    assert float(kept) == pytest.approx(float(loss), rel=1e-4)
    assert group_loss(found, group) == pytest.approx(float(loss), rel=1e-4)
    assert relative(found, 10) < 0.1
    step = Fraction(1, 10**5) * (1 if target["group"] > target.total else -1)
    beyond: Any = solve("groupwise_log", {"a": found.a * (1 + step)}, ONE, ERROR_AT_10)
    assert beyond.group_loss_at(Fraction(group)) > Fraction(loss)


def test_the_offset_that_is_taken_spares_the_others_most() -> None:
    by_small, by_large = (
        solve("groupwise_log", {}, ONE, grouped("1", 1)),
        solve("groupwise_log", {}, ONE, grouped("0.01", 100)),
    )
    for m, a in ((by_small, 1.5), (by_large, 0.5)):  # more, or less, than was taken also keeps the target
        other: Any = solve("groupwise_log", {"a": Fraction(m.a) * Fraction(a)}, ONE, ERROR_AT_10)  # type: ignore[attr-defined]
        spared = 1000 if a > 1 else 1
        assert other.group_loss_at(Fraction(spared)) > m.group_loss_at(Fraction(spared))


def test_what_cannot_be_had_is_told() -> None:
    with pytest.raises(CalibrationError, match=r"the least loss in a group of 1 is 31\.8385"):
        solve("groupwise_log", {}, ONE, grouped("1", 1, total=1))
    with pytest.raises(CalibrationError, match="groupwise_log alone"):
        solve("gaussian", {}, ONE, grouped("1", 1))
    with pytest.raises(CalibrationError, match="a is what calibration solves for"):
        solve("groupwise_log", {"a": 1}, ONE, grouped("1", 1))
    with pytest.raises(CalibrationError, match="total: must be above 0"):
        Target.of("relative_error", relative_error=TENTH, total=Fraction(0))
