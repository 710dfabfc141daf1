"""prdp verify: whether a release's files are those of its manifest, and reconciled tables add up; for everyone."""

import argparse
from dataclasses import asdict

from jobs.options import Parser, add_json
from jobs.output import print_json
from pipeline.release.verify import verify_release
from pipeline.storage.location import Location
from pipeline.storage.uri import locate

EXAMPLE = "prdp verify releases/cbp-2023-county"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "folder", metavar="OUT/RELEASE", help="the folder or URI that holds release.json, or reconciled.json"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what was verified."""
    folder = locate(arguments.folder, what="OUT/RELEASE")
    if (folder / "release.json").is_file() or not (folder / "reconciled.json").is_file():
        _release(folder, arguments.json)
    else:
        _reconciled(folder, arguments.json)


def _release(folder: Location, as_json: bool) -> None:
    verified = verify_release(folder)
    if as_json:
        print_json(asdict(verified))
        return
    print(f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}")
    print(f"ledger head {verified.ledger_head}: compare it with the one that the publisher names")


def _reconciled(folder: Location, as_json: bool) -> None:
    from pipeline.product.reconciled import verify_reconciled  # noqa: PLC0415 — more of Arrow and SciPy than releases need

    verified = verify_reconciled(folder)
    if as_json:
        print_json(asdict(verified))
        return
    print(f"{', '.join(verified.releases)}, reconciled: {verified.files} files match their manifest")
    print(f"{verified.sums:,} cells are the sums of finer ones, to the last unit")
