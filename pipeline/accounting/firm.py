"""The loss of a firm: of all records of one owner, where it is known and where it is not in which cells they are.

Guarantee: for databases that differ in all records of a firm, every order α > 1 and both directions, the Rényi
divergence of what a release shows is at most α times the loss stated here (MATH section 2).

A record is *placed* for some queries if it is known which one cell of them it is in, if in any.
- Placed records. In one cell their influences add up before the mechanism sees them; cells and queries have independent
  noise, so divergences add up: Σ over queries and cells of P(ΣΔ).
- With others beside them. Take the placed records away in one step, then the others one by one: each step is bounded at
  every order, wherever the others are, so the group bound holds: (√(Σ_cells P(ΣΔ)) + Σ_u √P(Δ_u))², u at its worst.
- A release. The bounds of its queries add up; the second bound also holds for all queries at once, a record being
  placed if it is for all that its place has, and Σ_q P_q(Δ_u) at its worst place being its loss. The smaller one holds.
Pure losses add up in place of the roots. Any bound grows with every record and influence, so a bound at some records
holds for every firm whose records can be matched one to one with records there that are at least as large.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from pipeline.accounting.group import one_cell, pure, tight
from pipeline.accounting.policy import Place, PolicySum, QueryPolicy, Reference
from udfs.exact import as_json, exact


@dataclass(frozen=True)
class Row:
    """One record of a firm: its values, the places that it can have (None: any), and its cells where they are known.

    `cells`: policy (its place in PolicySum.queries) → number of the one cell that the record can be in under it.
    """

    at: Reference
    places: tuple[Place, ...] | None = None
    cells: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return this record as data that can be read again years later."""
        return {
            "at": {measure: as_json(value) for measure, value in self.at.items()},
            "places": None if self.places is None else [sorted(place) for place in self.places],
            "cells": [list(pair) for pair in sorted(self.cells.items())],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Row":
        """Return the record that `to_json` wrote."""
        return cls(
            {measure: exact(value) for measure, value in data["at"].items()},
            None if data["places"] is None else tuple(frozenset(place) for place in data["places"]),
            dict(data["cells"]),
        )


Firm = tuple[Row, ...]
Together = Callable[[Iterable[Fraction]], Fraction]
PolicyFunction = Callable[[QueryPolicy, Fraction], Fraction]


class _NoPureLoss(Exception):
    """A query that a record of the firm can meet has no pure loss."""


def anywhere(firm: Firm) -> Firm:
    """Return the firm with each record at its worst place, as a release with other queries takes it."""
    return tuple(Row(row.at) for row in firm)


def firm_influence(policy: PolicySum, firm: Firm, query: str) -> Fraction:
    """Return the most by which `firm` can change the sum of all cells of the query named `query`."""
    met = [(row, places) for row, places in _of_query(policy, firm, query) if places]
    return sum((policy.queries[min(places[0])].influence(row.at) for row, places in met), Fraction(0))


def query_loss(policy: PolicySum, firm: Firm, query: str) -> Fraction:
    """Return the PRzCDP loss of `firm` in the query named `query`."""
    return _bound(policy, _of_query(policy, firm, query), _rho, tight)


def query_pure_loss(policy: PolicySum, firm: Firm, query: str) -> Fraction | None:
    """Return the pure loss likewise; None where a part that one of the records can meet has none."""
    try:
        return _bound(policy, _of_query(policy, firm, query), _epsilon, pure)
    except _NoPureLoss:
        return None


def firm_loss(policy: PolicySum, firm: Firm) -> Fraction:
    """Return the PRzCDP loss of `firm` in the whole release."""
    return _total(policy, firm, _rho, tight)


def firm_pure_loss(policy: PolicySum, firm: Firm) -> Fraction | None:
    """Return the pure loss likewise; None where a query that one of the records can meet has none."""
    try:
        return _total(policy, firm, _epsilon, pure)
    except _NoPureLoss:
        return None


def _rho(query: QueryPolicy, influence: Fraction) -> Fraction:
    return query.mechanism.loss_at(influence)


def _epsilon(query: QueryPolicy, influence: Fraction) -> Fraction:
    loss = query.mechanism.pure_loss_at(influence)
    if loss is None:
        raise _NoPureLoss
    return loss


def _total(policy: PolicySum, firm: Firm, loss: PolicyFunction, together: Together) -> Fraction:
    names = dict.fromkeys(query.name for query in policy.queries)
    one_by_one = sum((_bound(policy, _of_query(policy, firm, name), loss, together) for name in names), Fraction(0))
    at_once = _bound(policy, [(row, _places(policy, row)) for row in firm], loss, together)
    return min(one_by_one, at_once)


def _places(policy: PolicySum, row: Row) -> tuple[Place, ...]:
    return policy.places if row.places is None else row.places


def _of_query(policy: PolicySum, firm: Firm, name: str) -> list[tuple[Row, tuple[Place, ...]]]:
    """Return each record with the parts of the query that it can be in, each as a place of one policy."""
    parts = frozenset(i for i, query in enumerate(policy.queries) if query.name == name)
    return [(row, tuple({place & parts for place in _places(policy, row)} - {frozenset()})) for row in firm]


def _bound(
    policy: PolicySum, options: Sequence[tuple[Row, Sequence[Place]]], loss: PolicyFunction, together: Together
) -> Fraction:
    """Return together(Σ_cells P(ΣΔ) of placed records, loss of each other one at the worst of its places)."""
    cells: dict[tuple[int, int], list[Fraction]] = {}
    others = []
    for row, places in options:
        if len(places) == 1 and places[0].issubset(row.cells):
            for i in places[0]:
                cells.setdefault((i, row.cells[i]), []).append(policy.queries[i].influence(row.at))
        else:
            others.append(max((_alone(policy, row, place, loss) for place in places), default=Fraction(0)))
    placed = sum(
        (one_cell(partial(loss, policy.queries[i]), together, influences) for (i, _), influences in cells.items()),
        Fraction(0),
    )
    return together([placed, *others])


def _alone(policy: PolicySum, row: Row, place: Place, loss: PolicyFunction) -> Fraction:
    met = [policy.queries[i] for i in place]
    return sum((loss(query, query.influence(row.at)) for query in met), Fraction(0))
