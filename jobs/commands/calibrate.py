"""prdp calibrate: parameters from a wanted accuracy or loss; reads no microdata."""

import argparse
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from jobs.options import Parser, add_json, add_set, at_least_one, count, values_set
from jobs.output import print_json, put
from pipeline.accounting.calibrate import LEAST
from pipeline.accounting.targets import BOUNDS, TARGETS
from pipeline.base.errors import PlanError
from pipeline.plan.plan_text import read_text
from pipeline.planning.explain.allocated import resolved_plan, resolved_text
from pipeline.planning.explain.calibrated import Asked, mechanism_lines, plot_scales, scales_text
from udfs.mechanisms.base import ParameterError
from udfs.numbers.exact import bound_text, down_text

EXAMPLE = "prdp calibrate --kind log --set a=100 --standard-error 30 --total 500"
OBJECTIVES = ("largest", "mean", "share")
OF_DRAFT = ("records", "like", "states", "seed")
DEFAULTS = {"step": "1", "coverage": "0.95", "objective": "largest"}


def declare(parser: Parser) -> None:
    """Add the command's options: for a plan, one mechanism, all families at equal accuracy, or a conversion."""
    parser.add_argument(
        "plan",
        nargs="?",
        type=Path,
        metavar="PLAN",
        help="a plan with mechanisms that say calibrate:, or a draft with a key calibrate of its own",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the plan with every calibrate: replaced by its solution"
    )
    add_set(parser, "the value of a variable of PLAN; or of a parameter of --kind that is fixed")
    open_ = parser.add_argument_group("totals and sizes that a draft leaves open: those of typical synthetic cells")
    what = open_.add_mutually_exclusive_group()
    what.add_argument("--records", type=at_least_one, metavar="N", help="of so many synthetic establishments")
    what.add_argument("--like", metavar="FIGURES", help="that add up to these figures: cbp-2010 or cbp-2011")
    open_.add_argument("--states", metavar="CODES", help="with --like: 56,50 (default: all)")
    open_.add_argument("--seed", type=count, metavar="S", help="same seed, same establishments (default: 0)")
    one = parser.add_argument_group("one mechanism")
    one.add_argument("--kind", metavar="KIND", help="the kind, as in a plan")
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
    conversion = parser.add_argument_group(
        "from rho to (ε, δ), by --rho and --delta; or back, by --epsilon and --delta"
    )
    conversion.add_argument("--rho", metavar="RHO", help="a loss, whose ε at --delta is printed")
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
        "PLAN": (arguments.plan, _plan, ("out", "set", *OF_DRAFT)),
        "--kind": (arguments.kind, _one, of_kind),
        "--compare": (arguments.compare, _compare, ("sizes", "count", "objective", "limit", "plot", *of_target)),
        "--scales": (arguments.scales, _scales, ("epsilon", "delta", "at", "plot")),
        "--rho": (arguments.rho, _epsilon, ("rho", "delta")),
    }
    chosen = [form for form, (present, _, _) in forms.items() if present]
    if not chosen and arguments.epsilon is not None and arguments.delta is not None:
        chosen, forms["--epsilon and --delta alone"] = (
            ["--epsilon and --delta alone"],
            (True, _rho, ("epsilon", "delta")),
        )
    if len(chosen) != 1:
        raise PlanError(
            "give one of a plan, --kind (one mechanism), --compare (all families), --scales (Gaussian), and --rho or "
            "--epsilon with --delta (from one to the other)"
        )
    _, act, own = forms[chosen[0]]
    for name in sorted({name for _, _, names in forms.values() for name in names} - set(own)):
        if getattr(arguments, name) not in (None, False, [], DEFAULTS.get(name)):
            raise PlanError(f"{_option(name)}: means nothing with {chosen[0]}; leave it out")
    act(arguments)


