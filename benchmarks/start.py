"""How long whole commands take, from the shell and back: this prdp, another checkout of it, and DuckDB without privacy.

Every command runs in a process of its own; the contenders take turns, and medians of the rounds count. CPU is user and
system time of the process and its threads, peak its largest resident memory. DuckDB sums employment by naics3 and
county of the same files and writes the sums to Parquet: no cells without records, no noise, no ledger, no pages.

    python -m benchmarks.start [--records N] [--rounds N] [--beside CHECKOUT] [--json FILE]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
FEW = 10_000
FILES = 4
ROW_GROUP = 250_000
QUERY = "employment_naics3_county"
SUMS = (
    "COPY (SELECT substr(naics, 1, 3) AS naics3, county, sum(employment) AS value "
    "FROM read_parquet('{data}/*.parquet') GROUP BY ALL ORDER BY ALL) TO '{out}' (FORMAT parquet)"
)


@dataclass(frozen=True)
class Run:
    """One process: seconds from start to end, seconds of processors, and peak resident MiB."""

    wall: float
    cpu: float
    peak: float


def main() -> None:
    """Make the microdata, let the contenders take turns, and print medians and their ratios."""
    given = _arguments()
    contenders = {"prdp": ROOT} | ({} if given.beside is None else {"beside": given.beside.resolve()})
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as folder:
        home = Path(folder)
        # in a process that ends: what this one holds counts as the peak of the processes that it starts
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            for name, records in (("few", FEW), ("many", given.records)):
                process.submit(write_microdata, home / name, records).result()
        runs: dict[tuple[str, str], list[Run]] = {}
        for _ in range(given.rounds):
            for contender, tree in contenders.items():
                for command, run in _commands(home, tree):
                    runs.setdefault((command, contender), []).append(run)
            if find_spec("duckdb") is not None:
                sums = SUMS.format(data=home / "many" / "microdata", out=home / "sums.parquet")
                program = [sys.executable, "-c", "import sys, duckdb; duckdb.sql(sys.argv[1])", sums]
                runs.setdefault(("release of many records", "duckdb"), []).append(timed(program, {}))
    found = {key: _median(of_command) for key, of_command in runs.items()}
    _show(found, given)
    if given.json is not None:
        medians = [{"command": command, "by": by} | asdict(run) for (command, by), run in found.items()]
        given.json.write_text(json.dumps(medians, indent=2) + "\n")


def _median(runs: Sequence[Run]) -> Run:
    return Run(*(median(getattr(run, each.name) for run in runs) for each in fields(Run)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=8_000_000, help="of the large release (default: 8,000,000)")
    parser.add_argument("--rounds", type=int, default=7, help="of which medians are taken (default: 7)")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout of prdp, which takes turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the medians")
    return parser.parse_args()


def write_microdata(folder: Path, records: int) -> None:
    """Write synthetic microdata in random order, the plan of four queries, and one of a single query."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    from pipeline.economy.generate import generate  # noqa: PLC0415

    made = generate(records, 1, folder)
    at = folder / "microdata"
    whole = pq.read_table(at)
    shutil.rmtree(at)
    at.mkdir()
    whole = whole.take(pa.array(np.random.default_rng(1).permutation(len(whole))))
    share = -(-len(whole) // FILES)
    for part in range(FILES):
        rows = whole.slice(part * share, share)
        pq.write_table(rows, at / f"part-{part}.parquet", compression="zstd", row_group_size=ROW_GROUP)
    plan = yaml.safe_load(made.plan.read_text())
    budget = [limit | {"rho": 10 * limit["rho"]} for limit in plan["budget"]]
    second = plan | {"release": "second", "budget": budget}
    (folder / "four.yaml").write_text(yaml.safe_dump(plan | {"budget": budget}, sort_keys=False))
    (folder / "second.yaml").write_text(yaml.safe_dump(second, sort_keys=False))
    one = [query for query in plan["queries"] if query["name"] == QUERY]
    (folder / "one.yaml").write_text(yaml.safe_dump(second | {"release": "one", "queries": one}, sort_keys=False))


def _commands(home: Path, tree: Path) -> Iterator[tuple[str, Run]]:
    """Yield each command and what it took, with a ledger and an output of their own."""
    place = Path(tempfile.mkdtemp(dir=home))
    environment = {"PYTHONPATH": str(tree), "XDG_STATE_HOME": str(place)}

    def run(*words: str) -> Run:
        return timed([sys.executable, "-m", "jobs.cli", *words], environment)

    def release(plan: str, at: str = "ledger") -> Run:
        words = ("release", str(home / plan), "--out", str(place / plan), "--ledger", str(place / at / "ledger"))
        return run(*words)

    for folder in ("ledger", "another"):
        (place / folder).mkdir(mode=0o700)
        run("ledger", "create", str(place / folder / "ledger"))
    ledger = ("--ledger", str(place / "ledger" / "ledger"))
    second = str(home / "few" / "second.yaml")
    yield "--help", run("--help")
    yield "explain, four queries", run("explain", str(home / "few" / "four.yaml"))
    yield "release of 10,000 records", release("few/one.yaml")
    yield "release of 10,000 records, four queries", release("few/four.yaml")
    yield "ledger show", run("ledger", "show", *ledger)
    yield "ledger check", run("ledger", "check", second, "--out", str(place / "checked"), *ledger)
    yield "verify", run("verify", str(place / "few" / "one.yaml" / "one"))
    yield "release of many records", release("many/one.yaml", "another")
    shutil.rmtree(place)


def timed(words: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run a process and return what it took; stops where it fails."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(words, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=told)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            raise SystemExit(f"error: {' '.join(words)}: exit code {process.returncode}\n{told.read().decode()}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _show(found: Mapping[tuple[str, str], Run], given: argparse.Namespace) -> None:
    print(f"many: {given.records:,} records; medians of {given.rounds}; {len(os.sched_getaffinity(0))} cores\n")
    print(f"{'':<42}{'wall s':>8}{'cpu s':>8}{'MiB':>6}   wall and cpu, as shares of another's")
    for (command, contender), run in found.items():
        if contender != "prdp":
            continue
        others = {name: other for (same, name), other in found.items() if same == command and name != "prdp"}
        ratios = [f"{run.wall / one.wall:.2f}, {run.cpu / one.cpu:.2f} of {name}" for name, one in others.items()]
        print(f"{command:<42}{run.wall:8.2f}{run.cpu:8.2f}{run.peak:6.0f}   {'; '.join(ratios)}")


if __name__ == "__main__":
    main()
