"""The parser of the `prdp` command: options are the declared parameters of what a command calls."""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from importlib import import_module
from inspect import Parameter, signature
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jobs.commands import COMMANDS, HOMES, print_json, put
from pipeline.base.errors import PlanError, in_a_line, nearest
from pipeline.base.plain import checked_reason
from prdp.declared import declarations, logs

LOG_JSON = "--log-json"
QUIET = "--quiet"
SHELLS = ("bash", "zsh", "fish")
MOST_NAMED = 12  # choices that an error lists; the help has them all
Parser = argparse.ArgumentParser


class StrictParser(Parser):
    """Takes options written in full, and reports a wrong call as PlanError, with the name that was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise PlanError in place of argparse's own exit."""
        raise PlanError(f"{self.prog}: {message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but tell an unknown option before what is missing without it."""
        words = list(args or ())
        if self._subparsers is None:  # a parser of commands or acts does not know their options
            for word in words[: words.index("--")] if "--" in words else words:
                name = word.partition("=")[0]
                if name.startswith("--") and " " not in word and name not in self._option_string_actions:
                    known = {option.lstrip("-"): option for option in self._option_string_actions}
                    meant = nearest(name.lstrip("-"), known)
                    self.error(f"unknown option {name}" + (f"; nearest known: {known[meant]}" if meant else ""))
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the one choice that was meant, where there is one; argparse names them all, where they fit a line."""
        choices = list(action.choices or ())
        if choices and value not in choices:
            meant = nearest(value, choices)
            if meant is not None or len(choices) > MOST_NAMED:
                known = f"; nearest known: {meant}" if meant is not None else ""
                raise argparse.ArgumentError(action, f"invalid choice: {value!r}{known}")
        super()._check_value(action, value)


def sentence(summary: str) -> str:
    """Return the one-line summary of a command as the sentence that begins its help."""
    return f"{summary[0].upper()}{summary[1:]}."


def add_debug(parser: Parser) -> None:
    """Add --quiet and --debug."""
    parser.add_argument(QUIET, action="store_true", help="tell warnings and errors alone, and no progress")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_json(parser: Parser) -> None:
    """Add --json, --quiet and --debug."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_debug(parser)


def add_plan(parser: Parser) -> None:
    """Add the plan as an argument, and the values of its variables."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a YAML file")
    add_set(parser)


def add_set(parser: Parser) -> None:
    """Add --set."""
    what = "the value of a variable of the plan, such as year=2026 (repeatable)"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=what)


def values_set(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values of --set by name; PlanError where one is not of this form, or given twice."""
    values: dict[str, str] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name in values:
            raise PlanError(f"--set {in_a_line(text)}: write each name once, as NAME=VALUE")
        values[name] = value
    return values


def add_address(parser: Parser) -> None:
    """Add --ledger."""
    parser.add_argument(
        "--ledger",
        metavar="URL",
        help="the ledger: a path or postgresql://user@host/database (default: the site's, or a file of the user's)",
    )


def add_ledger(parser: Parser) -> None:
    """Add the options that name the ledger and who acts on it."""
    add_address(parser)
    parser.add_argument(
        "--operator",
        metavar="NAME",
        help="operator to record; the name is not verified (default: PRDP_OPERATOR, or the login name)",
    )


def function_of(calls: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return a function by its dotted name, such as "prdp.plans.Plan.check"."""
    if not isinstance(calls, str):
        return calls
    package, module, *names = calls.split(".")
    owner: Any = import_module(f"{package}.{module}")
    return reduce(getattr, names, owner)  # type: ignore[no-any-return]


def owner_of(function: Callable[..., Any]) -> str | None:
    """Return the class of which a function is a method: "Plan" or "Ledger"."""
    first = next(iter(signature(function).parameters), None)
    if first == "opened":  # a function of an opened ledger
        return "Ledger"
    return function.__qualname__.rpartition(".")[0] if first == "self" else None


def add_call(
    parser: Parser, calls: str | Callable[..., Any], *, but: Collection[str] = (), only: Collection[str] = ()
) -> None:
    """Add the declared parameters of a function of prdp; of a plan's method the plan too, of a ledger's its address.

    `only`: these alone, none of them required, of a function that is called where they are stated.
    """
    function = function_of(calls)
    owner = owner_of(function)
    if owner == "Plan":
        add_plan(parser)
    elif owner == "Ledger":
        add_ledger(parser)
    declared = [each for each in declarations(function) if each.name not in but and (not only or each.name in only)]
    for name, arg, default, by_position in declared:
        required = default is Parameter.empty and not only
        stated = arg.default or ("" if default in UNSAID else str(default))
        words: dict[str, Any] = {"help": arg.about + " (repeatable)" * arg.many}
        words["help"] = f"{words['help']}{f' (default: {stated})' * bool(stated)}".replace("%", "%%")
        if default is False:
            words["action"] = "store_true"
        else:
            words |= {"metavar": arg.metavar, "choices": arg.choices, "type": KINDS[arg.kind]}
            words |= ({"action": "append"} if arg.many else {}) | ({"nargs": "+"} if arg.several else {})
        if by_position:
            words |= {} if required else {"nargs": "?"}
            parser.add_argument(name, **words)
        else:
            parser.add_argument(f"--{arg.flag or name.replace('_', '-')}", dest=name, required=required, **words)
        if (name, arg.kind) == ("plan", "text") or arg.kind == "plan":
            add_set(parser)
    if any(each.name == "scheduler" for each in declared):
        parser.add_argument(LOG_JSON, action="store_true", help="write the log as JSON lines; confidential")


def called(function: Callable[..., Any], arguments: argparse.Namespace, **more: Any) -> Any:
    """Call a function of prdp with those of its declared parameters that a call states."""
    parameters = signature(function).parameters
    args = {name: arg for name, arg, _, _ in declarations(function) if name not in more}
    stated: dict[str, Any] = {name: getattr(arguments, name, None) for name in args}
    stated = {name: value for name, value in stated.items() if value is not None}
    for name in {name for name, arg in args.items() if arg.kind in PAIRS} & stated.keys():
        pairs = stated[name]
        stated[name] = dict(pairs)
        if len(stated[name]) < len(pairs):
            raise PlanError(f"--{args[name].flag or name}: {PAIRS[args[name].kind]}")
    stated |= more
    if logs(function):
        stated["command_log"] = arguments.log
    spread = [stated.pop(name, ()) for name, each in parameters.items() if each.kind is Parameter.VAR_POSITIONAL]
    owner = owner_of(function)
    if owner == "Ledger":
        from prdp.ledgers import opened  # noqa: PLC0415 — the help does not need it

        arguments.opened = opened(arguments.ledger, arguments.operator, first_use=arguments.first_use)
        arguments.log.ledger(arguments.opened.address)
        return function(arguments.opened, *(value for values in spread for value in values), **stated)
    plans = [name for name, arg in args.items() if arg.kind == "plan" or (name, arg.kind) == ("plan", "text")]
    if owner is None and not plans:
        return function(**stated)
    from prdp.plans import load_plan  # noqa: PLC0415 — likewise

    values = values_set(arguments)
    if owner == "Plan":
        return function(load_plan(arguments.plan, set=values), **stated)
    for name in plans:
        if name in stated:
            stated[name] = load_plan(stated[name], set=values)
        elif values:
            raise PlanError(f"--set: it goes with --{name} alone")
    return function(**stated)


class Act(NamedTuple):
    """A command: what it does, the function it calls, a call, and what prints the result.

    Without `show` the result's own text is printed; `prints_json`: `show` prints JSON too. `acts`: others below it.
    `declare` adds other options than those of the function, `run` does more than call it and show the result.
    """

    about: str
    calls: str | Callable[..., Any] = ""
    example: str = ""
    show: Callable[..., None] | None = None
    prints_json: bool = False
    first_use: bool = True  # whether the user's own ledger is made where there is none
    acts: Mapping[str, Any] = {}
    declare: Callable[[Parser], None] | None = None
    run: Callable[[argparse.Namespace], None] | None = None


def parser_with(words: Sequence[str] | None, *, shows_version: bool = False) -> StrictParser:
    """Return the parser with the options of the command that a call's first words name; None: of all commands.

    The modules of others are not imported. `shows_version`: reading the version takes longer than all else here.
    """
    parser = StrictParser(
        prog="prdp",
        description="Releases totals of establishment microdata under per-record differential privacy.",
        epilog="Each command has its own help: prdp release --help. Start with prdp generate.",
    )
    parser.add_argument("--version", action="version", version=f"prdp {_version()}" if shows_version else "prdp")
    parser.add_argument("--completion", choices=SHELLS, help="print what completes commands and options in a shell")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=StrictParser)
    _declare(commands, COMMANDS, lambda name: import_module(f"jobs.commands.{HOMES[name]}").ACTS[name], words)
    return parser


def _declare(
    parsers: Any, summaries: Mapping[str, str], act_of: Callable[[str], Act], words: Sequence[str] | None
) -> None:
    for name, about in summaries.items():
        command = parsers.add_parser(name, help=about, description=sentence(about))
        if words is not None and (not words or words[0] != name):
            continue
        act = act_of(name)
        command.epilog = f"example:\n  {command.prog.removesuffix(name)}{act.example}"
        if act.acts:
            below = command.add_subparsers(required=True, metavar="ACT", parser_class=StrictParser)
            summaries_below = {name: each.about for name, each in act.acts.items()}
            _declare(below, summaries_below, act.acts.__getitem__, None if words is None else words[1:])
            continue
        command.set_defaults(act=act, first_use=act.first_use)
        if act.declare is not None:
            act.declare(command)
        else:
            add_call(command, act.calls)
        if act.show is not None:
            add_call(command, act.show)
        add_json(command)


def run(arguments: argparse.Namespace) -> None:
    """Run a command: call its function and show what was made, or as the command itself runs."""
    act: Act = arguments.act
    if act.run is not None:
        act.run(arguments)
        return
    made = called(function_of(act.calls), arguments)
    if arguments.json and not act.prints_json:
        print_json(made.to_json() if hasattr(made, "to_json") else made)
    elif act.show is not None:
        act.show(made, arguments, **{each.name: getattr(arguments, each.name) for each in declarations(act.show)})
    else:
        put(str(made))


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return version("prdp")


def count(text: str) -> int:
    """Return a whole number of at least 0."""
    return _whole_number(text, 0)


def at_least_one(text: str) -> int:
    """Return a whole number of at least 1."""
    return _whole_number(text, 1)


def _whole_number(text: str, least: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return number


def _between(low: float, high: float, rule: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = low
    if not low < number < high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {rule}")
    return number


def reason(text: str) -> str:
    """Return a reason for the ledger, 1 to 1,000 characters without the spaces around it."""
    try:
        return checked_reason(text)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(text: str) -> list[str]:
    """Return the names of a list with commas."""
    return text.split(",")


def setting(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{in_a_line(text)}: write each name once, as NAME=VALUE")
    return name, value


def limit(text: str) -> tuple[str, str]:
    """Return the influence and the rho of X:RHO."""
    influence, colon, rho = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text}: must be an influence and its rho, such as 10:0.12")
    return influence, rho


def numbers(text: str) -> dict[str, float]:
    """Return numbers by name."""
    try:
        return {name: float(number) for name, number in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form p=10,n=2,k=85,threshold=3") from None


def approvals(text: str) -> int:
    """Return how many roles must approve."""
    if text not in map(str, range(1, 10)):
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 9")
    return int(text)


def measured(text: str) -> tuple[str, str]:
    """Return the measure and the file of MEASURE=FILE."""
    measure, sign, path = text.partition("=")
    if not (measure and sign and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not MEASURE=FILE")
    return measure, path


KINDS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "file": str,
    "plan": str,
    "setting": setting,
    "limit": limit,
    "numbers": numbers,
    "approvals": approvals,
    "names": names,
    "count": count,
    "at_least_one": at_least_one,
    "probability": partial(_between, 0, 1, "above 0 and below 1"),
    "above_zero": partial(_between, 0, inf, "above 0"),
    "year": int,
    "measured": measured,
    "reason": reason,
}
PAIRS = {  # kinds of options that are repeated for one mapping, and the error where a name stands twice
    "measured": "two files of one measure: give one, with all its totals",
    "setting": "write each name once, as NAME=VALUE",
}
UNSAID: tuple[Any, ...] = (None, False, "", (), {}, Parameter.empty)  # defaults that say nothing
