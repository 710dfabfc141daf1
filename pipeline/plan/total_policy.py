"""A plan's policy, and what it costs the plan's references."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from pipeline.accounting.accountant import NAME, SHARE, LeftOutTest, with_left_out_test
from pipeline.accounting.interpretation import Loss
from pipeline.accounting.placements import simple
from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import (
    Limit,
    Names,
    QuerySet,
    Reach,
    Reference,
    ReferenceRecord,
    Span,
    typed_reference,
)
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, arg
from pipeline.plan.domain import At
from pipeline.plan.domain.cells import Int32s
from pipeline.plan.domain.keys import Dimension
from pipeline.plan.model import Plan

MOST_PAIRS = 20_000  # of kinds of codes that are looked at; of more all records might meet


def policy_of(plan: Plan, test: LeftOutTest | None = None) -> PolicySum:
    """Return the policy of the plan's release with `test`; None: with the test that a reservation made now has."""
    name = plan.domain.nested_name
    queries = tuple(
        QueryPolicy(query.name, query.statistic, part.mechanism, part.name, Cells(tuple(map(name, query.by)), number))
        for query in plan.queries
        for part, where in zip(query.parts, query.filters, strict=True)
        for number in [plan.domain.query_cells(query.by, where).size]
    )
    return with_left_out_test(PolicySum(queries, *_sets_and_spans(plan, {})), test)


def left_out_test_of(plan: Plan, site_share: Fraction = SHARE) -> LeftOutTest:
    """Return the test of records left out of the plan's release; `site_share` holds where the plan states no share."""
    mechanisms = (mechanism for query in plan.queries for mechanism in query.mechanisms)
    return LeftOutTest.beside(mechanisms, site_share if plan.max_left_out is None else plan.max_left_out)


def left_out_test_loss(plan: Plan, policy: PolicySum, at: Reference) -> Loss:
    """Return what the test of records left out costs a reference."""
    return _query_loss(policy, located(plan, at), NAME)


def _query_loss(policy: PolicySum, at: Reference, query: str) -> Loss:
    return Loss(policy.query_loss_at(at, query), policy.query_pure_loss_at(at, query))


def total_loss(policy: PolicySum, at: Reference) -> Loss:
    """Return what the release costs a reference that is located in its plan."""
    return Loss(policy.loss_at(at), policy.pure_loss_at(at))


def query_sets_of(plan: Plan, keys: At) -> tuple[QuerySet, ...]:
    """Return the sets of policies that a record with the codes `keys` can meet.

    Where cells are listed and none has these codes, it is left out of all queries, and counted so.
    """
    return _with_test(plan, _query_sets(plan, keys))


def require_cell(plan: Plan, keys: At) -> None:
    """Raise PlanError unless some cell has the codes that a reference names."""
    if not plan.domain.meets({level: (code,) if isinstance(code, str) else code for level, code in keys.items()}):
        codes = ", ".join(f"{level}={code}" for level, code in keys.items())
        raise PlanError(f"reference {codes}: no cell of the domain has these codes; use codes of the domain")


def _with_test(plan: Plan, sets: Iterable[QuerySet]) -> tuple[QuerySet, ...]:
    test = sum(len(query.parts) for query in plan.queries)  # the last policy, which every record meets
    return tuple(met | {test} for met in sets)


def _query_sets(plan: Plan, keys: At) -> tuple[QuerySet, ...]:
    asked = [(query.by, where) for query in plan.queries for where in query.filters]
    return plan.domain.query_sets(asked, keys) or (frozenset(),)


def _sets_and_spans(plan: Plan, keys: At) -> tuple[tuple[QuerySet, ...], tuple[Span, ...]]:
    """Return the query sets of cells, and, where classes tell mechanisms apart, the classes of each.

    The sets are maximal among those of the same classes.
    """
    used = {level for query in plan.queries for level in (query.split, *query.where)}
    telling = [each for each in plan.domain.dimensions if each.classes is not None and each.level in used]
    if not telling:
        return _query_sets(plan, keys), ()
    sets: list[QuerySet] = []
    spans: list[Span] = []
    for numbers in product(*(_numbers(each, keys) for each in telling)):
        if (span := _span(telling, numbers)) is not None:
            codes = {each.level: each.codes[number] for each, number in zip(telling, numbers, strict=True)}
            of_classes = _query_sets(plan, {**keys, **codes})
            sets += of_classes
            spans += [span] * len(of_classes)
    return tuple(sets), tuple(spans)


def _numbers(dimension: Dimension, keys: At) -> Sequence[int]:
    known = keys.get(dimension.level, dimension.codes)
    return [i for i, code in enumerate(dimension.codes) if code in ((known,) if isinstance(known, str) else known)]


