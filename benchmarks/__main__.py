"""How long prdp takes, from the shell and back, beside programs that promise nothing to anybody.

Every command runs in a process of its own with a ledger and an output of its own. The contenders of a case take turns,
and medians of the rounds count. All runs go to one JSON file, from which `python -m benchmarks.charts` makes
docs/performance.md; a case that is measured again replaces what was there.

    python -m benchmarks [--suites NAME …] [--records N …] [--cells N] [--rounds N] [--add] [--without NAME …]
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

from benchmarks import goals
from benchmarks.measure import MEASURED, ROOT, WORK, CommandFailed, Measured, Run, run
from benchmarks.microdata import made, plan
from benchmarks.world import FOUR, GAUSSIAN, IMPORTS, ONE, SPARK, TWELVE, Contenders, World, named

FEW, SOME = 10_000, 250_000
KINDS = ("shuffled", "generated")
MECHANISMS = {
    "gaussian": GAUSSIAN,
    "root": {"kind": "root", "k": 4, "a": 10, "sigma": 0.5},
    "log": {"kind": "log", "a": 100, "sigma": 0.35},
}
CONTRACTS: dict[str, dict[str, object]] = {
    "trust": {},
    "reject": {"duplicates": "reject"},
    "combine": {"duplicates": "combine"},
    "firms": {"unit": "firm_id"},
}
Suite = Iterator[tuple[dict[str, object], Contenders]]


def start(world: World) -> Suite:
    """Short commands, on 10,000 records."""
    few = made(world.home, "generated", FEW)
    one, four, second = plan(few, "one", [ONE]), plan(few, "four", named(FOUR)), plan(few, "second", [ONE])
    place = Path(tempfile.mkdtemp(dir=world.home))
    world.prdp(ROOT, "release", one, "--out", place / "out", place=place)
    commands: dict[str, tuple[object, ...]] = {
        "--help": ("--help",),
        "explain, four queries": ("explain", four),
        "release": ("release", one),
        "release, four queries": ("release", four),
        "ledger check": ("ledger", "afford", second),
        "ledger show": ("ledger", "show"),
        "verify": ("verify", place / "out" / "one"),
    }
    for command, words in commands.items():
        yield {"command": command}, world.of_each(*words, place=place if words[0] == "ledger" else None)
    shutil.rmtree(place)


def publication(world: World) -> Suite:
    """Twelve tables of many records, beside DuckDB: a query a table, and grouped once and rolled up, in two ways."""
    for records in world.records:
        folder = made(world.home, "shuffled", records)
        contenders = world.of_each("release", plan(folder, "twelve", named(TWELVE)))
        yield (
            {"records": records, "tables": 12},
            contenders | world.others(folder, 3, "twelve", "rolled_up", "whole_codes"),
        )


def release(world: World) -> Suite:
    """One query of many records, beside other programs, on Dask and on Spark."""
    for records in world.records:
        for kind in world.microdata:
            folder = made(world.home, kind, records)
            one = plan(folder, "one", [ONE])
            contenders = world.of_each("release", one) | world.others(folder, 3, "duckdb", "polars", "dask")
            on_spark = world.of_each("release", one, *SPARK, name="prdp on spark") | world.others(folder, 3, "spark")
            yield {"records": records, "microdata": kind}, contenders | on_spark


def spark(world: World) -> Suite:
    """Few records and many cells on Spark, beside its own sums."""
    folder = made(world.home, "generated", SOME)
    for digits in (3, 6):
        query = ONE | {"by": [f"naics{digits}", "county"], "mechanism": GAUSSIAN}
        words = ("release", plan(folder, f"digits{digits}", [query]), *SPARK)
        contenders = world.of_each(*words, name="prdp on spark") | world.others(folder, digits, "spark")
        yield {"records": SOME, "digits": digits}, contenders


def queries(world: World) -> Suite:
    """Growth with queries; and four at three granularities beside one."""
    for records in world.records:
        folder = made(world.home, "shuffled", records)
        for count in (1, 4):
            words = ("release", plan(folder, f"granularities{count}", named(FOUR[:count])))
            yield {"records": records, "granularities": min(count, 3), "queries": count}, world.of_each(*words)
    folder = made(world.home, "shuffled", min(world.records))
    for count in (1, 2, 4, 8, 16):
        words = ("release", plan(folder, f"queries{count}", named([ONE] * count)))
        yield {"records": min(world.records), "queries": count}, world.of_each(*words)


def contracts(world: World) -> Suite:
    """What `reject`, `combine` and firms cost; and what prepared microdata save."""
    for records in world.records:
        folder = made(world.home, "shuffled", records)
        query = ONE | {"mechanism": GAUSSIAN}
        for contract, dataset in CONTRACTS.items():
            words = ("release", plan(folder, contract, [query], **dataset))
            yield {"records": records, "contract": contract}, world.of_each(*words)
        combine, prepared = plan(folder, "combine", [query], **CONTRACTS["combine"]), folder / "prepared"
        if not prepared.exists():
            world.prdp(ROOT, "prepare", folder / "microdata", "--plan", combine, "--out", prepared)
        yield (
            {"records": records, "contract": "combine, prepared"},
            world.of_each("release", combine, "--data", prepared),
        )


def records(world: World) -> Suite:
    """Growth with records: more and more files of the largest microdata."""
    most = max(world.records)
    folder = made(world.home, "generated", most)
    one, files = plan(folder, "one", [ONE]), sorted((folder / "microdata").iterdir())
    count = 1
    while count <= len(files):
        part = Path(tempfile.mkdtemp(dir=world.home))
        (part / "microdata").mkdir()
        for file in files[:count]:
            os.link(file, part / "microdata" / file.name)
        some = most * count // len(files)
        contenders = world.of_each("release", one, "--data", part / "microdata")
        yield {"records": some}, contenders | world.others(part, 3, "duckdb")
        shutil.rmtree(part)
        count *= 2


def cells(world: World) -> Suite:
    """Growth with cells: tables of 2.9 million public cells, of few records; a kind of mechanism a release."""
    folder = made(world.home, "generated", FEW)
    a_table = prod(len(codes.read_text().splitlines()) - 1 for codes in (folder / "domain").iterdir())
    tables = 1
    while tables * a_table <= world.cells:
        last = 2 * tables * a_table > world.cells
        for kind, mechanism in MECHANISMS.items() if last else [("gaussian", GAUSSIAN)]:
            query = {"sum": "employment", "by": ["naics6", "county"], "mechanism": mechanism}
            words = ("release", plan(folder, f"{kind}{tables}", named([query] * tables)))
            yield {"cells": tables * a_table, "mechanism": kind}, world.of_each(*words)
        tables *= 2


def years(world: World) -> Suite:
    """A ledger of many years beside a young one."""
    few = made(world.home, "generated", FEW)
    first, another = plan(few, "first", [ONE]), plan(few, "another", [ONE])
    place = Path(tempfile.mkdtemp(dir=world.home))
    source = place / "ledger"
    world.prdp(ROOT, "ledger", "create", source)
    world.prdp(ROOT, "release", first, "--ledger", source)
    for releases in (10, 100, 1000):
        at = place / str(releases) / "ledger"
        at.parent.mkdir(mode=0o700)
        words = ["fill", str(source), str(at), str(releases)]
        run([sys.executable, "-m", "benchmarks.ledger", *words], IMPORTS)
        _reserve(at, another)  # evaluates every release once, as after an upgrade
        acts: Contenders = {
            "reserve": partial(_reserve, at, another),
            "check": partial(world.prdp, ROOT, "ledger", "afford", another, "--ledger", at),
            "show": partial(world.prdp, ROOT, "ledger", "show", "--ledger", at),
        }
        yield {"releases": releases}, acts
    shutil.rmtree(place)


def _reserve(address: Path, plan: Path) -> Run:
    """Return a reservation's seconds, and the rest as of the process that it takes."""
    with tempfile.NamedTemporaryFile("r") as told:
        taken = run(
            [sys.executable, "-m", "benchmarks.ledger", "reserve", *map(str, (address, plan)), told.name], IMPORTS
        )
        return replace(taken, wall=float(told.read()))


