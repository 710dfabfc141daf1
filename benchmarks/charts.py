"""The figures of docs/performance.md and of the README, from what was measured: pictures and tables.

    python -m benchmarks.charts [--json FILE]

Writes the parts of both pages between their marks, and the pictures in docs/performance/.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import goals, scale, spark_model
from benchmarks.measure import LOAD, ROOT, Measured, Run, case_of
from benchmarks.stages import STAGES

PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
PICTURES = ROOT / "docs" / "performance"
KEPT = PICTURES / "measured.json"
QUIET = 2.5  # load before a session that the one before it may have left; more is of other programs
LIBRARIES = ("python", "duckdb", "polars", "dask", "pyspark", "pyarrow")
MARKS = re.compile(r"(<!-- made by benchmarks.charts: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {
    "prdp": "prdp on Dask",
    "duckdb": "DuckDB",
    "twelve": "DuckDB, a query a table",
    "rolled_up": "DuckDB, grouped once",
    "whole_codes": "DuckDB, grouped once by whole codes",
    "polars": "Polars",
    "dask": "Dask",
    "prdp on spark": "prdp on Spark",
    "spark": "Spark",
}
COLOURS = {"prdp": "#1f77b4", "prdp on spark": "#6baed6"}
OTHERS = "#999999"

Row = tuple[dict[str, Any], Run]


class Found:
    """The medians, by suite."""

    def __init__(self, measured: Measured) -> None:
        self.measured, self.medians = measured, measured.medians()
        load = max((row.get(LOAD, 0.0) for row in measured.rows), default=0.0)
        self.busy = load if load > QUIET else 0.0

    def of(self, **facts: object) -> list[Row]:
        """Return the cases with these facts, in the order of the file."""
        rows = ((dict(case), taken) for case, taken in self.medians.items())
        return [row for row in rows if facts.items() <= row[0].items()]


def main() -> None:
    """Write the pages and draw the pictures of what was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.charts", description="figures of docs/performance.md")
    parser.add_argument(
        "--json", type=Path, default=KEPT, metavar="FILE", help="default: docs/performance/measured.json"
    )
    path = parser.parse_args().json
    if not path.exists():
        raise SystemExit(f"error: {path} is not there: make bench OPTIONS='--json {path}' writes it")
    found = Found(Measured(path))
    for page in (PAGE, README):
        text = page.read_text(encoding="utf-8")
        page.write_text(MARKS.sub(lambda at: f"{at[1]}\n{PARTS[at[2]](found)}\n{at[3]}", text), encoding="utf-8")
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "prdp"})
    PICTURES.mkdir(exist_ok=True)
    for name, draw in {"ratios": _ratios, "growth": _growth, "stages": _stages}.items():
        figure = draw(found)
        if figure is not None:
            figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are figures."""
    body = [*rows]
    if not body:
        return "Not measured yet.\n"
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine(found: Found) -> str:
    machine, versions = found.measured.document["machine"], found.measured.document["versions"]
    libraries = ", ".join(f"{name} {versions[name]}" for name in LIBRARIES if name in versions)
    rounds = sorted(Counter(map(case_of, found.measured.rows)).values())
    text = (
        f"Measured on {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']:g} GiB; {libraries}. "
    )
    text += f"Medians of {rounds[0]} to {rounds[-1]} rounds.\n"
    if not found.busy:
        return text
    busy = f"**Other programs ran at the same time** (load {found.busy:g} on {machine['cores']} cores)"
    return f"{text}\n{busy}: times by the clock are too long, and ratios of processors' time say more.\n"


def _goals(found: Found) -> str:
    return table(("of the median runs", "at most", "found", "met"), goals.rows(found.medians))


def _beside(suite: str, first: str) -> Callable[[Found], str]:
    """Return what writes a suite's programs beside the one named `first`, those on Spark beside Spark."""

    def written(found: Found) -> str:
        rows = []
        for facts, taken in found.of(suite=suite):
            base = found.of(**{**facts, "by": "spark" if "spark" in facts["by"] else first})
            ratios = [
                f"{taken.wall / run.wall:.2f}, {taken.cpu / run.cpu:.2f} of {NAMES[base['by']]}" for base, run in base
            ]
            size = f"{facts['records'] / 1e6:g} million, {facts.get('microdata', 'shuffled')}"
            rows.append((size, NAMES.get(facts["by"]) or str(facts["by"]), *_figures(taken), *(ratios or [""])))
        return table(("records", "program", "s", "s of processors", "MiB", "ratios: time, processors"), rows)

    return written


