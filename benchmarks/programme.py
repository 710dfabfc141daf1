"""How fast Dask releases the whole programme, conf/plans/cbp.yaml from 7.4 million records, beside two keys alone, and
how fast `prdp product` makes its files of that.

Both plans release the same microdata, each in a process of its own, from the command to the settled ledger: cells a
second a core (in all, and in the phase of noise), peak memory, and disk at its fullest. The plan of two keys has the
programme's tables by industry and county or state. Phases are what `prdp release` reports; `--profile` writes what the
driver's calls took.

    python -m benchmarks.programme [--states CODES] [--workers N] [--profile FILE]
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.ledger.store import create_ledger
from pipeline.plan.load import load_plan
from pipeline.planning.economy.like import generate_like

TWO_KEYS = {"nation", "state", "county", *(f"naics{digits}" for digits in range(2, 7))}
PROGRESS = re.compile(r"\[ *([\d.]+) s\] (\w+)")
NOISE = "noise, files and page"
PHASES = {"building": "noise tables", "reading": "exact sums", "drawing": NOISE}


@dataclass(frozen=True)
class Run:
    """A release: its cells, wall-clock and processor seconds, peak resident bytes, most bytes on disk, and phases."""

    cells: int
    seconds: float
    processor: float
    memory: int
    disk: int
    phases: dict[str, float]

    def speed(self, workers: int, phase: str | None = None) -> float:
        """Return millions of cells a second a core, over the whole run or in one phase."""
        return self.cells / (self.seconds if phase is None else self.phases[phase]) / workers / 1e6


def main() -> None:
    """Generate the microdata, release both plans, and print what was measured."""
    given = _arguments()
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as name:
        made = generate_like("cbp-2011", 0, Path(name) / "data", states=given.states)
        two_keys = made.plan.with_name("two-keys.yaml")
        two_keys.write_text(yaml.safe_dump(_of_two_keys(yaml.safe_load(made.plan.read_text()))))
        print(f"{made.records:,} records, {given.workers} threads")
        for label, plan in (("two keys", two_keys), ("programme", made.plan)):
            profile = ["-m", "cProfile", "-o", given.profile] if given.profile and plan == made.plan else []
            run = runs[label] = _release(plan, Path(name) / label, given.workers, profile)
            speed, of_noise = (run.speed(given.workers, phase) for phase in (None, NOISE))
            of_processor = run.cells / run.processor / 1e6
            print(
                f"{label:<10} {run.cells:>12,} cells {run.seconds:7.1f} s   million cells/s a core: {speed:.2f},"
                f" of noise {of_noise:.2f}, by processors' time {of_processor:.2f}"
                f"   memory {run.memory / 1e9:.2f} GB   disk {run.disk / 1e9:.2f} GB"
            )
            print(" " * 11 + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in run.phases.items()))
        (release,) = (Path(name) / label / "out").iterdir()
        made_of = _product(release, Path(name) / "made", runs[label].cells)
        print(
            f"{'product':<10} {made_of.cells:>12,} cells {made_of.seconds:7.1f} s"
            f"   memory {made_of.memory / 1e9:.2f} GB   disk {made_of.disk / 1e9:.2f} GB"
        )
    for what, phase in (("in all", None), ("in the phase of noise", NOISE)):
        speeds = [run.speed(given.workers, phase) for run in runs.values()]
        print(f"{what} the programme has {speeds[1] / speeds[0]:.2f} times the speed of two keys")


def _product(release: Path, folder: Path, cells: int) -> Run:
    folder.mkdir()
    words = ["-m", "jobs.cli", "product", str(release), "--out", str(folder / "product"), "--year", "2011"]
    return _measured(words, folder, folder / "progress", cells)


def _of_two_keys(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan with industry and county alone, and its tables by these."""
    plan["dataset"]["keys"] = {key: plan["dataset"]["keys"][key] for key in ("naics", "county")}
    plan["domain"] = {"naics": plan["domain"]["naics"], "county": plan["domain"]["county"]["list"]}
    plan["queries"] = [query for query in plan["queries"] if set(query["by"]) <= TWO_KEYS]
    return plan


def _release(path: Path, folder: Path, workers: int, profile: list[str]) -> Run:
    plan = load_plan(path)
    cells = sum(plan.domain.query_cells(query.by, query.where).size for query in plan.queries)
    folder.mkdir()
    told = folder / "progress"
    ledger = folder / "state" / "ledger.sqlite"
    create_ledger(str(ledger))
    options = {"--out": folder / "out", "--ledger": ledger, "--workers": workers}
    given = [str(text) for option in options.items() for text in option]
    return _measured([*profile, "-m", "jobs.cli", "release", str(path), *given], folder, told, cells)


def _measured(words: list[str], folder: Path, told: Path, cells: int) -> Run:
    """Run Python with `words`, which writes to `folder` alone."""
    start, most = time.perf_counter(), 0
    with told.open("w") as errors:
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=errors)
        while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
            most = max(most, _size(folder))
            time.sleep(0.2)
    seconds = time.perf_counter() - start
    _, status, usage = waited
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(told.read_text())
    return Run(
        cells=cells,
        seconds=seconds,
        processor=usage.ru_utime + usage.ru_stime,
        memory=usage.ru_maxrss * 1024,
        disk=most,
        phases=_phases(told.read_text(), seconds),
    )


def _size(folder: Path) -> int:
    size = 0
    for root, _, files in os.walk(folder):
        for file in files:
            try:
                size += os.stat(os.path.join(root, file)).st_blocks * 512
            except FileNotFoundError:
                continue  # staging that was destroyed meanwhile
    return size


def _phases(progress: str, seconds: float) -> dict[str, float]:
    """Return how long each phase took, from its first line to the next one's."""
    begun = {"start": 0.0}
    for line in PROGRESS.finditer(progress):
        begun.setdefault(PHASES.get(line[2], line[2]), float(line[1]))
    ends = [*list(begun.values())[1:], seconds]
    return {phase: end - start for (phase, start), end in zip(begun.items(), ends, strict=True)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programme", description="Times the whole programme.")
    parser.add_argument("--states", type=lambda text: text.split(","), default=[], metavar="CODES", help="default: all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--profile", metavar="FILE", help="of the programme's driver, for pstats")
    return parser.parse_args()


if __name__ == "__main__":
    main()
