"""prdp prepare: checked, typed, sorted microdata for repeated releases; confidential."""

import argparse

from jobs.cli import show_json
from jobs.engine import chosen_engine
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.preparation.prepare import PrepareJob, prepare
from pipeline.storage.location import place


def run(given: argparse.Namespace) -> None:
    """Prepare the microdata, then print where they are: how many they are stays in the manifest."""
    with chosen_engine(given) as engine:
        plan = load_plan(given.plan)
        job = PrepareJob(
            plan=plan,
            raw=place(given.raw, what="RAW").resolve(),
            out=given.out.absolute(),
            ledger=open_ledger(given.ledger),
            engine=engine,
            log=given.log,
        )
        manifest = prepare(job)
    made = {"dataset": plan.dataset.name, "out": str(manifest.parent), "manifest": str(manifest)}
    if given.json:
        show_json(made | {"confidential": True})
    else:
        print(f"prepared microdata of {plan.dataset.name}, confidential\nmanifest {manifest}")
        print(f"release from them: prdp release {given.plan} --data {manifest.parent}")
