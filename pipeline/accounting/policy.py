"""The policy of a release: the policies of its queries, and what a reference record or firm loses by all of them.

Guarantee (docs/mathematics.md, section 5): for databases that differ in one record, or in all records of one firm,
every order α > 1 and both directions, the Rényi divergence of what the release shows is at most α times the loss
stated here.

- A record loses at most the sum of the queries' policies over the queries that have a cell for it. Over the disjoint
  cells of one query that is the query's policy once (parallel composition), and where its public parts have mechanisms
  of their own, that of the part in which the record's cell lies. A *query set* is a set of policies (one for each part
  of each query) that one public cell of the domain meets; policies whose filters exclude each other, as the parts of a
  query do, share none.
- Of a firm, a record is *located* for some queries if it is known in which one cell of them it is, if in any. In one
  cell the influences of located records add up before the mechanism sees them; cells and queries have independent
  noise, so divergences add up: Σ over queries and cells of P(ΣΔ).
- The most that a firm can lose is the largest Σ_cells P(ΣΔ) over all placements of its records. Two bounds of it
  hold; the smaller one is stated. One is by prices, over all queries at once (pipeline/accounting/placements.py).
- The other is by steps. Take the located records away in one step, then the others one by one: each step is bounded
  at every order, wherever the others are, so the group bound holds: (√(Σ_cells P(ΣΔ)) + Σ_u √P(Δ_u))², u at its worst
  cell. It holds for each query, to be added up, and for all at once, a record being located if it is for all that its
  query set has, and its loss being Σ_q P_q(Δ_u) at its worst query set.

Pure losses add up in place of the roots. What a firm can lose grows with every record and influence, so a bound at
some records holds for every firm whose records can be matched one to one with records there that are at least as
large. For a single record all these bounds are its loss at its worst query set.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, partial
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from pipeline.accounting.convert import ORDERS, Floats, added
from pipeline.accounting.firm_bounds import most_in_partitions, most_lost
from pipeline.accounting.placements import ANYWHERE, Exposure, Fineness, Units, multiples, one_cell, pure, tight
from pipeline.accounting.references import QuerySet, Reference, ReferenceRecord, Span, spans_json, spans_of
from pipeline.base.canonical import FrozenMap
from udfs.losses.curve import TightCurve, of_pure, of_zcdp
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.numbers.exact import as_json, up_float
from udfs.records.statistics import Count, Statistic, Sum, statistic_of

T = TypeVar("T", Fraction, Floats)
Options = Sequence[tuple[ReferenceRecord, tuple[QuerySet, ...]]]  # records, and the query sets that each can have
ArrayLosses = Callable[[int, Units, Fraction], Floats]  # of a policy, at multiples of a unit: arrays (numbers, m)
Together = Callable[[Iterable[Fraction]], Fraction]
PolicyFunction = Callable[[int, Fraction], Fraction]  # of a policy, by its index, at an influence

MOST_STEPS = 200  # records, of which the bound by steps is looked at
OF_LOSSES, OF_CURVES, CURVES = Fineness(), Fineness(sums=128, ratio=1 + 2.0**-5), "curves"


class _NoPureLoss(Exception):
    """A query that a record of the reference can meet has no pure loss."""


@dataclass(frozen=True)
class Cells:
    """The cells of a policy: the levels whose codes tell them apart, and how many there are."""

    by: tuple[str, ...]
    number: int


@dataclass(frozen=True)
class QueryPolicy:
    """One query's policy: a function of the record's influence on its statistic.

    `part` names the part of the query's cells for which it holds (None: all of them), `cells` says which these are
    (None, in older ledgers: not known). Neither changes the policy.
    """

    name: str
    statistic: Statistic
    mechanism: Mechanism
    part: str | None = None
    cells: Cells | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """The query's name, and the part in brackets."""
        return self.name if self.part is None else f"{self.name} ({self.part})"

    def influence(self, record: ReferenceRecord) -> Fraction:
        """Return the largest influence of `record`; KeyError names a measure that is missing."""
        return self.statistic.influence(record.values)

    def in_cell(self, influence: T) -> T:
        """Return what influences of a unit's records on one cell come to together: their sum, or `statistic.most`.

        The policy as a function of their sum rises from 0 with it, so all bounds of firms hold for it.
        """
        if (most := self.statistic.most) is None:
            return influence
        return min(influence, Fraction(most)) if isinstance(influence, Fraction) else np.minimum(influence, most)


