"""The scale of Gaussian noise for (ε, δ): paper 3's closed form and the exact one, against the condition itself."""

from typing import Any

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.accounting.convert import closed_scale, exact_scale

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


def test_the_exact_optimum() -> None:
    assert exact_scale(1, 1e-5) == pytest.approx(3.730632, abs=5e-7)


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_both_scales_are_enough_and_the_exact_one_is_the_least(epsilon: float, delta: float) -> None:
    closed, exact = closed_scale(epsilon, delta, 3.0), exact_scale(epsilon, delta, 3.0)
    assert spent(exact, epsilon, 3.0) <= delta
    assert spent(exact * (1 - 2e-15), epsilon, 3.0) > delta
    assert spent(closed, epsilon, 3.0) <= delta
    assert exact <= closed


@settings(max_examples=30)
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
