"""prdp verify: whether a folder's files are those of its manifest, and reconciled tables add up; for everyone."""

import argparse
from dataclasses import asdict
from typing import Any

from jobs.output import print_json, say
from prdp.verified import has_front_page, signature_note, verify

CALL = verify
EXAMPLE = "prdp verify releases/cbp-2023-county"
PRINTS_JSON = True


def show(verified: Any, arguments: argparse.Namespace) -> None:
    """Print what was verified."""
    facts = asdict(verified)
    if arguments.json:
        print_json(facts)
        return
    note = signature_note(arguments.path, arguments.key)
    if "attempt" in facts:
        say(f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}", *note)
        if has_front_page(arguments.path):
            say("index.html, the front page, is not in the manifest and was not checked")
        say("ledger head, to be compared with the one that the publisher names:", verified.ledger_head)
    elif "sums" in facts:
        say(f"{', '.join(verified.releases)}, reconciled: {verified.files} files match their manifest", *note)
        say(f"{verified.sums:,} cells are the sums of finer ones, to the last unit")
    else:
        say(f"{verified.title}, of {', '.join(verified.releases)}: {verified.files} files match their manifest", *note)
