"""The policy of a whole release: the policies of its queries, added up where a record can meet them together.

Guarantee (MATH section 2): a record loses at most the sum of the queries' policies over the queries that have a cell
for its place; over the disjoint cells of one query the loss is the query's policy once, and where its public parts
have mechanisms of their own, that of the part in which the record's cell lies. A *place* is a set of policies (one for
each part of each query) to which one public cell of the domain belongs; those whose filters exclude each other, as the
parts of a query do, share none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from udfs.exact import as_json
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.tight.curve import TightCurve

Place = frozenset[int]
Reference = Mapping[str, Fraction]  # measure name → a record's value


@dataclass(frozen=True)
class QueryPolicy:
    """One query's policy: a function of the record's influence, which is its value of `measure` (None: a count).

    `part` names the part of the query's cells for which it holds (None: all of them).
    """

    name: str
    measure: str | None
    mechanism: Mechanism
    part: str | None = None

    @property
    def label(self) -> str:
        """The query's name, and the part in brackets."""
        return self.name if self.part is None else f"{self.name} ({self.part})"

    def influence(self, at: Reference) -> Fraction:
        """Return the largest influence of a record with the values `at`; KeyError names a measure that is missing."""
        return Fraction(1) if self.measure is None else abs(at[self.measure])

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
        return frozenset(query.measure for query in self.queries if query.measure is not None)

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
                "measure": query.measure,
                "mechanism": query.mechanism.describe(),
                "step": as_json(query.mechanism.step),
            }
            | curve_json(query.mechanism)
            | ({} if query.part is None else {"part": query.part})
            for query in self.queries
        ]
        return {"queries": queries, "places": [sorted(place) for place in self.places]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PolicySum":
        """Return the policy that `to_json` wrote."""
        queries = tuple(
            QueryPolicy(entry["name"], entry["measure"], _stored(entry), entry.get("part")) for entry in data["queries"]
        )
        return cls(queries, tuple(frozenset(place) for place in data["places"]))

    def _or_all(self, places: Iterable[Place] | None) -> Sequence[Place]:
        return self.places if places is None else tuple(places)


def curve_json(mechanism: Mechanism) -> dict[str, Any]:
    """Return as JSON the curve of a policy that is a table, so that a bound once stated is the one that counts."""
    curve = mechanism.loss_curve
    return {} if curve is None else {"curve": curve.to_json()}


def _stored(entry: Mapping[str, Any]) -> Mechanism:
    mechanism = build(entry["mechanism"], entry["step"])
    return mechanism.with_curve(TightCurve.from_json(entry["curve"])) if "curve" in entry else mechanism
