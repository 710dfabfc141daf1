"""The best α of stable noise: no α of a grid is better, at a loss and at an accuracy; wrong calls are refused."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import gamma, pi

import pytest

import prdp
from pipeline.accounting import calibrate as searched
from pipeline.accounting.calibrate import ALPHAS, KIND, Least, best_alpha, solve
from pipeline.accounting.targets import CalibrationError, Target
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build

ONE = Fraction(1)
ERROR = Least(what="error")
INTERVAL = Least(what="interval", coverage=Fraction("0.9"))
LOSS = Least(what="loss", influence=Fraction(1000))


def pure(epsilon: str) -> Target:
    return Target.of("epsilon", epsilon=Fraction(epsilon), influence=Fraction(1000))


def accuracy(error: str) -> Target:
    return Target.of("mean_absolute_error", mean_absolute_error=Fraction(error))


@cache
def best(target: Target, least: Least) -> Mechanism:
    return best_alpha({}, ONE, target, least).mechanism


def look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "ALPHAS", tuple(ALPHAS[i] for i in (0, 15, 60, 100)))
    monkeypatch.setattr(searched, "FIRST", (0, 1, 2, 3))


def scores(target: Target, least: Least, alphas: Sequence[Fraction]) -> list[tuple[float, ...]]:
    found: list[tuple[float, ...]] = []
    for alpha in alphas:
        try:
            found.append(least.score(solve(KIND, {"alpha": alpha}, ONE, target)))
        except CalibrationError:
            continue
    return found


@pytest.mark.parametrize(
    ("target", "least"),
    [
        (pure("3"), ERROR),
        pytest.param(pure("3"), INTERVAL, marks=pytest.mark.drill),
        pytest.param(pure("8"), ERROR, marks=pytest.mark.drill),
    ],
    ids=["error", "interval", "narrow noise"],
)
def test_no_alpha_of_a_grid_is_better_than_the_best(
    target: Target, least: Least, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = best(target, least)
    place = ALPHAS.index(Fraction(str(found.describe()["alpha"])))
    others = min(scores(target, least, [*ALPHAS[30::30], *(ALPHAS[place + k] for k in (-2, -1, 1, 2))]))
    assert least.score(found) <= others
    look_at_few(monkeypatch)  # the broken twin: a search that ends with the first few
    assert not least.score(best_alpha({}, ONE, target, least).mechanism) <= others


def test_the_best_errors_are_those_of_smooth_noise_where_it_is_wide() -> None:
    mechanism = best(pure("3"), ERROR)
    alpha, scale = (float(str(mechanism.describe()[name])) for name in ("alpha", "gamma"))
    assert mechanism.mean_absolute_error(0.0) == pytest.approx(scale * 2 / pi * gamma(1 - 1 / alpha), rel=1e-5)
    assert mechanism.pure_loss_at(Fraction(1000)) <= 3


def test_loss_is_least_at_an_accuracy() -> None:
    found = best_alpha({"policy": "paper"}, ONE, accuracy("5"), LOSS)
    mechanism = found.mechanism
    assert mechanism.mean_absolute_error(0.0) == pytest.approx(5, rel=1e-5)
    assert min(value for _, value in found.tried) == float(mechanism.loss_at(Fraction(1000)))
    near = [best_alpha_near(mechanism, shift) for shift in (-2, 2)]
    assert all(mechanism.loss_at(Fraction(1000)) <= other.loss_at(Fraction(1000)) for other in near)


def best_alpha_near(mechanism: Mechanism, shift: int) -> Mechanism:
    described = mechanism.describe()
    fixed = {"alpha": Fraction(str(described["alpha"])) + Fraction(shift, 100), "policy": str(described["policy"])}
    return solve(KIND, fixed, ONE, accuracy("5"))


@pytest.mark.drill
@pytest.mark.parametrize("rho", ["0.1", "1", "8"])
@pytest.mark.parametrize("least", [ERROR, INTERVAL], ids=["error", "interval"])
def test_no_alpha_at_all_is_better_than_the_best_at_a_tight_loss(rho: str, least: Least) -> None:
    target = Target.of("loss", loss=Fraction(rho), influence=Fraction(100))
    assert least.score(best(target, least)) == min(scores(target, least, ALPHAS))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"loss": 1, "at": 10, "best_alpha": "loss"}, "loss with an accuracy"),
        ({"mean_absolute_error": 1, "best_alpha": "error"}, "error and interval go with a loss or epsilon"),
        ({"mean_absolute_error": 1, "best_alpha": "loss"}, "loss needs at, the influence"),
        ({"loss": 1, "at": 10, "best_alpha": "bias"}, "must be one of error, interval, loss"),
        ({"loss": 1, "at": 10, "best_alpha": "error", "parameters": {"alpha": 1}}, "alpha is what is looked for"),
        ({"loss": 1, "at": 10, "best_alpha": "error", "kind": "laplace"}, "laplace: .*symmetric_stable alone has one"),
        ({"interval": 1, "total": 10, "best_alpha": "error", "kind": None}, "best_alpha=: needs kind= beside it"),
    ],
)
def test_a_wrong_call_is_refused_in_plain_words(asked: dict[str, object], says: str) -> None:
    with pytest.raises(prdp.PlanError, match=says):
        prdp.calibrate(**{"kind": KIND, **asked})


def test_the_interface_gives_the_mechanism_and_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    look_at_few(monkeypatch)
    found = prdp.calibrate(kind=KIND, parameters={"policy": "paper"}, epsilon=3, at=1000, best_alpha="interval")
    tried = found["best_alpha"]["tried"]
    mechanism = build(found["mechanism"], ONE)
    lower, upper = mechanism.interval_around(0.0, Fraction("0.95"))
    assert upper - lower == min(entry["value"] for entry in tried)
    assert found["mechanism"]["alpha"] in [entry["alpha"] for entry in tried]