def _span(telling: Sequence[Dimension], numbers: Sequence[int]) -> Span | None:
    """Return the values of a record in these classes; None where there are none."""
    span: dict[str, tuple[Fraction, Fraction | None]] = {}
    for dimension, number in zip(telling, numbers, strict=True):
        classes = dimension.classes
        assert classes is not None
        low, high = span.get(classes.measure, (Fraction(0), None))
        highest = [each for each in (high, classes.largest(number)) if each is not None]
        span[classes.measure] = max(low, classes.lowest[number]), min(highest, default=None)
    if any(high is not None and high < low for low, high in span.values()):
        return None
    return FrozenMap.of(span)


def limits_of(plan: Plan) -> tuple[Limit, ...]:
    """Return the plan's limits as the accountant checks them: at all units that are no larger than their references."""
    return tuple(replace(limit, at=located(plan, limit.at, below=True)) for limit in plan.budget)


def classed(plan: Plan, at: Reference, *, below: bool = False) -> Reference:
    """Return the reference with the classes of its values among its keys; `below`: with all lower ones too.

    So are the owner's own codes, of which all records have the same one: any, where noise, filters and cells are the
    same for all of them (docs/mathematics.md, section 13). Raises PlanError where a record names a class that does not
    hold its value, or its owner's total.
    """
    used = {level for query in plan.queries for level in (query.split, *query.where)}
    used |= set() if plan.domain.cells is None else plan.domain.levels.keys()
    coded = at
    for each in plan.domain.dimensions:
        if each.of_owner is None:
            continue
        named = {record.keys[each.level] for record in at.records if each.level in record.keys}
        codes: str | tuple[str, ...] = next(iter(named), each.codes[0])
        if named and (number := _class_of_owner(each, at)) is not None:
            if named != {each.codes[number]}:
                rule = f"all its records are of class {each.codes[number]} of {each.key}: leave {each.key} out"
                raise PlanError(f"reference {at.records[0].label}: {rule}")
            codes = each.codes[: number + 1] if below and each.level in used else codes
        elif len(named) > 1 or each.level in used:
            continue
        keys: dict[str, Any] = {each.level: codes}
        records = (replace(record, keys=FrozenMap.of({**record.keys, **keys})) for record in coded.records)
        coded = replace(coded, records=tuple(records))
    classes = [each for each in plan.domain.dimensions if each.classes is not None]
    return (
        replace(coded, records=tuple(_classed(record, classes, below) for record in coded.records))
        if classes
        else coded
    )


def _class_of_owner(dimension: Dimension, at: Reference) -> int | None:
    """Return the class of the total of all records; None where codes are no classes, or a record names no value."""
    rule = dimension.of_owner
    values = [record.values.get(rule.measure) for record in at.records] if rule and rule.classes else [None]
    if rule is None or rule.classes is None or None in values:
        return None
    return rule.classes.class_of(sum(filter(None, values), Fraction(0)))


def _classed(record: ReferenceRecord, dimensions: Sequence[Dimension], below: bool) -> ReferenceRecord:
    keys: dict[str, Any] = dict(record.keys)
    for each in dimensions:
        assert each.classes is not None
        value = record.values.get(each.classes.measure)
        if value is None:
            continue
        number = each.classes.class_of(value)
        code = each.codes[number]
        if keys.get(each.level, code) != code:
            raise PlanError(f"reference {record.label}: its class of {each.key} is {code}: leave {each.key} out")
        keys[each.level] = each.codes[: number + 1] if below else code
    return replace(record, keys=FrozenMap.of(keys))


def located(plan: Plan, at: Reference, *, below: bool = False) -> Reference:
    """Return the reference with, in place of its keys, what they mean to the plan's policies.

    Records of a list have also their cells, where the keys and the domain leave one alone: there influences add up.
    The list has its reach. `below`: for all units that are no larger, whatever the classes of their values.
    """
    for keys in dict.fromkeys(record.keys for record in at.records):
        require_cell(plan, keys)
    records = classed(plan, at, below=below).records
    kinds = {keys: kind for kind, keys in enumerate(dict.fromkeys(record.keys for record in records))}
    met = [_sets_and_spans(plan, keys) if below else (_query_sets(plan, keys), ()) for keys in kinds]
    met = [(_with_test(plan, sets), spans) for sets, spans in met]
    if not at.listed:
        (record,) = records
        ((sets, spans),) = met
        return Reference((ReferenceRecord(record.values, query_sets=sets if record.keys else None, spans=spans),))
    kind_of = tuple(kinds[record.keys] for record in records)
    cells: list[list[tuple[int, int]]] = [[] for _ in kinds]
    reach = []
    for i, (by, where) in enumerate((query.by, where) for query in plan.queries for where in query.filters):
        positions = [plan.domain.positions(by, where, keys) for keys in kinds]
        query = plan.domain.query_cells(by, where)
        room, one = 0, set()
        for known, of_axes in zip(cells, positions, strict=True):
            if all(len(each) == 1 for each in of_axes):
                known.append((i, int(query.numbers(of_axes)[0])))
                one.add(known[-1])
            else:
                room += prod(map(len, of_axes))
        room = min(query.size, room + len(one))
        reach.append(Reach(kind_of, _apart(positions), room, not where))
    for known in cells:  # the test's: all records in one of its two counts, for no other way costs as much
        known.append((len(reach), 0))
    reach.append(Reach(kind_of, frozenset(), 1, True))
    known_cells = list(map(tuple, cells))
    placed = (
        ReferenceRecord(record.values, query_sets=met[kind][0], spans=met[kind][1], cells=known_cells[kind])
        for record, kind in zip(records, kind_of, strict=True)
    )
    return Reference(tuple(placed), True, tuple(reach))