def _start(found: Found) -> str:
    rows = [(f"`{facts['command']}`", *_figures(taken)) for facts, taken in found.of(suite="start", by="prdp")]
    return table(("command", "s", "s of processors", "MiB"), rows)


def _figures(taken: Run) -> tuple[str, str, str]:
    return f"{taken.wall:.2f}", f"{taken.cpu:.2f}", f"{taken.peak:.0f}"


def _beside_first(suite: str, by: str, name: Callable[[dict[str, Any]], str]) -> Callable[[Found], str]:
    """Return what writes the cases of a suite beside the first one of as many records."""

    def written(found: Found) -> str:
        rows, first = [], dict[object, Run]()
        for facts, taken in found.of(suite=suite, by=by):
            base = first.setdefault(facts.get("records"), taken)
            ratios = (f"{taken.wall / base.wall:.2f}", f"{taken.cpu / base.cpu:.2f}")
            rows.append((name(facts), *ratios, f"{taken.peak:.0f}"))
        return table(("", "time, of the first", "processors, of the first", "MiB"), rows)

    return written


def _million(facts: dict[str, Any]) -> str:
    return f"{facts['records'] / 1e6:g} million records"


def _queries(facts: dict[str, Any]) -> str:
    told = {1: "one query"}.get(facts["queries"], f"{facts['queries']} queries")
    granularities = facts.get("granularities", 1)
    return f"{_million(facts)}, {told}" + (f" at {granularities} granularities" if granularities > 1 else "")


def _years(found: Found) -> str:
    ages = list(dict.fromkeys(facts["releases"] for facts, _ in found.of(suite="years")))
    rows = []
    for act in ("reserve", "check", "show") if ages else ():
        runs = [found.of(suite="years", releases=age, by=act) for age in ages]
        rows.append((f"`{act}`", *(f"{run[0][1].wall:.2f}" if run else "" for run in runs)))
    return table(("s, after earlier releases", *(f"{age:,}" for age in ages)), rows)


def _spark(found: Found) -> str:
    rows = []
    for facts, taken in found.of(suite="spark", by="prdp on spark"):
        ((_, bare),) = found.of(suite="spark", digits=facts["digits"], by="spark")
        ratios = (f"{taken.wall / bare.wall:.2f}", f"{taken.cpu / bare.cpu:.2f}")
        rows.append((f"{facts['records']:,} records, {facts['digits']}-digit industries", *ratios))
    return table(("", "time, of bare Spark", "processors, of bare Spark"), rows)


def _scale(found: Found) -> str:
    return table(("command", "microdata", "records", "time", "MiB", "of the straight line"), scale.rows(found.measured))


def _model(found: Found) -> str:
    return spark_model.written(found.measured.document)


def _readme(found: Found) -> str:
    """Return ratios of processors' time, and of time by the clock where no other programs ran."""
    rows = []
    figures = {"processors' time": "cpu"} | ({} if found.busy else {"time": "wall"})
    for records in dict.fromkeys(facts["records"] for facts, _ in found.of(suite="release", microdata="shuffled")):
        runs = {facts["by"]: taken for facts, taken in found.of(suite="release", records=records, microdata="shuffled")}
        for ours, other in (("prdp", "duckdb"), ("prdp on spark", "spark")):
            if {ours, other} <= runs.keys():
                ratios = [getattr(runs[ours], name) / getattr(runs[other], name) for name in figures.values()]
                beside = f"{NAMES[ours]} beside {NAMES[other]}"
                texts = [f"{ratio:.1f} ×" for ratio in ratios]
                rows.append((f"{records / 1e6:g} million", beside, *texts, f"{runs[ours].peak:.0f} MiB"))
    return table(("records", "", *figures, "memory"), rows)


