"""prdp product: the files that users load, of published or reconciled tables; for everyone."""

import argparse
from typing import Any

from jobs.output import put
from prdp.releases import product

CALL = product
EXAMPLE = "prdp product reconciled releases/cbp-2023 --out cbp23 --year 2023"


def show(made: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print what the product holds."""
    for release in made["releases"]:
        what, whose = ("reconciled tables of the release", "their") if "reconciled" in made else ("release", "its")
        put(f"{what} {release['release']}, attempt {release['attempt']}: {whose} files match the manifest")
    size = sum(file["bytes"] for file in made["files"])
    put(f"product {made['product']}: {len(made['files'])} files, {size:,} bytes in {arguments.out}")
    for file in made["left_out"]:
        put(f"left out: {file}, since no folder has its tables")
