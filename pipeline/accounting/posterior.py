"""How sure a release can make somebody that a record is there: posterior probabilities from prior ones.

Somebody knows all other records, and holds a prior probability π that this one is there. P and Q are the laws of the
release with and without it; having seen an output, with L = dP/dQ there, the posterior is πL/(1 − π + πL). Likewise for
the probability that it is not there, and for two values of a record. All that is returned is rounded up.
"""

from math import exp, inf, log

import numpy as np
from numpy.typing import ArrayLike

from pipeline.accounting.convert import SLACK, curve, require_rho, simple_epsilon


def largest_posterior(prior: float, rho: float, delta: float, pure: float | None = None) -> float:
    """Return what the posterior exceeds with probability at most `delta`, whether the record is there or not.

        π·e^t / (1 − π + π·e^t),   t = ρ + 2√(ρ·ln(1/δ)), and at most the pure loss, with which it is never exceeded

    Proof. With the record, Markov's inequality gives P(ln L ≥ t) ≤ E_P[L^(α − 1)]·e^(−(α − 1)t) =
    e^((α − 1)(D_α − t)) ≤ e^((α − 1)(αρ − t)), which is δ at α = 1 + √(ln(1/δ)/ρ). Without it, Q(ln L ≥ t) ≤
    e^(−t)·P(ln L ≥ t) ≤ δ. (Bun and Steinke 2016, lemma 3.5; the odds are Bayes's rule.) An ε of (ε, δ)-DP would not
    do as t. Raises ValueError unless 0 < π < 1, ρ ≥ 0 and 0 < δ < 1.
    """
    _require(prior)
    return _posterior(prior, simple_epsilon(rho, delta, pure))


def largest_posterior_of(
    prior: float, orders: ArrayLike, divergences: ArrayLike, delta: float, pure: float | None = None
) -> float:
    """Return the same for bounds `divergences` of D_α at `orders`: t = min over α of D_α + ln(1/δ)/(α − 1).

    Arrays and errors as in `convert.approximate_epsilon_of`.
    """
    _require(prior)
    alpha, bounds = curve(orders, divergences)
    if not 0 < delta < 1:
        raise ValueError("delta: must be above 0 and below 1")
    least = float((bounds - log(delta) / (alpha - 1)).min()) if bounds.all() else 0.0
    return _posterior(prior, min(least, inf if pure is None else pure))


def mean_posterior(prior: float, rho: float, pure: float | None = None) -> float:
    """Return a bound on the mean posterior where the record is there.

        π·e^t / (1 − π + π·e^t),   t = D_2 ≤ 2ρ, and at most ln[(e^(2ε) + e^(−ε))/(1 + e^ε)] with a pure loss ε

    Proof. The posterior is concave in L, so its mean under P is at most that at E_P[L] = e^(D_2) (Jensen). With a pure
    loss P and Q are post-processing of randomised response (Kairouz, Oh, Viswanath 2015), whose e^(D_2) is
    p²/q + q²/p, p = e^ε/(1 + e^ε) = 1 − q. Raises ValueError unless 0 < π < 1 and ρ ≥ 0.
    """
    _require(prior)
    require_rho(rho)
    by_pure = inf if pure is None else float(np.logaddexp(2 * pure, -pure) - np.logaddexp(0, pure))
    return _posterior(prior, min(2 * rho, max(by_pure, 0.0)))


def _posterior(prior: float, log_odds: float) -> float:
    """π·e^t/(1 − π + π·e^t) = 1/(1 + (1 − π)/π·e^(−t))."""
    return min(1.0, 1 / (1 + (1 - prior) / prior * exp(-log_odds)) * (1 + SLACK))


def _require(prior: float) -> None:
    if not 0 < prior < 1:
        raise ValueError("prior: must be above 0 and below 1")
