"""A query's mechanism from its spec, its noise scale calibrated where the key `calibrate` stands in its place."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.accountant import MOST
from pipeline.accounting.allocation_problem import grouped
from pipeline.accounting.calibrate import Family, offset_of, scale_of, solve
from pipeline.accounting.targets import AT_A_RECORD, BESIDE, TARGETS, CalibrationError, Target, read_sizes
from pipeline.base.canonical import canonical_json
from pipeline.base.errors import hint
from pipeline.base.plain import plain_json
from pipeline.plan.messages import Mistake, missing
from pipeline.plan.model import Plan
from pipeline.plan.plan_schema import (
    BY_PLAN,
    ERRORS,
    UNUSABLE,
    WISHES,
    WITHIN,
    AllocationSpec,
    CalibrateSpec,
    QuerySpec,
    WishSpec,
)
from pipeline.plan.plan_text import KeyPath, public_file
from pipeline.plan.values import Spec
from pipeline.storage.paths import read_input
from udfs.mechanisms.additive_kinds import WeightTable
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.exact import as_json
from udfs.records.statistics import Statistic


@dataclass(frozen=True)
class Use:
    """What a query uses its mechanisms for: totals of `statistic` in whole `step`s (None: not known).

    `measures` are the names of all in the plan, `coverage` is that of its intervals, `folder` the plan's; `drafted`:
    the plan has a key calibrate of its own, which chooses scales.
    """

    statistic: Statistic
    step: Fraction | None
    measures: Collection[str]
    coverage: Fraction
    folder: Path
    drafted: bool = False


def mechanism_of(spec: Spec, use: Use) -> Mechanism:
    """Return the mechanism of a spec without mistakes, its scale solved where it is to be calibrated.

    Where the plan chooses it, some mechanism of the family.

    Raises:
        ParameterError: where parameters do not go together.
        CalibrationError: where no scale reaches the target.
    """
    parameters = {name: value for name, value in spec if value is not None}
    for name, parameter in CATALOGUE[parameters["kind"]].parameters().items():
        if parameter.kind == "table" and isinstance(parameters[name], str):
            parameters[name] = read_weights(public_file(use.folder, parameters[name]), name, use.step or Fraction(1))
    step = use.step or Fraction(1)
    calibrate: CalibrateSpec | str | None = parameters.get("calibrate")
    if isinstance(calibrate, str):
        family = family_of(spec, step)
        mechanism = family.at(family.start)
        return build({"kind": family.kind, **family.fixed}, step) if mechanism is None else mechanism
    parameters.pop("calibrate", None)
    if calibrate is None:
        return build(parameters, step)
    return solve(parameters.pop("kind"), parameters, step, _target(calibrate, use))


def family_of(spec: Spec, step: Fraction, times: Fraction = Fraction(1)) -> Family:
    """Return the mechanisms of a spec whose scale is left open; their scales are `times` what their numbers say."""
    fixed = {name: value for name, value in spec if value is not None and name not in ("kind", "calibrate")}
    kind = dict(spec)["kind"]
    name = scale_of(CATALOGUE[kind])
    assert name is not None  # else its shape has no calibrate
    return Family(kind, name, tuple(sorted(fixed.items())), step, may_be_narrow=False, times=times)


def _target(spec: CalibrateSpec, use: Use) -> Target:
    numbers: dict[str, Any] = {name: value for name, value in spec if isinstance(value, Fraction)}
    numbers["coverage"] = use.coverage
    name = next(name for name in TARGETS if name in numbers)
    if name in AT_A_RECORD:
        numbers["influence"] = use.statistic.influence(spec.at or {})
    if spec.with_test:
        numbers[name] -= MOST[name]
    return Target.of(name, bound=spec.bound, **numbers)


def mechanism_mistakes(spec: Spec, use: Use, path: KeyPath) -> Iterator[Mistake]:
    """Yield rules that tie several parameters together, and what is wrong with calibration; the shape is right."""
    values = dict(spec)
    kind = CATALOGUE[values["kind"]]
    scale = scale_of(kind)
    calibrate: CalibrateSpec | str | None = values.get("calibrate")
    offset = offset_of(kind)
    if calibrate is None:
        absent = [name for name in (scale, offset) if name is not None and values[name] is None]
        if absent:
            yield missing((*path, absent[0]), " (or calibrate)" if absent[0] == scale else "")
            return
    else:
        solved, mistakes = {str(scale)}, list[Mistake]()
        if not isinstance(calibrate, str):
            mistakes += _calibrate_mistakes(calibrate, kind, use, (*path, "calibrate"))
            solved |= {offset} if offset is not None and calibrate.group_loss is not None else set()
        elif not use.drafted:
            rule = f"{BY_PLAN} needs the key calibrate of the plan, which says what the scale is chosen for"
            mistakes.append(Mistake((*path, "calibrate"), rule, absent=(("calibrate",),)))
        for name in sorted(solved):
            if values[name] is not None:
                mistakes.append(Mistake((*path, name), "must be left out beside calibrate, which sets it"))
        if offset is not None and offset not in solved and values[offset] is None:
            mistakes.append(missing((*path, offset), " (or group_loss of calibrate)"))
        yield from mistakes
        if mistakes or use.step is None:
            return
    try:
        mechanism = mechanism_of(spec, use)
        if mechanism.counts_only and not use.statistic.counts:
            yield Mistake((*path, "kind"), f"{mechanism.kind} is for count: records alone; for a sum choose log")
    except ParameterError as error:
        key = "calibrate" if calibrate is not None and error.parameter == scale else error.parameter
        yield Mistake((*path, key), f"must be {error.rule}")
    except CalibrationError as error:
        yield Mistake((*path, "calibrate"), str(error))


def _calibrate_mistakes(spec: CalibrateSpec, kind: type[Mechanism], use: Use, path: KeyPath) -> Iterator[Mistake]:
    keys = {name for name, value in spec if value is not None}
    if len(keys & set(TARGETS)) != 1:
        absent = tuple((*path, name) for name in TARGETS)
        yield Mistake(path, f"must have exactly one of {', '.join(TARGETS)}", absent=absent)
    elif not keys & set(AT_A_RECORD):
        if "at" in keys:
            yield Mistake((*path, "at"), "must be left out: it goes with loss; total says where an error is meant")
        if "total" not in keys and (not kind.additive or "relative_error" in keys):
            yield missing((*path, "total"), " (at which the error is meant: that of this kind grows with the total)")
    else:
        (name,) = keys & set(AT_A_RECORD)
        if "total" in keys:
            yield Mistake((*path, "total"), f"must be left out beside {name}, which is meant at a record")
        if "at" not in keys and use.statistic.measures:
            example = ", ".join(f"{measure}: 10" for measure in use.statistic.measures)
            yield missing((*path, "at"), f" (the record that may lose so much, such as {{{example}}})")
    for name, beside in BESIDE:
        if name in keys and beside not in keys:
            yield Mistake((*path, name), f"must be left out: it goes with {beside}")
    if spec.with_test:
        yield from _with_test_mistakes(spec, (*path, "with_test"))
    if "group_loss" in keys and "group" not in keys:
        yield missing((*path, "group"), " (the number of records of the group that may lose so much)")
    if spec.at is not None:
        yield from _at_mistakes(spec.at, use, (*path, "at"))


def _with_test_mistakes(spec: CalibrateSpec, path: KeyPath) -> Iterator[Mistake]:
    names = [name for name in MOST if getattr(spec, name) is not None]
    if not names or spec.delta is not None:
        yield Mistake(path, "must be left out: it goes with loss, or with epsilon without delta")
    for name in names:
        if not getattr(spec, name) > MOST[name]:
            rule = f"must be above {as_json(MOST[name])}, which the test of records left out alone costs"
            yield Mistake((*path[:-1], name), rule)


def _at_mistakes(at: Mapping[str, Fraction], use: Use, path: KeyPath) -> Iterator[Mistake]:
    for name in at:
        if use.measures and name not in use.measures:
            yield Mistake((*path, name), f"unknown measure{hint(name, use.measures, 'measure')}", unknown=True)
    for measure in use.statistic.measures:
        if measure not in at:
            yield Mistake(path, f"must also name {measure}, which the query sums", absent=((*path, measure),))
        elif not at[measure] > 0:
            yield Mistake((*path, measure), "must be above 0: a record of influence 0 loses nothing")


# The file of a designed noise: its table of weights, a digest that guards it, and for what it was designed.

KIND = "designed noise"
MOST_BYTES = 4_000_000


def weights_file(table: WeightTable, step: Fraction, design: Mapping[str, Any]) -> str:
    """Return the text of the file, for a measure of this `step`; `design` says for what, and binds nothing."""
    weights = {"step": as_json(step)} | table.to_json()
    document = {"kind": KIND, "digest": digest_of(weights), "design": dict(design), "weights": weights}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def digest_of(weights: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a table's canonical JSON."""
    return hashlib.sha256(canonical_json(weights).encode()).hexdigest()


