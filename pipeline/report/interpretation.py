"""The interpretation of a total loss: (ε, δ), the best test, posteriors; as JSON and for people."""

from collections.abc import Mapping, Sequence
from math import ceil
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
from pipeline.plan.policy import Loss
from pipeline.report.text import aligned, upper
from udfs.numbers.exact import up_float

PRIORS = (0.01, 0.5)
NOTES = (
    "(ε, δ) is what the divergences of all orders imply. best test: how often somebody who knows all other records and",
    f"may be wrong about {SIZE:.0%} of absent records, can at most detect a present one; {SIZE:g} is guessing.",
    "posterior: how sure somebody who knows all other records can become that it is there, who held it there with the",
    "prior probability: the mean over releases where it is there / what is exceeded with probability δ at most.",
)


def interpret(loss: Loss, delta: float, curve: Floats | None = None) -> dict[str, Any]:
    """Return what a loss implies, all rounded up: an (ε, δ), the power of the best test, and posteriors.

    Args:
        loss: An upper bound of the loss of a record or a firm.
        delta: The δ at which (ε, δ) is stated.
        curve: Its divergences at ORDERS, which sharpen all but the mean posteriors where they are lower.

    Returns:
        JSON: `epsilon`, `delta`, `power`, `size`; `epsilon_simple`, ρ + 2√(ρ·ln(1/δ)); `posteriors`, for each prior
        the mean where the record or firm is there, and the largest but with probability δ.
    """
    rho, pure = up_float(loss.rho), None if loss.epsilon is None else up_float(loss.epsilon)
    posteriors = []
    for prior in PRIORS:
        largest = largest_posterior(prior, rho, delta, pure)
        if curve is not None:
            largest = min(largest, largest_posterior_of(prior, ORDERS, curve, delta, pure))
        posteriors.append({"prior": prior, "mean": mean_posterior(prior, rho, pure), "largest": largest})
    simple = simple_epsilon(rho, delta, pure)
    return interpretation(curve, rho, pure, delta) | {"epsilon_simple": simple, "posteriors": posteriors}


def interpretation_text(interpreted: Mapping[str, Any]) -> str:
    """Return (ε, δ) and the best test for people."""
    epsilon = "infinite" if interpreted["epsilon"] is None else upper(interpreted["epsilon"])
    return f"(ε, δ) = ({epsilon}, {interpreted['delta']:g})   best test {_probability(interpreted['power'])}"


def posterior_lines(names: Sequence[str], interpreted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the posteriors of named losses in columns, one for each prior; no line where there is no loss."""
    heads = ("posterior, prior", *(f"{prior:g}" for prior in PRIORS))
    rows = [
        (name, *(f"{_probability(each['mean'])} / {_probability(each['largest'])}" for each in loss["posteriors"]))
        for name, loss in zip(names, interpreted, strict=True)
    ]
    return aligned([heads, *rows]) if rows else []


def _probability(bound: float) -> str:
    return "> 0.9999" if bound > 0.9999 else f"{ceil(bound * 10_000) / 10_000:.4f}"
