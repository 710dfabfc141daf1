"""prdp verify: for outsiders, whether a release's files are those of its manifest."""

import argparse
from dataclasses import asdict

from jobs.cli import show_json
from pipeline.release.verify import verify_release
from pipeline.storage.location import place


def run(given: argparse.Namespace) -> None:
    """Print what was verified."""
    verified = verify_release(place(given.folder, what="OUT/RELEASE"))
    if given.json:
        show_json(asdict(verified))
    else:
        print(f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}")
        print(f"ledger head {verified.ledger_head}: compare it with the one that the publisher names")
