"""The interpretation of a total loss: (ε, δ), the best test, posteriors; as JSON and for people."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from pipeline.accounting.convert import (
    ORDERS,
    SIZE,
    Floats,
    interpretation,
    largest_posterior,
    largest_posterior_of,
    mean_posterior,
    simple_epsilon,
)
from pipeline.accounting.distributions import ByDistribution, bounds_at
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.base.columns import aligned
from pipeline.plan.total_policy import Loss
from udfs.numbers.exact import bound_text, up_float, up_probability

PRIORS = (0.01, 0.5)
NOTES = (
    "(ε, δ) and best test: of the plan's queries together, none of which depends on what another showed, by the "
    "distribution of the privacy loss of the noise as it is drawn. Over plans rho adds up, and (ε, δ) does not.",
    "best test: how often somebody who knows all other records and may be wrong about "
    f"{SIZE:.0%} of absent records, can at most detect a present one; {SIZE:g} is guessing.",
    "posterior: how sure somebody who knows all other records can become that it is there, who held it there with the "
    "prior probability: the mean over releases where it is there / what is exceeded with probability δ at most.",
)


def interpret(
    loss: Loss, delta: float, curve: Floats | None = None, by_distribution: ByDistribution | None = None
) -> dict[str, Any]:
    """Return what a loss implies, all rounded up: an (ε, δ), the power of the best test, and posteriors.

    Args:
        loss: An upper bound of the loss of a record or a firm.
        delta: The δ at which (ε, δ) is stated.
        curve: Its divergences at ORDERS, which sharpen all but the mean posteriors where they are lower.
        by_distribution: What the distribution of its privacy loss says, where that is known.

    Returns:
        JSON: `epsilon`, `delta`, `power`, `size`; `by`: "distribution" of the privacy loss, or "divergences" where that
        is not known; `coarse`: the queries of which it has the pure loss alone; `epsilon_simple`, ρ + 2√(ρ·ln(1/δ));
        `posteriors`, for each prior the mean where the record or firm is there, and the largest but with probability δ.
    """
    rho, pure = up_float(loss.rho), None if loss.epsilon is None else up_float(loss.epsilon)
    posteriors = []
    for prior in PRIORS:
        largest = largest_posterior(prior, rho, delta, pure)
        if curve is not None:
            largest = min(largest, largest_posterior_of(prior, ORDERS, curve, delta, pure))
        posteriors.append({"prior": prior, "mean": mean_posterior(prior, rho, pure), "largest": largest})
    simple = simple_epsilon(rho, delta, pure)
    means = interpretation(curve, rho, pure, delta) | {"by": "divergences", "coarse": []}
    if by_distribution is not None and isfinite(by_distribution.bounds.epsilon):
        bounds = by_distribution.bounds
        epsilon = bounds.epsilon if means["epsilon"] is None else min(means["epsilon"], bounds.epsilon)
        means |= {"epsilon": epsilon, "power": min(means["power"], bounds.power)}
        means |= {"by": "distribution", "coarse": list(by_distribution.coarse)}
    return means | {"epsilon_simple": simple, "posteriors": posteriors}


def interpret_at(policy: PolicySum, at: Reference, loss: Loss, delta: float) -> dict[str, Any]:
    """Return what the `loss` of a reference implies that is located in its plan."""
    return interpret(loss, delta, policy.curve_at(at), bounds_at(policy, at, delta))


def interpretation_text(interpreted: Mapping[str, Any]) -> str:
    """Return (ε, δ) and the best test for people."""
    epsilon = "infinite" if interpreted["epsilon"] is None else bound_text(interpreted["epsilon"])
    delta = bound_text(interpreted["delta"])
    return f"(ε, δ) = ({epsilon}, {delta})   best test {up_probability(interpreted['power'])}"


def unknown_lines(names: Sequence[str], interpreted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return of which named references, and of which queries' noise, the distribution of the loss is not known."""
    by_divergences = [name for name, each in zip(names, interpreted, strict=True) if each["by"] == "divergences"]
    by_pure_loss = sorted({query for each in interpreted for query in each["coarse"]})
    return [
        *(f"{name}: no distribution is known; its (ε, δ) is what divergences imply." for name in by_divergences),
        *(f"{query}: of its noise the pure loss alone enters the distribution." for query in by_pure_loss),
    ]


def posterior_lines(names: Sequence[str], interpreted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the posteriors of named losses in columns, one for each prior; no line where there is no loss."""
    heads = ("posterior, prior", *(f"{prior:g}" for prior in PRIORS))
    rows = [
        (name, *(f"{up_probability(each['mean'])} / {up_probability(each['largest'])}" for each in loss["posteriors"]))
        for name, loss in zip(names, interpreted, strict=True)
    ]
    return aligned([heads, *rows]) if rows else []
