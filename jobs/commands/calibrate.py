"""prdp calibrate: parameters from a wanted accuracy or loss; reads no microdata."""

import argparse
import sys
from fractions import Fraction
from pathlib import Path

from jobs.options import Parser, add_json
from jobs.output import print_json
from pipeline.accounting.targets import (
    AbsoluteErrorTarget,
    CalibrationError,
    IntervalTarget,
    LossTarget,
    StandardErrorTarget,
    Target,
)
from pipeline.errors import PlanError
from pipeline.report.calibrated import calibrated, mechanism_json, mechanism_lines, resolved_plan, resolved_text
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import exact

EXAMPLE = "prdp calibrate --kind log --set a=100 --standard-error 30 --total 500"
OBJECTIVES = ("largest", "mean", "share")
TARGETS = ("standard_error", "mean_absolute_error", "interval", "loss")
DEFAULTS = {"step": "1", "coverage": "0.95", "objective": "largest"}


def declare(parser: Parser) -> None:
    """Add the command's options: for a plan, for one mechanism, or for all families at equal accuracy."""
    parser.add_argument("plan", nargs="?", type=Path, metavar="PLAN", help="a plan with mechanisms that say calibrate:")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the plan with every calibrate: replaced by its solution"
    )
    one = parser.add_argument_group("one mechanism")
    one.add_argument("--kind", metavar="KIND", help="the kind, as in a plan")
    one.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter that is fixed (repeatable)"
    )
    one.add_argument("--step", default=DEFAULTS["step"], metavar="S", help="the step of the measure (default: 1)")
    target = parser.add_argument_group("target, exactly one of the first four")
    target.add_argument("--standard-error", metavar="E", help="a standard error at --total")
    target.add_argument("--mean-absolute-error", metavar="E", help="a mean absolute error at --total")
    target.add_argument("--interval", metavar="W", help="the width, end to end, of an interval at --total")
    target.add_argument("--loss", metavar="RHO", help="the largest loss of a record of influence --at")
    target.add_argument("--total", metavar="T", help="the true total for which an error is stated (default: 0)")
    target.add_argument("--at", metavar="X", help="the influence for which a loss is stated")
    target.add_argument(
        "--coverage", default=DEFAULTS["coverage"], metavar="C", help="the coverage of intervals (default: 0.95)"
    )
    every = parser.add_argument_group("all families at equal accuracy")
    every.add_argument("--compare", action="store_true", help="rank families and shapes by the losses of records")
    every.add_argument(
        "--sizes",
        type=Path,
        metavar="FILE",
        help="a PUBLIC distribution of sizes, CSV with the header value,count (default: employment of establishments "
        "in the synthetic economy); never one of confidential microdata",
    )
    every.add_argument(
        "--count",
        action="store_true",
        help="for a count instead of a sum: every record has an influence of 1; includes the kinds for counts",
    )
    every.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=DEFAULTS["objective"],
        help="what to rank by: the largest loss, the mean loss, or the share of records that "
        "lose at most --limit (default: largest)",
    )
    every.add_argument("--limit", metavar="RHO", help="a loss; needed for --objective share")
    every.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparison into an SVG or PNG file")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the scales of a plan, one mechanism, or a comparison."""
    of_target = ("step", *TARGETS, "total", "at", "coverage")
    forms = {  # form of the call → whether it is this one, what does it, the options that it takes
        "PLAN": (arguments.plan, _plan, ("out",)),
        "--kind": (arguments.kind, _one, ("set", *of_target)),
        "--compare": (arguments.compare, _compare, ("sizes", "count", "objective", "limit", "plot", *of_target)),
    }
    chosen = [form for form, (present, _, _) in forms.items() if present]
    if len(chosen) != 1:
        raise PlanError("give one of a plan, --kind (one mechanism) and --compare (all families)")
    _, act, own = forms[chosen[0]]
    for name in sorted({name for _, _, names in forms.values() for name in names} - set(own)):
        if getattr(arguments, name) not in (None, False, [], DEFAULTS.get(name)):
            raise PlanError(f"{_option(name)}: means nothing with {chosen[0]}; leave it out")
    act(arguments)


def _plan(arguments: argparse.Namespace) -> None:
    resolved = resolved_plan(arguments.plan, arguments.out)
    if arguments.json:
        print_json(resolved)
    else:
        print(resolved_text(resolved))


