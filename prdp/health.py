"""Whether the machine that runs prdp, and its ledger, are well."""

from pathlib import Path
from typing import Any


def doctor(
    ledger: str | Path | None = None,
    *,
    staging: str | Path | None = None,
    out: str | Path | None = None,
    engine: str | None = None,
    least_free: float = 1,
) -> dict[str, Any]:
    """Return what is well with this machine and its ledger and what must be mended, as `prdp doctor --json`.

    It reads no microdata and writes nothing.

    Args:
        ledger, staging, out: As `Plan.release` takes them. Default: those that the site and the ledger know.
        engine: "dask" or "spark", which must run. Default: one that is not set up is not looked at.
        least_free: GB that must be free on each disk of ledger, staging and output.

    Returns:
        well: whether nothing must be mended; findings, each with check, state ("good", "mend" or "not looked at"),
        what, and fix (None unless to be mended).

    Raises:
        PlanError: There is no such engine, or `staging` or `out` is no location.
    """
    from datetime import UTC, datetime  # noqa: PLC0415 — import prdp stays light

    from pipeline.engines.registry import ENGINES  # noqa: PLC0415
    from pipeline.errors import PlanError  # noqa: PLC0415
    from pipeline.health.doctor import Asked  # noqa: PLC0415
    from pipeline.health.doctor import doctor as examined  # noqa: PLC0415
    from pipeline.health.findings import as_document  # noqa: PLC0415
    from pipeline.storage.uri import locate  # noqa: PLC0415

    if engine not in (None, *ENGINES):
        raise PlanError(f"engine {engine!r}: must be {' or '.join(ENGINES)}")
    staged = None if staging is None else locate(staging, what="--staging").resolve()
    written = None if out is None else locate(out, what="--out")
    named = None if ledger is None else str(ledger)
    return as_document(examined(datetime.now(UTC), Asked(named, staged, written, engine, least_free)))
