"""Prepared microdata for tests, and a run of `prdp prepare` that dies on cue."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.plan.load import load_plan
from pipeline.release.prepare import PrepareJob, prepare
from pipeline.storage.paths import locate
from tests.support.submit import FORK_SERVER, MOST_EVENTS, Place, die_at_event


def prepared(place: Place, raw: Path, out: Path, engine: Engine | None = None) -> Path:
    """Prepare by the place's plan; return the folder."""
    return prepare(
        PrepareJob(
            plan=load_plan(place.plan),
            raw=locate(raw),
            out=out,
            ledger=place.ledger(),
            engine=engine or DaskEngine(workers=2),
        )
    ).parent


def prepare_in_child(place: Place, raw: Path, out: Path, die_at: int | None) -> tuple[int | None, str]:
    """Prepare in a process that kills itself (SIGKILL) before its change number `die_at` of a file below `out`."""
    seen = FORK_SERVER.Array("c", MOST_EVENTS)
    child = FORK_SERVER.Process(target=_child, args=(place, raw, out, die_at, seen))
    child.start()
    child.join(120)
    return child.exitcode, seen.value.decode()


def _child(place: Place, raw: Path, out: Path, die_at: int | None, seen: Any) -> None:
    die_at_event(die_at, seen, out)
    prepared(place, raw, out)


def raw_forms(folder: Path, table: pa.Table) -> dict[str, Path]:
    """The same rows as Parquet and as CSV, in other orders and cuts."""
    forms = {"parquet": folder / "as-parquet", "csv": folder / "as-csv"}
    for path in forms.values():
        path.mkdir()
    for i, first in enumerate(range(0, len(table), 700)):
        pq.write_table(table.slice(first, 700), forms["parquet"] / f"{i}.parquet", row_group_size=90)
    half = len(table) // 2
    pa.csv.write_csv(table.slice(half), forms["csv"] / "a.csv")
    pa.csv.write_csv(table.slice(0, half), forms["csv"] / "b.csv")
    return forms


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of the Parquet files of a prepared folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}