SUITES = {
    suite.__name__: suite for suite in (publication, start, release, spark, queries, contracts, records, cells, years)
}


def main() -> int:
    """Measure the suites that are asked for, print medians, and which goals they meet."""
    given = _arguments()
    home = given.home / "data"
    home.mkdir(parents=True, exist_ok=True)
    products = {"": ROOT} | ({} if given.beside is None else {", beside": given.beside.resolve()})
    world = World(home, products, given.records, given.cells, given.microdata)
    measured = Measured(given.json, given.add)
    failed = False
    for name in given.suites:
        for facts, contenders in SUITES[name](world):
            case = {"suite": name} | facts
            taking_part = {each: turn for each, turn in contenders.items() if each not in given.without}
            print(*(f"{fact:,} {key}" if isinstance(fact, int) else fact for key, fact in case.items()), sep=", ")
            failed |= _take_turns(measured, case, taking_part, given.rounds)
    goals.show(measured.medians())
    if not given.keep:
        shutil.rmtree(home)
    return 1 if failed else 0


def _take_turns(measured: Measured, case: dict[str, object], contenders: Contenders, rounds: int) -> bool:
    """Measure the contenders of a case in turn; return whether one failed, which then takes part no more."""
    failed = set[str]()
    for _ in range(rounds):
        for name, turn in contenders.items():
            if name not in failed:
                try:
                    measured.add(turn(), **case, by=name)
                except CommandFailed as error:
                    failed.add(name)
                    print(f"  {name} takes part no more: {str(error).splitlines()[-1]}", file=sys.stderr)
    medians = measured.medians()
    for name in contenders:
        taken = medians.get(frozenset((case | {"by": name}).items()))
        if taken is not None:
            print(f"  {name:<24}{taken.wall:9.2f} s{taken.cpu:9.2f} s CPU{taken.peak:8.0f} MiB", flush=True)
    return bool(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Whole commands beside other programs.")
    parser.add_argument(
        "--suites", nargs="+", choices=SUITES, default=list(SUITES), metavar="NAME", help=", ".join(SUITES)
    )
    parser.add_argument("--records", type=int, nargs="+", default=[8_000_000], metavar="N", help="default: 8,000,000")
    parser.add_argument("--microdata", nargs="+", choices=KINDS, default=KINDS, help="of the suite release")
    parser.add_argument("--cells", type=int, default=12_000_000, help="at most, of a release (default: 12 million)")
    parser.add_argument("--rounds", type=int, default=7, help="of which medians are taken (default: 7)")
    parser.add_argument("--add", action="store_true", help="add rounds to those of a case that the file holds")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="contenders that take no part")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout of prdp, which takes turns")
    parser.add_argument(
        "--json", type=Path, default=MEASURED, metavar="FILE", help="default: .work/bench/measured.json"
    )
    parser.add_argument("--home", type=Path, default=WORK, metavar="FOLDER", help="of microdata (default: .work/bench)")
    parser.add_argument("--keep", action="store_true", help="keep the microdata, which the next run then uses")
    given = parser.parse_args()
    if not (given.rounds >= 1 and min(given.records) >= 1):
        parser.error("--rounds, --records: at least 1 is needed")
    return given


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandFailed as error:
        sys.exit(f"error: {error}")