def read_weights(path: Path, parameter: str, step: Fraction) -> Mapping[str, Any]:
    """Return the table of a file that `weights_file` made, as JSON.

    Raises ParameterError, which names `parameter`, where there is none, where it is not what was written, and where it
    was made for a measure of another step than `step`.
    """
    try:
        document = plain_json(read_input(path, MOST_BYTES))
    except OSError as error:
        raise ParameterError(parameter, f"a file that can be read; {path.name}: {error.strerror}") from None
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND or not isinstance(document.get("weights"), dict):
        raise ParameterError(parameter, f"a file that prdp study design wrote; {path.name} is none")
    weights: Mapping[str, Any] = document["weights"]
    if document.get("digest") != digest_of(weights):
        raise ParameterError(parameter, f"as prdp study design wrote it: the table in {path.name} was changed since")
    made_for = weights.get("step")
    if made_for != as_json(step):
        raise ParameterError(parameter, f"a table for the measure's step {as_json(step)}; {path.name} has {made_for}")
    return {name: value for name, value in weights.items() if name != "step"}


# The plan's own key `calibrate`: which scales it chooses, and what each table's wish says that errors are to be.

Open = Mapping[str | None, Spec]  # part (None: all cells) → the mechanism whose scale is open
FROM_CELLS = "prdp calibrate --records or --like takes it from synthetic cells"
RECONCILED = f"must be left out: it goes with minimise: standard_error or {UNUSABLE}"
DEFAULT = WishSpec(weight=Fraction(1))


