"""The picture of a plan's policies: what a record of each size loses in each table and in all, beside the limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, floor, inf, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Span
from pipeline.base.plots import TOTAL, family_styles, label_ends, label_points, require_format, write_picture
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import limits_of, policy_of
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, exact, up_float
from udfs.records.statistics import Statistic, Sum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, LARGEST = 1, 10_000_000  # influences, in the measure's unit; with limits ten times the largest reference's
POINTS = 400  # of a curve
LOWEST = 1e-6  # losses, below which none is worth a look
MOST_LABELS = 9  # lines that are named at their ends, beside the total
FAINT = {"linewidth": 0.6, "alpha": 0.4, "marker": ""}


@dataclass(frozen=True, eq=False)
class Curve:
    """Upper bounds of a loss at `influence`, ascending multiples of the step, in the statistic's unit.

    `mechanism`: as JSON; None of the total.
    """

    label: str
    mechanism: dict[str, object] | None
    influence: Floats
    rho: Floats


def influences(step: Fraction, largest: float, least: float = LEAST) -> Floats:
    """Return multiples of the step from about `least` to `largest`, evenly apart in their logarithms."""
    first = max(1, ceil(Fraction(least) / step))
    last = max(first + 1, floor(Fraction(largest) / step))
    return np.unique(np.rint(np.geomspace(first, last, POINTS))) * float(step)


def policy_curves(policy: PolicySum, statistic: Statistic, largest: float) -> list[Curve]:
    """Return the curve of each mechanism by which the statistic's tables, or parts of them, are made, largest last.

    A part that is classes of the measure has its curve where its records are.
    """
    alike: dict[tuple[str, Fraction, float, float], list[QueryPolicy]] = {}
    for i, query in enumerate(policy.queries):
        if query.statistic == statistic:
            least, most = _range(policy, i, str(statistic.measure))
            kind = str(query.mechanism.describe()), query.mechanism.step
            alike.setdefault((*kind, max(least, LEAST), min(most, largest)), []).append(query)
    curves = []
    for (_, step, least, most), (first, *more) in alike.items():
        at = influences(step, most, least)
        label = f"{first.label} and {len(more)} more" if more else first.label
        curves.append(Curve(label, first.mechanism.describe(), at, first.mechanism.loss(at)))
    return sorted(curves, key=lambda curve: float(curve.rho[-1]))


def total_curve(plan: Plan, policy: PolicySum, statistic: Statistic, largest: float) -> Curve:
    """Return the most that any record loses in all tables that is no larger, all other measures being 0.

    The largest sum of policies over the query sets (pipeline/accounting/policy.py), each within its classes' values.
    """
    measure = str(statistic.measure)
    at = influences(next(each.step for each in plan.dataset.measures if each.name == measure), largest)
    most = np.zeros(len(at))

    @cache
    def loss(i: int, high: float) -> Floats:
        query = policy.queries[i]
        if query.statistic == statistic:
            return query.mechanism.loss(np.minimum(at, high))
        return np.full(len(at), up_float(query.mechanism.loss_at(Fraction(1)))) if query.statistic.counts else 0 * at

    spans: Sequence[Span] = policy.spans or [{}] * len(policy.query_sets)
    for met, span in zip(policy.query_sets, spans, strict=True):
        low, high = span.get(measure, (0, None))
        together = sum((loss(i, inf if high is None else float(high)) for i in met), 0 * at)
        most = np.where(at >= float(low), np.maximum(most, together), most)
    zeros = "".join(f", {name} 0" for name in sorted(policy.measures - {measure}))
    return Curve(f"all tables{zeros}", None, at, most)


def _range(policy: PolicySum, i: int, measure: str) -> tuple[float, float]:
    """Return between which values of a measure records can meet the i-th policy."""
    met = [span.get(measure, (0, None)) for each, span in zip(policy.query_sets, policy.spans) if i in each]  # noqa: B905
    highest = [inf if high is None else float(high) for _, high in met]
    return min((float(low) for low, _ in met), default=0.0), max(highest, default=inf)


def limit_points(plan: Plan, policy: PolicySum, statistic: Statistic) -> list[tuple[float, float, float]]:
    """Return (influence, limit, total loss) of the plan's limits at single records with an influence of at least 1."""
    points = []
    for limit, bound in zip(plan.budget, limits_of(plan), strict=True):
        influence = statistic.influence(limit.at.records[0].values)
        if len(limit.at.records) == 1 and influence >= LEAST and limit.rho:
            points.append((float(influence), float(limit.rho), up_float(policy.loss_at(bound.at))))
    return points


