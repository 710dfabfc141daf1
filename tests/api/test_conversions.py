"""rho → ε at δ and back: the stated values, high precision as an independent source, and what is refused."""

import doctest
import json
from functools import cache

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

import prdp
from jobs.cli import main
from prdp import calibration as conversions


@cache
def least(rho: float, delta: float) -> mpf:
    """The minimum over all orders in 40 digits: by thirds in ln(α − 1), as nearly flat a function allows."""
    with mpmath.workdps(40):
        low, high = mpf(-30), mpf(60)

        def bound(x: mpf) -> mpf:
            t = mpmath.exp(x)
            order = 1 + t
            return order * mpf(rho) + mpmath.log(t / order) - (mpmath.log(mpf(delta)) + mpmath.log(order)) / t

        for _ in range(200):
            one, other = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, other) if bound(one) < bound(other) else (one, high)
        return max(mpf(0), bound(low))


@pytest.mark.parametrize(("rho", "stated"), [(0.1, 2.14194), (1, 7.76622)])
def test_the_values_that_opendp_gives(rho: float, stated: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert prdp.epsilon(rho=rho, delta=1e-6) == pytest.approx(stated, abs=5e-6)
    assert main(["calibrate", "--rho", str(rho), "--delta", "1e-6"]) == 0
    assert capsys.readouterr().out == f"rho {rho}: (ε, δ) = ({stated}, 1e-6), by Rényi orders\n"
    assert main(["calibrate", "--epsilon", str(stated), "--delta", "1e-6", "--json"]) == 0
    back = json.loads(capsys.readouterr().out)
    assert back["rho"] == prdp.rho(epsilon=stated, delta=1e-6) == pytest.approx(rho, rel=1e-5)


RHOS = st.floats(-6, 4).map(lambda x: 10**x)
DELTAS = st.floats(-30, -0.4).map(lambda x: 10**x)


def of_one_order(rho: float, delta: float) -> float:
    """A broken twin: rounded to nearest, and at the order that is best without the terms in α."""
    order = 1 + (-mpmath.log(delta) / rho) ** 0.5
    return float(order * rho - mpmath.log(delta) / (order - 1) + mpmath.log(1 - 1 / order)) * (1 - 1e-12)


def errs_upward(epsilon: object, rho: float, delta: float) -> bool:
    stated = epsilon(rho=rho, delta=delta)  # type: ignore[operator]
    exact = least(rho, delta)
    return bool(exact <= stated <= exact * (1 + mpf("1e-6")))


@given(rho=RHOS, delta=DELTAS)
def test_epsilon_errs_upward_and_hardly(rho: float, delta: float) -> None:
    assert errs_upward(prdp.epsilon, rho, delta)


def test_another_order_or_rounding_would_be_seen() -> None:
    assert not errs_upward(of_one_order, 0.5, 1e-6)
    assert not errs_upward(lambda rho, delta: float(least(rho, delta)) * (1 - 1e-9), 0.5, 1e-6)


@given(epsilon=st.floats(-3, 4).map(lambda x: 10**x), delta=DELTAS)
def test_rho_errs_downward_and_hardly(epsilon: float, delta: float) -> None:
    rho = prdp.rho(epsilon=epsilon, delta=delta)
    assert least(rho, delta) <= prdp.epsilon(rho=rho, delta=delta) <= epsilon
    assert prdp.epsilon(rho=rho * (1 + 1e-9), delta=delta) > epsilon


WRONG = ["nan", "inf", "-inf", "0", "-1", "1e301", "x"]


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("name", ["rho", "epsilon", "delta"])
def test_wrong_numbers_are_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"rho" if name != "epsilon" else "epsilon": "1", "delta": "1e-6"} | {name: value}
    convert = conversions.rho if "epsilon" in asked else conversions.epsilon
    values = [value] if value == "x" else [value, float(value)]
    for each in values:
        with pytest.raises(prdp.PlanError, match=f"^{name}=: must be "):
            convert(**asked | {name: each})  # type: ignore[arg-type]
    assert main(["calibrate", "--quiet", *(f"--{option}={text}" for option, text in asked.items())]) == 2
    assert capsys.readouterr().err.startswith(f"error: --{name}: must be ")


@pytest.mark.parametrize("delta", [1, 1.5, True])
def test_a_delta_is_below_one(delta: float) -> None:
    for convert in (lambda: prdp.epsilon(rho=1, delta=delta), lambda: prdp.rho(epsilon=1, delta=delta)):
        with pytest.raises(prdp.PlanError, match=r"^delta=: must be "):
            convert()


def test_examples_hold() -> None:
    assert doctest.testmod(conversions) == (0, 7)
