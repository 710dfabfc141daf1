"""Diagnostics runs for tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.diagnostics import diagnostics_page
from pipeline.diagnostics.diagnose import DiagnosticsJob, diagnose
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.ledger.store import create_ledger
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from tests.support import firms
from tests.support.losses import economy
from tests.support.world import COUNTIES, NAICS

QUERIES = [*firms.QUERIES, *firms.COARSE]
OUTSIDE = ("999999", "56045")


def microdata(count: int = 600, seed: int = 1) -> pa.Table:
    return economy(seed, count, (*NAICS, OUTSIDE[0]), (*COUNTIES, OUTSIDE[1]), [f"F{i}" for i in range(50)])


def diagnosed(plan: Path, out: Path, engine: Engine | None = None, *, pictures: bool = False, **settings: Any) -> Path:
    """Diagnose into `out`; the ledger lies in the folder `state`, by default beside it. Pictures take most time."""
    loaded = load_plan(plan)
    job = DiagnosticsJob(
        plan=loaded,
        microdata=locate(settings.pop("microdata", loaded.dataset.path)),
        out=out,
        ledger=create_ledger(str(settings.pop("state", out.parent / "state") / "ledger.sqlite")),
        engine=engine or DaskEngine(workers=2),
        **settings,
    )
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr(diagnostics_page, "can_draw", lambda: False)
        return diagnose(job)


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "diagnostics.json").read_bytes())
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all files of a folder, in the order of the files."""
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def in_files(folder: Path, table: pa.Table, size: int, change: Callable[[pa.Table], pa.Table] = lambda t: t) -> Path:
    """Write a table as several files of `size` records."""
    folder.mkdir(parents=True)
    for i, start in enumerate(range(0, len(table), size)):
        pq.write_table(change(table.slice(start, size)), folder / f"part-{i:03d}.parquet", row_group_size=97)
    return folder