def open_parts(query: QuerySpec) -> Open:
    """Return the mechanisms of a query that say `calibrate: plan`."""
    return {name: part for name, part in query.mechanisms if getattr(part, "calibrate", None) == BY_PLAN}


def wish_of(draft: AllocationSpec, name: str) -> WishSpec:
    """Return what is wanted of a query: where nothing is said, the weight 1."""
    wish = draft.queries.get(name, DEFAULT)
    asked = [wish.weight, *(getattr(wish, each) for each in WISHES)]
    return wish if any(each is not None for each in asked) else wish.model_copy(update={"weight": Fraction(1)})


def goes_by_sizes(draft: AllocationSpec, wish: WishSpec) -> bool:
    """Return whether what is wanted of a query is a share of its cells."""
    return wish.within is not None or (wish.weight is not None and draft.minimise == UNUSABLE)


def error_of(draft: AllocationSpec, wish: WishSpec, plan: Plan) -> Target:
    """Return what the errors of a query are measured by, and where no weight is given, what they are to be at most.

    Raises PlanError where the file of its cells' sizes cannot be read.
    """
    if wish.sizes is not None:
        sizes = grouped(read_sizes(public_file(plan.path.parent, wish.sizes)))
        if wish.within is None:
            return Target.of(UNUSABLE, within=draft.within or WITHIN, sizes=sizes)
        return Target.of("share", share=wish.share, within=wish.within, sizes=sizes)
    name = next((each for each in ERRORS if getattr(wish, each) is not None), draft.minimise)
    wanted: dict[str, Any] = {name: getattr(wish, name) or Fraction(1)}
    return Target.of(name, total=wish.total, coverage=plan.interval, quantile=wish.quantile, **wanted)


def allocation_mistakes(draft: AllocationSpec, queries: Sequence[QuerySpec], limited: bool) -> Iterator[Mistake]:
    """Yield what contradicts itself or the plan's queries; `limited`: the plan has a budget."""
    known = {query.name: open_parts(query) for query in queries}
    chosen = {name: parts for name, parts in known.items() if parts}
    if not chosen:
        yield Mistake(("calibrate",), f"no mechanism says calibrate: {BY_PLAN}, in place of its scale")
    if draft.reconciled and draft.minimise not in ("standard_error", UNUSABLE):
        yield Mistake(("calibrate", "reconciled"), RECONCILED)
    yield from _programme_mistakes(draft)
    if draft.within is not None and draft.minimise != UNUSABLE:
        yield Mistake(("calibrate", "within"), f"must be left out: it goes with minimise: {UNUSABLE}")
    for name, wish in draft.queries.items():
        path: KeyPath = ("calibrate", "queries", name)
        if name not in known:
            yield Mistake(path, f"unknown query{hint(name, known, 'query')}", unknown=True)
        elif name not in chosen:
            yield Mistake(path, f"its mechanism must say calibrate: {BY_PLAN} in place of its scale")
        else:
            yield from _wish_mistakes(wish, path, goes_by_sizes(draft, wish_of(draft, name)))
    for name, parts in chosen.items():
        yield from _measure_mistakes(draft, name, parts)
        yield from _proportion_mistakes(wish_of(draft, name), parts, ("calibrate", "queries", name, "proportions"))
    if not (draft.limits or limited) and any(wish_of(draft, name).weight is not None for name in chosen):
        rule = "no limits: state them here as limits, or as the plan's budget; without them only accuracies can be met"
        yield Mistake(("calibrate",), rule, absent=(("calibrate", "limits"), ("budget",)))


