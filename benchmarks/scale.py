"""Very many records, very many files, one very large file, one very large cell: time and memory of prdp on Dask.

Microdata are written as a stream, released, diagnosed and removed, one kind after the other. A straight line through
the releases of two smaller sizes says what each release should take. Before it starts it says how many bytes it needs.

    python -m benchmarks.scale [--cases NAME …] [--records N] [--line N N] [--bytes N] [--keep]
"""

import argparse
import shutil
import sys
from pathlib import Path

from benchmarks.measure import MEASURED, ROOT, WORK, CommandFailed, Measured, Run, run
from benchmarks.microdata import BYTES_A_RECORD, made, plan, require_space, space
from benchmarks.world import ONE, World

CASES = {  # what each is, and as which microdata it is made
    "line": ("two sizes for the straight line, as generated", "generated"),
    "billion": ("--records, as generated: 500 files beyond 500 million", "generated"),
    "small": ("the larger size of the line in 10,000 files", "small"),
    "single": ("one file of --bytes, a million records in each row group", "single"),
    "skewed": ("the larger size of the line, a third of it in one cell", "skewed"),
}
MOST_OFF = 1.1  # of the straight line
MOST_MEMORY = 1024  # MiB


def main() -> None:
    """Measure each case, and print its time beside the straight line's."""
    given = _arguments()
    home = given.home / "scale"
    home.mkdir(parents=True, exist_ok=True)
    measured = Measured(given.json)
    wanted = [(case, number) for case in given.cases for number in sizes(case, given)]
    for case, number in wanted:
        kind = CASES[case][1]
        print(f"{case:<8} {number:>15,} records  {space(kind, number) / 1e9:6.1f} GB, removed afterwards", flush=True)
    for case, number in wanted:
        _measure(World(home, {"": ROOT}), measured, CASES[case][1], number, given.keep)
    show(measured)


def sizes(case: str, given: argparse.Namespace) -> list[int]:
    """Return the numbers of records of a case."""
    match case:
        case "line":
            return list(given.line)
        case "billion":
            return [given.records]
        case "single":
            return [given.bytes // BYTES_A_RECORD["single"]]
        case _:
            return [max(given.line)]


def _measure(world: World, measured: Measured, kind: str, records: int, keep: bool) -> None:
    facts: dict[str, object] = {"suite": "scale", "microdata": kind, "records": records}
    folder = world.home / f"{kind}-{records}"
    if kind == "generated" and not folder.exists():
        require_space(world.home, kind, records)
        words = ["generate", "--records", str(records), "--seed", "1", "--out", str(folder), "--quiet"]
        _add(measured, run([sys.executable, "-m", "jobs.cli", *words], {"PYTHONPATH": str(ROOT)}), facts, "generate")
    one = plan(made(world.home, kind, records), "one", [ONE])
    for command in ("release", "diagnose"):
        _add(measured, world.prdp(ROOT, command, one), facts, command)
    if not keep:
        shutil.rmtree(folder)


def _add(measured: Measured, taken: Run, facts: dict[str, object], command: str) -> None:
    measured.add(taken, **facts, by=command)
    print(f"{facts['microdata']:<10} {facts['records']:>15,} {command:<9}", _text(taken), flush=True)


def _text(taken: Run) -> str:
    return f"{taken.wall:9.1f} s {taken.cpu:9.1f} s CPU {taken.peak:6.0f} MiB"


def rows(measured: Measured) -> list[list[str]]:
    """Return each release and diagnosis beside the straight line through the smallest and the next one as generated."""
    found = {case: taken for case, taken in measured.medians().items() if ("suite", "scale") in case}
    told: list[list[str]] = []
    for command in ("generate", "release", "diagnose"):
        runs = [(dict(case), taken) for case, taken in found.items() if ("by", command) in case]
        runs.sort(key=lambda each: (str(each[0]["microdata"]), int(str(each[0]["records"]))))
        line = [(int(str(facts["records"])), taken.wall) for facts, taken in runs if facts["microdata"] == "generated"][
            :2
        ]
        for facts, taken in runs:
            told.append(
                [command, str(facts["microdata"]), f"{facts['records']:,}", f"{taken.wall:.1f} s", f"{taken.peak:.0f}"]
            )
            records = int(str(facts["records"]))
            if len(line) == 2:
                (small, fast), (large, slow) = line
                straight = fast + (slow - fast) * (records - small) / (large - small)
                told[-1].append(f"{taken.wall / straight:.2f}")
            else:
                told[-1].append("")
    return told


def show(measured: Measured) -> None:
    """Print the table."""
    print(f"{'command':<10}{'microdata':<11}{'records':>15}{'time':>12}{'MiB':>8}  of the straight line")
    for command, kind, records, time, peak, ratio in rows(measured):
        print(f"{command:<10}{kind:<11}{records:>15}{time:>12}{peak:>8}  {ratio}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    told = "; ".join(f"{name}: {what}" for name, (what, _) in CASES.items())
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=told)
    parser.add_argument("--records", type=int, default=1_000_000_000, help="default: a billion")
    parser.add_argument("--line", type=int, nargs=2, default=[8_000_000, 64_000_000], help="default: 8 and 64 million")
    parser.add_argument("--bytes", type=int, default=10 << 30, help="of the single file (default: 10 GiB)")
    parser.add_argument(
        "--json", type=Path, default=MEASURED, metavar="FILE", help="default: .work/bench/measured.json"
    )
    parser.add_argument("--home", type=Path, default=WORK, metavar="FOLDER", help="of microdata (default: .work/bench)")
    parser.add_argument("--keep", action="store_true", help="keep the microdata, which the next run then uses")
    given = parser.parse_args()
    if not min(given.records, *given.line, given.bytes) >= 1000:
        parser.error("--records, --line, --bytes: at least 1,000 is needed")
    return given


if __name__ == "__main__":
    try:
        main()
    except CommandFailed as error:
        sys.exit(f"error: {error}")