def _plan(arguments: argparse.Namespace) -> None:
    text = read_text(arguments.plan)
    asked = {name: getattr(arguments, name) for name in OF_DRAFT if getattr(arguments, name) is not None}
    if text.data.get("calibrate") is not None:
        from pipeline.planning.explain.allocated import allocated_text  # noqa: PLC0415
        from prdp.plans import allocate  # noqa: PLC0415

        if "states" in asked:
            asked["states"] = asked["states"].split(",")
        given = {"out": arguments.out, "set": values_set(arguments)}
        if {"records", "like"} & asked.keys():
            asked["command_log"] = arguments.log
        result = allocate(arguments.plan, **given, **asked).to_json()
        shown = allocated_text(result)
    elif asked:
        raise PlanError(f"--{next(iter(asked))}: means nothing with a plan that is no draft; leave it out")
    else:
        result = resolved_plan(arguments.plan, arguments.out, values_set(arguments))
        shown = resolved_text(result)
    if arguments.json:
        print_json(result)
    else:
        put(shown)


def _one(arguments: argparse.Namespace) -> None:
    call = Asked(vars(arguments) | {"parameters": values_set(arguments)})
    result = call.one(_progress("exponents", 5))
    if arguments.json:
        print_json(result)
    else:
        put(mechanism_lines(result, call.number("coverage")))


def _scales(arguments: argparse.Namespace) -> None:
    from pipeline.accounting.convert import gaussian_scales  # noqa: PLC0415

    call = Asked(vars(arguments) | {"at": arguments.at or "1"})
    for name in ("epsilon", "delta"):
        call.require(name, "scales are those for (ε, δ)")
    epsilon, delta, at = (float(call.number(name)) for name in ("epsilon", "delta", "at"))
    try:
        scales = gaussian_scales(epsilon, delta, at)
    except ParameterError as error:
        raise call.broken(error.parameter, error.rule) from None
    if arguments.plot is not None:
        plot_scales(arguments.plot)
    if arguments.json:
        print_json(scales.to_json())
    else:
        put(scales_text(scales))


def _epsilon(arguments: argparse.Namespace) -> None:
    _convert(arguments, "rho", "epsilon")


def _rho(arguments: argparse.Namespace) -> None:
    _convert(arguments, "epsilon", "rho")


def _convert(arguments: argparse.Namespace, one: str, other: str) -> None:
    """Print what a number and a delta say as the other number: ε rounded up, rho rounded down."""
    from prdp import conversions  # noqa: PLC0415

    if arguments.delta is None:
        raise PlanError("--delta: missing; (ε, δ) needs one")
    asked = {name: getattr(arguments, name) for name in (one, "delta")}
    try:
        converted = getattr(conversions, other)(**asked)
    except PlanError as error:  # which begins with the option's name
        raise PlanError(f"--{error}") from None
    stated = {name: float(value) for name, value in asked.items()} | {other: converted}
    text = bound_text(converted) if other == "epsilon" else down_text(Fraction(converted))
    if arguments.json:
        print_json(stated)
    elif other == "epsilon":
        print(f"rho {asked['rho']}: (ε, δ) = ({text}, {asked['delta']}), by Rényi orders")
    else:
        print(f"(ε, δ) = ({asked['epsilon']}, {asked['delta']}): follows from rho {text} or less, by Rényi orders")


def _compare(arguments: argparse.Namespace) -> None:
    from pipeline.base.plots import require_format  # noqa: PLC0415
    from pipeline.planning.study.comparison import notes, plot, summary, table, to_json  # noqa: PLC0415

    if arguments.plot is not None:
        require_format(arguments.plot)
        if arguments.count:
            raise PlanError("--plot: means nothing with --count; leave it out")
    compared = Asked(vars(arguments)).comparison(_progress("shapes", 20))
    if arguments.plot is not None:
        plot(compared, arguments.plot)
    if arguments.json:
        print_json(to_json(compared, compared.totals))
    else:
        put("\n".join([summary(compared), "", table(compared, compared.totals), "", *notes(compared)]))


def _progress(what: str, every: int) -> Callable[[int], None]:
    def tell(tried: int) -> None:
        if tried and tried % every == 0:
            put(f"{tried} {what} tried", file=sys.stderr)

    return tell


def _option(name: str) -> str:
    """Return an option as it is typed."""
    return f"--{name.replace('_', '-')}"
