"""prdp diagnose: losses of the actual records, and errors against the true totals; confidential."""

from typing import Any

from jobs.output import put
from prdp.microdata import diagnose

CALL = diagnose
EXAMPLE = "prdp diagnose plan.yaml --out confidential/cbp-2023"


def show(made: dict[str, Any], _: object) -> None:
    """Print where the diagnostics are: their contents stay there."""
    put(f"confidential diagnostics of {made['release']}\nreport {made['report']}\ndata   {made['diagnostics']}")
