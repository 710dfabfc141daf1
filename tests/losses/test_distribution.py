"""Privacy-loss distributions against brute force, high precision and dp-accounting, with twins that they must beat."""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import comb, exp, log
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accounting.convert import ORDERS, approximate_epsilon_of, exact_scale
from udfs.losses import atoms, distribution
from udfs.losses.atoms import Atoms, Pair, Response, Shifted, atoms_of, pair_of
from udfs.losses.distribution import MOST_POINTS, Bounds, Distribution, Sum, bounds_of
from udfs.losses.tight import renyi_curve
from udfs.mechanisms.catalogue import build
from udfs.noise.heavy_weights import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights

E = Fraction("2.718281828459045")
GAUSSIAN = GaussianWeights(scale=Fraction(3))
LAPLACE = LaplaceWeights(scale=Fraction(2))
ROOT = GeneralizedGaussianWeights(p=Fraction(1, 2), scale=Fraction(1, 4))
POLYLOG = PolylogWeights(p=Fraction(2), d=Fraction(3), a=E, scale=Fraction(1))
REACH = 700  # beyond it each of the four has a probability below 10⁻¹⁵

Law = tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]  # p, q


def shifted(weights: LogWeights, steps: int) -> Pair:
    pair = pair_of(weights, steps, None)
    assert isinstance(pair, Shifted)
    return pair


def law(weights: LogWeights, steps: int) -> Law:
    """p and q of all outcomes that matter, summed here on its own."""
    x = np.arange(-REACH, REACH + steps + 1)
    w = np.array([float(weights.high(int(k), mpmath.mp)) for k in range(REACH + 2 * steps + 1)])
    total = np.exp(w[0]) + 2 * np.exp(w[1:]).sum()
    return np.exp(w[np.abs(x)]) / total, np.exp(w[np.abs(x - steps)]) / total


def together(laws: Iterable[Law]) -> Law:
    p, q = np.ones(1), np.ones(1)
    for each in laws:
        p, q = np.outer(p, each[0]).ravel(), np.outer(q, each[1]).ravel()
        kept = p > 1e-17
        p, q = p[kept], q[kept]
    return p, q


def exact_epsilon(of: Law, delta: float) -> float:
    p, q = of
    low, high = 0.0, 200.0
    if np.maximum(p - q, 0).sum() <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(p - exp(middle) * q, 0).sum() > delta else (low, middle)
    return high


def exact_power(of: Law, size: float) -> float:
    """Neyman and Pearson: outcomes by falling p/q, the last one by chance."""
    p, q = of
    order = np.argsort(-np.log(np.maximum(p, 1e-300)) + np.log(np.maximum(q, 1e-300)), kind="stable")
    sizes, powers = np.cumsum(q[order]), np.cumsum(p[order])
    return float(np.interp(size, sizes, powers))


def allowed(epsilon: float) -> float:
    return max(1e-3, 0.01 * epsilon)


CASES = [
    [(GAUSSIAN, 1)],
    [(GAUSSIAN, 9)],
    [(LAPLACE, 3)],
    [(ROOT, 2)],
    [(POLYLOG, 4)],
    [(GAUSSIAN, 2), (LAPLACE, 1)],
    [(ROOT, 1), (POLYLOG, 2)],
    [(GAUSSIAN, 3), (POLYLOG, 1)],
]


@pytest.mark.parametrize("noises", CASES)
@pytest.mark.parametrize("delta", [1e-8, 1e-3])
def test_bounds_are_those_of_brute_force(noises: list[tuple[LogWeights, int]], delta: float) -> None:
    exact = together(law(*noise) for noise in noises)
    found = bounds_of([shifted(*noise) for noise in noises], delta, 0.05)
    least = exact_epsilon(exact, delta)
    assert least * (1 - 1e-9) <= found.epsilon <= least + allowed(least) / 2
    power = exact_power(exact, 0.05)
    assert power * (1 - 1e-9) <= found.power <= power * 1.01


STAIRS = PiecewiseWeights(
    steps=(0, 400, 401, 1500, 1520, 3000, 3010, 4000),
    logs=tuple(map(Fraction, ("0", "-0.2", "-3", "-3", "-5", "-5.5", "-14", "-30"))),
)