def no_larger(plan: Plan, at: Reference) -> Reference | None:
    """Return all units that are no larger than a reference, located as one; None where their cells are its own.

    Among the same cells losses rise with every value. A lower class may have noise of its own, bring records of a list
    into one cell, or be listed where the reference's is not: then a smaller unit may lose more.
    """
    here, below = located(plan, at), located(plan, at, below=True)
    return None if _cells_of(here) == _cells_of(below) else below


def _cells_of(at: Reference) -> Any:
    records = [(frozenset(each.query_sets or ()), each.spans, frozenset(each.cells)) for each in at.records]
    return records, [(each.kinds, each.apart, each.room) for each in at.reach]


def classes_decide(plan: Plan) -> bool:
    """Return whether classes of a measure decide what a unit loses, so that one that is no larger may lose more."""
    classes = {each.level for each in plan.domain.dimensions if each.classes is not None}
    firms = plan.dataset.owner is not None
    used = {level for query in plan.queries for level in (query.split, *query.where, *(query.by if firms else ()))}
    return bool(classes & used) or (bool(classes) and plan.domain.cells is not None)


def _apart(positions: Sequence[Sequence[Int32s]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of kinds, one of which can be in several cells, that have no position of a key in common."""
    several = [kind for kind, each in enumerate(positions) if prod(map(len, each)) > 1]
    if len(several) * len(positions) > MOST_PAIRS:
        return frozenset()
    sets = [[frozenset(each.tolist()) for each in of_axes] for of_axes in positions]
    apart = {(k, n) for k in several for n, other in enumerate(sets) if any(map(frozenset.isdisjoint, sets[k], other))}
    return frozenset(apart | {(n, k) for k, n in apart})


def require_measures(policy: PolicySum, references: Iterable[Reference]) -> None:
    """Raise PlanError unless every record of the references names every measure that a query sums."""
    for record in (record for reference in references for record in reference.records):
        missing = Reference((record,)).missing(policy.measures)
        if missing:
            raise PlanError(f"reference {record.label}: it must also name {', '.join(missing)}, which a query sums")


def losses_at(plan: Plan, policy: PolicySum, at: Reference) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    """Return for each query (influence, loss in its worst part), then the total loss, at the reference.

    Raises PlanError where the reference does not name every measure that a query sums.
    """
    require_measures(policy, [at])
    here = located(plan, at)
    names = [query.name for query in plan.queries]
    queries = tuple((policy.influence_at(here, name), _query_loss(policy, here, name)) for name in names)
    return queries, total_loss(policy, here)


def simple_losses_at(plan: Plan, policy: PolicySum, at: Reference) -> tuple[Fraction, ...]:
    """Return J·ΣP_j of a group's J records (paper 1's bound) for each query, then for the release."""
    records = [Reference((record,)) for record in located(plan, at).records]
    queries = (simple([policy.query_loss_at(each, query.name) for each in records]) for query in plan.queries)
    return (*queries, simple([policy.loss_at(each) for each in records]))


def parse_at(text: str, plan: Plan) -> Reference:
    """Return the reference that `text` names, such as "employment=10,payroll=500" or "naics3=722,employment=10".

    Several records, separated by ";", are a firm, where that is the unit, or else a group that comes or goes as one.
    Raises PlanError on anything that is no measure of the plan and no level with a code of the domain.
    """
    return typed_reference(arg("at"), text, names_of(plan), listed=plan.dataset.owner is not None or ";" in text)


def names_of(plan: Plan) -> Names:
    """Return what the text of a reference or of a change may name in a plan."""
    measures = [measure.name for measure in plan.dataset.measures]
    return Names(measures, plan.domain.nameable, plan.domain.require_code)
