"""The options that several commands share, and the types of their values. Light: `prdp --help` imports it."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from pipeline.engines.registry import ENGINES
from pipeline.errors import PlanError, in_a_line
from pipeline.names import nearest

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


def add_data(parser: Parser) -> None:
    """Add --data."""
    parser.add_argument("--data", metavar="URI", help="location of the microdata (default: dataset.path of the plan)")


def add_new_folder(parser: Parser, *, required: bool = True) -> None:
    """Add --out, a folder that the command writes."""
    parser.add_argument("--out", type=Path, required=required, metavar="DIR", help="folder to write, new or empty")


def add_ledger(parser: Parser) -> None:
    """Add the options that name the ledger and who acts on it."""
    parser.add_argument(
        "--ledger",
        metavar="URL",
        help="the ledger: a path or postgresql://user@host/database (default: the site's, or a file of the user's)",
    )
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


def add_run(parser: Parser) -> None:
    """Add what every run over microdata takes: an engine, a ledger, --json, --quiet and --debug."""
    add_engine(parser)
    add_ledger(parser)
    add_json(parser)


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_run` as the functions of prdp take them."""
    return engine_options(arguments) | ledger_options(arguments)


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


def add_sign(parser: Parser, manifest: str) -> None:
    """Add the option that signs what is made."""
    parser.add_argument("--sign", action="store_true", help=f"sign {manifest} with the site's key (prdp keys create)")


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
    if not text.strip() or len(text) > 1000:
        raise argparse.ArgumentTypeError("a reason of 1 to 1,000 characters is needed")
    return text.strip()
