"""The options that several commands share, and the types of their values. Light: `prdp --help` imports it."""

import argparse
from collections.abc import Callable, Collection
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NoReturn

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.names import nearest
from pipeline.base.plain import checked_reason
from pipeline.engines.registry import ENGINES
from prdp.declared import declarations, logs

LOG_JSON = "--log-json"
QUIET = "--quiet"
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


def example(call: str) -> str:
    """Return a call as the example that ends a command's help."""
    return f"example:\n  {call}"


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


def add_set(parser: Parser, what: str = "the value of a variable of the plan") -> None:
    """Add --set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help=f"{what}, such as year=2026 (repeatable)"
    )


def values_set(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the values of --set by name; PlanError where one is not of this form, or given twice."""
    values: dict[str, str] = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals or name in values:
            raise PlanError(f"--set {in_a_line(text)}: write each name once, as NAME=VALUE")
        values[name] = value
    return values


def add_new_folder(parser: Parser, *, required: bool = True) -> None:
    """Add --out, a folder that the command writes."""
    parser.add_argument("--out", type=Path, required=required, metavar="DIR", help="folder to write, new or empty")


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


def add_engine(parser: Parser, default: str | None = "dask") -> None:
    """Add the options that choose the engine and where it runs; `default` None: the command's own process."""
    told = default or "none, this process"
    parser.add_argument("--engine", choices=list(ENGINES), default=default, help=f"engine to run on (default: {told})")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="dask: address of a scheduler (default: local threads)")
    parser.add_argument(
        "--workers", type=at_least_one, metavar="N", help="dask: number of local threads (default: all cores)"
    )
    parser.add_argument("--master", metavar="URL", help="spark: a master on this machine, or sc:// (default: local[*])")
    parser.add_argument(LOG_JSON, action="store_true", help="write the log as JSON, one object a line; confidential")


def engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_engine` as the functions of prdp take them."""
    chosen = {name: getattr(arguments, name) for name in ("engine", "scheduler", "workers", "master")}
    return chosen | {"command_log": arguments.log}


def ledger_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_ledger` as the functions of prdp take them."""
    return {"ledger": arguments.ledger, "operator": arguments.operator}


def add_call(parser: Parser, function: Callable[..., Any], *, but: Collection[str] = ()) -> None:
    """Add the declared parameters of a function of prdp; of a plan's method the plan too."""
    if next(iter(signature(function).parameters)) == "self":
        add_plan(parser)
    declared = [each for each in declarations(function) if each.name not in but]
    for name, arg, default, by_position in declared:
        required = default is Parameter.empty
        stated = arg.default or ("" if required or default in UNSAID else str(default))
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
        if name == "plan":
            add_set(parser)
    if any(each.name == "scheduler" for each in declared):
        parser.add_argument(LOG_JSON, action="store_true", help="write the log as JSON lines; confidential")


def called(function: Callable[..., Any], arguments: argparse.Namespace, **more: Any) -> Any:
    """Call a function of prdp with those of its declared parameters that a call states."""
    parameters = signature(function).parameters
    names = [each.name for each in declarations(function) if each.name not in more]
    stated = {name: getattr(arguments, name, None) for name in names}
    stated = {name: value for name, value in stated.items() if value is not None}
    for name in {"fixed", "expected"} & stated.keys():
        files = dict(getattr(arguments, name))
        if len(files) < len(getattr(arguments, name)):
            raise PlanError(f"--{name}: two files of one measure: give one, with all its totals")
        stated[name] = files
    stated |= more
    if logs(function):
        stated["command_log"] = arguments.log
    if not {"plan", "self"} & parameters.keys():
        return function(**stated)
    from prdp.plans import load_plan  # noqa: PLC0415 — not needed for the help

    plan = load_plan(stated.pop("plan", arguments.plan), set=values_set(arguments))
    return function(plan, **stated)


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


def probability(text: str) -> float:
    """Return a number above 0 and below 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below 1")
    return number


def above_zero(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
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


def measured(text: str) -> tuple[str, str]:
    """Return the measure and the file of MEASURE=FILE."""
    measure, sign, path = text.partition("=")
    if not (measure and sign and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not MEASURE=FILE")
    return measure, path


KINDS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "names": names,
    "count": count,
    "at_least_one": at_least_one,
    "probability": probability,
    "above_zero": above_zero,
    "year": int,
    "measured": measured,
    "reason": reason,
}
UNSAID = (None, False, "", ())  # defaults that say nothing