@dataclass(frozen=True)
class PolicySum:
    """The queries' policies and the sets of them that one cell meets; evaluated at a reference, the release's policy.

    All losses are upper bounds. Methods that take a query's name state its loss in its worst part.

    `spans`: where classes of a measure tell mechanisms apart, the classes of the cells of each query set. A reference
    that is not located then stands for all units that are no larger, whatever their classes.
    """

    queries: tuple[QueryPolicy, ...]
    query_sets: tuple[QuerySet, ...]
    spans: tuple[Span, ...] = ()
    _renyi: dict[tuple[int, Fraction], Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def measures(self) -> frozenset[str]:
        """The measures a reference must name."""
        return frozenset(measure for query in self.queries for measure in query.statistic.measures)

    def loss_at(self, at: Reference) -> Fraction:
        """Return the PRzCDP loss of the release."""
        return max(self._total(each, self._rho, tight) for each in self.resolved(at))

    def foresee(self, references: Iterable[Reference]) -> None:
        """Have losses of these references' records computed together: in a fraction of the time of one by one."""
        records = [record for one in references for each in self.resolved(one) for record in each.records]
        met = {(i, self._influence(i, each)) for each in records for sets in self._query_sets(each) for i in sets}
        for i, mechanism in enumerate(query.mechanism for query in self.queries):
            if mechanism.tabled and (mine := [up_float(influence) for j, influence in met if j == i]):
                mechanism.loss(np.array(mine))

    def worst_at(self, at: Reference) -> tuple[tuple[int, Fraction], ...]:
        """Return, of a single record, the policies that it meets at worst, by number, with its influences.

        Their losses add up to `loss_at`.
        """
        loss = cache(self._rho)
        sums: dict[tuple[tuple[int, Fraction], ...], Fraction] = {}
        for each in self.resolved(at):
            (record,) = each.records
            for met in self._query_sets(record):
                terms = tuple((i, self._influence(i, record)) for i in sorted(met))
                sums[terms] = sum((loss(*term) for term in terms), Fraction(0))
        return max(sums, key=sums.__getitem__, default=())

    def met_at(self, at: Reference) -> frozenset[int]:
        """Return the policies, by number, under which a record of the reference can have an influence."""
        records = [record for each in self.resolved(at) for record in each.records]
        return frozenset(
            i for each in records for met in self._query_sets(each) for i in met if self._influence(i, each) > 0
        )

    def pure_loss_at(self, at: Reference) -> Fraction | None:
        """Return the pure loss of the release; None where a query that one of the records can meet has none."""
        return self._if_pure(lambda: max(self._total(each, self._epsilon, pure) for each in self.resolved(at)))

    def query_loss_at(self, at: Reference, query: str) -> Fraction:
        """Return the PRzCDP loss in the query of this name."""
        return max(self._bound(each, query, self._rho, tight) for each in self.resolved(at))

    def query_pure_loss_at(self, at: Reference, query: str) -> Fraction | None:
        """Return the pure loss in the query; None where a part that one of the records can meet has none."""
        return self._if_pure(lambda: max(self._bound(each, query, self._epsilon, pure) for each in self.resolved(at)))

    def excess_at(self, at: Reference, query: str) -> float | None:
        """Return the share by which the query's stated loss may be too high, at most; None where it is not known.

        Of a record in the worst of the query's parts (Mechanism.excess_at); None of a list of records.
        """
        if at.listed:
            return None
        ((record, sets),) = self._options(at.records, query)
        met = {i for each in sets for i in each}
        shares = [self.queries[i].mechanism.excess_at(self.queries[i].influence(record)) for i in met]
        return None if None in shares else max((share for share in shares if share is not None), default=0.0)

    def influence_at(self, at: Reference, query: str) -> Fraction:
        """Return the most by which the records can change the sum of all cells of the query of this name."""
        met = ((record, sets[0]) for record, sets in self._options(at.records, query) if sets)
        return sum((self.queries[min(one)].influence(record) for record, one in met), Fraction(0))

    def curve_at(self, at: Reference) -> Floats:
        """Return bounds of D_α at ORDERS, for a record at its worst query set, for several wherever they are."""
        return np.asarray(np.maximum.reduce([self._curve(each) for each in self.resolved(at)]))

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
        spans = {"spans": spans_json(self.spans)} if self.spans else {}
        return {"queries": queries, "places": [sorted(each) for each in self.query_sets]} | spans

    def cells_json(self) -> list[list[Any]] | None:
        """Return the cells of each policy; None where they are not known."""
        cells = [[list(of.by), of.number] for of in (query.cells for query in self.queries) if of is not None]
        return cells if len(cells) == len(self.queries) else None

    @classmethod
    def from_json(cls, data: Mapping[str, Any], cells: Sequence[Any] | None = None) -> "PolicySum":
        """Return the policy that `to_json` wrote, with the cells that `cells_json` wrote, where they are known."""
        queries = []
        known = [None] * len(data["queries"]) if cells is None else [Cells(tuple(by), number) for by, number in cells]
        for entry, of_query in zip(data["queries"], known, strict=True):
            mechanism = build(entry["mechanism"], entry["step"])
            if "curve" in entry:
                mechanism = mechanism.with_curve(TightCurve.from_json(entry["curve"]))
            queries.append(QueryPolicy(entry["name"], _statistic(entry), mechanism, entry.get("part"), of_query))
        return cls(tuple(queries), tuple(map(frozenset, data["places"])), spans_of(data.get("spans", ())))

    @staticmethod
    def _if_pure(loss: Callable[[], Fraction]) -> Fraction | None:
        try:
            return loss()
        except _NoPureLoss:
            return None

    def _rho(self, i: int, influence: Fraction) -> Fraction:
        return self.queries[i].mechanism.loss_at(self.queries[i].in_cell(influence))

    def _epsilon(self, i: int, influence: Fraction) -> Fraction:
        if (loss := self.queries[i].mechanism.pure_loss_at(self.queries[i].in_cell(influence))) is None:
            raise _NoPureLoss
        return loss

    def _curve(self, at: Reference) -> Floats:
        if len(at.records) != 1:
            return self._curve_of_several(at)
        (record,) = at.records
        sums = [added(self.renyi_at(i, record) for i in met) for met in self._query_sets(record)]
        return np.maximum.reduce(sums) if sums else np.zeros_like(ORDERS)

    def renyi_at(self, i: int, record: ReferenceRecord) -> Floats:
        """Return bounds of D_α at ORDERS of a policy, by its number, for a record; computed once."""
        influence = self.queries[i].influence(record)
        if (i, influence) not in self._renyi:
            self._renyi[i, influence] = self.queries[i].mechanism.renyi_at(influence, ORDERS)
        return self._renyi[i, influence]

    def _curve_of_several(self, at: Reference) -> Floats:
        def curves(i: int, numbers: Units, unit: Fraction) -> Floats:
            query = self.queries[i]
            return np.array([query.mechanism.renyi_at(query.in_cell(n * unit), ORDERS) for n in numbers.tolist()])

        curve = of_zcdp(up_float(self.loss_at(at)), ORDERS)
        pure_loss = self.pure_loss_at(at)
        if pure_loss is not None:
            curve = np.minimum(curve, of_pure(up_float(pure_loss), ORDERS))
        return np.minimum(curve, self._priced(at, None, curves, CURVES))

    def resolved(self, at: Reference) -> list[Reference]:
        """Return references without spans whose largest loss is that of `at`, or more.

        Within one class policies are monotone, and a record lies in one class: the most that one record can lose is
        what the largest record of some class loses. Several may lie in classes of their own: each has, under each
        policy, the largest values of all classes in which it can meet it.
        """
        return at.once("resolved", (self.query_sets, self.spans), lambda: self._split(at))

    def _split(self, at: Reference) -> list[Reference]:
        if not any(self._spans(record) for record in at.records):
            return [at]
        if len(at.records) > 1:
            return [replace(at, records=tuple(map(self._in_any_class, at.records)))]
        (record,) = at.records
        sets: dict[Mapping[str, Fraction], list[QuerySet]] = {}
        for met, span in zip(self._query_sets(record), self._spans(record), strict=True):
            if (values := record.capped(span)) is not None:
                sets.setdefault(values, []).append(met)
        return [
            replace(at, records=(replace(record, values=values, query_sets=tuple(mine), spans=()),))
            for values, mine in sets.items()
        ]

    def _in_any_class(self, record: ReferenceRecord) -> ReferenceRecord:
        of_spans: dict[Span, list[QuerySet]] = {}
        for met, span in zip(self._query_sets(record), self._spans(record), strict=True):
            of_spans.setdefault(span, []).append(met)
        sets: list[QuerySet] = []
        caps: dict[int, dict[str, Fraction]] = {}
        for span, of_span in of_spans.items():
            if (values := record.capped(span)) is not None:
                sets += of_span
                for i in frozenset[int]().union(*of_span):
                    of_policy = caps.setdefault(i, {})
                    of_policy |= {name: max(value, of_policy.get(name, value)) for name, value in values.items()}
        of_policies = tuple((i, FrozenMap.of(values)) for i, values in sorted(caps.items()))
        return replace(record, query_sets=tuple(dict.fromkeys(sets)), spans=(), caps=of_policies)

    def _spans(self, record: ReferenceRecord) -> tuple[Span, ...]:
        return self.spans if record.query_sets is None else record.spans

    def _influence(self, i: int, record: ReferenceRecord) -> Fraction:
        """Return the largest influence of a record under a policy; KeyError names a measure that is missing."""
        return self.queries[i].statistic.influence(dict(record.caps).get(i, record.values))

    def _query_sets(self, record: ReferenceRecord) -> tuple[QuerySet, ...]:
        return self.query_sets if record.query_sets is None else record.query_sets

    def _options(self, records: Iterable[ReferenceRecord], name: str | None) -> Options:
        """Return each record with its query sets, or with the parts of one query that it can be in, each as a set."""
        if name is None:
            return [(each, self._query_sets(each)) for each in records]
        parts = frozenset(i for i, query in enumerate(self.queries) if query.name == name)

        @cache
        def of_query(sets: tuple[QuerySet, ...]) -> tuple[QuerySet, ...]:
            return tuple({met & parts for met in sets} - {frozenset()})

        return [(each, of_query(self._query_sets(each))) for each in records]

    def _total(self, at: Reference, loss: PolicyFunction, together: Together) -> Fraction:
        loss = cache(loss)  # an evaluation may take milliseconds, and many query sets share a policy
        at_once = self._bound(at, None, loss, together)
        if len(at.records) == 1 or len(at.records) > MOST_STEPS:
            return at_once  # of one, the worst query set: never more than the sum of every query's worst part
        names = dict.fromkeys(query.name for query in self.queries)
        one_by_one = (self._group_bound(self._options(at.records, name), loss, together) for name in names)
        return min(sum(one_by_one, Fraction(0)), at_once)

    def _bound(self, at: Reference, query: str | None, loss: PolicyFunction, together: Together) -> Fraction:
        if len(at.records) < 2:
            return self._group_bound(self._options(at.records, query), loss, together)

        def arrays(i: int, numbers: Units, unit: Fraction) -> Floats:
            query = self.queries[i]
            losses = query.mechanism.loss if together is tight else query.mechanism.pure_loss
            return losses(query.in_cell(multiples(numbers, unit)))[:, None]

        by_prices = float(self._priced(at, query, arrays, together.__name__)[0])
        if len(at.records) > MOST_STEPS and isfinite(by_prices):
            return Fraction(by_prices)
        by_steps = self._group_bound(self._options(at.records, query), loss, together)
        return min(by_steps, Fraction(by_prices)) if isfinite(by_prices) else by_steps

    def _priced(self, at: Reference, query: str | None, losses: ArrayLosses, kind: str) -> Floats:
        """Return the bound by prices, of shape (m,); `losses` of a policy, by its index, at m orders.

        Prices of each policy are computed once for a reference, by the `kind` of its losses.
        """
        records, (kinds, times) = [lot[0] for lot in at.lots], ([lot[i] for lot in at.lots] for i in (1, 2))
        sets = [frozenset(sets) for _, sets in self._options(records, query)]
        known: dict[Any, Exposure] = at.once(f"prices, {kind}", (self,), dict)
        exposures = []
        for i in sorted(frozenset[int]().union(*(met for each in set(sets) for met in each))):
            sure = {each: bool(each) and all(i in met for met in each) for each in set(sets)}
            met = {each: any(i in met for met in each) for each in sure}
            here = i, tuple(sure[each] for each in sets)
            if here not in known:
                cells = self.queries[i].cells
                by, number = (None, None) if cells is None else (cells.by, cells.number)
                known[here] = Exposure(
                    policies=frozenset({i}),
                    by=by,
                    influences=[
                        self._influence(i, record) if met[each] else Fraction(0)
                        for record, each in zip(records, sets, strict=True)
                    ],
                    times=np.array(times),
                    cells=np.array([dict(record.cells).get(i, ANYWHERE) for record in records]),
                    sure=np.array(here[1]),
                    kinds=np.array(kinds),
                    apart=at.reach[i].apart if at.reach else frozenset(),
                    room=at.reach[i].room if at.reach else number,
                    loss=partial(losses, i),
                    fineness=OF_CURVES if kind == CURVES else OF_LOSSES,
                    unfiltered=by == ("nation",) or (bool(at.reach) and at.reach[i].unfiltered),
                )
            exposures.append(known[here])
        bound, of_few = most_lost(exposures, sets), most_in_partitions(exposures, sets)
        return bound if of_few is None else np.minimum(bound, of_few)

    def _group_bound(self, options: Options, loss: PolicyFunction, together: Together) -> Fraction:
        """Return together(Σ_cells P(ΣΔ) of located records, the loss of each other one at its worst query set)."""
        located: dict[tuple[int, int], list[Fraction]] = {}  # (policy, cell) → influences
        others = []
        for record, sets in options:
            cells = dict(record.cells)
            if len(sets) == 1 and sets[0].issubset(cells):
                for i in sets[0]:
                    located.setdefault((i, cells[i]), []).append(self._influence(i, record))
            else:
                lost = {i: loss(i, self._influence(i, record)) for i in frozenset[int]().union(*sets)}
                others.append(max((sum((lost[i] for i in met), Fraction(0)) for met in sets), default=Fraction(0)))
        in_cells = (one_cell(partial(loss, i), together, influences) for (i, _), influences in located.items())
        return together([sum(in_cells, Fraction(0)), *others])


def _implied(measure: str | None) -> Statistic:
    return Count() if measure is None else Sum(measure)


def measures_of(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the measures of the policy that `to_json` wrote, without building its mechanisms."""
    return frozenset(measure for entry in data["queries"] for measure in _statistic(entry).measures)


def _statistic(entry: Mapping[str, Any]) -> Statistic:
    return statistic_of(entry["statistic"]) if "statistic" in entry else _implied(entry["measure"])


def curve_json(mechanism: Mechanism) -> dict[str, Any]:
    """Return as JSON the curve of a policy that is a table, so that a bound once stated is the one that counts."""
    curve = mechanism.loss_curve
    return {} if curve is None else {"curve": curve.to_json()}
