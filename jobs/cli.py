"""The `prdp` command: arguments in, exit code out. A command imports what it needs, when it runs."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from jobs.acts import add_acts, add_ledger
from jobs.calibrating import add_options
from pipeline.errors import PlanError, PrdpError
from pipeline.log import JsonLog, Log, Progress

LOG_JSON = "--log-json"
COMMANDS = ("generate", "explain", "calibrate", "prepare", "release", "diagnose", "evaluate", "verify", "ledger")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong call as every other error; options are written out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise PlanError(f"{self.prog}: {message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    debug = _Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show the traceback of an error")
    main_parser = _Parser(
        prog="prdp", description="Releases totals of establishment microdata under per-record differential privacy."
    )
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    generate = commands.add_parser(
        "generate", parents=[debug], help="write synthetic microdata and all that a first release needs"
    )
    generate.add_argument("--records", type=_count, required=True, metavar="N", help="number of establishments")
    generate.add_argument("--seed", type=_count, default=0, metavar="S", help="same seed, same bytes (default 0)")
    generate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write, new or empty")

    explain = commands.add_parser("explain", parents=[debug], help="what a plan promises; reads no microdata")
    explain.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a YAML file")
    explain.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="REFERENCE",
        help="a reference record, such as employment=10,payroll=500; several, with ';' between them, for a firm or "
        "a group (repeatable; default: those of the budget)",
    )
    explain.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="VALUES",
        help="what it costs a record that its values are one or the other, such as employment=10:12 (repeatable)",
    )
    explain.add_argument(
        "--factor",
        action="append",
        default=[],
        metavar="C",
        help="what it costs a record that its values are any ones, or others within a factor, such as 1.1 (repeatable)",
    )
    explain.add_argument(
        "--delta", type=_probability, default=1e-9, metavar="D", help="the δ for which (ε, δ) is told (default 1e-9)"
    )
    explain.add_argument("--plot", type=Path, metavar="FILE", help="draw the policy curves into an SVG or PNG file")
    explain.add_argument("--json", action="store_true", help="print JSON")

    calibrate = commands.add_parser(
        "calibrate", parents=[debug], help="from an accuracy or a loss to parameters; reads no microdata"
    )
    add_options(calibrate)

    prepare = commands.add_parser(
        "prepare", parents=[debug], help="confidential: checked, typed, sorted microdata for repeated releases"
    )
    prepare.add_argument("raw", metavar="RAW", help="the microdata, Parquet or CSV, a file or a folder")
    prepare.add_argument("--plan", type=Path, required=True, metavar="PLAN", help="a plan of the dataset, a YAML file")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write, new or empty")
    _add_engine(prepare)
    prepare.add_argument("--json", action="store_true", help="print JSON")

    release = commands.add_parser(
        "release", parents=[debug], help="release a plan's tables, or go on where a run stopped"
    )
    release.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a YAML file")
    release.add_argument("--data", metavar="URI", help="the microdata (default: dataset.path of the plan)")
    release.add_argument("--out", metavar="URI", help="where to publish (default: releases/ beside the plan)")
    release.add_argument(
        "--staging", metavar="URI", help="where draws lie until they are published (default: beside the ledger)"
    )
    _add_engine(release)
    release.add_argument(
        "--hold", action="store_true", help="publish nothing before an officer approves (prdp ledger approve)"
    )
    release.add_argument(
        "--lineage",
        type=Path,
        metavar="FILE",
        help="append what was made from what, as lines of OpenLineage events",
    )
    release.add_argument("--csv", action="store_true", help="write every table as CSV too")
    release.add_argument("--json", action="store_true", help="print JSON")

    _add_diagnose(commands, debug)
    _add_evaluate(commands, debug)

    verify = commands.add_parser("verify", parents=[debug], help="for outsiders: the files match the manifest")
    verify.add_argument("folder", metavar="OUT/RELEASE", help="the folder or URI that holds release.json")
    verify.add_argument("--json", action="store_true", help="print JSON")

    ledger = commands.add_parser("ledger", help="for disclosure officers: budgets, approvals, what is spent")
    add_acts(ledger.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=_Parser), debug)
    return main_parser


def _add_diagnose(commands: Any, debug: argparse.ArgumentParser) -> None:
    diagnose = commands.add_parser(
        "diagnose", parents=[debug], help="confidential: the losses of the actual records, errors against the truth"
    )
    diagnose.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a YAML file")
    diagnose.add_argument("--data", metavar="URI", help="the microdata (default: dataset.path of the plan)")
    diagnose.add_argument("--out", required=True, metavar="URI", help="folder to write, new or empty")
    diagnose.add_argument(
        "--release",
        type=Path,
        metavar="FOLDER",
        help="a published release of the plan to hold against the truth (default: releases/ beside the plan, if there)",
    )
    diagnose.add_argument(
        "--per-record", action="store_true", help="write every record's and firm's losses, as Parquet"
    )
    _add_engine(diagnose)
    diagnose.add_argument("--json", action="store_true", help="print JSON")


def _add_evaluate(commands: Any, debug: argparse.ArgumentParser) -> None:
    evaluate = commands.add_parser(
        "evaluate", parents=[debug], help="a study: mechanisms beside each other on synthetic microdata"
    )
    evaluate.add_argument(
        "study", type=Path, metavar="STUDY", help="the study, a YAML file such as conf/studies/slides.yaml"
    )
    evaluate.add_argument("--records", type=_count, metavar="N", help="number of records (default: the study's)")
    evaluate.add_argument("--seed", type=_count, metavar="S", help="of the microdata (default: the study's)")
    evaluate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write, new or empty")
    _add_runner(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print JSON")


def _add_engine(command: argparse.ArgumentParser) -> None:
    """Add the options that say what runs a command over microdata, and with which ledger."""
    _add_runner(command)
    add_ledger(command)


def _add_runner(command: argparse.ArgumentParser) -> None:
    """Add the options that say what runs a command over microdata."""
    command.add_argument("--engine", choices=["dask", "spark"], default="dask", help="what runs it (default dask)")
    command.add_argument("--scheduler", metavar="ADDRESS", help="dask: a scheduler's address (default: threads)")
    command.add_argument("--workers", type=_at_least_one, metavar="N", help="dask: threads to use (default: all cores)")
    command.add_argument("--master", metavar="URL", help="spark: a master of this machine (default: local[*])")
    command.add_argument(LOG_JSON, action="store_true", help="write the log as JSON, one object a line; confidential")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/commands.md)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    log, debug = _log(words), False
    try:
        try:
            given = parser().parse_args(words)
        except SystemExit as stopped:  # --help
            return int(stopped.code or 0)
        given.log, debug = log, given.debug
        if hasattr(given, "ledger"):
            _at_this_site(given)
        command: Callable[[argparse.Namespace], None] = import_module(f"jobs.commands.{given.command}").run
        command(given)
        sys.stdout.flush()
        log.done()
    except PrdpError as error:
        return _failed(log, str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return _failed(log, "interrupted; run the same command again to go on", PrdpError.exit_code, False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output left
        return PrdpError.exit_code
    except Exception as error:
        # A library's own message may hold a record's value: only its kind and place are told.
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"unexpected {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        return _failed(log, f"{kind}; --debug shows the traceback, which may hold confidential values", 1, debug)
    return 0


def _log(words: Sequence[str]) -> Log:
    """Return the log that a call asks for, before it is known whether the call is right."""
    if LOG_JSON in words:
        return JsonLog(words[0] if words[0] in COMMANDS else None)
    return Log(Progress().say)


def _at_this_site(given: argparse.Namespace) -> None:
    """Fill in what the site lays down, and who acts."""
    from pipeline.release.site import operator_named, site  # noqa: PLC0415 — of the commands that open a ledger alone

    here = site()
    given.ledger = here.ledger_for(given.ledger)
    given.registered_only = here.require_registered
    given.operator = operator_named(given.operator)


def show_json(value: Any) -> None:
    """Print a command's result as JSON."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def _failed(log: Log, message: str, code: int, debug: bool) -> int:
    log.error(message, code, debug=debug)
    return code


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return number


def _at_least_one(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _probability(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