@pytest.mark.parametrize("steps", [1, 30, 700, 2500])
def test_the_losses_of_stairs_rise_and_fall_between_knots(steps: int) -> None:
    x = np.arange(-40_000, 40_001)
    of_p, of_q = (
        np.interp(np.abs(x - shift), STAIRS.steps, [float(log) for log in STAIRS.logs])
        - np.maximum(np.abs(x - shift) - 4000, 0) * 16 / 990
        for shift in (0, steps)
    )
    total = np.exp(of_p).sum()
    exact = np.exp(of_p) / total, np.exp(of_q) / total
    for delta in (1e-9, 1e-4):
        least = exact_epsilon(exact, delta)
        assert least * (1 - 1e-9) <= bounds_of([shifted(STAIRS, steps)], delta, 0.05).epsilon <= least + allowed(least)


def test_a_cliff_beyond_the_blocks_counts_and_a_twin_that_takes_the_last_block_for_the_rest_overlooks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cliff = PiecewiseWeights(steps=(0, 2000, 2001, 3000), logs=tuple(map(Fraction, (0, -20, -40, -41))))
    x = np.arange(-3000, 3001)
    p, q = (np.exp(np.interp(np.abs(x - shift), cliff.steps, [0, -20, -40, -41])) for shift in (0, 1))
    exact = float(np.maximum(p - exp(10) * q, 0).sum() / p.sum())

    def delta(beyond: float) -> float:
        known = atoms_of(Shifted(cliff, 1), beyond, 1e-3)
        return float(known.infinite + (known.mass * np.maximum(-np.expm1(10 - known.loss), 0)).sum())

    assert exact == pytest.approx(exp(-20) / p.sum(), rel=1e-3)
    assert delta(1e-14) == pytest.approx(exact, rel=1e-3)
    assert delta(1e-6) >= exact
    monkeypatch.setattr(atoms, "_left_of", lambda _pair, _reach, loss: loss)
    assert delta(1e-6) < exact


def test_twins_that_round_losses_down_or_forget_what_is_cut_state_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    noises = [(GAUSSIAN, 3), (GAUSSIAN, 3)]
    least = exact_epsilon(together(law(*noise) for noise in noises), 1e-6)
    pairs = [shifted(*noise) for noise in noises]
    on_grid = distribution._on_grid

    def rounded_down(atoms: Atoms, window: tuple[float, float], spacing: float) -> Distribution:
        return on_grid(replace(atoms, loss=atoms.loss - spacing), window, spacing)

    def forgotten(atoms: Atoms, window: tuple[float, float], spacing: float) -> Distribution:
        return replace(on_grid(atoms, window, spacing), infinite=0.0)

    with monkeypatch.context() as broken:
        broken.setattr(distribution, "CUT", 0.5)
        assert bounds_of(pairs, 1e-6, 0.05).epsilon >= least
        broken.setattr(distribution, "_on_grid", forgotten)
        assert bounds_of(pairs, 1e-6, 0.05).epsilon < least
    monkeypatch.setattr(distribution, "_on_grid", rounded_down)
    assert bounds_of(pairs, 1e-6, 0.05).epsilon < least


def test_what_underflows_counts_and_a_twin_that_forgets_it_states_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, logs = (0, 1750, 1751, 1841, 1842, 1942), (0.0, -437.5, -442.5, -465.0, -1465.0, -1490.0)
    pairs = [shifted(PiecewiseWeights(steps=steps, logs=tuple(map(Fraction, logs))), 1)]
    mp = mpmath.mp.clone()
    mp.dps = 60
    weights = [mp.exp(float(log)) for log in np.interp(np.abs(np.arange(-1942, 1943)), steps, logs)]

    def delta() -> Any:
        raised = mp.exp(bounds_of(pairs, 1e-200, 0.05).epsilon)
        return mp.fsum(max(p - raised * q, 0) for q, p in pairwise(weights)) / mp.fsum(weights)

    assert delta() <= 1e-200
    monkeypatch.setattr(distribution, "UNDERFLOW", 0.0)
    assert delta() > 1e-200
    nothing = Sum(losses=np.array([60.0, 50.0]), mass=np.zeros(2), error=np.full(2, 1e-170), infinite=0.0)
    assert nothing.delta(0.0) / 1e-170 == pytest.approx(2**0.5)  # whose squares are no doubles


