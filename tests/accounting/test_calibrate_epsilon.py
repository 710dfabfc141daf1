"""Calibration to a pure ε and to (ε, δ): kept by sums of these tests, and by as little noise as can be."""

from fractions import Fraction
from typing import Any

import mpmath
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accounting.calibrate import solve
from pipeline.accounting.convert import classical_scale, closed_scale, exact_scale, gaussian_scales
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.planning.study.study_figures import DELTAS, exact_margin, ratio, ratio_bounds, sufficient_margin
from tests.accounting.test_calibrate import next_door
from tests.losses.test_gaussian_delta import summed
from udfs.losses.distribution import bounds_of

ONE, DELTA = Fraction(1), Fraction(1, 100_000)
GAUSSIAN_KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("gaussian", {}, 1),
    ("gaussian", {}, 7),
    ("unit_splitting", {"threshold": 10}, 25),
    ("groupwise_noisy", {"r": "0.1"}, 1),
]


def approximate(influence: int, quantity: str = "delta") -> Target:
    return Target.of(quantity, epsilon=ONE, delta=DELTA, influence=Fraction(influence))


@pytest.mark.parametrize(("kind", "fixed", "influence"), GAUSSIAN_KINDS)
def test_delta_on_the_lattice_is_kept_and_not_with_a_digit_less(
    kind: str, fixed: dict[str, Any], influence: int
) -> None:
    found = solve(kind, fixed, ONE, approximate(influence))
    less = next_door(found, more=False)
    assert summed(found.lattice_noise.scale, influence, ONE) <= mpmath.mpf(1) / 100_000
    assert summed(less.lattice_noise.scale, influence, ONE) > mpmath.mpf(1) / 100_000


def test_the_scale_of_continuous_noise_is_too_small_for_one_step() -> None:  # the twin
    assert exact_scale(1, 1e-5) < float(solve("gaussian", {}, ONE, approximate(1)).lattice_noise.scale)
    assert summed(Fraction(exact_scale(1, 1e-5)), 1, ONE) > mpmath.mpf(1) / 100_000


@pytest.mark.parametrize(("kind", "fixed"), [("log", {"a": 1}), ("root", {"k": 4, "a": 1})])
def test_transformations_have_the_scale_of_what_a_record_moves(kind: str, fixed: dict[str, Any]) -> None:
    found = solve(kind, fixed, ONE, approximate(10))
    shift = float(found.shift_at(Fraction(10)))
    assert float(found.lattice_noise.scale) == pytest.approx(exact_scale(1, 1e-5) * shift, rel=1e-7)
    pair = found.pair_at(Fraction(10))
    assert pair is not None
    assert bounds_of([pair], 1e-5, 0.05).epsilon == pytest.approx(1, rel=1e-3)


def test_the_closed_form_is_taken_where_it_is_asked_for() -> None:
    found = solve("gaussian", {}, ONE, approximate(10, "closed"))
    least = closed_scale(1, 1e-5, 10)
    assert least <= float(found.lattice_noise.scale) <= least * (1 + 1e-7)
    coarse = solve("gaussian", {}, ONE, Target.of("closed", epsilon=Fraction(5), delta=Fraction("1e-9"), influence=ONE))
    assert summed(coarse.lattice_noise.scale, 1, Fraction(5)) <= mpmath.mpf(10) ** -9  # its condition, on whole numbers
    with pytest.raises(CalibrationError, match="Gaussian noise"):
        solve("laplace", {}, ONE, approximate(10, "closed"))


@pytest.mark.parametrize(
    ("kind", "fixed"),
    [("laplace", {}), ("generalized_gaussian", {"p": "0.5"}), ("exponential_polylog", {"p": 2, "d": "1.5", "a": 3})],
)
def test_other_noise_keeps_delta_by_its_distribution_and_pure_losses_exactly(kind: str, fixed: dict[str, Any]) -> None:
    large = Target.of("delta", epsilon=ONE, delta=Fraction(1, 20), influence=Fraction(10))
    found = solve(kind, fixed, ONE, large)
    weights, pure = found.log_weights, found.pure_loss_at(Fraction(10))
    assert pure is not None
    assert pure > 1.05
    x = np.arange(-(10**6), 10**6 + 11)
    p = np.exp(weights.fast(np.abs(x).astype(float)))
    spent = np.maximum(p - np.e * np.exp(weights.fast(np.abs(x - 10).astype(float))), 0).sum() / p.sum()
    assert 0.05 * (1 - 2e-3) <= spent <= 0.05
    exactly = solve(kind, fixed, ONE, Target.of("epsilon", epsilon=ONE, influence=Fraction(10)))
    kept, less = (m.pure_loss_at(Fraction(10)) for m in (exactly, next_door(exactly, more=False)))
    assert kept is not None
    assert less is not None
    assert kept <= 1 < less


