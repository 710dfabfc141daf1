"""prdp diagnose: losses of the actual records, and errors against the true totals; confidential."""

import argparse
from pathlib import Path

from jobs.inputs import chosen_engine
from jobs.options import Parser, add_data, add_engine, add_json, add_ledger, add_plan
from jobs.output import print_json
from pipeline.diagnostics.run import DOCUMENT, PAGE, DiagnosticsJob, default_release, diagnose
from pipeline.errors import PlanError
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.storage.location import Location
from pipeline.storage.uri import locate

EXAMPLE = "prdp diagnose plan.yaml --out confidential/cbp-2023"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    add_data(parser)
    parser.add_argument("--out", required=True, metavar="URI", help="folder to write, new or empty")
    parser.add_argument(
        "--release",
        type=Path,
        metavar="FOLDER",
        help="a published release of the plan to compare with the true totals (default: the one in releases/ beside "
        "the plan, if there)",
    )
    parser.add_argument(
        "--per-record", action="store_true", help="also write the losses of every record and firm, as Parquet"
    )
    add_engine(parser)
    add_ledger(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the diagnostics, then print where they are: their contents stay there."""
    with chosen_engine(arguments) as engine:
        plan = load_plan(arguments.plan)
        job = DiagnosticsJob(
            plan=plan,
            microdata=_microdata(arguments, plan),
            out=_out(arguments),
            ledger=open_ledger(arguments.ledger).signed(arguments.operator),
            engine=engine,
            published=(arguments.release or default_release(plan)),
            per_record=arguments.per_record,
            log=arguments.log,
        )
        out = diagnose(job)
    if arguments.json:
        result = {"release": plan.release, "plan_digest": plan.digest, "out": str(out)}
        result |= {"report": str(out / PAGE), "diagnostics": str(out / DOCUMENT)}
        result |= {name: str(out / name) for name in ("records", "firms") if (out / name).is_dir()}
        print_json(result | {"confidential": True})
    else:
        print(f"confidential diagnostics of {plan.release}\nreport {out / PAGE}\ndata   {out / DOCUMENT}")


def _microdata(arguments: argparse.Namespace, plan: Plan) -> Location:
    at = plan.dataset.path if arguments.data is None else locate(arguments.data, what="--data")
    if at is None:
        raise PlanError("dataset.source: prdp diagnose reads files; give a copy of the table with --data")
    return at.resolve("microdata")


def _out(arguments: argparse.Namespace) -> Path:
    out = locate(arguments.out, what="--out")
    path = out.as_path()
    if path is None:
        raise PlanError(f"--out {out}: diagnostics lie in a folder of mode 0700; name one of this machine")
    out.resolve("--out")
    return path
