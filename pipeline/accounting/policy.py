"""The policy of a whole release: the policies of its queries, added up where a record can meet them together.

Guarantee (docs/mathematics.md, section 5): a record loses at most the sum of the queries' policies over the queries
that have a cell
for its place; over the disjoint cells of one query the loss is the query's policy once, and where its public parts
have mechanisms of their own, that of the part in which the record's cell lies. A *place* is a set of policies (one for
each part of each query) to which one public cell of the domain belongs; those whose filters exclude each other, as the
parts of a query do, share none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.convert import SIZE, approximate_epsilon, approximate_epsilon_of, best_power, best_power_of
from udfs.losses.curve import TightCurve
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.numbers.exact import as_json
from udfs.records.statistics import Count, Statistic, Sum, statistic_of

Place = frozenset[int]
Reference = Mapping[str, Fraction]  # measure name → a record's value


@dataclass(frozen=True)
class QueryPolicy:
    """One query's policy: a function of the record's influence on its statistic.

    `part` names the part of the query's cells for which it holds (None: all of them).
    """

    name: str
    statistic: Statistic
    mechanism: Mechanism
    part: str | None = None

    @property
    def label(self) -> str:
        """The query's name, and the part in brackets."""
        return self.name if self.part is None else f"{self.name} ({self.part})"

    def influence(self, at: Reference) -> Fraction:
        """Return the largest influence of a record with the values `at`; KeyError names a measure that is missing."""
        return self.statistic.influence(at)

    def loss_at(self, at: Reference) -> Fraction:
        """Return the PRzCDP loss, an upper bound."""
        return self.mechanism.loss_at(self.influence(at))

    def pure_loss_at(self, at: Reference) -> Fraction | None:
        """Return the pure loss, an upper bound, or None."""
        return self.mechanism.pure_loss_at(self.influence(at))


@dataclass(frozen=True)
class PolicySum:
    """The queries' policies and the places where they meet; evaluated at a reference, it is the release's policy."""

    queries: tuple[QueryPolicy, ...]
    places: tuple[Place, ...]

    @property
    def measures(self) -> frozenset[str]:
        """The measures a reference must name."""
        return frozenset(measure for query in self.queries for measure in query.statistic.measures)

    def loss_at(self, at: Reference, places: Iterable[Place] | None = None) -> Fraction:
        """Return the PRzCDP loss of a record with values `at`, at the worst of `places` (default: of all)."""
        losses = [query.loss_at(at) for query in self.queries]
        sums = (sum((losses[i] for i in place), Fraction(0)) for place in self._or_all(places))
        return max(sums, default=Fraction(0))

    def pure_loss_at(self, at: Reference, places: Iterable[Place] | None = None) -> Fraction | None:
        """Return the pure loss likewise; None where a query at one of the places has none."""
        losses = [query.pure_loss_at(at) for query in self.queries]
        sums = []
        for place in self._or_all(places):
            known = [loss for loss in (losses[i] for i in place) if loss is not None]
            if len(known) < len(place):
                return None
            sums.append(sum(known, Fraction(0)))
        return max(sums, default=Fraction(0))

    def to_json(self) -> dict[str, Any]:
        """Return this policy as data that can be evaluated again years later."""
        queries = [
            {
                "name": query.name,
                "measure": query.statistic.measure,
                "mechanism": query.mechanism.describe(),
                "step": as_json(query.mechanism.step),
            }
            | ({} if query.statistic == _implied(query.statistic.measure) else {"statistic": query.statistic.to_json()})
            | curve_json(query.mechanism)
            | ({} if query.part is None else {"part": query.part})
            for query in self.queries
        ]
        return {"queries": queries, "places": [sorted(place) for place in self.places]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PolicySum":
        """Return the policy that `to_json` wrote."""
        queries = tuple(
            QueryPolicy(each["name"], _statistic(each), _stored(each), each.get("part")) for each in data["queries"]
        )
        return cls(queries, tuple(frozenset(place) for place in data["places"]))

    def _or_all(self, places: Iterable[Place] | None) -> Sequence[Place]:
        return self.places if places is None else tuple(places)


def _implied(measure: str | None) -> Statistic:
    """Return the statistic of a stored query that states its measure alone."""
    return Count() if measure is None else Sum(measure)


def _statistic(entry: Mapping[str, Any]) -> Statistic:
    return statistic_of(entry["statistic"]) if "statistic" in entry else _implied(entry["measure"])


def curve_json(mechanism: Mechanism) -> dict[str, Any]:
    """Return as JSON the curve of a policy that is a table, so that a bound once stated is the one that counts."""
    curve = mechanism.loss_curve
    return {} if curve is None else {"curve": curve.to_json()}


def _stored(entry: Mapping[str, Any]) -> Mechanism:
    mechanism = build(entry["mechanism"], entry["step"])
    return mechanism.with_curve(TightCurve.from_json(entry["curve"])) if "curve" in entry else mechanism


# Whole Rényi curves: what a record loses at every order, added over queries and releases, and converted once.
#
# Guarantee: at each order α the divergences of adaptive mechanisms that were fixed before any of them ran add up
# (Mironov 2017, proposition 1), so the sum of the queries' curves over the queries of one place is a bound for a
# record there; the largest over the places bounds it anywhere. A single loss ρ says αρ at all orders; the curve says
# less, so that (ε, δ) and the best test come out smaller. Limits of budgets are on ρ alone: they hold also where
# later plans are chosen after earlier outputs were seen, for which sums of curves carry no proof
# (docs/mathematics.md).


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