def test_the_papers_remarks_and_figures() -> None:
    assert ratio(1, 1e-5) == pytest.approx(1.05, abs=0.005)
    assert ratio(10, 1e-5) == pytest.approx(0.89, abs=0.005)
    assert gaussian_scales(0.5, 1e-5).classical_is_enough
    assert not gaussian_scales(10, 1e-5).classical_is_enough
    for delta in DELTAS:
        for epsilon in (0.3, 1.0, 3.0, 6.0):
            scale = classical_scale(epsilon, delta)
            assert sufficient_margin(epsilon, delta, scale) <= exact_margin(epsilon, delta, scale)  # it is sufficient
            assert (exact_margin(epsilon, delta, scale) >= 0) == gaussian_scales(epsilon, delta).classical_is_enough
    assert sufficient_margin(0.99, 0.99, classical_scale(0.99, 0.99)) < 0 < exact_margin(0.99, 0.99, 0.7)
    for delta in (1e-9, 1e-3):
        at_0, at_1 = (float(bound[0]) for bound in ratio_bounds(np.array([delta])))
        assert ratio(1e-9, delta) == pytest.approx(at_0, rel=1e-6)
        assert ratio(1, delta) == pytest.approx(at_1, rel=1e-9)
        assert at_1 < ratio(0.5, delta) < at_0


# The scale of Gaussian noise for (ε, δ): paper 3's closed form and the exact one, against the condition itself.

PAIRS = [(1, 1e-5), (0.1, 1e-6), (5, 1e-9), (1e-3, 1e-300), (0.02, 0.4), (200, 1e-12), (0.5, 0.5), (1, 0.7), (50, 0.99)]


def spent(sigma: float, epsilon: float, influence: float = 1.0) -> Any:
    """The δ of noise of this scale, by Balle and Wang's condition in high precision."""
    with mp.workdps(120):
        shift, e = mp.mpf(influence) / mp.mpf(sigma), mp.mpf(epsilon)

        def upper(x: Any) -> Any:
            return mp.erfc(x / mp.sqrt(2)) / 2

        return upper(e / shift - shift / 2) - mp.exp(e) * upper(e / shift + shift / 2)


@pytest.mark.parametrize(
    ("epsilon", "delta", "scale"), [(1, 1e-5, 4.608852), (0.1, 1e-6, 49.958317), (5, 1e-9, 1.319551)]
)
def test_values_of_the_closed_form(epsilon: float, delta: float, scale: float) -> None:
    assert closed_scale(epsilon, delta) == pytest.approx(scale, abs=5e-7)


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_both_scales_are_enough_and_the_exact_one_is_the_least(epsilon: float, delta: float) -> None:
    closed, exact = closed_scale(epsilon, delta, 3.0), exact_scale(epsilon, delta, 3.0)
    assert spent(exact, epsilon, 3.0) <= delta
    assert spent(exact * (1 - 2e-15), epsilon, 3.0) > delta
    assert spent(closed, epsilon, 3.0) <= delta
    assert exact <= closed


@given(st.floats(1e-3, 200), st.floats(-690, -0.01))
def test_the_closed_form_is_enough_everywhere(epsilon: float, log_delta: float) -> None:
    delta = float(mp.exp(log_delta))
    assert exact_scale(epsilon, delta) <= closed_scale(epsilon, delta)


@pytest.mark.parametrize(
    "delta", [1e-300, 1e-17, 0.1, 0.2499, 0.4999999999, 0.5, 0.5000000001, 0.75001, 0.999, 1 - 1e-12]
)
@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1.0, 300.0])
def test_nothing_cancels_in_the_closed_form(epsilon: float, delta: float) -> None:
    with mp.workdps(60):
        d = mp.mpf(delta)
        z, (a, s) = -mp.log(4 * d * (1 - d)), (mp.mpf(1), 1) if delta <= 0.5 else (mp.pi / 4, -1)
        printed = (mp.sqrt(a * z + epsilon) + s * mp.sqrt(a * z)) / (epsilon * mp.sqrt(2))
        assert printed <= closed_scale(epsilon, delta) <= printed * (1 + 1e-11)


@pytest.mark.parametrize("scale", [closed_scale, exact_scale])
@pytest.mark.parametrize(
    "given", [(0, 0.1), (-1, 0.1), (float("inf"), 0.1), (1, 0), (1, 1), (1, 0.1, 0), (1, float("nan"))]
)
def test_what_is_no_target_is_refused(scale: Any, given: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        scale(*given)
