"""prdp release: release a plan's tables, or go on where an earlier run stopped."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq

from jobs.cli import show_json
from jobs.engine import chosen_engine
from jobs.places import microdata_of, out_of, place_given
from pipeline.errors import StateError
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.release.lineage import append_new, run_events
from pipeline.release.run import Job, Outcome
from pipeline.release.run import run as run_job
from pipeline.storage.location import opened, place

ROWS_SHOWN = 4


def run(given: argparse.Namespace) -> None:
    """Release or hold, then print where the tables are, and of published ones a few rows."""
    with chosen_engine(given) as engine:
        plan = load_plan(given.plan)
        job = Job(
            plan=plan,
            microdata=microdata_of(given, plan),
            out=out_of(given, plan),
            staging=place_given(given.staging, "--staging"),
            engine=engine,
            ledger=open_ledger(given.ledger).signed(given.operator),
            csv=given.csv,
            hold=given.hold,
            registered_only=given.registered_only,
            log=given.log,
        )
        with _lineage(job, given.lineage):
            outcome = run_job(job)
    if given.json:
        show_json(outcome.to_json())
    else:
        _show(outcome)


@contextmanager
def _lineage(job: Job, target: Path | None) -> Iterator[None]:
    """Append the release's lineage to the file `target`, if there is one, after the block and after its errors too."""
    if target is None:
        yield
        return
    append_new([], target)  # what cannot be written is told before anything is charged
    try:
        yield
    except Exception:
        with suppress(StateError):  # the error of the release is the one to be told
            _append_lineage(job, target)
        raise
    _append_lineage(job, target)


def _append_lineage(job: Job, target: Path) -> None:
    append_new(run_events(job.plan, job.ledger.entries(job.plan.release)), target)


def _show(outcome: Outcome) -> None:
    print(f"release {outcome.release}, attempt {outcome.attempt}: {outcome.state}")
    if outcome.state == "held":
        print("nothing is published yet: an officer looks at the staged tables, which are confidential, and runs")
        print(f"prdp ledger approve {outcome.release}, or prdp ledger reject {outcome.release} --reason TEXT")
    else:
        print(f"manifest {outcome.out / outcome.release / 'release.json'}")
    for query, table in outcome.tables.items():
        print(f"\n{query}: {table['rows']:,} rows in {table['path']}")
        if outcome.state == "held":
            continue
        with opened(place(table["path"]) / "part-00000.parquet") as raw, pq.ParquetFile(raw) as file:
            print(next(file.iter_batches(ROWS_SHOWN)).to_pandas().to_string(index=False))
