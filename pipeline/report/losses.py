"""What a total loss means to people: (ε, δ), the best test, posteriors; as JSON and in words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from pipeline.accounting.policy import QueryPolicy
from pipeline.accounting.references import Reference
from pipeline.plan.model import Plan, Query
from pipeline.plan.policy import Loss, losses_at, policy_of
from udfs.mechanisms.additive import states_tight
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.groupwise import GroupwiseLog
from udfs.numbers.exact import up_float, up_text
from udfs.records.statistics import Statistic

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
    implied = interpretation(curve, rho, pure, delta)
    return implied | {"epsilon_simple": simple_epsilon(rho, delta, pure), "posteriors": posteriors}


def _largest(prior: float, rho: float, pure: float | None, delta: float, curve: Floats | None) -> float:
    by_rho = largest_posterior(prior, rho, delta, pure)
    return by_rho if curve is None else min(by_rho, largest_posterior_of(prior, ORDERS, curve, delta, pure))


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


# What the records of groups of some sizes lose, where larger groups lose less (docs/groupwise.md).
#
# At public counts only: the count of an actual cell is confidential, and so is the group-wise loss that it implies.


COUNTS = (1, 10, 100, 1_000, 10_000)


def group_losses(query: Query) -> list[dict[str, Any]]:
    """Return as JSON v(count) of each part with group-wise losses at each of COUNTS: upper bounds for one record."""
    return [
        ({} if part.name is None else {"part": part.name})
        | {"count": count, "rho": up_float(part.mechanism.group_loss_at(Fraction(count)))}
        for part in query.parts
        if isinstance(part.mechanism, GroupwiseLog)
        for count in COUNTS
    ]


# What the paper's bound says of the same noise, beside a tight policy: what the tighter bound gains.


def paper_losses(plan: Plan, references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Return rho by the paper's policy at each reference, of each query and in total; nothing where no policy is tight.

    The noise is the same: only the bound that states its loss is another.
    """
    if not any(states_tight(part.mechanism) for query in plan.queries for part in query.parts):
        return []
    other = replace(plan, queries=tuple(_by_paper(query) for query in plan.queries))
    policy = policy_of(other)
    found = [(at, *losses_at(other, policy, at)) for at in references]
    return [
        {
            "at": at.to_json(),
            "queries": {query.name: up_float(loss.rho) for query, (_, loss) in zip(plan.queries, each, strict=True)},
            "rho": up_float(total.rho),
        }
        for at, each, total in found
    ]


def tight_queries(plan: Plan) -> list[str]:
    """Return the names of the queries with a tight policy."""
    return [query.name for query in plan.queries if any(states_tight(part.mechanism) for part in query.parts)]


def _by_paper(query: Query) -> Query:
    return replace(query, parts=tuple(replace(part, mechanism=by_paper(part.mechanism)) for part in query.parts))


def by_paper(mechanism: Mechanism) -> Mechanism:
    """Return the same noise under the paper's policy."""
    return replace(mechanism, policy="paper") if states_tight(mechanism) else mechanism  # type: ignore[call-arg]


# Policy policy_curves: what records of growing size lose in each query.


SIZES = tuple(10**power for power in range(8))  # influences that a table shows, in the measure's unit
POINTS = 400  # close enough together for a picture


@dataclass(frozen=True, eq=False)
class Curve:
    """Upper bounds of one policy function at `influence`, ascending, in the statistic's unit."""

    label: str
    statistic: Statistic
    influence: NDArray[np.float64]
    rho: NDArray[np.float64]


def policy_curves(plan: Plan) -> list[Curve]:
    """Return the curve of each policy but those of counts, or of each part's, over the influences of SIZES."""
    influence = np.geomspace(SIZES[0], SIZES[-1], POINTS)
    return [
        Curve(query.label, query.statistic, influence, query.mechanism.loss(influence))
        for query in policy_of(plan).queries
        if not query.statistic.counts
    ]


def table(plan: Plan) -> list[str]:
    """Return what records of the influences SIZES lose, query by query, as lines of aligned columns."""
    heads = ["rho at an influence of", *(f"{size:,}" for size in SIZES)]
    rows = [[query.label, *_losses(query)] for query in policy_of(plan).queries]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        numbers = "".join(f"   {text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True))
        lines.append(f"    {row[0]:<{widths[0]}}{numbers}".rstrip())
    return lines


def _losses(query: QueryPolicy) -> list[str]:
    met = (1,) if query.statistic.counts else SIZES  # on a count, every record has influence 1
    shown = [up_text(query.mechanism.loss_at(Fraction(size)), 4) for size in met]
    return shown + [""] * (len(SIZES) - len(met))
