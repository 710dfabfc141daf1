"""A comparison for people: a ranked table, and a picture of losses."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.accounting.targets import ONE_EACH
from pipeline.base.plots import REFERENCE, family_styles, write_picture
from pipeline.planning.explain.calibrated import groups_json
from pipeline.planning.study.comparison import Comparison, Losses, error_at
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, bound_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        shown = ["infinite" if error is None else f"{error:,.4g}" for error in errors]
        parameters = _parameters(candidate.mechanism)
        rows.append([f"{rank}", candidate.family, parameters, *stated, *paper, *shown])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("   ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _parameters(mechanism: Mechanism) -> str:
    """Return the numbers; the words (noise, estimator, policy, lattice) the family's name tells, or all have alike."""
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
