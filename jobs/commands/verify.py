"""prdp verify: whether a folder's files are those of its manifest, and reconciled tables add up; for everyone."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.options import Parser, add_json
from jobs.output import print_json, say
from pipeline.publication.manifest import FRONT, named_signer, verify_release
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST

if TYPE_CHECKING:
    from pipeline.publication.signing import PublicKey

Report = tuple[dict[str, Any], tuple[str, ...]]  # as JSON, and for people
EXAMPLE = "prdp verify releases/cbp-2023-county"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="the folder or URI that holds release.json, reconciled.json or product.json"
    )
    parser.add_argument(
        "--key", type=Path, metavar="PUBLIC", help="the publisher's public key: the manifest must be signed by it"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what was verified."""
    folder = locate(arguments.folder, what="FOLDER")
    key = None
    if arguments.key is not None:
        from pipeline.publication.signing import load_public_key  # noqa: PLC0415 — cryptography, which the rest does not need

        key = load_public_key(arguments.key)
    kinds = {MANIFEST: _release, "reconciled.json": _reconciled, "product.json": _product}
    name = next((name for name in kinds if (folder / name).is_file()), MANIFEST)
    facts, (first, *rest) = kinds[name](folder, key)
    if arguments.json:
        print_json(facts)
        return
    unchecked = key is None and named_signer(folder, name) is not None
    signed = [] if key is None else [f"its manifest is signed by the key {key.fingerprint}"]
    signed += ["it is signed, which was not checked: give --key PUBLIC, the publisher's public key"] * unchecked
    say(first, *signed, *rest)


def _release(folder: Location, key: "PublicKey | None") -> Report:
    verified = verify_release(folder, key)
    front = ("index.html, the front page, is not in the manifest and was not checked",)
    return asdict(verified), (
        f"{verified.release}: {verified.files} files match the manifest of attempt {verified.attempt}",
        *front * (folder / FRONT).is_file(),
        "ledger head, to be compared with the one that the publisher names:",
        verified.ledger_head,
    )


def _reconciled(folder: Location, key: "PublicKey | None") -> Report:
    from pipeline.publication.reconcile.reconciled_folder import verify_reconciled  # noqa: PLC0415 — SciPy, which releases do not need

    verified = verify_reconciled(folder, key)
    return asdict(verified), (
        f"{', '.join(verified.releases)}, reconciled: {verified.files} files match their manifest",
        f"{verified.sums:,} cells are the sums of finer ones, to the last unit",
    )


def _product(folder: Location, key: "PublicKey | None") -> Report:
    from pipeline.publication.product.products import verify_product  # noqa: PLC0415 — likewise

    verified = verify_product(folder, key)
    told = f"{verified.title}, of {', '.join(verified.releases)}: {verified.files} files match their manifest"
    return asdict(verified), (told,)
