"""The loss of several records together: what one person, or one firm, stands to lose who answers for all of them.

Two databases that differ in J records are joined by J steps of one record each (docs/mathematics.md, section 5). For
losses P_1 … P_J
that bound every order:

    simple:  D_α ≤ α·J·ΣP_j            (paper 1, its lemma on groups)
    tight:   D_α ≤ α·(Σ√P_j)²          never more, by Cauchy and Schwarz
    pure:    max divergence ≤ ΣP_j     (triangle inequality)

Proof of the tight form, for two steps P → Q → R with losses x and y: Hölder's inequality gives, for all p, q > 1 with
1/p + 1/q = 1, D_α(P‖R) ≤ (α − 1/p)/(α − 1)·D_{pα}(P‖Q) + D_{q(α − 1/p)}(Q‖R). With D_β ≤ βx and D_β ≤ βy and
s = (p − 1)α/(α − 1) the right side is α·((1 + s)x + (1 + 1/s)y), whose minimum over s > 0 is α·(√x + √y)². A step may
itself be a bound for several records; by induction the roots add up. It uses orders far above α: losses that hold up
to some order only, or up to an additive constant, must not be given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import isqrt
from typing import Any

from pipeline.accounting.policy import Place, PolicySum, QueryPolicy, Reference
from udfs.numbers.exact import as_json, exact

LONGEST = 1024  # bits of a denominator up to which a group's loss is kept exact
ROOT_BITS = 128  # a root is exact where it is rational, else above the true one by less than one part in 2¹²⁷


def simple(losses: Sequence[Fraction]) -> Fraction:
    """Return J·ΣP_j, exactly: what the group of records with these PRzCDP losses loses at most."""
    return len(losses) * sum(losses, Fraction(0))


def tight(losses: Iterable[Fraction]) -> Fraction:
    """Return an upper bound of (Σ√P_j)²: what the group of records with these PRzCDP losses ≥ 0 loses at most.

    It is exact for one loss, for equal ones, and where all products of two have rational roots, if these are not long.
    """
    whole = Fraction(0)
    for loss in losses:
        # (√x + √y)² = x + y + 2√(xy)
        root = root_above(whole * loss)
        whole = _short(whole + loss + 2 * root) if root else whole + loss
    return whole


def pure(losses: Iterable[Fraction]) -> Fraction:
    """Return ΣP_j, exactly: what the group of records with these pure losses loses at most."""
    return sum(losses, Fraction(0))


def one_cell(
    policy: Callable[[Fraction], Fraction],
    together: Callable[[Iterable[Fraction]], Fraction],
    influences: Sequence[Fraction],
) -> Fraction:
    """Return what records of these influences on one cell of one query lose together under its `policy`.

    Their values add up before the mechanism sees them, so they lose what one record of their summed influence does:
    P(ΣΔ_j). Where that is more than `together` (`tight`, or `pure` for a pure policy) makes of their single losses, it
    is the latter.
    """
    summed = policy(sum(influences, Fraction(0)))
    return min(summed, together([policy(influence) for influence in influences])) if len(influences) > 1 else summed


def _short(x: Fraction) -> Fraction:
    """Return x ≥ 0, or, where its digits would slow all further steps, a bound above it by less than 1 in 2²⁵⁵."""
    if x.denominator.bit_length() <= LONGEST:
        return x
    m = max(0, 2 * ROOT_BITS + x.denominator.bit_length() - x.numerator.bit_length())
    return Fraction(-(-(x.numerator << m) // x.denominator), 1 << m)


def root_above(x: Fraction) -> Fraction:
    """Return an upper bound of √x, x ≥ 0: exact where it is rational, else within one part in 2¹²⁷."""
    if not x >= 0:
        raise ValueError("a root needs a number of at least 0")
    numerator, denominator = isqrt(x.numerator), isqrt(x.denominator)
    if numerator**2 == x.numerator and denominator**2 == x.denominator:
        return Fraction(numerator, denominator)
    # ⌈√⌈x·4^m⌉⌉/2^m, with m so large that the root has ROOT_BITS bits
    m = max(0, ROOT_BITS + (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1)
    scaled = -(-(x.numerator << 2 * m) // x.denominator)
    return Fraction(isqrt(scaled - 1) + 1, 1 << m)


# The loss of a firm: of all records of one owner, where it is known and where it is not in which cells they are.
#
# Guarantee: for databases that differ in all records of a firm, every order α > 1 and both directions, the Rényi
# divergence of what a release shows is at most α times the loss stated here (docs/mathematics.md, section 5).
#
# A record is *placed* for some queries if it is known which one cell of them it is in, if in any.
# - Placed records. In one cell their influences add up before the mechanism sees them; cells and queries have
#   independent
#   noise, so divergences add up: Σ over queries and cells of P(ΣΔ).
# - With others beside them. Take the placed records away in one step, then the others one by one: each step is
#   bounded at
#   every order, wherever the others are, so the group bound holds: (√(Σ_cells P(ΣΔ)) + Σ_u √P(Δ_u))², u at its worst.
# - A release. The bounds of its queries add up; the second bound also holds for all queries at once, a record being
#   placed if it is for all that its place has, and Σ_q P_q(Δ_u) at its worst place being its loss. The smaller one
#   holds.
# Pure losses add up in place of the roots. Any bound grows with every record and influence, so a bound at some records
# holds for every firm whose records can be matched one to one with records there that are at least as large.


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
