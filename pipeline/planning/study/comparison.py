"""All families of noise at equal accuracy, ranked by what records of public sizes lose: a choice without microdata.

Every candidate meets the same accuracy at the same true total, so what differs is the policy function alone. An
objective says which is best:

- largest: the least loss of the largest record;
- mean: the least mean loss of a record;
- share: the largest share of records that lose at most a limit, and of equals the one with the least mean.

Losses are those of the policies that plans have by default; beside a tight one stands the paper's bound. Kinds for
counts are compared where records are counted: each has an influence of 1.

None of this binds anything: the promise is the plan's policy function, whoever chose it, as long as no confidential
number went into the choice (docs/mathematics.md, section 1; docs/calibration.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.calibrate import solve
from pipeline.accounting.targets import ONE_EACH, CalibrationError, Sizes, Target
from pipeline.base.errors import arg
from pipeline.base.plain import aligned, figure
from pipeline.base.plots import REFERENCE, family_styles, write_picture
from pipeline.planning.explanation import groups_json
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import as_json, bound_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Shapes = Mapping[str, Sequence[str]]  # parameter → values on a small grid

# What a comparison tries: a new kind adds a line. `a` of exponential_polylog is e^(p−1), where its noise is most
# peaked; for p = 1 it only scales σ. Thresholds and offsets are in the measure's unit: decades from one employee to
# large establishments; unit splitting is compared as the baseline that it is, since its noise is Gaussian. Stable noise
# has no variance, with alpha 1 no mean absolute error either. The groupwise kinds are for counts.
FAMILIES: Sequence[tuple[str, Shapes]] = (
    ("gaussian", {}),
    ("unit_splitting", {"threshold": ("1", "10", "100", "1000"), "policy": ("paper",)}),
    ("laplace", {}),
    ("generalized_gaussian", {"p": ("0.2", "0.25", "0.33", "0.5", "0.75")}),
    ("exponential_polylog", {"p": ("1",), "a": ("1",), "d": ("3.5", "4", "5", "8")}),
    ("exponential_polylog", {"p": ("1.5",), "a": ("1.64872128",), "d": ("0.75", "1", "1.5", "2", "3")}),
    ("exponential_polylog", {"p": ("2",), "a": ("2.71828183",), "d": ("0.5", "0.75", "1", "1.5", "2.5")}),
    ("exponential_polylog", {"p": ("3",), "a": ("7.3890561",), "d": ("0.1", "0.2", "0.4")}),
    ("symmetric_stable", {"alpha": ("1", "1.25", "1.5", "1.75", "1.9")}),
    ("root", {"noise": ("gaussian",), "k": ("2", "3", "4", "6"), "a": ("0", "1", "10", "100")}),
    ("root", {"noise": ("laplace",), "k": ("2", "3", "4", "6"), "a": ("0", "1", "10", "100")}),
    ("log", {"noise": ("gaussian",), "a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("log", {"noise": ("laplace",), "a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("groupwise_log", {"a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("groupwise_noisy", {"r": ("0.01", "0.02", "0.05", "0.1")}),
)


def shapes() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each kind with each of its shapes."""
    for kind, grid in FAMILIES:
        for values in product(*grid.values()):
            yield kind, dict(zip(grid, values, strict=True))


def family(described: Mapping[str, Any]) -> str:
    """Return the name under which shapes are one family: the kind, and what noise it has where it has a choice."""
    noise = described.get("noise")
    return described["kind"] if noise is None else f"{described['kind']}, {noise} noise"


SHOWN = (0.5, 0.9, 0.99, 0.999)  # quantiles of the losses
COUNTS_ONLY = "for counts alone, in which each record has an influence of 1: --count compares them"