def test_ten_draws_and_a_tiny_delta_against_high_precision() -> None:
    # the loss of n draws of Gaussian noise depends on their sum alone: n² s = (n·2·S − …)/(2s²)
    mp, n, steps = mpmath.mp.clone(), 10, 1
    mp.dps = 60
    weights = [mp.exp(GAUSSIAN.high(abs(k), mp)) for k in range(-60, 61)]
    law_of_sum = weights
    for _ in range(n - 1):
        law_of_sum = _convolved(mp, law_of_sum, weights)
    total, reach = mp.fsum(law_of_sum), 60 * n

    def delta(epsilon: Any) -> Any:
        losses = ((n * steps**2 - 2 * steps * (i - reach)) / mp.mpf(18) for i in range(len(law_of_sum)))
        parts = (p * -mp.expm1(epsilon - loss) for p, loss in zip(law_of_sum, losses, strict=True) if loss > epsilon)
        return mp.fsum(parts) / total

    for wanted in (1e-5, 1e-30):
        found = bounds_of([shifted(GAUSSIAN, steps)] * n, wanted, 0.05).epsilon
        assert delta(mp.mpf(found)) <= wanted < delta(mp.mpf(found * 0.999))


def _convolved(mp: Any, one: list[Any], other: list[Any]) -> list[Any]:
    result = [mp.mpf(0)] * (len(one) + len(other) - 1)
    for i, p in enumerate(one):
        if p > mp.mpf("1e-45"):
            for j, q in enumerate(other):
                result[i + j] += p * q
    return result


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("sigma", [2, 7])
def test_dp_accountings_own_distributions_agree(sigma: int, times: int) -> None:
    for kind, of in (
        ({"kind": "gaussian", "sigma": sigma}, pld.from_discrete_gaussian_mechanism(sigma)),
        ({"kind": "laplace", "sigma": sigma}, pld.from_discrete_laplace_mechanism(1 / sigma)),
    ):
        theirs = of.self_compose(times)
        pair = build(kind, Fraction(1)).pair_at(Fraction(1))
        assert pair is not None
        for delta in (1e-3, 1e-8):
            ours = bounds_of([pair] * times, delta, 0.05).epsilon
            assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=2e-3, abs=1e-3)


def test_wide_noise_of_a_logarithm_is_nearly_continuous() -> None:
    sigma, delta = 0.7, 1e-7
    mechanism = build({"kind": "log", "a": 1, "sigma": Fraction("0.7")}, Fraction(1))
    pair = mechanism.pair_at(Fraction(1))
    assert pair is not None
    found = bounds_of([pair], delta, 0.05).epsilon
    assert exact_scale(found, delta, log(2)) <= sigma * (1 + 1e-8)
    assert exact_scale(found * 0.9995, delta, log(2)) > sigma


def test_responses_add_up_to_a_binomial_law() -> None:
    pure, times, delta = 0.5, 20, 1e-4
    truth = 1 / (1 + exp(-pure))

    def least(epsilon: float) -> float:
        law = (
            (comb(times, k) * truth**k * (1 - truth) ** (times - k), pure * (2 * k - times)) for k in range(times + 1)
        )
        return sum(p * max(0.0, 1 - exp(epsilon - loss)) for p, loss in law)

    found = bounds_of([Response(pure)] * times, delta, 0.05).epsilon
    assert least(found) <= delta < least(found - allowed(found) / 2)


def test_every_bound_grows_with_the_shift_and_a_tighter_grid_is_within_the_gap() -> None:
    for weights in (GAUSSIAN, LAPLACE, ROOT, POLYLOG):
        bounds = [bounds_of([shifted(weights, steps)], 1e-6, 0.05) for steps in range(6)]
        assert bounds[0].epsilon == 0
        assert bounds[0].power == pytest.approx(0.05, rel=1e-6)
        for less, more in pairwise(bounds):
            assert less.epsilon <= more.epsilon + more.gap
            assert less.power <= more.power * (1 + 1e-6)


def test_nothing_loses_nothing() -> None:
    assert bounds_of([], 1e-6, 0.05).epsilon == pytest.approx(0, abs=1e-9)
    assert bounds_of([], 1e-6, 0.05).power == pytest.approx(0.05, rel=1e-6)


SCALES = st.floats(-1.5, 12).map(lambda x: Fraction(round(10**x * 100), 100) or Fraction(1, 100))