PARTS: dict[str, Callable[[Found], str]] = {
    "machine": _machine,
    "goals": _goals,
    "publication": _beside("publication", "rolled_up"),
    "release": _beside("release", "duckdb"),
    "start": _start,
    "queries": _beside_first("queries", "prdp", _queries),
    "contracts": _beside_first("contracts", "prdp", lambda facts: f"{_million(facts)}, {facts['contract']}"),
    "years": _years,
    "spark": _spark,
    "scale": _scale,
    "model": _model,
    "readme": _readme,
}


def _ratios(found: Found) -> Figure | None:
    """Draw each program's time and processors' time, a panel for each size of shuffled microdata."""
    sizes = list(dict.fromkeys(facts["records"] for facts, _ in found.of(suite="release", microdata="shuffled")))
    if not sizes:
        return None
    figure = Figure(figsize=(8, 2.6))
    for number, records in enumerate(sizes, 1):
        axes = figure.add_subplot(1, len(sizes), number)
        runs = [(row["by"], taken) for row, taken in found.of(suite="release", records=records, microdata="shuffled")]
        for place, (by, taken) in enumerate(reversed(runs)):
            colour = COLOURS.get(by, OTHERS)
            axes.barh(place + 0.18, taken.wall, 0.34, color=colour)
            axes.barh(place - 0.18, taken.cpu, 0.34, color=colour, alpha=0.45)
        axes.set_yticks(range(len(runs)), [NAMES.get(by) or str(by) for by, _ in reversed(runs)])
        axes.set_xlabel("seconds by the clock; pale: of processors")
        axes.set_title(f"{records / 1e6:g} million records")
    figure.tight_layout()
    return figure


def _growth(found: Found) -> Figure | None:
    """Draw time against records, cells and queries: of processors, where other programs ran."""
    seconds = "cpu" if found.busy else "wall"
    equal = [row for row in found.of(suite="queries", by="prdp") if "granularities" not in row[0]]
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {
        "million records": {
            by: _line(found.of(suite="records", by=by), "records", 1e6, seconds) for by in ("prdp", "duckdb")
        },
        "million cells": {"prdp": _line(found.of(suite="cells", mechanism="gaussian"), "cells", 1e6, seconds)},
        "queries": {"prdp": _line(equal, "queries", 1, seconds)},
    }
    figure = Figure(figsize=(8, 2.4))
    for number, (what, lines) in enumerate(panels.items(), 1):
        axes: Axes = figure.add_subplot(1, 3, number)
        for by, points in lines.items():
            xs, ys = zip(*points, strict=True) if points else ((), ())
            axes.plot(xs, ys, marker="o", clip_on=False, color=COLOURS.get(by, OTHERS), label=NAMES[by])
        axes.set(xlabel=what, xlim=(0, None), ylim=(0, None))
        if number == 1:
            axes.set_ylabel("seconds of processors" if found.busy else "seconds")
            axes.legend(frameon=False)
    figure.tight_layout()
    return figure


def _line(rows: Iterable[Row], fact: str, unit: float, of: str) -> list[tuple[float, float]]:
    return sorted((facts[fact] / unit, getattr(taken, of)) for facts, taken in rows)


def _stages(found: Found) -> Figure | None:
    """Draw a bar of processors' seconds for each size, divided by stage."""
    bars = found.measured.document.get("stages")
    if not bars:
        return None
    figure = Figure(figsize=(8, 0.9 + 0.5 * len(bars)))
    axes = figure.add_subplot()
    colours = mpl.colormaps["tab20"]
    start = [0.0] * len(bars)
    for number, stage in enumerate(STAGES):
        seconds = [bar[stage] for bar in bars.values()]
        axes.barh(range(len(bars)), seconds, 0.6, left=start, color=colours(number), label=stage)
        start = [before + more for before, more in zip(start, seconds, strict=True)]
    axes.set_yticks(range(len(bars)), [f"{int(records):,} records" for records in bars])
    axes.set_xlabel("seconds of processors")
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.45, 1))
    return figure


if __name__ == "__main__":
    main()