def plot_policies(plan: Plan, target: Path) -> None:
    """Write the policy functions of a plan's tables, a panel for each measure, to `target`, an SVG or PNG file.

    Raises PlanError for another kind of file, or one that cannot be written.
    """
    require_format(target)
    policy = policy_of(plan)
    summed = [query.statistic for query in policy.queries if isinstance(query.statistic, Sum)]
    statistics = list(dict.fromkeys(summed))
    drawn = [_Panel.of(plan, policy, statistic) for statistic in statistics]

    def draw(panels: Sequence["Axes"]) -> Callable[[Sequence["Axes"]], None]:
        for axes, panel in zip(panels, drawn, strict=False):
            panel.draw(axes)
        return label

    def label(panels: Sequence["Axes"]) -> None:
        for axes, panel in zip(panels, drawn, strict=False):
            panel.label(axes)

    count = max(len(statistics), 1)
    title = f"Release {plan.release}: what a record can lose in each table"
    write_picture(target, title, draw, panels=count, size=(7.6 * count, 4.8))


@dataclass(frozen=True, eq=False)
class _Panel:
    statistic: Statistic
    curves: list[Curve]
    total: Curve
    limits: list[tuple[float, float, float]]

    @classmethod
    def of(cls, plan: Plan, policy: PolicySum, statistic: Statistic) -> "_Panel":
        limits = limit_points(plan, policy, statistic)
        largest = 10.0 ** ceil(log10(10 * max(x for x, _, _ in limits))) if limits else float(LARGEST)
        curves = policy_curves(policy, statistic, largest)
        return cls(statistic, curves, total_curve(plan, policy, statistic, largest), limits)

    @property
    def styles(self) -> list[dict[str, Any]]:
        """How the curves look: all but the largest are faint."""
        styles = family_styles([curve.mechanism or {} for curve in self.curves])
        faint = len(self.curves) - MOST_LABELS
        return [style | (FAINT if i < faint else {}) for i, style in enumerate(styles)]

    def draw(self, axes: "Axes") -> None:
        """Draw the lines, and the limits and losses at them as points."""
        for curve, style in zip(self.curves, self.styles, strict=True):
            axes.loglog(curve.influence, curve.rho, **style)
        axes.loglog(self.total.influence, self.total.rho, **TOTAL)
        for x, limit, rho in self.limits:
            axes.plot([x, x], [rho, limit], color="0.6", linewidth=0.8, zorder=1)
            axes.plot(x, rho, marker="o", markersize=4.5, color="black", markerfacecolor="white")
            broken = "#c0392b" if rho > limit else "black"
            axes.plot(x, limit, marker="_", markersize=9, markeredgewidth=2, color=broken)
        axes.set_ylim(bottom=max(LOWEST, axes.get_ylim()[0]))
        if self.limits:
            axes.set_title("— a limit   ○ the total at its reference", fontsize=8, loc="left")
        axes.set_xlabel(f"influence: the record's {self.statistic.formula.strip('|')}")
        axes.set_ylabel("loss ρ (per-record zCDP)")

    def label(self, axes: "Axes") -> None:
        """Name the lines at their ends, and the limits."""
        lines = [*zip(self.curves, self.styles, strict=True)]
        named = [*lines[-MOST_LABELS:], (self.total, TOTAL)]
        ends = [(float(c.influence[-1]), float(c.rho[-1]), c.label, style["color"]) for c, style in named]
        others = len(self.curves) - MOST_LABELS
        if others > 0:
            axes.set_title(f"faint: {others} with less", fontsize=8, loc="right")
        label_ends(axes, ends)
        label_points(axes, [(x, limit, f"limit {as_json(exact(limit))}") for x, limit, _ in self.limits])
