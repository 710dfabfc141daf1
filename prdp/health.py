"""Whether the machine that runs prdp, and its ledger, are well."""

from pathlib import Path
from typing import Annotated, Any

from pipeline.base.errors import PlanError, arg
from pipeline.engines.registry import ENGINES
from prdp.declared import Arg, documented

Address = str | Path | None


@documented
def doctor(
    ledger: Annotated[
        Address, Arg("the ledger", "URL", option=True, default="the site's, or a file of the user's")
    ] = None,
    *,
    staging: Annotated[Address, Arg("as of prdp release", "URI", default="those that the ledger knows")] = None,
    out: Annotated[Address, Arg("as of prdp release", "URI", default="that of the last release")] = None,
    engine: Annotated[
        str | None, Arg("the engine that must run", choices=list(ENGINES), default="what is set up")
    ] = None,
    least_free: Annotated[float, Arg("that must be free on each disk", "GB", "above_zero")] = 1,
) -> dict[str, Any]:
    """Return what is well with this machine and its ledger and what must be mended, as `prdp doctor --json`.

    It reads no microdata and writes nothing.

    Returns:
        well: whether nothing must be mended; findings, each with check, state ("good", "mend" or "not looked at"),
        what, and fix (None unless to be mended).
    """
    from datetime import UTC, datetime  # noqa: PLC0415 — import prdp stays light

    from pipeline.operations.doctor import Asked  # noqa: PLC0415
    from pipeline.operations.doctor import doctor as examined  # noqa: PLC0415
    from pipeline.operations.ledger_health import as_document  # noqa: PLC0415
    from pipeline.storage.paths import locate  # noqa: PLC0415

    if engine not in (None, *ENGINES):
        raise PlanError(f"engine {engine!r}: must be {' or '.join(ENGINES)}")
    staged = None if staging is None else locate(staging, what=arg("staging")).resolve()
    written = None if out is None else locate(out, what=arg("out"))
    named = None if ledger is None else str(ledger)
    return as_document(examined(datetime.now(UTC), Asked(named, staged, written, engine, least_free)))