def _one(arguments: argparse.Namespace) -> None:
    target, coverage = _target(arguments), _number("coverage", arguments.coverage)
    kind = CATALOGUE.get(arguments.kind)
    if kind is not None and not kind.additive and arguments.total is None and arguments.loss is None:
        raise PlanError("--total: missing; the error of this kind grows with the true total")
    mechanism = calibrated(arguments.kind, _fixed(arguments.set), _number("step", arguments.step), target)
    totals = () if arguments.total is None else (float(_number("total", arguments.total)),)
    result = mechanism_json(mechanism, totals, coverage)
    if arguments.json:
        print_json(result)
    else:
        print(mechanism_lines(result, coverage))


def _compare(arguments: argparse.Namespace) -> None:
    from pipeline.report.plots import require_format  # noqa: PLC0415 — all of these: for this form alone
    from pipeline.study.comparison import BUILT_IN, ONE_EACH, Objective, compare, read_sizes, to_json  # noqa: PLC0415
    from pipeline.study.comparison_output import notes, plot, summary, table  # noqa: PLC0415

    target = _target(arguments)
    if isinstance(target, LossTarget):
        raise PlanError("--loss: a comparison is at equal accuracy; give --standard-error, for instance, and --total")
    try:
        limit = None if arguments.limit is None else _number("limit", arguments.limit)
        objective = Objective(arguments.objective, limit)
    except ValueError as error:
        raise PlanError(f"--{error}") from None
    if arguments.total is None:
        raise PlanError("--total: missing; the true total of a typical cell, at which all are equally accurate")
    if arguments.plot is not None:
        require_format(arguments.plot)
    for name in ("sizes", "plot") if arguments.count else ():
        if getattr(arguments, name) is not None:
            raise PlanError(f"--{name}: means nothing with --count; leave it out")
    sizes = ONE_EACH if arguments.count else read_sizes(arguments.sizes or BUILT_IN)
    comparison = compare(target, sizes, objective, _number("step", arguments.step), _progress)
    if not comparison.candidates:
        raise PlanError("--compare: no family can have this accuracy; ask for another")
    totals = tuple(sorted({0.0, float(target.total), 100 * float(target.total)}))
    if arguments.plot is not None:
        plot(comparison, arguments.plot)
    if arguments.json:
        print_json(to_json(comparison, totals))
    else:
        print("\n".join([summary(comparison), "", table(comparison, totals), "", *notes(comparison)]))


def _progress(tried: int) -> None:
    if tried and tried % 20 == 0:
        print(f"{tried} shapes tried", file=sys.stderr)


def _target(arguments: argparse.Namespace) -> Target:
    chosen = [name for name in TARGETS if getattr(arguments, name) is not None]
    if len(chosen) != 1:
        raise PlanError("give exactly one of " + ", ".join(map(_option, TARGETS)))
    name = chosen[0]
    number = _number(name, getattr(arguments, name))
    argument, other = ("at", "total") if name == "loss" else ("total", "at")
    if getattr(arguments, other) is not None:
        raise PlanError(f"--{other}: means nothing with {_option(name)}; give --{argument}")
    if name == "loss" and arguments.at is None:
        raise PlanError("--at: missing; give the influence of the record that may lose so much")
    at = _number(argument, getattr(arguments, argument) or "0")
    try:
        match name:
            case "loss":
                return LossTarget(loss=number, influence=at)
            case "interval":
                return IntervalTarget(interval=number, coverage=_number("coverage", arguments.coverage), total=at)
            case "standard_error":
                return StandardErrorTarget(standard_error=number, total=at)
            case _:
                return AbsoluteErrorTarget(mean_absolute_error=number, total=at)
    except CalibrationError as error:
        field, _, rule = str(error).replace("influence:", "at:").partition(":")
        raise PlanError(f"{_option(field)}:{rule}") from None


def _fixed(texts: list[str]) -> dict[str, Fraction | str]:
    fixed: dict[str, Fraction | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in fixed:
            raise PlanError(f"--set {text}: write each parameter once as name=value")
        try:
            fixed[name] = exact(value)
        except ValueError:
            fixed[name] = value
    return fixed


def _number(name: str, text: str) -> Fraction:
    try:
        return exact(text)
    except ValueError:
        raise PlanError(f"{_option(name)}: must be a number") from None


def _option(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
