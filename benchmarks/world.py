"""The commands of prdp and of other programs that benchmarks run, each in a process with a place of its own."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Run, run

TIGHT = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459046, "sigma": 20, "policy": "tight"}
GAUSSIAN = {"kind": "gaussian", "sigma": 20}
ONE = {"name": "table", "sum": "employment", "by": ["naics3", "county"], "mechanism": TIGHT}
FOUR = (  # four queries at three granularities
    ONE,
    {"sum": "payroll", "by": ["naics2", "county"], "mechanism": {"kind": "log", "a": 10000, "sigma": 0.2}},
    {"sum": "employment", "by": ["naics2", "state"], "mechanism": {"kind": "laplace", "sigma": 500}},
    {"count": "records", "by": ["naics2", "county"], "mechanism": GAUSSIAN},
)
TWELVE = tuple(  # three measures at four granularities: 260,952 to 969 cells
    {**what, "by": [industry, area]}
    for industry, area in (("naics3", "county"), ("naics2", "county"), ("naics3", "state"), ("naics2", "state"))
    for what in (
        {"sum": "employment", "mechanism": GAUSSIAN},
        {"sum": "payroll", "mechanism": GAUSSIAN | {"sigma": 2000}},
        {"count": "records", "mechanism": GAUSSIAN},
    )
)
IMPORTS = {"PYTHONPATH": str(ROOT)}
SPARK = ("--engine", "spark", "--master", "local[*]")

Contenders = dict[str, Callable[[], Run]]


@dataclass(frozen=True)
class World:
    """What the suites measure with: a place for microdata, the prdps by name, and how much is asked for."""

    home: Path
    products: Mapping[str, Path]  # by what its name adds to prdp's
    records: Sequence[int] = ()
    cells: int = 0
    microdata: Sequence[str] = ()

    def prdp(self, tree: Path, *words: object, place: Path | None = None) -> Run:
        """Run a command of a checkout, whose ledger lies in `place`, by default a new one."""
        with tempfile.TemporaryDirectory(dir=self.home) as new:
            environment = {"PYTHONPATH": str(tree), "XDG_STATE_HOME": str(place or new)}
            out = ["--out", f"{new}/out"] if words[0] in ("release", "diagnose") and "--out" not in words else []
            # -P: else the working folder's checkout would run, whatever `tree` is
            command = [sys.executable, "-P", "-m", "jobs.cli", *map(str, words), *out]
            return run(command, environment, tree="spark" in words)

    def of_each(self, *words: object, name: str = "prdp", place: Path | None = None) -> Contenders:
        """Return a command by every checkout."""
        return {name + each: partial(self.prdp, tree, *words, place=place) for each, tree in self.products.items()}

    def plain(self, program: str, folder: Path, digits: int = 3) -> Run:
        """Run another program on microdata."""
        with tempfile.TemporaryDirectory(dir=self.home) as new:
            words = [program, f"{folder}/microdata", f"{new}/out", str(digits)]
            return run([sys.executable, "-m", "benchmarks.plain", *words], IMPORTS, program == "spark")

    def others(self, folder: Path, digits: int = 3, *programs: str) -> Contenders:
        """Return other programs on microdata."""
        return {each: partial(self.plain, each, folder, digits) for each in programs}


def named(some: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return queries with names of their own."""
    return [{**query, "name": f"table{number}"} for number, query in enumerate(some)]
