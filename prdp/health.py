"""Whether the machine that runs prdp, and its ledger, are well."""

from pathlib import Path
from typing import Annotated, Any

from pipeline.base.errors import PlanError, arg
from pipeline.engines.registry import ENGINES
from prdp.declared import Arg, documented

Address = str | Path | None
ONLY = "look at the ledger alone, as a probe does every minute; not at this machine"
WAITS = "a release must be looked at that went no further"
HELD = "a release must be looked at that was held"
METRICS = "with --ledger-only: write metrics for Prometheus there, as prdp release does"


@documented
def doctor(
    ledger: Annotated[
        Address, Arg("the ledger", "URL", option=True, default="the site's, or a file of the user's")
    ] = None,
    *,
    ledger_only: Annotated[bool, Arg(ONLY)] = False,
    staging: Annotated[Address, Arg("as of prdp release", "URI", default="those that the ledger knows")] = None,
    out: Annotated[Address, Arg("as of prdp release", "URI", default="that of the last release")] = None,
    engine: Annotated[
        str | None, Arg("the engine that must run", choices=list(ENGINES), default="what is set up")
    ] = None,
    longest: Annotated[float, Arg(WAITS, "HOURS", "above_zero")] = 1,
    longest_held: Annotated[float, Arg(HELD, "HOURS", "above_zero")] = 168,
    least_free: Annotated[float, Arg("that must be free on each disk", "GB", "above_zero")] = 1,
    metrics: Annotated[Address, Arg(METRICS, "PLACE")] = None,
) -> dict[str, Any]:
    """Return what is well with this machine and its ledger and what must be mended, as `prdp doctor --json`.

    It reads no microdata and writes nothing but metrics.

    Returns:
        well: whether nothing must be mended; findings, each with check, state ("good", "mend" or "not looked at"),
        what, and fix (None unless to be mended).
    """
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 — import prdp stays light

    from pipeline.operations.doctor import Asked  # noqa: PLC0415
    from pipeline.operations.doctor import doctor as examined  # noqa: PLC0415
    from pipeline.operations.ledger_health import as_document  # noqa: PLC0415
    from pipeline.storage.paths import locate  # noqa: PLC0415
    from prdp.ledgers import opened  # noqa: PLC0415

    if engine not in (None, *ENGINES):
        raise PlanError(f"{arg('engine', engine)}: must be {' or '.join(ENGINES)}")
    named = None if ledger is None else str(ledger)
    if ledger_only:
        return opened(named, None, first_use=False).health(longest, longest_held, least_free, metrics)
    if metrics is not None:
        raise PlanError(f"{arg('metrics')}: it goes with {arg('ledger_only')}")
    staged = None if staging is None else locate(str(staging), what=arg("staging")).resolve()
    written = None if out is None else locate(str(out), what=arg("out"))
    hours = timedelta(hours=longest), timedelta(hours=longest_held)
    return as_document(examined(datetime.now(UTC), Asked(named, staged, written, engine, least_free, *hours)))
