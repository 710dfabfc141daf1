"""The plan's own key `calibrate`: which scales it chooses, and what each table's wish says that errors are to be."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipeline.accounting.targets import Target, grouped, read_sizes
from pipeline.base.names import hint
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.model import Plan
from pipeline.plan.named_files import public_file
from pipeline.plan.plan_schema import BY_PLAN, ERRORS, WISHES, AllocationSpec, QuerySpec, WishSpec
from pipeline.plan.values import Spec
from udfs.mechanisms.catalogue import CATALOGUE

Open = Mapping[str | None, Spec]  # part (None: all cells) → the mechanism whose scale is open
FROM_CELLS = "prdp calibrate --records or --like takes it from synthetic cells"
BESIDE_WITHIN = (
    ("share", "the share of cells whose errors are to be within so many times their totals"),
    ("sizes", f"a public file of the cells' expected totals, header value,count; {FROM_CELLS}"),
)
DEFAULT = WishSpec(weight=Fraction(1))


def open_parts(query: QuerySpec) -> Open:
    """Return the mechanisms of a query that say `calibrate: plan`."""
    return {name: part for name, part in query.mechanisms if getattr(part, "calibrate", None) == BY_PLAN}


def wish_of(draft: AllocationSpec, name: str) -> WishSpec:
    """Return what is wanted of a query: where nothing is said, the weight 1."""
    wish = draft.queries.get(name, DEFAULT)
    asked = [wish.weight, *(getattr(wish, each) for each in WISHES)]
    return wish if any(each is not None for each in asked) else wish.model_copy(update={"weight": Fraction(1)})


def error_of(draft: AllocationSpec, wish: WishSpec, plan: Plan) -> Target:
    """Return what the errors of a query are measured by, and where no weight is given, what they are to be at most.

    Raises PlanError where the file of its cells' sizes cannot be read.
    """
    if wish.within is not None and wish.share is not None and wish.sizes is not None:
        sizes = read_sizes(public_file(plan.path.parent, wish.sizes))
        return Target.of("share", share=wish.share, within=wish.within, sizes=grouped(sizes))
    name = next((each for each in ERRORS if getattr(wish, each) is not None), draft.minimise)
    wanted: dict[str, Any] = {name: getattr(wish, name) or Fraction(1)}
    return Target.of(name, total=wish.total, coverage=plan.interval, quantile=wish.quantile, **wanted)


def allocation_mistakes(draft: AllocationSpec, queries: Sequence[QuerySpec], limited: bool) -> Iterator[Mistake]:
    """Yield what contradicts itself or the plan's queries; `limited`: the plan has a budget."""
    known = {query.name: open_parts(query) for query in queries}
    chosen = {name: parts for name, parts in known.items() if parts}
    if not chosen:
        yield Mistake(("calibrate",), f"no mechanism says calibrate: {BY_PLAN}, in place of its scale")
    if draft.reconciled and draft.minimise != "standard_error":
        yield Mistake(("calibrate", "reconciled"), "must be left out: it goes with minimise: standard_error")
    for name, wish in draft.queries.items():
        path: KeyPath = ("calibrate", "queries", name)
        if name not in known:
            yield Mistake(path, f"unknown query{hint(name, known, 'query')}", unknown=True)
        elif name not in chosen:
            yield Mistake(path, f"its mechanism must say calibrate: {BY_PLAN} in place of its scale")
        else:
            yield from _wish_mistakes(wish, path)
    for name, parts in chosen.items():
        yield from _measure_mistakes(draft, name, parts)
        yield from _proportion_mistakes(wish_of(draft, name), parts, ("calibrate", "queries", name, "proportions"))
    if not (draft.limits or limited) and any(wish_of(draft, name).weight is not None for name in chosen):
        rule = "no limits: state them here as limits, or as the plan's budget; without them only accuracies can be met"
        yield Mistake(("calibrate",), rule, absent=(("calibrate", "limits"), ("budget",)))


def _wish_mistakes(wish: WishSpec, path: KeyPath) -> Iterator[Mistake]:
    asked = [name for name in ("weight", *WISHES) if getattr(wish, name) is not None]
    if len(asked) > 1:
        yield Mistake(path, f"must have one of weight, {', '.join(WISHES)}, not {' and '.join(asked)}")
    if wish.quantile is not None and wish.relative_error is None:
        yield Mistake((*path, "quantile"), "must be left out: it goes with relative_error")
    for name, why in BESIDE_WITHIN:
        if wish.within is None and getattr(wish, name) is not None:
            yield Mistake((*path, name), "must be left out: it goes with within")
        elif wish.within is not None and getattr(wish, name) is None:
            yield missing((*path, name), f" ({why})")


def _measure_mistakes(draft: AllocationSpec, name: str, parts: Open) -> Iterator[Mistake]:
    wish = wish_of(draft, name)
    if wish.within is not None:
        if wish.total is not None:
            rule = "must be left out beside within, which is meant at the totals that sizes names"
            yield Mistake(("calibrate", "queries", name, "total"), rule)
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
