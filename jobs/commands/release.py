"""prdp release: release a plan's tables, or go on where an earlier run stopped."""

import argparse

from jobs.cli import show_json
from pipeline.engines.dask import DaskEngine
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.release import Job
from pipeline.release import run as run_job
from pipeline.terminal import Progress, show_published


def run(given: argparse.Namespace) -> None:
    """Release, then print where the tables are and a few rows of each."""
    plan = load_plan(given.plan)
    job = Job(
        plan=plan,
        microdata=(given.data or plan.dataset.path).absolute(),
        out=(given.out or plan.path.parent / "releases").absolute(),
        engine=DaskEngine(given.scheduler, given.workers),
        ledger=open_ledger(given.ledger),
        csv=given.csv,
        say=Progress().say,
    )
    published = run_job(job)
    if given.json:
        show_json(published.to_json())
    else:
        show_published(published)
