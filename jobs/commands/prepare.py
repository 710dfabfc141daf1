"""prdp prepare: checked, typed, sorted microdata for repeated releases; confidential."""

import argparse
import shlex
from typing import Any

from jobs.output import put, say, tell
from prdp.microdata import prepare

CALL = prepare
EXAMPLE = "prdp prepare raw.csv --plan plan.yaml --out prepared"


def show(prepared: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print where they are, and how they are released; their number stays in the confidential manifest."""
    put(f"prepared microdata of {prepared['dataset']}, confidential\nmanifest {prepared['manifest']}")
    if prepared["registered"] in (None, prepared["out"]):
        values = [word for value in arguments.set for word in ("--set", value)]
        words = shlex.join([arguments.plan, *values, "--data", prepared["out"]])
        tell(f"release from them:\nprdp release {words}")
    else:
        say(
            f"the ledger registers the dataset with {prepared['registered']}, and releases it from there alone: "
            f"before its first release an officer can register {prepared['out']} instead:"
        )
        tell(f"prdp ledger correct {prepared['dataset']} --budget FILE")