def _programme_mistakes(draft: AllocationSpec) -> Iterator[Mistake]:
    for i, kind in enumerate(draft.kinds):
        if getattr(kind, "calibrate", None) != BY_PLAN or not CATALOGUE[dict(kind)["kind"]].additive:
            yield Mistake(("calibrate", "kinds", i), f"must be additive noise with calibrate: {BY_PLAN}")
    for key, stated in (("kinds", bool(draft.kinds)), ("derive", draft.derive)):
        if stated and not (draft.minimise == UNUSABLE and draft.reconciled):
            yield Mistake(("calibrate", key), f"must be left out: it goes with minimise: {UNUSABLE}, reconciled: true")


def _wish_mistakes(wish: WishSpec, path: KeyPath, by_sizes: bool) -> Iterator[Mistake]:
    asked = [name for name in ("weight", *WISHES) if getattr(wish, name) is not None]
    if len(asked) > 1:
        yield Mistake(path, f"must have one of weight, {', '.join(WISHES)}, not {' and '.join(asked)}")
    if wish.usable is not None and (not by_sizes or wish.within is not None):
        yield Mistake((*path, "usable"), f"must be left out: it goes with a weight and minimise: {UNUSABLE}")
    if wish.quantile is not None and wish.relative_error is None:
        yield Mistake((*path, "quantile"), "must be left out: it goes with relative_error")
    if wish.within is None and wish.share is not None:
        yield Mistake((*path, "share"), "must be left out: it goes with within")
    elif wish.within is not None and wish.share is None:
        yield missing((*path, "share"), " (of the cells: whose errors are to be within so much)")
    if wish.sizes is not None and not by_sizes:
        yield Mistake((*path, "sizes"), f"must be left out: it goes with within, or with minimise: {UNUSABLE}")


def _measure_mistakes(draft: AllocationSpec, name: str, parts: Open) -> Iterator[Mistake]:
    wish = wish_of(draft, name)
    if goes_by_sizes(draft, wish):
        if wish.total is not None:
            rule = "must be left out: a share of cells is meant at the totals that sizes names"
            yield Mistake(("calibrate", "queries", name, "total"), rule)
        if wish.sizes is None:
            rule = f" (a public file of the cells' expected totals, header value,count; {FROM_CELLS})"
            yield missing(("calibrate", "queries", name, "sizes"), rule)
        return
    measure = next((each for each in ERRORS if getattr(wish, each) is not None), draft.minimise)
    kinds = [CATALOGUE[dict(part)["kind"]] for part in parts.values()]
    path: KeyPath = ("calibrate", "queries", name, "total")
    if measure == "relative_error" and not wish.total:
        if wish.total is not None:
            yield Mistake(path, "must be above 0: an error relative to nothing has no bound")
        else:
            yield missing(path, f" (from which on the relative error is meant; {FROM_CELLS})")
    elif wish.total is None and not all(kind.additive for kind in kinds):
        yield missing(path, f" (at which the error is meant: that of this kind grows with the total; {FROM_CELLS})")


def _proportion_mistakes(wish: WishSpec, parts: Open, path: KeyPath) -> Iterator[Mistake]:
    if not wish.proportions:
        return
    if None in parts:
        yield Mistake(path, "must be left out: the query's mechanism has no parts")
        return
    for code in wish.proportions:
        if code not in parts:
            yield Mistake((*path, code), f"must be a part whose mechanism says calibrate: {BY_PLAN}")
    for part in map(str, parts):
        if part not in wish.proportions:
            yield missing((*path, part), " (each part has its scale in these proportions)")
