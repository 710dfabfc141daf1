"""What a total loss means to people: (ε, δ), the best test, posteriors; as JSON and in words."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from pipeline.accounting import curves
from pipeline.accounting.convert import SIZE, simple_epsilon
from pipeline.accounting.curves import Floats
from pipeline.accounting.posterior import largest_posterior, largest_posterior_of, mean_posterior
from pipeline.accounting.reference import Loss
from udfs.exact import up_float, up_text

PRIORS = (0.01, 0.5)
OF_TESTS = (
    "(ε, δ) is what the divergences of all orders imply. best test: how often somebody who knows all else, and may be",
    f"wrong about {SIZE:.0%} of absent records, could at most find a present one; {SIZE:g} is guessing.",
)
OF_POSTERIORS = (
    "posterior: how sure somebody who knows all else can become that it is there, who before thought so with the",
    "probability above: the mean over releases where it is there / what is exceeded with probability δ at most.",
)


def meaning(loss: Loss, delta: float, curve: Floats | None = None) -> dict[str, Any]:
    """Return what a loss implies, all rounded up: an (ε, δ), the power of the best test, and posteriors.

    All but the means by the `curve` of divergences at all orders, where it is given and says less. `epsilon_simple` is
    ρ + 2√(ρ·ln(1/δ)), `posteriors` for each prior the mean where the record or firm is there, and the largest but with
    probability δ.
    """
    rho, pure = up_float(loss.rho), None if loss.epsilon is None else up_float(loss.epsilon)
    posteriors = [
        {
            "prior": prior,
            "mean": mean_posterior(prior, rho, pure),
            "largest": _largest(prior, rho, pure, delta, curve),
        }
        for prior in PRIORS
    ]
    implied = curves.meaning(curve, rho, pure, delta)
    return implied | {"epsilon_simple": simple_epsilon(rho, delta, pure), "posteriors": posteriors}


def _largest(prior: float, rho: float, pure: float | None, delta: float, curve: Floats | None) -> float:
    by_rho = largest_posterior(prior, rho, delta, pure)
    return by_rho if curve is None else min(by_rho, largest_posterior_of(prior, curves.ORDERS, curve, delta, pure))


def words(meant: dict[str, Any]) -> str:
    """Return (ε, δ) and the best test in words."""
    epsilon = "infinite" if meant["epsilon"] is None else up_text(Fraction(meant["epsilon"]))
    approximate = f"(ε, δ) = ({epsilon}, {meant['delta']:g})"
    return f"{approximate}   best test {_probability(meant['power'])}"


def posterior_table(names: Sequence[str], means: Sequence[dict[str, Any]]) -> list[str]:
    """Return the posteriors of named losses in columns, one for each prior; no line where there is no loss."""
    if not names:
        return []
    heads = ("posterior, prior", *(f"{prior:g}" for prior in PRIORS))
    rows = [
        (name, *(f"{_probability(each['mean'])} / {_probability(each['largest'])}" for each in meant["posteriors"]))
        for name, meant in zip(names, means, strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ("   ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)) for row in (heads, *rows))
    return [f"    {line}".rstrip() for line in lines]


def _probability(bound: float) -> str:
    return "> 0.9999" if bound > 0.9999 else f"{ceil(bound * 10_000) / 10_000:.4f}"
