"""The parser of the `prdp` command; a command's options are declared by its own module."""

import argparse
from collections.abc import Collection
from importlib import import_module
from types import ModuleType

from jobs.commands import COMMANDS
from jobs.options import Parser, StrictParser, add_call, add_json, called, example, sentence
from jobs.output import print_json


def parser_with(declared: Collection[str], *, shows_version: bool = False) -> StrictParser:
    """Return the parser with the options of the `declared` commands, whose modules alone are imported.

    `shows_version`: reading the version takes longer than all else here.
    """
    parser = StrictParser(
        prog="prdp",
        description="Releases totals of establishment microdata under per-record differential privacy.",
        epilog="Each command has its own help: prdp release --help. Start with prdp generate.",
    )
    parser.add_argument("--version", action="version", version=f"prdp {_version()}" if shows_version else "prdp")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=StrictParser)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=sentence(summary))
        if name in declared:
            module = import_module(f"jobs.commands.{name}")
            command.epilog = example(module.EXAMPLE)
            declare(command, module)
    return parser


def declare(parser: Parser, module: ModuleType) -> None:
    """Add the options of a command: those that its module declares, or the parameters of the function it calls."""
    if hasattr(module, "declare"):
        module.declare(parser)
    else:
        add_call(parser, module.CALL)
        add_json(parser)


def run(module: ModuleType, arguments: argparse.Namespace) -> None:
    """Run a command: by its module's `run`, or call its function and show what was made."""
    if hasattr(module, "run"):
        module.run(arguments)
        return
    made = called(module.CALL, arguments)
    if arguments.json:
        print_json(made.to_json() if hasattr(made, "to_json") else made)
    else:
        module.show(made, arguments)


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return version("prdp")
