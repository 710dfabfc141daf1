"""What a plan promises, before any record is read: the losses of reference records and of changes, as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import ceil, floor, inf, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.accounting.accountant import SHARE
from pipeline.accounting.convert import DELTA
from pipeline.accounting.interpretation import Loss, interpret, interpret_at
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Reference, Span
from pipeline.base.plain import WIDTH, aligned
from pipeline.base.plots import TOTAL, family_styles, label_ends, label_points, require_format, write_picture
from pipeline.plan import total_policy
from pipeline.plan.model import DerivedTable, Plan, Query
from pipeline.plan.plan_losses import Change, Factor, change_bounds, change_losses, loss_found
from pipeline.plan.structure import accuracy, size_of, warnings
from pipeline.plan.total_policy import no_larger
from pipeline.planning.verdict import beside_reconciled, derived_error, named_part, with_mechanisms
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, bound_text, exact, up_float
from udfs.records.statistics import Statistic, Sum

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def explain(
    plan: Plan, references: Sequence[Reference], delta: float = DELTA, site_share: Fraction = SHARE
) -> dict[str, Any]:
    """Return what the plan promises: all losses are upper bounds.

    A total, and what it means, holds for all units that are no larger, unless it has a bound for these (`…_below`, and
    `below` of its meaning).

    Args:
        plan: The plan; no microdata are read.
        references: The records or firms at which losses are stated; none: those of the plan's budget.
        delta: The δ at which (ε, δ) is stated.
        site_share: The share of records that may be left out where the plan states none.
    """
    test, is_firm = total_policy.left_out_test_of(plan, site_share), plan.dataset.owner is not None
    policy = total_policy.policy_of(plan, test)
    references = list(references) or [limit.at for limit in plan.budget]
    if not references and not policy.measures:
        references = [Reference.of({}, listed=is_firm)]
    losses: list[list[dict[str, Any]]] = [[] for _ in plan.queries]
    excess: list[list[float | None]] = [[] for _ in plan.queries]
    totals, interpreted, tested = [], [], []
    for reference in references:
        of_queries, total = total_policy.losses_at(plan, policy, reference)
        here, stated = total_policy.located(plan, reference), {"at": reference.to_json()}
        # the simple bounds of a group of records that are units of their own
        group = reference.listed and not is_firm
        simple = total_policy.simple_losses_at(plan, policy, reference) if group else [None] * (len(plan.queries) + 1)
        for i, (influence, loss) in enumerate(of_queries):
            losses[i].append(stated | {"influence": as_json(influence)} | _loss(loss, simple[i]))
            excess[i].append(policy.excess_at(here, plan.queries[i].name))
        tested.append(stated | total_policy.left_out_test_loss(plan, policy, reference).to_json())
        placed = {"rho_found": loss_found(plan, policy, reference)} if len(reference.records) > 1 else {}
        totals.append(stated | _loss(total, simple[-1]) | placed)
        interpreted.append(interpret_at(policy, here, total, delta))
        if (below := no_larger(plan, reference)) is not None:
            most = total_policy.total_loss(policy, below)
            totals[-1] |= {f"{name}_below": bound for name, bound in most.to_json().items()}
            interpreted[-1] |= {"below": interpret_at(policy, below, most, delta)}
    queries = [
        {
            "name": query.name,
            "mechanism": query.described(),
            "losses": of_query,
            "excess": shares,
            "accuracy": beside_reconciled(plan, query, accuracy(query, plan.interval)),
            "warnings": warnings(query),
        }
        | ({"groups": groups} if (groups := group_losses(query)) else {})
        for query, of_query, shares in zip(plan.queries, losses, excess, strict=True)
    ]
    paper = paper_losses(plan, references)
    return {
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "size": size_of(plan).to_json(),
        "queries": queries,
        "left_out_test": test.to_json() | {"losses": tested},
        "total": totals,
        "total_means": interpreted,
    } | _present(paper=paper, derived=[_derived(plan, table) for table in plan.derived])


def _present(**lists: Sequence[Any]) -> dict[str, Any]:
    return {name: each for name, each in lists.items() if each}


def _derived(plan: Plan, table: DerivedTable) -> dict[str, Any]:
    cells = plan.domain.query_cells(table.by, table.where).size
    made = {"made": "when reconciled", "reconciled": derived_error(plan, table.name)}
    return {"name": table.name, "by": list(table.by), "cells": cells} | made


def explain_changes(plan: Plan, changes: Sequence[Change | Factor], delta: float) -> list[dict[str, Any]]:
    """Return the loss from distinguishing the values of each change, by query and in all.

    `rho` null: no bound. `means`: (ε, δ) and the best test, null without a bound.
    """
    policy = total_policy.policy_of(plan)
    explained = []
    for change in changes:
        losses, total = change_losses(plan, policy, change)
        explained.append(
            {
                "change": change.to_json(),
                "queries": [
                    {"name": query.name} | _loss(loss) for query, loss in zip(plan.queries, losses, strict=True)
                ],
                "total": _loss(total),
                "means": None
                if total is None
                else interpret(total, delta, None, change_bounds(plan, policy, change, delta)),
            }
        )
    return explained


def explain_years(
    plan: Plan, references: Sequence[Reference], years: int, growth: Fraction, site_share: Fraction = SHARE
) -> list[dict[str, Any]]:
    """Return what a release like the plan's in each of so many years costs the units no larger than each reference.

    Guarantee: `rho_same` bounds the sum of a unit whose records are in each year no larger than the reference's,
    `rho_growing` that of one whose values grow by at most `growth` a year (0.05: 5 %) from the first year's. Both are
    sums of the plan's own policy, each with the test of records left out, exact until they are rounded up; a grown
    value is rounded up to the measure's step. Classes follow the values.
    """
    policy = total_policy.policy_of(plan, total_policy.left_out_test_of(plan, site_share))
    steps = {measure.name: measure.step for measure in plan.dataset.measures}
    follow = {level for each in plan.domain.dimensions if each.classes or each.of_owner for level in each.levels}

    def lost(reference: Reference) -> Fraction:
        return policy.loss_at(total_policy.located(plan, reference, below=True))

    def grown(reference: Reference, factor: Fraction) -> Reference:
        records = [
            {name: ceil(value * factor / steps[name]) * steps[name] for name, value in record.values.items()}
            | {level: code for level, code in record.keys.items() if level not in follow}
            for record in reference.records
        ]
        return Reference.of(records if reference.listed else records[0], reference.listed)

    explained = []
    for reference in references or [limit.at for limit in plan.budget]:
        last = grown(reference, (1 + growth) ** (years - 1))
        growing = sum((lost(grown(reference, (1 + growth) ** year)) for year in range(1, years)), lost(reference))
        rho = {"rho_a_year": lost(reference), "rho_same": years * lost(reference), "rho_growing": growing}
        largest = [{name: float(value) for name, value in record.values.items()} for record in last.records]
        stated = {"at": reference.to_json(), "years": years, "growth": float(growth), "grows_to": largest}
        explained.append(stated | {name: up_float(each) for name, each in rho.items()})
    return explained


def _loss(loss: Loss | None, simple: Fraction | None = None) -> dict[str, float | None]:
    stated = {"rho": None, "epsilon": None} if loss is None else loss.to_json()
    return stated | ({} if simple is None else {"rho_simple": up_float(simple)})


SIZES = tuple(10**power for power in range(8))  # influences that a table shows, in the measure's unit
COUNTS = (1, 10, 100, 1_000, 10_000)  # sizes of groups of records


def loss_lines(plan: Plan) -> list[str]:
    """Return what records of the influences SIZES lose, query by query, as lines of aligned columns."""
    rows = [["rho at an influence of", *(f"{size:,}" for size in SIZES)]]
    for query in total_policy.policy_of(plan).queries:
        sizes = (1,) if query.statistic.counts else SIZES  # on a count, every record has influence 1
        losses = [bound_text(query.mechanism.loss_at(Fraction(size)), 4) for size in sizes]
        rows.append([query.label, *losses, *[""] * (len(SIZES) - len(losses))])
    lines, half = aligned(rows, numbers=True), 1 + len(SIZES) // 2
    if max(map(len, lines)) <= WIDTH:
        return lines
    later = [[row[0], *row[half:]] for row in rows if any(row[half:])]
    return aligned([row[:half] for row in rows], numbers=True) + aligned(later, numbers=True)


def group_losses(query: Query) -> list[dict[str, Any]]:
    """Return as JSON what one record loses at most in groups of COUNTS records, of parts with group-wise losses.

    Larger groups lose less (docs/noise.md). At public counts only: the count of an actual cell is confidential, and
    so is the group-wise loss that it implies.
    """
    return [
        named_part(part) | {"count": count, "rho": up_float(loss)}
        for part in query.parts
        for count in COUNTS
        if (loss := part.mechanism.group_loss_at(Fraction(count))) is not None
    ]


def paper_losses(plan: Plan, references: Sequence[Reference]) -> list[dict[str, Any]]:
    """Return rho by the paper's policy at each reference, of each query and in total; nothing where no policy is tight.

    The noise is the same: only the bound that states its loss is another.
    """
    if not tight_queries(plan):
        return []
    queries = (with_mechanisms(query, lambda mechanism: mechanism.by_paper()) for query in plan.queries)
    paper = replace(plan, queries=tuple(queries))
    policy = total_policy.policy_of(paper)
    return [
        {
            "at": reference.to_json(),
            "queries": {query.name: up_float(loss.rho) for query, (_, loss) in zip(plan.queries, losses, strict=True)},
            "rho": up_float(total.rho),
        }
        for reference in references
        for losses, total in [total_policy.losses_at(paper, policy, reference)]
    ]


def tight_queries(plan: Plan) -> list[str]:
    """Return the names of the queries with a tight policy."""
    return [query.name for query in plan.queries if any(part.mechanism.tight for part in query.parts)]


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
        shifts = influences(step, most, least)
        label = f"{first.label} and {len(more)} more" if more else first.label
        curves.append(Curve(label, first.mechanism.describe(), shifts, first.mechanism.loss(shifts)))
    return sorted(curves, key=lambda curve: float(curve.rho[-1]))


def total_curve(plan: Plan, policy: PolicySum, statistic: Statistic, largest: float) -> Curve:
    """Return the most that any record loses in all tables that is no larger, all other measures being 0.

    The largest sum of policies over the query sets (pipeline/accounting/policy.py), each within its classes' values.
    """
    measure = str(statistic.measure)
    sizes = influences(next(each.step for each in plan.dataset.measures if each.name == measure), largest)
    most = np.zeros(len(sizes))

    @cache
    def loss(i: int, high: float) -> Floats:
        query = policy.queries[i]
        if query.statistic == statistic:
            return query.mechanism.loss(np.minimum(sizes, high))
        one = up_float(query.mechanism.loss_at(Fraction(1))) if query.statistic.counts else 0.0
        return np.full(len(sizes), one)

    spans: Sequence[Span] = policy.spans or [{}] * len(policy.query_sets)
    for met, span in zip(policy.query_sets, spans, strict=True):
        low, high = span.get(measure, (0, None))
        together = sum((loss(i, inf if high is None else float(high)) for i in met), 0 * sizes)
        most = np.where(sizes >= float(low), np.maximum(most, together), most)
    zeros = "".join(f", {name} 0" for name in sorted(policy.measures - {measure}))
    return Curve(f"all tables{zeros}", None, sizes, most)


def _range(policy: PolicySum, i: int, measure: str) -> tuple[float, float]:
    met = [span.get(measure, (0, None)) for each, span in zip(policy.query_sets, policy.spans) if i in each]  # noqa: B905
    highest = [inf if high is None else float(high) for _, high in met]
    return min((float(low) for low, _ in met), default=0.0), max(highest, default=inf)


def limit_points(plan: Plan, policy: PolicySum, statistic: Statistic) -> list[tuple[float, float, float]]:
    """Return (influence, limit, total loss) of the plan's limits at single records with an influence of at least 1."""
    points = []
    for limit, bound in zip(plan.budget, total_policy.limits_of(plan), strict=True):
        influence = statistic.influence(limit.at.records[0].values)
        if len(limit.at.records) == 1 and influence >= LEAST and limit.rho:
            points.append((float(influence), float(limit.rho), up_float(policy.loss_at(bound.at))))
    return points


def plot_policies(plan: Plan, target: Path) -> None:
    """Write the policy functions of a plan's tables, a panel for each measure, to `target`, an SVG or PNG file.

    Raises PlanError for another kind of file, or one that cannot be written.
    """
    require_format(target)
    policy = total_policy.policy_of(plan)
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


def groups_json(mechanism: Mechanism) -> dict[str, Any]:
    """Return, of a kind for counts, what one record loses in groups of COUNTS records, and the relative error there.

    Nothing of other kinds. These are public sizes: v of an actual group is as confidential as its count.
    """
    if not mechanism.counts_only:
        return {}
    of_all = mechanism.loss_at(Fraction(1))
    groups = []
    for count in COUNTS:
        loss = mechanism.group_loss_at(Fraction(count))
        relative = mechanism.mean_absolute_error(float(count)) / count
        groups.append({"count": count, "rho": up_float(of_all if loss is None else loss), "relative_error": relative})
    return {"groups": groups}