@dataclass(frozen=True)
class Objective:
    """What is best: `name` is largest, mean or share; `limit` is a loss, which share needs and the others report on."""

    name: str
    limit: Fraction | None = None

    def __post_init__(self) -> None:
        if self.name not in ("largest", "mean", "share"):
            raise ValueError(f"{arg('objective')}: must be one of largest, mean, share")
        if self.name == "share" and self.limit is None:
            raise ValueError(f"{arg('limit')}: the objective share needs one")
        if self.limit is not None and not self.limit > 0:
            raise ValueError(f"{arg('limit')}: must be above 0")

    def score(self, candidate: "Candidate") -> tuple[float, ...]:
        """Return what is least for the best candidate."""
        if self.name == "share":
            return (-(candidate.share or 0.0), candidate.mean)
        first, second = candidate.largest, candidate.mean
        return (first, second) if self.name == "largest" else (second, first)


@dataclass(frozen=True, eq=False, kw_only=True)
class Losses:
    """The losses of the distribution's records, in the order of its values, and what summarises them."""

    losses: NDArray[np.float64]
    largest: float
    mean: float
    share: float | None  # of records that lose at most the limit, where there is one
    quantiles: tuple[float, ...]  # at SHOWN: so many records lose at most so much


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate(Losses):
    """A mechanism that meets the target, and what records lose; of a tight policy also by the paper's bound."""

    mechanism: Mechanism
    paper: Losses | None

    @property
    def family(self) -> str:
        """The family whose shape this is."""
        return family(self.mechanism.describe())


@dataclass(frozen=True, eq=False)
class Comparison:
    """The candidates, the best first, and why other shapes are none."""

    target: Target
    objective: Objective
    sizes: Sizes
    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, dict[str, str], str], ...]

    @property
    def best(self) -> tuple[Candidate, ...]:
        """The best candidate of each family, the best family first."""
        first: dict[str, Candidate] = {}
        for candidate in self.candidates:
            first.setdefault(candidate.family, candidate)
        return tuple(first.values())

    @property
    def totals(self) -> tuple[float, ...]:
        """True totals at which errors are shown: 0, that of the target, and a hundred times it."""
        total = float(self.target.total)
        return tuple(sorted({0.0, total, 100 * total}))

    @property
    def without(self) -> dict[str, str]:
        """The kinds of which no shape is a candidate, and why the first of them is none."""
        kinds = {candidate.mechanism.kind for candidate in self.candidates}
        reasons: dict[str, str] = {}
        for kind, _, why in self.left_out:
            reasons.setdefault(kind, why)
        return {kind: why for kind, why in reasons.items() if kind not in kinds}


def compare(
    target: Target,
    sizes: Sizes,
    objective: Objective,
    step: Fraction = Fraction(1),
    on_try: Callable[[int], None] = lambda tried: None,
) -> Comparison:
    """Return every family and shape at the accuracy `target`, ranked by `objective`.

    Kinds for counts stand among them where the sizes are ONE_EACH. `on_try`(n) is called before the n-th shape. Raises
    ValueError on a target that is a loss.
    """
    if target.at_record:
        raise ValueError("target: must be an accuracy")
    candidates: list[Candidate] = []
    left_out: list[tuple[str, dict[str, str], str]] = []
    for tried, (kind, shape) in enumerate(shapes()):
        on_try(tried)
        if CATALOGUE[kind].counts_only and sizes is not ONE_EACH:
            left_out.append((kind, shape, COUNTS_ONLY))
            continue
        try:
            candidates.append(_candidate(solve(kind, shape, step, target), sizes, objective.limit))
        except (CalibrationError, ParameterError) as error:
            left_out.append((kind, shape, str(error)))
    ranked = sorted(candidates, key=objective.score)
    return Comparison(target, objective, sizes, tuple(ranked), tuple(left_out))


def _candidate(mechanism: Mechanism, sizes: Sizes, limit: Fraction | None) -> Candidate:
    paper = _losses(mechanism.by_paper(), sizes, limit) if mechanism.tight else None
    return Candidate(mechanism=mechanism, paper=paper, **vars(_losses(mechanism, sizes, limit)))