@given(
    family=st.sampled_from(["gaussian", "laplace", "generalized_gaussian", "exponential_polylog"]),
    scale=SCALES,
    relative=st.floats(-3, 1.5),
    times=st.integers(1, 5),
    surprise=st.floats(0.5, 25),
)
def test_no_bound_exceeds_that_of_other_proofs(
    family: str, scale: Fraction, relative: float, times: int, surprise: float
) -> None:
    weights: dict[str, Any] = {
        "gaussian": GaussianWeights(scale=scale),
        "laplace": LaplaceWeights(scale=scale),
        "generalized_gaussian": GeneralizedGaussianWeights(p=Fraction(1, 2), scale=scale),
        "exponential_polylog": PolylogWeights(p=Fraction(2), d=Fraction(3, 2), a=E, scale=scale),
    }
    noise, steps, delta = weights[family], max(1, round(float(scale) * 10**relative)), 10**-surprise
    found = bounds_of([shifted(noise, steps)] * times, delta, 0.05)
    if family == "gaussian":
        curve = ORDERS * float(steps**2 / (2 * scale**2))
    else:
        curve = renyi_curve(noise, steps, ORDERS)
        pure = -float(noise.fast(np.array([float(steps)]))[0]) * times
        assert found.epsilon <= pure * (1 + 1e-6) + allowed(pure)
    least = approximate_epsilon_of(ORDERS, curve * times, delta)
    assert 0 <= found.epsilon <= least + allowed(least)
    assert 0.05 <= found.power <= 1


def test_noise_without_room_in_doubles_enters_with_its_pure_loss() -> None:
    assert pair_of(GaussianWeights(scale=Fraction(2**50)), 2**50, None) is None
    assert pair_of(LaplaceWeights(scale=Fraction(2**50)), 2**50, Fraction(1)) == Response(1.0)
    assert bounds_of([Response(1.0)], 1e-9, 0.05).epsilon == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("steps", [3, 40, 5000])
@pytest.mark.parametrize("alpha", ["1", "1.5", "1.9"])
def test_stable_noise_whose_losses_rise_and_fall(alpha: str, steps: int) -> None:
    m = build({"kind": "symmetric_stable", "alpha": Fraction(alpha), "gamma": 20}, Fraction(1))
    weights, x = m.log_weights, np.arange(-(10**6), 10**6 + 1)
    p, q = (np.exp(weights.fast(np.abs(x - centre).astype(float))) for centre in (0, steps))
    total = p.sum() + 2 * float(weights.tail(10**6 + 1, mpmath.mp)[0])
    beyond = 1 - p.sum() / total
    pure = m.pure_loss_at(Fraction(steps))
    assert pure is not None
    for share in (0.1, 0.5, 0.8):
        epsilon = share * float(pure)
        least = float(np.maximum(p - exp(epsilon) * q, 0).sum() / total)
        found = distribution.delta_of(shifted(weights, steps), epsilon, max(least, 1e-9))
        assert least * (1 - 1e-9) <= found <= least * 1.001 + beyond + 1e-12
    known = atoms_of(shifted(weights, steps), 1e-9, 1e-3)
    assert known.loss.max() <= float(pure) * 1.001
    looked_at = np.log(p / q)
    assert looked_at.max() <= known.loss.max()


def test_the_error_of_the_transform_is_as_small_as_stated() -> None:
    parts = [
        distribution._on_grid(atoms_of(shifted(noise, 2), 1e-12, 1e-3), (-9.0, 9.0), 1e-2)
        for noise in (GAUSSIAN, LAPLACE, POLYLOG)
    ]
    parts += 4 * parts[:1] + 2 * parts[1:2]  # five of the first, three of the second
    exact = np.ones(1, dtype=np.longdouble)
    for part in parts:
        exact = np.convolve(exact, part.mass.astype(np.longdouble))
    for tilt in (0.0, 2.0):
        found = distribution._together(parts, tilt)
        off = (np.abs(found.mass - exact) - 2e-9 * exact) / found.error
        assert float(np.linalg.norm(np.maximum(off, 0).astype(float))) <= 1
        above = exact * np.maximum(-np.expm1(3.0 - found.losses), 0)
        assert found.delta(3.0) == pytest.approx(float(above.sum()), rel=1e-4)


def test_grids_end_somewhere() -> None:
    huge = bounds_of([shifted(GaussianWeights(scale=Fraction(1)), 2000)] * 3, 1e-9, 0.05)
    assert isinstance(huge, Bounds)
    assert huge.epsilon == pytest.approx(3 * 2e6, rel=1e-2)
    assert huge.power == 1
    assert MOST_POINTS > distribution.POINTS


@pytest.mark.parametrize(("delta", "size"), [(0.0, 0.05), (1.0, 0.05), (float("nan"), 0.05), (1e-6, 0.0), (1e-6, 1.0)])
def test_no_probability_is_refused(delta: float, size: float) -> None:
    with pytest.raises(ValueError, match="above 0 and below 1"):
        bounds_of([], delta, size)
