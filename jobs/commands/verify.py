"""prdp verify: whether a release's files are those of its manifest, and reconciled tables add up; for everyone."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.options import Parser, add_json
from jobs.output import print_json, say
from pipeline.errors import StateError
from pipeline.release.manifest import named_signer, verify_release
from pipeline.storage.location import Location
from pipeline.storage.uri import locate

Report = tuple[dict[str, Any], tuple[str, ...]]  # as JSON, and for people
EXAMPLE = "prdp verify releases/cbp-2023-county"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "folder", metavar="OUT/RELEASE", help="the folder or URI that holds release.json, or reconciled.json"
    )
    parser.add_argument(
        "--key", type=Path, metavar="PUBLIC", help="the publisher's public key: release.json must be signed by it"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what was verified."""
    folder = locate(arguments.folder, what="OUT/RELEASE")
    if (folder / "release.json").is_file() or not (folder / "reconciled.json").is_file():
        facts, lines = _release(folder, arguments.key)
    elif arguments.key is not None:
        raise StateError(
            f"{folder}: reconciled tables are not signed: leave --key out, and give it with their releases"
        )
    else:
        facts, lines = _reconciled(folder)
    if arguments.json:
        print_json(facts)
    else:
        say(*lines)


def _release(folder: Location, key: Path | None) -> Report:
    if key is None:
        verified = verify_release(folder)
        unchecked = named_signer(folder) is not None
        signed = ("it is signed, which was not checked: give --key PUBLIC, the publisher's public key",) * unchecked
    else:
        from pipeline.release.signing import load_public_key  # noqa: PLC0415 — cryptography, which the rest does not need

        verified = verify_release(folder, load_public_key(key))
        signed = (f"its manifest is signed by the key {verified.signed_by}",)
    return asdict(verified), (
        f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}",
        *signed,
        "ledger head, to be compared with the one that the publisher names:",
        verified.ledger_head,
    )


def _reconciled(folder: Location) -> Report:
    from pipeline.product.reconciled_folder import verify_reconciled  # noqa: PLC0415 — SciPy, which releases do not need

    verified = verify_reconciled(folder)
    return asdict(verified), (
        f"{', '.join(verified.releases)}, reconciled: {verified.files} files match their manifest",
        f"{verified.sums:,} cells are the sums of finer ones, to the last unit",
    )
