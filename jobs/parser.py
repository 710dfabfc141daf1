"""The parser of the `prdp` command; a command's options are declared by its own module."""

from collections.abc import Collection
from importlib import import_module

from jobs.commands import COMMANDS
from jobs.options import StrictParser, example, sentence


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
            module.declare(command)
    return parser


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return version("prdp")
