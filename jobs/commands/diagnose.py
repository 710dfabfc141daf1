"""prdp diagnose: losses of the actual records and errors against the truth; confidential."""

import argparse
from pathlib import Path

from jobs.cli import show_json
from jobs.engine import chosen_engine
from pipeline.diagnostics.run import DOCUMENT, PAGE, DiagnosticsJob, default_release, diagnose
from pipeline.errors import PlanError
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.storage.location import Place, place, resolved


def run(given: argparse.Namespace) -> None:
    """Write the diagnostics, then print where they are: what they say stays there."""
    with chosen_engine(given) as engine:
        plan = load_plan(given.plan)
        job = DiagnosticsJob(
            plan=plan,
            microdata=_microdata(given, plan),
            out=_out(given),
            ledger=open_ledger(given.ledger).signed(given.operator),
            engine=engine,
            published=(given.release or default_release(plan)),
            per_record=given.per_record,
            log=given.log,
        )
        out = diagnose(job)
    made = {"release": plan.release, "plan_digest": plan.digest, "out": str(out)}
    made |= {"report": str(out / PAGE), "diagnostics": str(out / DOCUMENT)}
    made |= {name: str(out / name) for name in ("records", "firms") if (out / name).is_dir()}
    if given.json:
        show_json(made | {"confidential": True})
    else:
        print(f"confidential diagnostics of {plan.release}\nreport {made['report']}\ndata   {made['diagnostics']}")


def _microdata(given: argparse.Namespace, plan: Plan) -> Place:
    at = plan.dataset.path if given.data is None else place(given.data, what="--data")
    if at is None:
        raise PlanError("dataset.source: prdp diagnose reads files; give a copy of the table with --data")
    return resolved(at, "microdata")


def _out(given: argparse.Namespace) -> Path:
    out = place(given.out, what="--out")
    if not isinstance(out, Path):
        raise PlanError(f"--out {out}: diagnostics lie in a folder of mode 0700; name one of this machine")
    resolved(out, "--out")
    return out.absolute()
