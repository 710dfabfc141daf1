"""What was promised of speed and memory, each as a bound on a median or on a ratio of two medians of one session."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.measure import Case, Run

Facts = dict[str, object]
MANY, VERY_MANY = 8_000_000, 64_000_000
MOST_CELLS = 93_062_400  # 32 tables
CELLS_A_SECOND = 5_000_000


@dataclass(frozen=True)
class Goal:
    """At most `most` of a figure (wall, cpu: seconds; peak: MiB) of a case, or of its ratio to another case's."""

    what: str
    figure: str
    of: Facts
    most: float
    over: Facts | None = None

    def found(self, medians: Mapping[Case, Run]) -> float | None:
        """Return the figure or ratio, None where it was not measured."""
        runs = [medians.get(frozenset(facts.items())) for facts in (self.of, self.over) if facts is not None]
        figures = [getattr(run, self.figure) for run in runs if run is not None]
        if len(figures) < len(runs):
            return None
        return float(figures[0] / figures[1]) if self.over is not None else float(figures[0])

    def line(self, found: float) -> list[str]:
        """Return what was to be, what was found, and whether it was met."""
        unit = {"peak": " MiB"}.get(self.figure, " s") if self.over is None else " ×"
        digits = 0 if self.figure == "peak" and self.over is None else 2
        return [self.what, f"{self.most:g}{unit}", f"{found:.{digits}f}{unit}", "yes" if found <= self.most else "no"]


def _release(records: int, by: str, kind: str = "shuffled") -> Facts:
    return {"suite": "release", "records": records, "microdata": kind, "by": by}


def _beside(records: int, other: str, most: float) -> Goal:
    name = f"one table beside {other}, {records // 10**6} million"
    return Goal(name, "wall", _release(records, "prdp"), most, _release(records, other.lower()))


def _twelve(records: int, by: str) -> Facts:
    return {"suite": "publication", "records": records, "tables": 12, "by": by}


def _beside_an_expert(records: int, figure: str, most: float, by: str = "rolled_up") -> Goal:
    who = {"rolled_up": "an expert's DuckDB", "whole_codes": "one by whole codes"}[by]
    name = f"{figure} of 12 tables beside {who}, {records // 10**6} million"
    return Goal(name, figure, _twelve(records, "prdp"), most, _twelve(records, by))


def _beside_spark(records: int, most: float) -> Goal:
    name = f"Spark beside bare Spark, {records // 10**6} million"
    return Goal(name, "wall", _release(records, "prdp on spark"), most, _release(records, "spark"))


def _start(command: str, most: float) -> Goal:
    return Goal(command, "wall", {"suite": "start", "command": command, "by": "prdp"}, most)


def _granularities(records: int, count: int) -> Facts:
    return {"suite": "queries", "records": records, "granularities": min(count, 3), "queries": count, "by": "prdp"}


def _contract(contract: str) -> Facts:
    return {"suite": "contracts", "records": VERY_MANY, "contract": contract, "by": "prdp"}


def _cells(kind: str) -> Facts:
    return {"suite": "cells", "cells": MOST_CELLS, "mechanism": kind, "by": "prdp"}


def _many_cells(by: str) -> Facts:
    return {"suite": "spark", "records": 250_000, "digits": 6, "by": by}


GOALS = (
    *(
        _beside_an_expert(records, figure, most, by)
        for by in ("rolled_up", "whole_codes")
        for records, figure, most in ((VERY_MANY, "wall", 1), (VERY_MANY, "cpu", 0.8), (MANY, "wall", 1.4))
    ),
    _beside(MANY, "DuckDB", 2.8),
    _beside(VERY_MANY, "DuckDB", 1.3),
    _beside(VERY_MANY, "Polars", 0.9),
    Goal("memory, 8 million records", "peak", _release(MANY, "prdp"), 400),
    Goal("memory, 64 million records", "peak", _release(VERY_MANY, "prdp"), 400),
    _beside_spark(MANY, 0.7),
    _beside_spark(VERY_MANY, 0.45),
    Goal("Spark beside bare Spark, many cells", "wall", _many_cells("prdp on spark"), 0.8, _many_cells("spark")),
    Goal("four queries beside one, 8 million", "wall", _granularities(MANY, 4), 1.4, _granularities(MANY, 1)),
    Goal(
        "four queries beside one, 64 million", "wall", _granularities(VERY_MANY, 4), 1.4, _granularities(VERY_MANY, 1)
    ),
    *(
        Goal(f"{each} beside trust, 64 million", "wall", _contract(each), most, _contract("trust"))
        for each, most in (("reject", 8), ("combine", 16), ("firms", 2))
    ),
    _start("release", 1.2),
    _start("ledger check", 0.9),
    _start("explain, four queries", 0.45),
    Goal("93 million cells", "wall", _cells("gaussian"), MOST_CELLS / CELLS_A_SECOND),
    *(
        Goal(f"93 million cells, {kind} noise", "wall", _cells(kind), 1.3, _cells("gaussian"))
        for kind in ("root", "log")
    ),
    Goal("reserving after 1,000 releases", "wall", {"suite": "years", "releases": 1000, "by": "reserve"}, 1),
)


def rows(medians: Mapping[Case, Run]) -> list[list[str]]:
    """Return a row for each goal that was measured."""
    found = ((goal, goal.found(medians)) for goal in GOALS)
    return [goal.line(value) for goal, value in found if value is not None]


def show(medians: Mapping[Case, Run]) -> None:
    """Print the goals that were measured."""
    print(f"{'goal':<44}{'at most':>12}{'found':>12}  met")
    for what, most, value, met in rows(medians):
        print(f"{what:<44}{most:>12}{value:>12}  {met}")
