"""prdp calibrate: from what is asked to parameters; reads no microdata."""

import argparse
import sys
from collections.abc import Callable
from fractions import Fraction

from jobs.cli import show_json
from pipeline.accounting.targets import (
    AbsoluteErrorTarget,
    CalibrationError,
    IntervalTarget,
    LossTarget,
    StandardErrorTarget,
    Target,
)
from pipeline.errors import PlanError
from pipeline.report.calibrated import calibrated, resolved_plan, shown, shown_plan, told
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import exact

COMPARED = ("sizes", "count", "objective", "limit", "plot")
TARGETS = ("standard_error", "mean_absolute_error", "interval", "loss")


def run(given: argparse.Namespace) -> None:
    """Print the scales of a plan, one mechanism, or a comparison."""
    ways: dict[str, Callable[[argparse.Namespace], None]] = {"PLAN": _plan, "--kind": _one, "--compare": _compare}
    chosen = [way for way, asked in zip(ways, (given.plan, given.kind, given.compare), strict=True) if asked]
    if len(chosen) != 1:
        raise PlanError("give one of a plan, --kind (one mechanism) and --compare (all families)")
    _refuse_others(given, chosen[0])
    ways[chosen[0]](given)


def _refuse_others(given: argparse.Namespace, way: str) -> None:
    """Refuse options that mean nothing beside what was chosen."""
    theirs = {
        "PLAN": ("out", "json"),
        "--kind": ("set", "step", *TARGETS, "total", "at", "coverage", "json"),
        "--compare": ("step", *TARGETS, "total", "at", "coverage", *COMPARED, "json"),
    }
    defaults = {"step": "1", "coverage": "0.95", "objective": "largest"}
    for name in sorted({name for names in theirs.values() for name in names} - set(theirs[way])):
        if getattr(given, name) not in (None, False, [], defaults.get(name)):
            raise PlanError(f"--{name.replace('_', '-')}: means nothing with {way}; leave it out")


def _plan(given: argparse.Namespace) -> None:
    found = resolved_plan(given.plan, given.out)
    if given.json:
        show_json(found)
    else:
        print(shown_plan(found))


def _one(given: argparse.Namespace) -> None:
    target, coverage = _target(given), _number("coverage", given.coverage)
    kind = CATALOGUE.get(given.kind)
    if kind is not None and not kind.additive and given.total is None and given.loss is None:
        raise PlanError("--total: missing; the error of this kind grows with the true total")
    mechanism = calibrated(given.kind, _fixed(given.set), _number("step", given.step), target)
    found = told(mechanism, () if given.total is None else (float(_number("total", given.total)),), coverage)
    if given.json:
        show_json(found)
    else:
        print(shown(found, coverage))


def _compare(given: argparse.Namespace) -> None:
    from pipeline.report.plots import require_format  # noqa: PLC0415
    from pipeline.study.comparison import BUILT_IN, ONE_EACH, Objective, compare, read_sizes, to_json  # noqa: PLC0415 — for this way alone  # noqa: PLC0415
    from pipeline.study.comparison_shown import notes, plot, summary, table  # noqa: PLC0415

    target = _target(given)
    if isinstance(target, LossTarget):
        raise PlanError("--loss: a comparison is at equal accuracy; give --standard-error, for instance, and --total")
    try:
        objective = Objective(given.objective, None if given.limit is None else _number("limit", given.limit))
    except ValueError as error:
        raise PlanError(f"--{error}") from None
    if given.total is None:
        raise PlanError("--total: missing; the true total of a typical cell, at which all are equally accurate")
    if given.plot is not None:
        require_format(given.plot)
    for name in ("sizes", "plot") if given.count else ():
        if getattr(given, name) is not None:
            raise PlanError(f"--{name}: means nothing with --count; leave it out")
    sizes = ONE_EACH if given.count else read_sizes(given.sizes or BUILT_IN)
    step = _number("step", given.step)
    found = compare(target, sizes, objective, step, _progress)
    if not found.candidates:
        raise PlanError("--compare: no family can have this accuracy; ask for another")
    totals = tuple(sorted({0.0, float(target.total), 100 * float(target.total)}))
    if given.plot is not None:
        plot(found, given.plot)
    if given.json:
        show_json(to_json(found, totals))
    else:
        print("\n".join([summary(found), "", table(found, totals), "", *notes(found)]))


def _progress(tried: int) -> None:
    if tried and tried % 20 == 0:
        print(f"{tried} shapes tried", file=sys.stderr)


def _target(given: argparse.Namespace) -> Target:
    asked = [name for name in TARGETS if getattr(given, name) is not None]
    if len(asked) != 1:
        raise PlanError("give exactly one of " + ", ".join(f"--{name.replace('_', '-')}" for name in TARGETS))
    number = _number(asked[0], getattr(given, asked[0]))
    place = "at" if asked[0] == "loss" else "total"
    other = "total" if place == "at" else "at"
    if getattr(given, other) is not None:
        raise PlanError(f"--{other}: means nothing with --{asked[0].replace('_', '-')}; give --{place}")
    if place == "at" and given.at is None:
        raise PlanError("--at: missing; give the influence of the record that may lose so much")
    where = _number(place, getattr(given, place) or "0")
    try:
        if asked[0] == "loss":
            return LossTarget(loss=number, influence=where)
        if asked[0] == "interval":
            return IntervalTarget(interval=number, coverage=_number("coverage", given.coverage), total=where)
        if asked[0] == "standard_error":
            return StandardErrorTarget(standard_error=number, total=where)
        return AbsoluteErrorTarget(mean_absolute_error=number, total=where)
    except CalibrationError as error:
        name, _, rule = str(error).replace("influence:", "at:").partition(":")
        raise PlanError(f"--{name.replace('_', '-')}:{rule}") from None


def _fixed(texts: list[str]) -> dict[str, Fraction | str]:
    found: dict[str, Fraction | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            raise PlanError(f"--set {text}: write each parameter once as name=value")
        try:
            found[name] = exact(value)
        except ValueError:
            found[name] = value
    return found


def _number(name: str, text: str) -> Fraction:
    try:
        return exact(text)
    except ValueError:
        raise PlanError(f"--{name.replace('_', '-')}: must be a number") from None
