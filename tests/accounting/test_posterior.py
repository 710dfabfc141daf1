"""Posteriors of whether a record is there, against mechanisms whose likelihood ratios are known exactly."""

from math import exp, inf, log, sqrt

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.accounting.convert import (
    approximate_epsilon,
    largest_posterior,
    largest_posterior_of,
    mean_posterior,
    simple_epsilon,
)
from tests.support.lattice import CTX, Noise
from udfs.mechanisms.additive_kinds import Laplace

PRIORS = (0.01, 0.5, 0.9)
RHOS = (1e-3, 0.05, 0.5, 3.0)
ORDERS = 1 + np.geomspace(1e-3, 1e5, 400)


def exceeded(threshold: float, prior: float, rho: float) -> tuple[float, float]:
    """How often the posterior of Gaussian noise exceeds a threshold, with the record and without it.

    Its log-likelihood ratio is normal with variance 2ρ and mean ρ with the record, −ρ without it.
    """
    t = log(threshold / (1 - threshold)) - log(prior / (1 - prior))
    return norm.sf((t - rho) / sqrt(2 * rho)), norm.sf((t + rho) / sqrt(2 * rho))


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("delta", [0.3, 1e-3])
def test_the_posterior_of_gaussian_noise_exceeds_its_bound_seldom(rho: float, prior: float, delta: float) -> None:
    bound = largest_posterior(prior, rho, delta)
    assert prior < bound < 1
    assert max(exceeded(bound, prior, rho)) <= delta
    understated = largest_posterior(prior, rho / 16, delta)  # the twin
    assert max(exceeded(understated, prior, rho)) > delta


def test_the_epsilon_of_approximate_privacy_is_no_bound_of_the_posterior() -> None:
    # the mistake that the docstring warns of: ε at δ = 0.3 is below what the log-odds exceed in 30 % of outcomes
    rho, delta = 0.05, 0.3
    epsilon = approximate_epsilon(rho, delta)
    assert max(exceeded(1 / (1 + exp(-epsilon)), 0.5, rho)) > delta


@pytest.mark.parametrize("pure", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_randomised_response_reaches_both_bounds_of_pure_losses(pure: float, prior: float) -> None:
    p = exp(pure) / (1 + exp(pure))  # told truly
    sure = prior * p / (prior * p + (1 - prior) * (1 - p))
    unsure = prior * (1 - p) / (prior * (1 - p) + (1 - prior) * p)
    assert sure <= largest_posterior(prior, inf, 1e-6, pure) <= sure * (1 + 2e-9)
    mean = p * sure + (1 - p) * unsure
    assert mean <= mean_posterior(prior, inf, pure)
    assert mean_posterior(prior, inf, pure) < largest_posterior(prior, inf, 1e-6, pure)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("prior", PRIORS)
def test_the_mean_posterior_of_gaussian_noise_keeps_its_bound(rho: float, prior: float) -> None:
    with mp.workdps(30):
        odds = mp.mpf(1 - prior) / prior

        def term(z: mp.mpf) -> mp.mpf:
            return mp.npdf(z) / (1 + odds * mp.exp(-(rho + mp.sqrt(2 * rho) * z)))

        mean = mp.quad(term, [-12, -6, -3, 0, 3, 6, 12])
    assert mean <= mean_posterior(prior, rho)
    if (rho, prior) == (min(RHOS), min(PRIORS)):
        assert mean > mean_posterior(prior, rho * 0.9)  # the twin: for small losses and priors the bound is tight


def test_the_lattice_noise_that_is_drawn_keeps_the_bounds() -> None:
    m, noise, shift = Laplace(sigma=4), Noise(1, 4), 3  # type: ignore[arg-type]
    rho, pure = float(m.loss_at(shift)), float(m.pure_loss_at(shift))  # type: ignore[arg-type]
    span = range(-400, 400)
    with_it = [noise.probability(k - shift) for k in span]
    without = [noise.probability(k) for k in span]
    for prior in PRIORS:
        posteriors = [prior * p / (prior * p + (1 - prior) * q) for p, q in zip(with_it, without, strict=True)]
        assert max(posteriors) <= largest_posterior(prior, rho, 1e-9, pure)
        assert max(posteriors) > largest_posterior(prior, rho, 1e-9, pure * 0.99)
        mean = CTX.fsum(p * found for p, found in zip(with_it, posteriors, strict=True))
        assert mean <= mean_posterior(prior, rho)
        assert mean <= mean_posterior(prior, inf, pure)
        bound = largest_posterior(prior, rho, 0.05)
        assert CTX.fsum(p for p, found in zip(with_it, posteriors, strict=True) if found > bound) <= 0.05


@given(st.floats(1e-6, 100), st.sampled_from([0.2, 1e-9]), st.sampled_from(PRIORS))
def test_a_loss_is_the_curve_of_its_multiples(rho: float, delta: float, prior: float) -> None:
    by_curve = largest_posterior_of(prior, ORDERS, ORDERS * rho, delta)
    exact = largest_posterior(prior, rho, delta)
    assert exact <= by_curve * (1 + 1e-8)
    assert by_curve == pytest.approx(exact, rel=2e-3)  # orders are a few per cent apart, about a minimum


def test_posteriors_by_hand() -> None:
    assert largest_posterior(0.5, 0.0, 0.1) == pytest.approx(0.5, rel=1e-8)
    assert largest_posterior(0.01, inf, 0.1) == 1
    assert largest_posterior(0.01, inf, 0.1, pure=log(99)) == pytest.approx(0.5, rel=1e-8)
    assert largest_posterior_of(0.01, [2.0], [0.0], 0.1) == pytest.approx(0.01, rel=1e-8)
    assert largest_posterior_of(0.5, [2.0], [1.0], exp(-2)) == pytest.approx(1 / (1 + exp(-3)), rel=1e-8)
    assert mean_posterior(0.5, 0.5) == pytest.approx(1 / (1 + exp(-1)), rel=1e-8)
    # 0.3 + 2√(0.3·ln 1000), by hand
    assert simple_epsilon(0.3, 1e-3) == pytest.approx(3.1791155504, rel=1e-8)
    assert simple_epsilon(0.3, 1e-3, pure=2.0) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: largest_posterior(0, 1, 0.1),
        lambda: largest_posterior(1, 1, 0.1),
        lambda: largest_posterior(float("nan"), 1, 0.1),
        lambda: largest_posterior(0.5, -1, 0.1),
        lambda: largest_posterior(0.5, 1, 1),
        lambda: largest_posterior_of(0.5, [2.0], [1.0], 0),
        lambda: largest_posterior_of(0.5, [1.0], [1.0], 0.1),
        lambda: mean_posterior(0.5, float("nan")),
        lambda: mean_posterior(2, 1),
        lambda: simple_epsilon(1, 0),
    ],
)
def test_what_is_no_probability_or_loss_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()  # type: ignore[operator]
