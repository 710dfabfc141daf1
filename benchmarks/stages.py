"""Where the processors' time of a release goes, by stage: a flame graph added up to one bar.

py-spy samples every thread that runs Python; each sample belongs to one stage by the functions that it is in. What the
command takes beyond the samples are threads of Arrow and of NumPy, which read, decode and write.

    python -m benchmarks.stages [--records N …]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measure import MEASURED, ROOT, WORK, Measured
from benchmarks.microdata import made, plan
from benchmarks.world import ONE, World

RATE = 200  # samples a second
ANYWHERE = {"imports": ("<frozen importlib",), "policies and noise tables": ("udfs/losses/", "build_table (")}
INNERMOST = {
    "records": ("udfs/records/", "pipeline/microdata/", "pipeline/release/prep"),
    "noise": ("udfs/noise/", "udfs/mechanisms/"),
    "tables": ("pipeline/engines/writers.py", "pipeline/storage/", "pipeline/release/publish.py"),
    "plan": ("pipeline/plan/", "pipeline/accounting/"),
    "ledger": ("pipeline/ledger/",),
    "pages": ("pipeline/publication/", "pipeline/release/installation.py"),
}
WAITING = ("_worker (concurrent/", "wait (threading")  # for work
NATIVE, REST = "threads of libraries", "the rest"
STAGES = (*ANYWHERE, *INNERMOST, NATIVE, REST)


def stage_of(stack: str) -> str:
    """Return the stage of a sample; functions are parted by semicolons, the innermost is the last."""
    for stage, marks in ANYWHERE.items():
        if any(mark in stack for mark in marks):
            return stage
    for function in reversed(stack.split(";")):
        for stage, marks in INNERMOST.items():
            if any(mark in function for mark in marks):
                return stage
    return REST


def added_up(lines: Iterable[str], cpu: float) -> dict[str, float]:
    """Return seconds of each stage, which add up to a command's `cpu`; `lines` are of py-spy's format raw."""
    seconds: Counter[str] = Counter()
    for line in lines:
        stack, count = line.rsplit(" ", 1)
        if any(mark in stack.rsplit(";", 1)[-1] for mark in WAITING):
            continue
        seconds[stage_of(stack)] += int(count) / RATE  # type: ignore[assignment]  # Counter adds floats too
    sampled = sum(seconds.values())
    shrunk = min(1.0, cpu / sampled) if sampled else 0.0  # a busy machine keeps threads waiting that count as running
    found = {stage: seconds[stage] * shrunk for stage in STAGES}
    return found | {NATIVE: max(0.0, cpu - sampled)}


def main() -> None:
    """Sample a release of each size, print the stages, and keep them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 8_000_000], metavar="N")
    parser.add_argument(
        "--json", type=Path, default=MEASURED, metavar="FILE", help="default: .work/bench/measured.json"
    )
    parser.add_argument("--home", type=Path, default=WORK, metavar="FOLDER", help="of microdata (default: .work/bench)")
    given = parser.parse_args()
    measured = Measured(given.json)
    found = {}
    for records in given.records:
        folder = made(given.home / "data", "shuffled", records)
        one = plan(folder, "one", [ONE])
        cpu = World(given.home / "data", {"": ROOT}).prdp(ROOT, "release", one).cpu
        found[str(records)] = added_up(_sampled(one, given.home), cpu)
        print(f"{records:,} records: {cpu:.2f} s of processors")
        for stage, seconds in found[str(records)].items():
            print(f"  {stage:<28}{seconds:7.2f} s{seconds / cpu:7.0%}")
    measured.put("stages", found)


def _sampled(one: Path, home: Path) -> list[str]:
    with tempfile.TemporaryDirectory(dir=home) as new:
        program = str(Path(sys.executable).with_name("py-spy"))
        options = ["record", "--rate", str(RATE), "--format", "raw", "--output", f"{new}/samples"]
        command = [sys.executable, "-m", "jobs.cli", "release", str(one), "--out", f"{new}/out"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": new}
        try:
            done = subprocess.run(
                [program, *options, "--", *command], env=environment, capture_output=True, check=False
            )
        except FileNotFoundError:
            raise SystemExit("error: py-spy is not there: run it in the environment of `make bench`") from None
        if done.returncode:
            raise SystemExit(f"error: py-spy: {done.stderr.decode(errors='replace')[-500:]}")
        return Path(new, "samples").read_text().splitlines()


if __name__ == "__main__":
    main()
