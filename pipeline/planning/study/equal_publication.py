"""A whole publication with other noise: every table of a plan by each kind, as accurate as the plan makes it.

Guarantee: of each table, or of each of its parts, all mechanisms have one accuracy at one true total, in the noise that
is drawn on the lattice. What differs is what records and firms lose in all tables together. Intervals and quantiles of
additive noise are whole steps: there noise is the most that is no worse.
"""

import csv
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import ValidationError

from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import BUILT_IN, HEADER, CalibrationError, Target
from pipeline.base.errors import PlanError, arg
from pipeline.base.plots import FORMATS, family_styles, picture
from pipeline.engines.writers import Block
from pipeline.plan.load import draft_of, filled
from pipeline.plan.model import Part, Plan, Query
from pipeline.plan.plan_mechanisms import goes_by_sizes, open_parts, wish_of
from pipeline.plan.plan_schema import PlanSpec
from pipeline.plan.plan_text import PlanText
from pipeline.planning.study.study_figures import write_study
from pipeline.storage.paths import filled as filling
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.numbers.arrays import Floats, Int64s, in_units
from udfs.numbers.exact import bound_text, exact

if TYPE_CHECKING:
    from matplotlib.axes import Axes


A_DECADE: Final = 12  # bins of totals above 0: a bin is 21 % wide
DECADES: Final = (-2, 15)
EDGES: Final = np.geomspace(10.0 ** DECADES[0], 10.0 ** DECADES[1], (DECADES[1] - DECADES[0]) * A_DECADE + 1)


@dataclass(frozen=True, eq=False)
class SizedCells:
    """Of each part of a table: how many cells have a total of 0, and how many lie in each bin of totals above 0.

    `counts` has a row for each part and a column for each bin, `totals` the mean total of each; column 0 is for 0.
    Negative totals count by their magnitude.
    """

    counts: Int64s
    totals: Floats

    @classmethod
    def of(cls, parts: Sequence["SizedCells"]) -> "SizedCells":
        """Return the cells of all blocks of a table."""
        counts = np.sum([part.counts for part in parts], axis=0)
        sums = np.sum([part.totals for part in parts], axis=0)
        return cls(counts, sums / np.maximum(counts, 1))


@dataclass(frozen=True, eq=False, repr=False)
class SizedTask:
    """Counts the cells of a block; `totals` of what it returns are sums."""

    query: Query

    def __call__(self, block: Block) -> SizedCells:
        """Return the block's cells."""
        totals = np.abs(in_units(block.totals, self.query.parts[0].mechanism.step))
        bins = np.where(totals > 0, np.clip(np.searchsorted(EDGES, totals, "right"), 1, len(EDGES)), 0)
        parts = len(self.query.parts)
        of_part = np.zeros(block.size, dtype=np.int64) if block.part_of is None else block.part_of
        numbers, size = of_part * (len(EDGES) + 1) + bins, parts * (len(EDGES) + 1)
        sums: Floats = np.bincount(numbers, totals, size).astype(np.float64)
        return SizedCells(np.bincount(numbers, minlength=size).reshape(parts, -1), sums.reshape(parts, -1))


PLACEHOLDERS = {"total": 1, "sizes": str(BUILT_IN)}  # by which a draft is read before they are known


@contextmanager
def sized_draft(
    text: PlanText, path: Path, variables: Mapping[str, str], cells_of: Callable[[Plan], Sequence[SizedCells]]
) -> Iterator[PlanText]:
    """Yield a draft with each `total` and each `sizes` that it leaves open, for a block: files of sizes end with it.

    A total is the median of the table's cells above 0, within 11 %: cells are counted in bins of 21 %. Sizes are those
    of all its cells above 0. `cells_of` counts the cells of a plan's tables, on microdata that are not the plan's.

    Raises PlanError on a wrong draft, where it leaves nothing open, and where a table has no cell above 0.
    """
    absent = _absent(text, path, variables)
    with tempfile.TemporaryDirectory(prefix="prdp-sizes-") as name:
        folder = Path(name)
        meant = _with(text, {query: {key: PLACEHOLDERS[key]} for query, key in absent.items()})
        plan = draft_of(meant, path, variables)[0]  # says every other mistake
        if not absent:
            raise PlanError(f"{path}: calibrate: no total and no sizes are left open: leave out where they come from")
        cells = dict(zip((query.name for query in plan.queries), cells_of(plan), strict=True))
        wishes: dict[str, dict[str, Any]] = {}
        for number, (query, key) in enumerate(absent.items()):
            counts, totals = cells[query].counts[:, 1:].ravel(), cells[query].totals[:, 1:].ravel()
            if not counts.any():
                raise PlanError(f"{path}: calibrate.queries.{query}.{key}: all its synthetic cells are 0: state it")
            file = folder / f"{number}.csv"
            wishes[query] = {key: _written(file, totals, counts) if key == "sizes" else _median(totals, counts)}
        yield _with(text, wishes)


