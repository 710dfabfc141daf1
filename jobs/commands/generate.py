"""prdp generate: synthetic microdata and all that a first release needs."""

import argparse

from pipeline.economy.generate import generate
from pipeline.log import Progress


def run(given: argparse.Namespace) -> None:
    """Write the microdata, the domain and a plan."""
    progress = Progress()
    made = generate(
        given.records,
        given.seed,
        given.out,
        on_file=lambda done, files: progress.say(f"wrote file {done} of {files}"),
    )
    print(f"microdata {made.microdata}\nplan      {made.plan}\nnext      prdp release {made.plan}")
