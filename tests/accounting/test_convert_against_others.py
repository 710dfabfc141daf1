"""Our conversions of losses beside those of another's library, dp-accounting."""

import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from pipeline.accounting.convert import approximate_epsilon, approximate_epsilon_of, exact_scale
from udfs.mechanisms.additive_kinds import Gaussian, Laplace

ORDERS = np.array([1.1, 1.5, 2, 3, 5, 8, 13, 21, 34, 55, 144, 1000], dtype=float)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0])
def test_epsilon_of_a_curve_is_that_of_the_same_proposition(rho: float, delta: float) -> None:
    truncated = np.where(ORDERS > 100, np.inf, ORDERS * rho)
    for curve in (ORDERS * rho, ORDERS**1.5 * rho, truncated):
        theirs, _ = compute_epsilon(ORDERS, curve, delta)
        ours = approximate_epsilon_of(ORDERS, curve, delta)
        # theirs is 0 also where a bound of the total variation says so
        assert ours == pytest.approx(theirs, rel=1e-8) or theirs == 0


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-5), (0.1, 1e-6), (5, 1e-9)])
def test_the_exact_scale(epsilon: float, delta: float) -> None:
    assert exact_scale(epsilon, delta) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
@pytest.mark.parametrize("sigma", [2, 7])
def test_epsilon_of_our_losses_bounds_the_exact_one_of_lattice_noise(sigma: int, delta: float) -> None:
    noise = {
        Gaussian: pld.from_discrete_gaussian_mechanism(sigma, pessimistic_estimate=False),
        Laplace: pld.from_discrete_laplace_mechanism(1 / sigma, pessimistic_estimate=False),
    }
    for kind, exact in noise.items():
        m = kind(sigma=sigma)  # type: ignore[arg-type]
        least = exact.get_epsilon_for_delta(delta)
        rho = float(m.loss_at(1))  # type: ignore[arg-type]
        assert least <= approximate_epsilon(rho, delta)
        assert least > approximate_epsilon(rho / 3, delta) or kind is Laplace  # the twin