def _losses(mechanism: Mechanism, sizes: Sizes, limit: Fraction | None) -> Losses:
    losses = mechanism.loss(sizes.value)
    part = sizes.count / sizes.records
    below = np.minimum(np.cumsum(part), 1.0)
    ranks = [min(int(np.searchsorted(below, share)), len(losses) - 1) for share in SHOWN]
    return Losses(
        losses=losses,
        largest=float(losses[-1]),
        mean=float(losses @ part),
        share=None if limit is None else float(part[losses <= float(limit)].sum()),
        quantiles=tuple(losses[ranks].tolist()),
    )


def to_json(comparison: Comparison, at: Iterable[float] = ()) -> dict[str, Any]:
    """Return the comparison as JSON; with errors at the true totals `at`."""
    target = {name: as_json(value) for name, value in comparison.target.numbers.items()}
    totals = tuple(at)
    return {
        "target": target,
        "objective": comparison.objective.name,
        "limit": None if comparison.objective.limit is None else as_json(comparison.objective.limit),
        "records": comparison.sizes.records,
        "largest_size": float(comparison.sizes.value[-1]),
        "families": [_candidate_json(comparison, candidate, totals) for candidate in comparison.best],
        "candidates": [_candidate_json(comparison, candidate, totals) for candidate in comparison.candidates],
        "left_out": [{"mechanism": {"kind": kind} | shape, "why": why} for kind, shape, why in comparison.left_out],
    }


def _candidate_json(comparison: Comparison, candidate: Candidate, totals: tuple[float, ...]) -> dict[str, Any]:
    return {
        "family": candidate.family,
        "mechanism": candidate.mechanism.describe(),
        **_figures(candidate),
        "paper": None if candidate.paper is None else _figures(candidate.paper),
        "errors": [{"total": total, "error": error_at(comparison.target, candidate, total)} for total in totals],
    } | groups_json(candidate.mechanism)


def _figures(losses: Losses) -> dict[str, Any]:
    share = {} if losses.share is None else {"share": losses.share}
    quantiles = dict(zip(map(str, SHOWN), losses.quantiles, strict=True))
    return {"largest": losses.largest, "mean": losses.mean, **share, "quantiles": quantiles}


def error_at(target: Target, candidate: Candidate, total: float) -> float | None:
    """Return what the target asks for (standard error, …) at another true total; None stands for an infinite one."""
    if target.at_record or target.quantity == "share":
        raise TypeError(f"a {target.what} is meant at no total")
    if not total > 0 and target.is_relative:
        return None
    value = float(target.at_total(Fraction(total)).value(candidate.mechanism))
    return value if isfinite(value) and value < inf else None


def table(comparison: Comparison, totals: tuple[float, ...]) -> str:
    """Return the best shape of each family in aligned columns, the best family first.

    Where a policy is tight, the paper's bound of the same noise stands in columns of its own.
    """
    limit = [] if comparison.objective.limit is None else [f"lose ≤ {as_json(comparison.objective.limit)}"]
    heads = ["", "family", "parameters", "largest loss", "mean loss", "median", "99 %", *limit]
    heads += [f"paper: {name}" for name in ("mean", "median", *limit)]
    heads += [f"error at {total:,.6g}" for total in totals]
    rows = [heads]
    for rank, candidate in enumerate(comparison.best, start=1):
        stated = _shown(candidate, candidate.largest, candidate.mean, candidate.quantiles[0], candidate.quantiles[2])
        paper = [""] * (2 + len(limit))
        if candidate.paper is not None:
            paper = _shown(candidate.paper, candidate.paper.mean, candidate.paper.quantiles[0])
        errors = (error_at(comparison.target, candidate, total) for total in totals)
        shown = [figure(error, 4, none="infinite") for error in errors]
        parameters = _parameters(candidate.mechanism)
        rows.append([f"{rank}", candidate.family, parameters, *stated, *paper, *shown])
    return "\n".join(aligned(rows, indent=0))


