"""prdp calibrate: parameters from a wanted accuracy or loss; reads no microdata."""

import argparse
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from jobs.options import Parser, add_json
from jobs.output import print_json
from pipeline.accounting.best_alpha import LEAST, Least
from pipeline.accounting.targets import (
    AT_A_RECORD,
    BESIDE,
    BOUNDS,
    OF_NAME,
    AtRecord,
    Target,
    WrongNumber,
    target_of,
)
from pipeline.errors import PlanError
from pipeline.report.calibrated import (
    best_alpha_json,
    calibrated,
    mechanism_json,
    mechanism_lines,
    resolved_plan,
    resolved_text,
    scales_text,
)
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import exact

EXAMPLE = "prdp calibrate --kind log --set a=100 --standard-error 30 --total 500"
OBJECTIVES = ("largest", "mean", "share")
TARGETS = tuple(OF_NAME)
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
    one.add_argument(
        "--best-alpha",
        choices=tuple(LEAST),
        help="symmetric_stable: the alpha too, of the least mean absolute error or interval at a --loss or --epsilon, "
        "or the least loss of a record of influence --at at an accuracy",
    )
    one.add_argument("--step", default=DEFAULTS["step"], metavar="S", help="the step of the measure (default: 1)")
    target = parser.add_argument_group("target, exactly one of the first six")
    target.add_argument("--standard-error", metavar="E", help="a standard error at --total")
    target.add_argument("--mean-absolute-error", metavar="E", help="a mean absolute error at --total")
    target.add_argument("--relative-error", metavar="R", help="E|error| below R times the total, from --total on")
    target.add_argument("--interval", metavar="W", help="the width, end to end, of an interval at --total")
    target.add_argument("--loss", metavar="RHO", help="the largest loss of a record of influence --at")
    target.add_argument("--epsilon", metavar="E", help="the largest pure ε of a record of influence --at")
    target.add_argument("--delta", metavar="D", help="with --epsilon: (ε, δ) in place of a pure ε")
    target.add_argument(
        "--bound", choices=BOUNDS, help="of Gaussian noise: the exact condition (default), or the closed form"
    )
    target.add_argument("--group-loss", metavar="V", help="groupwise_log: the offset a too, by the loss v of --group")
    target.add_argument("--group", metavar="N", help="the number of records in that group")
    target.add_argument("--total", metavar="T", help="the true total for which an error is stated (default: 0)")
    target.add_argument("--at", metavar="X", help="the influence for which a loss or ε is stated")
    target.add_argument(
        "--coverage", default=DEFAULTS["coverage"], metavar="C", help="the coverage of intervals (default: 0.95)"
    )
    scales = parser.add_argument_group("scales of Gaussian noise for (ε, δ)")
    scales.add_argument(
        "--scales",
        action="store_true",
        help="the exact, the closed and the classical one at --epsilon, --delta and --at (default: 1); with --plot the "
        "figures of paper 3",
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
    of_kind = ("set", "best_alpha", *of_target, "delta", "bound", "group_loss", "group")
    forms = {  # form of the call → whether it is this one, what does it, the options that it takes
        "PLAN": (arguments.plan, _plan, ("out",)),
        "--kind": (arguments.kind, _one, of_kind),
        "--compare": (arguments.compare, _compare, ("sizes", "count", "objective", "limit", "plot", *of_target)),
        "--scales": (arguments.scales, _scales, ("epsilon", "delta", "at", "plot")),
    }
    chosen = [form for form, (present, _, _) in forms.items() if present]
    if len(chosen) != 1:
        raise PlanError("give one of a plan, --kind (one mechanism), --compare (all families) and --scales (Gaussian)")
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
    if kind is not None and not kind.additive and arguments.total is None and arguments.at is None:
        raise PlanError("--total: missing; the error of this kind grows with the true total")
    fixed, step = _fixed(arguments.set), _number("step", arguments.step)
    if arguments.best_alpha is not None:
        at = None if arguments.at is None else _number("at", arguments.at)
        least = Least(what=arguments.best_alpha, coverage=coverage, influence=at)
        described = {"kind": arguments.kind, **fixed}
        result = best_alpha_json(described, step, target, least, _progress("exponents", 5))
    else:
        totals = () if arguments.total is None else (float(_number("total", arguments.total)),)
        result = mechanism_json(calibrated(arguments.kind, fixed, step, target), totals, coverage, target)
    if arguments.json:
        print_json(result)
    else:
        print(mechanism_lines(result, coverage))


def _scales(arguments: argparse.Namespace) -> None:
    from pipeline.accounting.gaussian import gaussian_scales  # noqa: PLC0415 — and the next: for this form alone

    for name in ("epsilon", "delta"):
        if getattr(arguments, name) is None:
            raise PlanError(f"--{name}: missing; scales are those for (ε, δ)")
    epsilon, delta = (float(_number(name, getattr(arguments, name))) for name in ("epsilon", "delta"))
    try:
        scales = gaussian_scales(epsilon, delta, float(_number("at", arguments.at or "1")))
    except ParameterError as error:
        raise _broken(error.parameter, error.rule) from None
    if arguments.plot is not None:
        from pipeline.study.gaussian_scales import plot_scales  # noqa: PLC0415

        plot_scales(arguments.plot)
    if arguments.json:
        print_json(scales.to_json())
    else:
        print(scales_text(scales))


def _compare(arguments: argparse.Namespace) -> None:
    from pipeline.report.plots import require_format  # noqa: PLC0415 — all of these: for this form alone
    from pipeline.study.comparison import BUILT_IN, ONE_EACH, Objective, compare, read_sizes, to_json  # noqa: PLC0415
    from pipeline.study.comparison_output import notes, plot, summary, table  # noqa: PLC0415

    target = _target(arguments)
    if isinstance(target, AtRecord):
        name = "loss" if arguments.loss is not None else "epsilon"
        other = "give --standard-error, for instance, and --total"
        raise PlanError(f"--{name}: a comparison is at equal accuracy; {other}")
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
    comparison = compare(target, sizes, objective, _number("step", arguments.step), _progress("shapes", 20))
    if not comparison.candidates:
        raise PlanError("--compare: no family can have this accuracy; ask for another")
    totals = tuple(sorted({0.0, float(target.total), 100 * float(target.total)}))
    if arguments.plot is not None:
        plot(comparison, arguments.plot)
    if arguments.json:
        print_json(to_json(comparison, totals))
    else:
        print("\n".join([summary(comparison), "", table(comparison, totals), "", *notes(comparison)]))


def _progress(what: str, every: int) -> Callable[[int], None]:
    def tell(tried: int) -> None:
        if tried and tried % every == 0:
            print(f"{tried} {what} tried", file=sys.stderr)

    return tell


def _target(arguments: argparse.Namespace) -> Target:
    chosen = [name for name in TARGETS if getattr(arguments, name) is not None]
    if len(chosen) != 1:
        raise PlanError("give exactly one of " + ", ".join(map(_option, TARGETS)))
    name = chosen[0]
    argument, other = ("at", "total") if name in AT_A_RECORD else ("total", "at")
    if getattr(arguments, other) is not None and not (other == "at" and arguments.best_alpha == "loss"):
        raise PlanError(f"--{other}: means nothing with {_option(name)}; give --{argument}")
    for option, beside in BESIDE:
        if getattr(arguments, option) is not None and getattr(arguments, beside) is None:
            raise PlanError(f"{_option(option)}: means nothing without {_option(beside)}; leave it out")
    if arguments.group_loss is not None and arguments.group is None:
        raise PlanError("--group: missing; give the number of records of the group that may lose so much")
    if name in AT_A_RECORD and arguments.at is None:
        raise PlanError("--at: missing; give the influence of the record that may lose so much")
    given = {
        option: getattr(arguments, option) for option in (name, "total", "delta", "group_loss", "group", "coverage")
    }
    numbers = {option: _number(option, text) for option, text in given.items() if text is not None}
    if arguments.at is not None:
        numbers["influence"] = _number("at", arguments.at)
    try:
        return target_of(name, numbers, arguments.bound)
    except WrongNumber as error:
        raise _broken(error.field, error.rule) from None


def _broken(name: str, rule: str) -> PlanError:
    return PlanError(f"{_option('at' if name == 'influence' else name)}: must be {rule}")


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
