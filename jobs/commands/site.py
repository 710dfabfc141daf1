"""prdp site: a public site of a published release, also with reconciled figures and a product; for everyone."""

from typing import Any

from jobs.output import put
from prdp.releases import site

CALL = site
EXAMPLE = "prdp site releases/cbp-2023-county reconciled --product cbp23 --out site"


def show(made: dict[str, Any], _: object) -> None:
    """Print where the site is."""
    put(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    shown = f", {len(made['reconciled'])} of them with reconciled figures" if made["reconciled"] else ""
    shown += f", {len(made['product'])} files of the product" if made["product"] else ""
    put(f"site of {len(made['tables'])} tables{shown}: open {made['out']}/index.html")
