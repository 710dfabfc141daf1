"""A plan's errors in the cells of published figures, by state and industry, beside what is withheld in them today.

Nothing is drawn: errors have the distribution of the plan's noise, by its quantiles. The true totals are those of the
microdata that `prdp generate --like` writes, which add up to the figures whatever the seed.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np

from pipeline.base.errors import PlanError
from pipeline.plan.model import Plan, Query
from pipeline.plan.total_policy import limits_of, losses_at, policy_of
from pipeline.planning.economy.fitted_establishments import allocated
from pipeline.planning.economy.published import LEVELS, WITHHELD, Bools, published
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import up_float
from udfs.records.statistics import Count, Statistic, Sum

USABLE: Final = 0.3  # the largest relative error of a usable figure
POINTS: Final = 100  # quantiles of the noise: chances are known to 1 / POINTS
SIZES: Final = (0, 20, 100, 500, 5_000)  # the least true employment of each class of cells
STATISTICS: Final = {"establishments": Count(), "employment": Sum("employment"), "payroll": Sum("payroll")}
FLAGS: Final = "GHDS"  # published with noise below 2 %, below 5 %; withheld


def beside_today(name: str, plan: Plan) -> dict[str, Any]:
    """Return relative errors of a plan's tables by state and industry in the cells of the figures `name`.

    `levels`: of each level of industry the tables that were judged, and in classes of cells, by today's flag
    (`flags`) and by true employment (`sizes`), of each statistic the `median` and the `ninety` % quantile of the
    relative error, over cells and noise; null where it is infinite. `usable` is the chance that the relative error is
    at most 30 %, on average over the class's cells, `usable_employment` that of all withheld cells together.
    `losses`: rho of these tables and of the whole plan at each limit's reference, and the most for all no larger.

    Raises PlanError where there are no such figures, or the plan has no single table with additive noise by state and
    this level of industry of each statistic.
    """
    figures = published(name)
    totals = allocated(figures)
    values = {"establishments": figures.establishments, "employment": totals.employment, "payroll": totals.payroll}
    known = (figures.establishments > 0) & (figures.flag != "")
    levels, shown = [], set()
    for digits in LEVELS:
        place = figures.level(digits)
        tables = {of: _table(plan, f"naics{digits}", statistic) for of, statistic in STATISTICS.items()}
        shown |= {table.name for table in tables.values()}
        cells = known[place]
        true = {of: values[of][place][cells].astype(np.float64) for of in STATISTICS}
        errors = {of: _errors(table.mechanisms[0], true[of]) for of, table in tables.items()}
        flag, size = figures.flag[place][cells], np.searchsorted(SIZES, true["employment"], side="right") - 1
        withheld = np.isin(flag, WITHHELD)
        levels.append(
            {
                "level": f"naics{digits}",
                "tables": {of: table.name for of, table in tables.items()},
                "withheld_share": float(withheld.mean()),
                "usable_employment": _usable(errors["employment"][withheld]),
                "flags": {each: _class(errors, flag == each) for each in FLAGS},
                "sizes": [{"from": least} | _class(errors, size == i) for i, least in enumerate(SIZES)],
            }
        )
    return {"like": name, "levels": levels, "losses": _losses(plan, shown)}


def _table(plan: Plan, industry: str, statistic: Statistic) -> Query:
    for query in plan.queries:
        whole = set(query.by) == {"state", industry} and not query.where and query.split is None
        if whole and query.statistic == statistic and query.mechanisms[0].additive:
            return query
    of = "count: records" if statistic.counts else f"sum: {statistic.measure}"
    raise PlanError(f"the plan has no table by [{industry}, state] of {of} with one additive mechanism")


def _errors(mechanism: Mechanism, totals: Floats) -> Floats:
    """Return the relative errors of n totals at each of the noise's quantiles, of shape (n, POINTS)."""
    levels = [Fraction(2 * i + 1, 2 * POINTS) for i in range(POINTS)]
    noise = np.array([mechanism.interval_around(0.0, level)[1] for level in levels])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(noise == 0, 0.0, noise / totals[:, None])


def _class(errors: Mapping[str, Floats], cells: Bools) -> dict[str, Any]:
    def of(each: Floats) -> dict[str, float | None]:
        if not each.size:
            return {"median": None, "ninety": None, "usable": None}
        quantiles = np.quantile(each, (0.5, 0.9), method="inverted_cdf").tolist()
        median, ninety = (error if np.isfinite(error) else None for error in quantiles)
        return {"median": median, "ninety": ninety, "usable": _usable(each)}

    return {"cells": int(cells.sum())} | {statistic: of(each[cells]) for statistic, each in errors.items()}


def _usable(errors: Floats) -> float:
    return float((errors <= USABLE).mean())


def _losses(plan: Plan, shown: set[str]) -> list[dict[str, Any]]:
    policy = policy_of(plan)
    stated = []
    for limit, bound in zip(plan.budget, limits_of(plan), strict=True):
        queries, total = losses_at(plan, policy, limit.at)
        of_shown = sum(loss.rho for query, (_, loss) in zip(plan.queries, queries, strict=True) if query.name in shown)
        rho = {"tables": Fraction(of_shown), "plan": total.rho, "all_no_larger": policy.loss_at(bound.at)}
        stated.append(
            {"label": limit.label, "at": limit.at.to_json()} | {kind: up_float(loss) for kind, loss in rho.items()}
        )
    return stated
