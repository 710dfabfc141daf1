"""What prepared microdata save: exact totals from them, from raw Parquet and from raw CSV, in one run.

The same records lie in three forms; DaskEngine's threads sum them, by a generated plan, with row ids that are trusted
and with rows of one id combined. The forms take turns, and the best of the rounds counts. All totals must be equal.

    python -m benchmarks.prepared [--records N] [--threads N] [--rounds N]
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from pipeline.economy.generate import generate
from pipeline.engines.dask import DaskEngine
from pipeline.ledger.store import create_ledger
from pipeline.microdata import source
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.preparation.duplicates import records_of
from pipeline.preparation.prepare import PrepareJob, prepare
from pipeline.preparation.prepared import prepared_for
from pipeline.storage.staging import scratch
from pipeline.storage.uri import locate


def main() -> None:
    """Generate the data, prepare them, let all forms run in turn, and print what was measured."""
    given = _arguments()
    engine = DaskEngine(workers=given.threads)
    print(f"{given.records:,} records, {given.threads} threads, best of {given.rounds}")
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
        folder = Path(name)
        made = generate(given.records, 1, folder / "data", threads=given.threads)
        forms = {"csv": _as_csv(made.microdata, folder / "csv"), "parquet": made.microdata}
        for duplicates in ("trust", "combine"):
            plan = _plan(made.plan, duplicates)
            ledger = create_ledger(str(folder / duplicates / "ledger.sqlite"))
            out, start = folder / f"prepared-{duplicates}", time.perf_counter()
            prepare(PrepareJob(plan=plan, raw=locate(forms["parquet"]), out=out, ledger=ledger, engine=engine))
            spent = time.perf_counter() - start
            best = _best(plan, engine, forms | {"prepared": out}, folder / "scratch", given.rounds)
            told = ", ".join(f"{form} {seconds:.3f} s" for form, seconds in best.items())
            print(f"duplicates: {duplicates}: {told}; preparing Parquet {spent:.3f} s")
            for form in forms:
                print(f"    prepared takes {best['prepared'] / best[form]:.2f} times as long as raw {form}")


def _best(plan: Plan, engine: DaskEngine, forms: Mapping[str, Path], root: Path, rounds: int) -> dict[str, float]:
    best = dict.fromkeys(forms, float("inf"))
    totals = []
    for _ in range(rounds):
        for form, path in forms.items():
            start = time.perf_counter()
            chunks = list(source.chunks(source.find(locate(path))))
            proved = prepared_for(path, plan) is not None
            found = records_of(chunks, plan, engine, locate(root), proved)
            with found as (records, layout), scratch(locate(root), plan.release, "totals") as place:
                totals.append(engine.totals(records, layout, place).of_table)
            best[form] = min(best[form], time.perf_counter() - start)
    if not all(np.array_equal(a, b) for found in totals for a, b in zip(found, totals[0], strict=True)):
        raise SystemExit("error: the forms have different totals")
    return best


def _as_csv(microdata: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in sorted(microdata.glob("*.parquet")):
        pyarrow.csv.write_csv(pq.read_table(path), folder / f"{path.stem}.csv")
    return folder


def _plan(path: Path, duplicates: str) -> Plan:
    data = yaml.safe_load(path.read_text())
    data["dataset"]["duplicates"] = duplicates
    mine = path.with_name(f"{duplicates}.yaml")
    mine.write_text(yaml.safe_dump(data, sort_keys=False))
    return load_plan(mine)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prepared", description="Times prepared microdata.")
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
