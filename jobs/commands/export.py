"""prdp export: published or reconciled tables in another format; for everyone."""

from typing import Any

from jobs.output import put
from prdp.releases import export_tables

CALL = export_tables
EXAMPLE = "prdp export releases/cbp-2023-county --to csv --out tables"


def show(made: dict[str, Any], _: object) -> None:
    """Print where the tables, or the site, are."""
    if "format" not in made:
        _show_site(made)
        return
    if "release" in made:
        put(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    else:
        put(f"reconciled tables of {', '.join(made['releases'])}: their files match the manifest")
    for query, table in made["tables"].items():
        put(f"{query}: {table['rows']:,} rows in {table['path']}")


def _show_site(made: dict[str, Any]) -> None:
    put(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    shown = f", {len(made['reconciled'])} of them with reconciled figures" if made["reconciled"] else ""
    shown += f", {len(made['product'])} files of the product" if made["product"] else ""
    put(f"site of {len(made['tables'])} tables{shown}: open {made['out']}/index.html")