def _absent(text: PlanText, path: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return for each query whose scale is to be chosen which of `total` and `sizes` it leaves open."""
    try:
        spec = PlanSpec.model_validate(filled(text, path, variables).data)
    except ValidationError:
        return {}  # whoever reads the draft next says what is wrong
    if spec.calibrate is None:
        raise PlanError(f"{path}: calibrate: missing key; only a draft has totals and sizes to be found")
    wishes = {query.name: wish_of(spec.calibrate, query.name) for query in spec.queries if open_parts(query)}
    keys = {name: "sizes" if goes_by_sizes(spec.calibrate, wish) else "total" for name, wish in wishes.items()}
    return {name: key for name, key in keys.items() if getattr(wishes[name], key) is None}


def _with(text: PlanText, wishes: Mapping[str, Mapping[str, Any]]) -> PlanText:
    """Return the draft with keys added to what is wanted of its queries."""
    draft = text.data.get("calibrate")
    if not wishes or not isinstance(draft, dict):
        return text
    stated = draft.get("queries", {})
    queries = stated | {name: stated.get(name, {}) | dict(added) for name, added in wishes.items()}
    return replace(text, data=text.data | {"calibrate": draft | {"queries": queries}})


def _median(totals: Floats, counts: Int64s) -> float:
    middle = totals[np.searchsorted(np.cumsum(counts), counts.sum() / 2)]
    rounded = float(f"{middle:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


def _written(file: Path, totals: Floats, counts: Int64s) -> str:
    with file.open("w", encoding="utf-8", newline="") as lines:
        rows = zip(totals[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True)
        csv.writer(lines).writerows([HEADER, *rows])
    return str(file)


ACCURACIES: Final = ("variance", "mean_absolute_error", "median_relative_error", "interval")
KINDS: Final[
    Mapping[str, Mapping[str, Any]]
] = {  # by name: kind and shape, without a scale; policies are the default ones
    "gaussian": {"kind": "gaussian"},
    "laplace": {"kind": "laplace"},
    "generalized_gaussian": {"kind": "generalized_gaussian", "p": "0.5"},
    "polylog_1": {"kind": "exponential_polylog", "p": 1, "d": 5, "a": 1},
    "polylog_2": {"kind": "exponential_polylog", "p": 2, "d": 1, "a": "2.718281828459046"},
    "stable": {"kind": "symmetric_stable", "alpha": "1.5"},
    "fourth_root": {"kind": "root", "k": 4, "a": 0},
    "fourth_root_laplace": {"kind": "root", "k": 4, "a": 0, "noise": "laplace"},
    "log": {"kind": "log", "a": 1},
    "log_laplace": {"kind": "log", "a": 1, "noise": "laplace"},
}
OWN: Final = "the plan"


@dataclass(frozen=True)
class Wanted:
    """What a part of a table must have: the accuracy of the plan's own mechanism at `total`, a typical one."""

    query: str
    part: str | None
    total: float
    target: Target

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON; `value` is in the measure's unit, of a relative error over the total."""
        return {"table": self.query, "part": self.part, "total": self.total, "value": self.target.wanted}


def publication(
    plan: Plan,
    equal: str,
    kinds: Mapping[str, Mapping[str, Any]],
    cells: Sequence[SizedCells],
    tried: Callable[[Sequence[Plan]], Mapping[str, Any]],
) -> dict[str, Any]:
    """Return what records and firms lose, and which errors are drawn, with each kind in all tables of a plan.

    `cells` are those of the plan's tables in the synthetic microdata; `tried` returns the document of a trial of plans.

    `wanted`: of each table the accuracy and the true total at which all have it: the median of its cells above 0 in the
    synthetic microdata. `entries`: the plan as it is, then each kind: its distributions of losses (`records`, `firms`),
    its tables with drawn errors as `prdp try` states them, and of all tables the largest bias in standard errors of the
    draws (`bias_in_mc`; null where none is known) and the share of intervals that hold the total (`coverage`), over all
    cells. `left_out`: kinds that cannot be so accurate in some table, and why.

    Raises PlanError where the plan's own noise has no such accuracy, and as `tried`.
    """
    wanted = wanted_of(plan, equal, cells)
    plans, left_out = {OWN: plan}, {}
    for name, kind in kinds.items():
        try:
            plans[name] = as_accurate(plan, kind, wanted, name)
        except (CalibrationError, ParameterError) as error:
            left_out[name] = str(error)
    trial = tried(list(plans.values()))
    return {
        "plan": plan.release,
        "equal": equal,
        "notice": trial["notice"],
        "microdata": trial["microdata"],
        "draws": trial["draws"],
        "interval": float(plan.interval),
        "wanted": [each.to_json() for each in wanted],
        "entries": [
            {"name": name, "mechanism": kinds.get(name)} | _entry(of_plan)
            for name, of_plan in zip(plans, trial["plans"], strict=True)
        ],
        "left_out": left_out,
    }


def wanted_of(plan: Plan, equal: str, cells: Sequence[SizedCells]) -> list[Wanted]:
    """Return what each part of each table must have; raises PlanError where its own noise has no such accuracy."""
    wanted = []
    for query, sized in zip(plan.queries, cells, strict=True):
        for number, part in enumerate(query.parts):
            total = typical_total(sized, number)
            try:
                target = _target(part.mechanism, equal, total, plan.interval)
            except ValueError:
                others = " or ".join(each for each in ACCURACIES if each != equal)
                raise PlanError(
                    f"query {query.name}: its noise has no finite {equal.replace('_', ' ')}: choose {arg('equal')} "
                    f"{others}"
                ) from None
            wanted.append(Wanted(query.name, part.name, total, target))
    return wanted


def as_accurate(plan: Plan, kind: Mapping[str, Any], wanted: Sequence[Wanted], name: str) -> Plan:
    """Return the plan with noise of one kind, as accurate as is wanted; it is never released.

    Raises CalibrationError or ParameterError, which name the table, where that cannot be had.
    """
    left = iter(wanted)
    queries = tuple(
        replace(query, parts=tuple(_part(query, part, kind, next(left).target) for part in query.parts))
        for query in plan.queries
    )
    return replace(plan, release=f"{plan.release}-{name.replace('_', '-')}", queries=queries)


def _part(query: Query, part: Part, kind: Mapping[str, Any], target: Target) -> Part:
    fixed = {name: value for name, value in kind.items() if name != "kind"}
    try:
        return replace(part, mechanism=solve(kind["kind"], fixed, part.mechanism.step, target))
    except CalibrationError as error:
        raise CalibrationError(f"{query.name}: {error}") from None


def _target(mechanism: Mechanism, equal: str, total: float, coverage: Fraction) -> Target:
    """Return the target; ValueError where the mechanism's own accuracy is infinite or 0."""
    typical = exact(f"{total:.6g}")
    total = float(typical)
    if equal == "variance":
        return Target.of("standard_error", standard_error=_number(sqrt(mechanism.variance(total))), total=typical)
    if equal == "mean_absolute_error":
        error = _number(mechanism.mean_absolute_error(total))
        return Target.of("mean_absolute_error", mean_absolute_error=error, total=typical)
    if equal == "interval":
        lower, upper = mechanism.interval_around(total, coverage)
        return Target.of("interval", interval=_number(upper - lower), coverage=coverage, total=typical)
    half = Fraction(1, 2)
    error = _number(mechanism.error_quantile(total, half))
    return Target.of("quantile", relative_error=error / typical, total=typical, quantile=half)


def _number(value: float) -> Fraction:
    if not (isfinite(value) and value > 0):
        raise ValueError("no such accuracy")
    return exact(f"{value:.12g}")


def typical_total(cells: SizedCells, part: int) -> float:
    """Return the median of the part's totals above 0, to a bin of theirs; 1 where there is none."""
    counts = np.cumsum(cells.counts[part, 1:])
    return float(cells.totals[part, 1 + np.searchsorted(counts, (counts[-1] + 1) // 2)]) if counts[-1] else 1.0


def _entry(of_plan: Mapping[str, Any]) -> dict[str, Any]:
    rows = [table["classes"][-1] for table in of_plan["tables"]]
    biases = [abs(row["bias"]) / row["bias_mc"] for row in rows if row.get("bias") is not None and row.get("bias_mc")]
    drawn = [row for row in rows if "coverage" in row]
    cells = sum(row["cells"] for row in drawn)
    return {
        "losses": of_plan["losses"],
        "limits": of_plan["limits"],
        "tables": of_plan["tables"],
        "bias_in_mc": max(biases, default=None),
        "coverage": sum(row["coverage"] * row["cells"] for row in drawn) / cells if cells else None,
    }


DOCUMENT: Final = "publication.json"
SHOWN: Final = ("0.5", "0.99", "largest")
OWN_LINE: Final[Mapping[str, Any]] = {"color": "black", "linestyle": ":", "zorder": 3}  # the plan's own noise
LEAST: Final = 1e-4  # a loss below it is drawn as this


def columns(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of a table of text: what records and firms lose with each kind, and what was drawn."""
    groups = [name for name in ("records", "firms") if document["entries"][0]["losses"][name]]
    heads = [f"{name[:-1]}: {of}" for name in groups for of in ("half lose", "99 %", "largest")]
    yield ["noise", *heads, "bias / its error", "coverage", "relative error: median", "90 %"]
    for entry in document["entries"]:
        losses = [entry["losses"][name] for name in groups]
        figures = [(each["quantiles"] | each)[name] for each in losses for name in SHOWN]
        finest = max(entry["tables"], key=lambda table: table["cells"])["classes"][-1]
        errors = [finest.get(f"{name}_relative_error") for name in ("median", "ninety")]
        yield [
            entry["name"],
            *("infinite" if loss is None else bound_text(loss, 3) for loss in figures),
            "-" if entry["bias_in_mc"] is None else f"{entry['bias_in_mc']:.1f}",
            "-" if entry["coverage"] is None else f"{entry['coverage']:.1%}",
            *("-" if error is None else f"{error:.1%}" for error in errors),
        ]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return what is to be known of the figures, and which kinds are left out, and why."""
    equal = document["equal"].replace("_", " ")
    return [
        f"All tables have the plan's {equal} at a typical true total; losses (rho) are of all tables together.",
        "bias / its error: the largest of all tables, in standard errors of the draws; coverage: of intervals of "
        f"{document['interval']:.0%};",
        "relative error: of the table with most cells, over cells and draws.",
        *(f"Left out: {name}: {why}." for name, why in document["left_out"].items()),
    ]


def write(document: Mapping[str, Any], out: Path) -> None:
    """Write the document and the picture into `out`, a folder that is absent or empty; raises as `filled` does."""
    entries = document["entries"]
    styles = family_styles([entry["mechanism"] for entry in entries[1:]])

    def draw(panels: Sequence["Axes"]) -> None:
        for axes, name in zip(panels, ("records", "firms"), strict=True):
            for i, entry in enumerate(entries):
                points = (entry["losses"][name] or {"curve": []})["curve"]
                curve = np.array([point for point in points if point[0] is not None]).reshape(-1, 2)
                style = styles[i - 1] if i else OWN_LINE
                label = entry["name"] if name == "records" else None
                axes.step(np.maximum(curve[:, 0], LEAST), curve[:, 1], where="post", label=label, **style)
            axes.set(xscale="log", ylim=(0, 1.005), xlabel="loss ρ in all tables together")
            axes.set(ylabel=f"share of {name} that lose at most ρ")

    equal = document["equal"].replace("_", " ")
    drawn = picture(f"{document['plan']}: equal by {equal}", draw, panels=2, formats=FORMATS)
    with filling(out) as folder:
        write_study(folder, "publication", document, {"publication": drawn})
