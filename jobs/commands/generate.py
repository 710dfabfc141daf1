"""prdp generate: synthetic microdata and all that a first release needs."""

import argparse

from jobs.options import Parser, add_debug, add_new_folder, count
from pipeline.economy.generate import generate

EXAMPLE = "prdp generate --records 1000000 --out data"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("--records", type=count, required=True, metavar="N", help="number of establishments")
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    add_new_folder(parser)
    add_debug(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the microdata, the domain and a plan."""
    made = generate(
        arguments.records,
        arguments.seed,
        arguments.out,
        on_file=lambda done, files: arguments.log.progress(f"wrote file {done} of {files}"),
    )
    print(f"microdata {made.microdata}\nplan      {made.plan}\nnext      prdp release {made.plan}")
