"""prdp product: the files that users load, of published releases; for everyone."""

import argparse
from typing import Any

from jobs.output import put
from prdp.releases import product

CALL = product
EXAMPLE = "prdp product releases/cbp-2023 --out cbp23 --year 2023"


def show(made: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print what the product holds."""
    for release in made["releases"]:
        put(f"release {release['release']}, attempt {release['attempt']}: its files match the manifest")
    size = sum(file["bytes"] for file in made["files"])
    put(f"product {made['product']}: {len(made['files'])} files, {size:,} bytes in {arguments.out}")