def _parameters(mechanism: Mechanism) -> str:
    numbers = [p.name for p in mechanism.parameters().values() if p.kind == "number"]
    return ", ".join(f"{name} {float(getattr(mechanism, name)):.6g}" for name in numbers)


def _shown(losses: Losses, *figures: float) -> list[str]:
    return [*(bound_text(loss, 4) for loss in figures), *([] if losses.share is None else [f"{losses.share:.4%}"])]


def summary(comparison: Comparison) -> str:
    """Return what was compared, in words."""
    sizes, target = comparison.sizes, comparison.target
    accuracy = ", ".join(f"{name.replace('_', ' ')} {as_json(value)}" for name, value in target.numbers.items())
    records = "a count: each record's influence is 1"
    if sizes is not ONE_EACH:
        records = f"{sizes.records:,.0f} records of sizes up to {sizes.value[-1]:,.6g} (mean {sizes.mean:,.4g})"
    tried = f"{len(comparison.candidates)} shapes"
    without = f", {len(comparison.left_out)} more cannot have it (--json says why)" if comparison.left_out else ""
    families = f"{tried} of {len(comparison.best)} families{without}"
    return f"{accuracy}; {families}; {records}; best by: {comparison.objective.name}"


NOTES = (
    "All have this accuracy at this total; other totals show it elsewhere: additive noise is the same at all, that of",
    "roots and logarithms grows with the total. Losses are those of one table. Choose by public sizes alone.",
    "Ranked by the losses that plans state, of the tight policy where there is one; paper: what the paper's bound,",
    "tanh(P/2)·P, says of the same noise.",
)


def notes(comparison: Comparison) -> list[str]:
    """Return what is to be known of the figures, losses by groups, and which kinds are left out, and why."""
    return [*NOTES, *_of_groups(comparison), *(f"Left out: {kind}: {why}." for kind, why in comparison.without.items())]


def _of_groups(comparison: Comparison) -> list[str]:
    """Return what one record loses in groups of some sizes, of the best of each family for which that falls."""
    lines = []
    for candidate in comparison.best:
        groups = groups_json(candidate.mechanism).get("groups", [])
        if len({group["rho"] for group in groups}) > 1:
            losses = "   ".join(f"{group['count']:,}: {bound_text(group['rho'], 4)}" for group in groups)
            lines.append(f"{candidate.family} ({_parameters(candidate.mechanism)}), in a group of   {losses}")
    return lines


def plot(comparison: Comparison, target: Path) -> None:
    """Draw how many records lose how much, and what a record of each size loses, into an SVG or PNG file.

    Raises PlanError for another kind of file, or one that cannot be written.
    """
    below = np.cumsum(comparison.sizes.count) / comparison.sizes.records
    positive = comparison.sizes.value > 0
    shares = np.concatenate([below[~positive][-1:], below[positive]]) if (~positive).any() else np.append(0.0, below)

    def draw(panels: Sequence["Axes"]) -> None:
        left, right = panels
        styles = family_styles([candidate.mechanism.describe() for candidate in comparison.best])
        for candidate, style in zip(comparison.best, styles, strict=True):
            losses = candidate.losses[positive]
            name = f"{candidate.family} ({_parameters(candidate.mechanism)})"
            left.step(np.append(losses[0], losses), shares, where="post", label=name, **style)
            right.loglog(comparison.sizes.value[positive], losses, **style)
        left.set(xscale="log", ylim=(0, 1.02))
        left.set(xlabel="loss ρ (per-record zCDP)", ylabel="share of records that lose at most so much")
        right.set(xlabel="size of the record", ylabel="loss ρ (per-record zCDP)")
        if comparison.objective.limit is not None:
            left.axvline(float(comparison.objective.limit), **REFERENCE)
            right.axhline(float(comparison.objective.limit), **REFERENCE)

    title = f"Equal accuracy: {summary(comparison).partition(';')[0]}"
    write_picture(target, title, draw, panels=2, size=(11.5, 5.4))
