"""(ε, δ) and the best test of a whole release, from the distribution of its privacy loss (docs/mathematics.md).

Guarantee: as of `udfs.losses.distribution.bounds_of`, for a record at the query set where it loses most, or for all
records of a firm or a group whose cells are known. The release's queries are fixed in advance. What is chosen after
earlier releases were seen is bounded by limits on rho alone (docs/mathematics.md, section 5).

Every query gives a pair of laws, of its noise as it is drawn, that dominates what the query shows of the record; pairs
of independent noise dominate together (Zhu, Dong, Wang 2022, theorem 10).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import inf, isfinite
from typing import Any, TypeVar

from pipeline.accounting import convert
from pipeline.accounting.convert import Floats
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import QuerySet, Reference, ReferenceRecord
from pipeline.base.plain import aligned
from udfs.losses.atoms import Pair, Response
from udfs.losses.distribution import Bounds, bounds_of
from udfs.numbers.exact import bound_text, up_float, up_probability

Place = TypeVar("Place", bound=Hashable)
NOTHING = Bounds(0.0, convert.SIZE, 0.0)


@dataclass(frozen=True)
class ByDistribution:
    """Bounds at a reference; `coarse`: the queries whose noise entered with its pure loss alone."""

    bounds: Bounds
    coarse: tuple[str, ...]


def bounds_at(policy: PolicySum, at: Reference, delta: float) -> ByDistribution | None:
    """Return the bounds of a reference that is located in its plan; None where no distribution is known.

    That is so of several records unless the cell of each is known, and of noise too wide for doubles without pure loss.
    """
    if at.listed:
        return _of_list(policy, at, delta)
    met = [(each.records[0], _pairs(policy, each.records[0])) for each in policy.resolved(at)]
    known = [(record, pairs) for record, pairs in met if pairs is not None]
    if len(known) < len(met):
        return None
    coarse = {query for _, pairs in known for query in _coarse(policy, pairs.items())}
    return ByDistribution(_worst(_by_divergences(policy, known, delta), delta), tuple(sorted(coarse)))


def _pairs(policy: PolicySum, record: ReferenceRecord) -> dict[int, Pair] | None:
    met = sorted(frozenset[int]().union(*_sets(policy, record)))
    return _known({i: policy.queries[i].mechanism.pair_at(policy.queries[i].influence(record)) for i in met})


def _sets(policy: PolicySum, record: ReferenceRecord) -> tuple[QuerySet, ...]:
    return policy.query_sets if record.query_sets is None else record.query_sets


def bounds_of_change(
    policy: PolicySum, sets: Iterable[QuerySet], pairs: Mapping[int, Pair | None], delta: float
) -> ByDistribution | None:
    """Return the bounds of two values of a record, by the pairs of the policies that its cell can meet."""
    distinct = list(dict.fromkeys(sets))
    met = frozenset[int]().union(*distinct)
    known = _known({i: pairs[i] for i in sorted(met)})
    if known is None:
        return None
    together = ((tuple(known[i] for i in sorted(each)), inf, 1.0) for each in distinct)
    return ByDistribution(_worst(together, delta), _coarse(policy, known.items()))


def _worst(together: Iterable[tuple[tuple[Pair, ...], float, float]], delta: float) -> Bounds:
    """Return the largest bounds of pairs that are met together, which come with larger ones than theirs."""
    worst = NOTHING
    for pairs, epsilon, power in together:
        if epsilon > worst.epsilon or power > worst.power:  # else it cannot be the worst
            other = _bounds(pairs, delta)
            worst = Bounds(
                *map(max, zip(*((each.epsilon, each.power, each.gap) for each in (worst, other)), strict=True))
            )
    return worst


def _of_list(policy: PolicySum, at: Reference, delta: float) -> ByDistribution | None:
    """Return the bounds of records that each have one cell for each policy: in a cell influences add up."""
    influences: dict[tuple[int, int], Fraction] = {}
    for record in at.records:
        cells = dict(record.cells)
        if record.query_sets is None or len(record.query_sets) != 1 or not record.query_sets[0].issubset(cells):
            return None
        for i in record.query_sets[0]:
            cell = i, cells[i]
            influences[cell] = influences.get(cell, Fraction(0)) + policy.queries[i].influence(record)
    pairs = _known({(i, cell): policy.queries[i].mechanism.pair_at(sum_) for (i, cell), sum_ in influences.items()})
    if pairs is None:
        return None
    coarse = _coarse(policy, [(i, pair) for (i, _), pair in pairs.items()])
    return ByDistribution(_bounds(tuple(pairs.values()), delta), coarse)


@lru_cache(maxsize=256)
def _bounds(pairs: tuple[Pair, ...], delta: float) -> Bounds:
    """Return `bounds_of` the pairs: a release, its page and its ledger ask for those of the same references."""
    return bounds_of(pairs, delta, convert.SIZE)


def _coarse(policy: PolicySum, pairs: Iterable[tuple[int, Pair]]) -> tuple[str, ...]:
    labels = {policy.queries[i].label for i, pair in pairs if isinstance(pair, Response) and pair.pure > 0}
    return tuple(sorted(labels))


def _known(pairs: Mapping[Place, Pair | None]) -> dict[Place, Pair] | None:
    known = {place: pair for place, pair in pairs.items() if pair is not None}
    return known if len(known) == len(pairs) else None


def _by_divergences(
    policy: PolicySum, records: Sequence[tuple[ReferenceRecord, Mapping[int, Pair]]], delta: float
) -> Iterator[tuple[tuple[Pair, ...], float, float]]:
    """Yield the noises that records meet together, with larger bounds by Rényi divergences, the largest first."""
    different: dict[frozenset[tuple[Pair, int]], tuple[ReferenceRecord, list[int], tuple[Pair, ...]]] = {}
    for record, pairs in records:
        for query_set in map(sorted, _sets(policy, record)):
            together = tuple(pairs[i] for i in query_set)
            different.setdefault(frozenset(Counter(together).items()), (record, query_set, together))
    if len(different) == 1:
        yield from ((together, inf, 1.0) for _, _, together in different.values())
        return
    rough = []
    for record, query_set, together in different.values():
        curve = convert.added(policy.renyi_at(i, record) for i in query_set)
        epsilon = convert.approximate_epsilon_of(convert.ORDERS, curve, delta)
        rough.append((together, epsilon, convert.best_power_of(convert.ORDERS, curve)))
    yield from sorted(rough, key=lambda each: each[1], reverse=True)


# The interpretation of a total loss: (ε, δ), the best test, posteriors; as JSON and for people.

PRIORS = (0.01, 0.5)
NOTES = (
    "(ε, δ) and best test: of the plan's queries together, none of which depends on what another showed, by the "
    "distribution of the privacy loss of the noise as it is drawn. Over plans rho adds up, and (ε, δ) does not.",
    "best test: how often somebody who knows all other records and may be wrong about "
    f"{convert.SIZE:.0%} of absent records, can at most detect a present one; {convert.SIZE:g} is guessing.",
    "posterior: how sure somebody who knows all other records can become that it is there, who held it there with the "
    "prior probability: the mean over releases where it is there / what is exceeded with probability δ at most.",
)


@dataclass(frozen=True)
class Loss:
    """What a query, or all together, may cost a record or a firm: upper bounds; `epsilon` None: no pure loss."""

    rho: Fraction
    epsilon: Fraction | None

    def to_json(self) -> dict[str, float | None]:
        """Both as doubles, rounded up."""
        return {"rho": up_float(self.rho), "epsilon": None if self.epsilon is None else up_float(self.epsilon)}


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
        largest = convert.largest_posterior(prior, rho, delta, pure)
        if curve is not None:
            largest = min(largest, convert.largest_posterior_of(prior, convert.ORDERS, curve, delta, pure))
        posteriors.append({"prior": prior, "mean": convert.mean_posterior(prior, rho, pure), "largest": largest})
    simple = convert.simple_epsilon(rho, delta, pure)
    means = convert.interpretation(curve, rho, pure, delta) | {"by": "divergences", "coarse": []}
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
