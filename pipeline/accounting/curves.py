"""Whole Rényi curves: what a record loses at every order, added over queries and releases, and converted once.

Guarantee: at each order α the divergences of adaptive mechanisms that were fixed before any of them ran add up (Mironov
2017, proposition 1), so the sum of the queries' curves over the queries of one place is a bound for a record there; the
largest over the places bounds it anywhere. A single loss ρ says αρ at all orders; the curve says less, so that (ε, δ)
and the best test come out smaller. Limits of budgets are on ρ alone: they hold also where later plans are chosen after
earlier outputs were seen, for which sums of curves carry no proof (docs/mathematics.md).
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.convert import SIZE, approximate_epsilon, approximate_epsilon_of, best_power, best_power_of
from pipeline.accounting.policy import Place, PolicySum, Reference

Floats = NDArray[np.float64]

STEPS = ("1", "1.26", "1.58", "2", "2.51", "3.16", "3.98", "5.01", "6.31", "7.94")  # of α − 1, in a decade
ORDERS: Floats = np.array([1 + float(f"{step}e{power}") for power in range(-3, 6) for step in STEPS])
DELTA = 1e-9  # for which (ε, δ) is told where none is asked for
ROUNDING = 1 + 2.0**-40  # far above the error of a sum of doubles


def record_curve(policy: PolicySum, at: Reference, places: Iterable[Place] | None = None) -> Floats:
    """Return upper bounds of D_α at ORDERS for a record with the values `at`, at the worst of `places` (None: all)."""
    found = [query.mechanism.renyi_at(query.influence(at), ORDERS) for query in policy.queries]
    sums = [added([found[i] for i in place]) for place in (policy.places if places is None else places)]
    return np.maximum.reduce(sums) if sums else np.zeros_like(ORDERS)


def added(curves: Sequence[Floats]) -> Floats:
    """Return the sum of curves, rounded up."""
    total = np.zeros_like(ORDERS)
    for curve in curves:
        total += curve
    return total * ROUNDING


def meaning(curve: Floats | None, rho: float, pure: float | None, delta: float) -> dict[str, Any]:
    """Return as JSON an (ε, δ) and what the best test could achieve, by the curve or ρ alone, whichever says less."""
    epsilon = epsilon_of(curve, rho, pure, delta)
    return {
        "epsilon": epsilon if isfinite(epsilon) else None,
        "delta": delta,
        "power": power_of(curve, rho, pure),
        "size": SIZE,
    }


def epsilon_of(curve: Floats | None, rho: float, pure: float | None, delta: float) -> float:
    """Return an ε such that (ε, δ) holds, by the curve or by the loss ρ alone, whichever says less."""
    by_rho = approximate_epsilon(rho, delta, pure)
    return by_rho if curve is None else min(by_rho, approximate_epsilon_of(ORDERS, curve, delta, pure))


def power_of(curve: Floats | None, rho: float, pure: float | None) -> float:
    """Return a bound on the power of the best test, by the curve or by the loss ρ alone, whichever says less."""
    by_rho = best_power(rho, pure)
    return by_rho if curve is None else min(by_rho, best_power_of(ORDERS, curve, pure))
