"""Which cells of a table of sums may not be published under the rules of cell suppression, and how wide they must stay.

Source: Hundepool and others, Statistical Disclosure Control (Wiley 2012), chapter 4; Cox, JASA 75 (1980). The rules
look at firms, whose establishments in a cell count together, with contributions x₁ ≥ x₂ ≥ … ≥ 0 that add up to X.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any, Final

import numpy as np
from scipy.special import ndtri

from pipeline.base.errors import PlanError
from pipeline.plan.drafts import reconciled_errors
from pipeline.plan.model import DerivedTable, Plan, Query
from pipeline.plan.total_policy import limits_of, losses_at, policy_of
from pipeline.planning.economy.published import LEVELS, WITHHELD, Bools, allocated, published
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import up_float
from udfs.records.statistics import Count, Statistic, Sum


@dataclass(frozen=True, kw_only=True)
class FactorNoise:
    """Today's practice: multiplicative noise on each establishment before it is tabulated (docs/study.md).

    No guarantee: it is no mechanism, and no release uses it. A firm has a secret direction, and each factor a magnitude
    near but never at 0; with 1 < A < B ≤ 2 the factor δ has the density

        (B − δ)/(B − A)² on [A, B],        (B + δ − 2)/(B − A)² on [2 − B, 2 − A].

    So |δ − 1| = A − 1 + (B − A)·T, T with density 2(1 − t) on [0, 1]: E T = 1/3, E T² = 1/6. Its mean is 1. Whoever
    knows that a cell has one establishment learns its value to within a few per cent. Source: Evans, Zayatz, Slanta
    1998.

    A firm's establishments share one factor, or with `own_magnitudes` its direction alone. ValueError unless
    1 < A < B ≤ 2.
    """

    a: float
    b: float
    own_magnitudes: bool = False

    def __post_init__(self) -> None:
        if not 1 < self.a < self.b <= 2:
            raise ValueError("factors need 1 < a < b ≤ 2")

    @property
    def magnitude(self) -> float:
        """E|δ − 1| = A − 1 + (B − A)/3."""
        return self.a - 1 + (self.b - self.a) / 3

    @property
    def magnitude_variance(self) -> float:
        """Var|δ − 1| = (B − A)²/18."""
        return (self.b - self.a) ** 2 / 18

    @property
    def variance(self) -> float:
        """Var δ = (A − 1)² + 2(A − 1)(B − A)/3 + (B − A)²/6, which is E|δ − 1|²."""
        return self.magnitude**2 + self.magnitude_variance

    def draw(self, random: np.random.Generator, firms: int) -> Floats:
        """Return a factor of each firm, for all its establishments: P(T > t) = (1 − t)²."""
        distance = self.a - 1 + (self.b - self.a) * (1 - np.sqrt(random.random(firms)))
        return 1 + np.where(random.random(firms) < 0.5, -1.0, 1.0) * distance


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that hold; a cell is primary where any of them says so. None: without that rule.

    A rule asks that no reader can tell the total X as near as ±U (`protection`), by which what remains unknown would be
    safe:

        p % rule:       X − x₁ − x₂ < p/100·x₁               U = p/100·x₁ − (X − x₁ − x₂)
        (n, k) rule:    x₁ + … + x_n > k/100·X               U = 100/k·(x₁ + … + x_n) − X
        threshold t:    fewer than t firms                   U = width/100·X, which is stated: the rule names none

    Below 0 there is nothing to hide, so that downwards min(U, X) is asked. ValueError unless 0 < p, 0 < k < 100, n ≥ 1,
    t ≥ 2 and 0 < width ≤ 100.
    """

    p: float | None = 10.0
    n: int = 2
    k: float | None = 85.0
    threshold: int | None = 3
    width: float = 10.0

    def __post_init__(self) -> None:
        for rule, kept in {
            "p: must be above 0 and at most 100": self.p is None or 0 < self.p <= 100,
            "n: must be at least 1": self.n >= 1,
            "k: must be above 0 and below 100": self.k is None or 0 < self.k < 100,
            "threshold: must be at least 2": self.threshold is None or self.threshold >= 2,
            "width: must be above 0 and at most 100": 0 < self.width <= 100,
        }.items():
            if not kept:
                raise ValueError(rule)

    @classmethod
    def named(cls, numbers: Mapping[str, float]) -> "Rules":
        """Return the rules that are named, and no others; raises ValueError on a name or a number that is none."""
        unknown = [name for name in numbers if name not in vars(cls())]
        if unknown:
            raise ValueError(f"unknown rule {unknown[0]}; known: {', '.join(vars(cls()))}")
        if ("n" in numbers) != ("k" in numbers):
            raise ValueError("n and k: give both or none")
        if any(numbers.get(name, 1) % 1 for name in ("n", "threshold")):
            raise ValueError("n and threshold: must be whole numbers")
        if not numbers.keys() & {"p", "k", "threshold"}:
            raise ValueError("name at least one rule: p, n and k, or threshold")
        held: dict[str, Any] = {"p": None, "k": None, "threshold": None, **numbers}
        return cls(**held | {"n": int(numbers.get("n", 1))})

    def to_json(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Contributions:
    """Of every cell: its total, its number of firms, and the `largest` contributions, a column each, 0 where none."""

    total: Floats
    firms: Int64s
    largest: Floats

    @classmethod
    def of(cls, cells: Int64s, firms: Int64s, values: Floats, size: int, n: int) -> "Contributions":
        """Return those of `size` cells from records ≥ 0 in cells 0 … size − 1; the n largest of each, at least two."""
        order = np.lexsort((firms, cells))
        cells, firms, values = cells[order], firms[order], values[order]
        starts = np.flatnonzero(np.append(True, (np.diff(cells) != 0) | (np.diff(firms) != 0))[: len(cells)])
        sums, of_cell = (np.add.reduceat(values, starts), cells[starts]) if len(starts) else (values, cells)
        order = np.lexsort((-sums, of_cell))
        sums, of_cell = sums[order], of_cell[order]
        count = np.bincount(of_cell, minlength=size)
        rank = np.arange(len(of_cell)) - np.repeat(np.cumsum(count) - count, count)
        largest = np.zeros((size, max(n, 2)))
        kept = rank < largest.shape[1]
        largest[of_cell[kept], rank[kept]] = sums[kept]
        return cls(np.bincount(of_cell, weights=sums, minlength=size).astype(np.float64), count, largest)


def by_rule(rules: Rules, of: Contributions) -> dict[str, Floats]:
    """Return the protection U of every cell by the name of the rule: above 0 where it is primary, at least 1 there."""
    first, remainder = of.largest[:, 0], of.total - of.largest[:, 0] - of.largest[:, 1]
    dominant = of.largest[:, : rules.n].sum(axis=1)
    stated: dict[str, tuple[Mask, Floats]] = {}
    if rules.p is not None:
        needed = rules.p / 100 * first - remainder
        stated["p_percent"] = needed > 0, needed
    if rules.k is not None:
        needed = 100 / rules.k * dominant - of.total
        stated["dominance"] = needed > 0, needed
    if rules.threshold is not None:
        stated["threshold"] = (of.firms > 0) & (of.firms < rules.threshold), rules.width / 100 * of.total
    return {name: np.where(primary, np.maximum(needed, 1.0), 0.0) for name, (primary, needed) in stated.items()}


USABLE: Final = 0.3  # the largest relative error of a usable figure
TODAYS: Final = 0.05  # the largest of a figure that is published today
POINTS: Final = 100  # quantiles of the noise: chances are known to 1 / POINTS
SIZES: Final = (0, 20, 100, 500, 5_000)  # the least true employment of each class of cells
STATISTICS: Final = {"establishments": Count(), "employment": Sum("employment"), "payroll": Sum("payroll")}
FLAGS: Final = "GHDS"  # published with noise below 2 %, below 5 %; withheld


def beside_today(name: str, plan: Plan, *, reconciled: bool = False) -> dict[str, Any]:
    """Return relative errors of a plan's tables by state and industry in the cells of the figures `name`.

    Nothing is drawn: errors have the distribution of the plan's noise, by its quantiles. The true totals are those of
    the microdata that `prdp generate --like` writes, which add up to the figures whatever the seed. With `reconciled`,
    and of a plan that derives tables, errors are those once all tables add up: normal, with the standard error that
    the lattice of the tables' levels expects.

    `levels`: of each level of industry the tables that were judged, and in classes of cells, by today's flag
    (`flags`) and by true employment (`sizes`), of each statistic the `median` and the `ninety` % quantile of the
    relative error, over cells and noise; null where it is infinite. `usable` is the chance that the relative error is
    at most 30 %, on average over the class's cells, `usable_employment` that of all withheld cells together. By the
    standard error of employment, `usable_cells` is the share of the withheld cells in which it is at most 30 % of the
    total, `worse_cells` the share of the published ones in which it is above 5 %.
    `losses`: rho of these tables and of the whole plan at each limit's reference, and the most for all no larger.

    Raises PlanError where there are no such figures, or the plan has no single table with additive noise by state and
    this level of industry of each statistic.
    """
    figures = published(name)
    totals = allocated(figures)
    values = {"establishments": figures.establishments, "employment": totals.employment, "payroll": totals.payroll}
    known = (figures.establishments > 0) & (figures.flag != "")
    reconciled = reconciled or bool(plan.derived)
    levels, shown = [], set()
    for digits in LEVELS:
        place = figures.level(digits)
        tables = {of: _table(plan, f"naics{digits}", statistic, reconciled) for of, statistic in STATISTICS.items()}
        shown |= {table.name for table in tables.values()}
        cells = known[place]
        true = {of: values[of][place][cells].astype(np.float64) for of in STATISTICS}
        errors = {of: _errors(table.quantiles, true[of]) for of, table in tables.items()}
        flag, size = figures.flag[place][cells], np.searchsorted(SIZES, true["employment"], side="right") - 1
        withheld, standard = np.isin(flag, WITHHELD), tables["employment"].standard
        levels.append(
            {
                "level": f"naics{digits}",
                "tables": {of: table.name for of, table in tables.items()},
                "withheld_share": float(withheld.mean()),
                "usable_employment": _usable(errors["employment"][withheld]),
                "usable_cells": float((standard <= USABLE * true["employment"][withheld]).mean()),
                "worse_cells": float((standard > TODAYS * true["employment"][~withheld]).mean()),
                "flags": {each: _class(errors, flag == each) for each in FLAGS},
                "sizes": [{"from": least} | _class(errors, size == i) for i, least in enumerate(SIZES)],
            }
        )
    return {"like": name, "reconciled": reconciled, "levels": levels, "losses": _losses(plan, shown)}


@dataclass(frozen=True, eq=False)
class _Table:
    """The errors in each cell of a table: quantiles of their magnitude, and the standard error."""

    name: str
    quantiles: Floats
    standard: float


def _table(plan: Plan, industry: str, statistic: Statistic, reconciled: bool) -> _Table:
    for table in plan.published if reconciled else plan.queries:
        everywhere = set(table.by) == {"state", industry} and not table.where and table.statistic == statistic
        if everywhere and not (isinstance(table, Query) and (table.split or not table.mechanisms[0].additive)):
            return _of_estimates(plan, table) if reconciled else _of_noise(table)
    of = "count: records" if statistic.counts else f"sum: {statistic.measure}"
    raise PlanError(f"the plan has no table by [{industry}, state] of {of} with one additive mechanism")


def _of_noise(table: Any) -> _Table:
    noise, levels = table.mechanisms[0], [Fraction(2 * i + 1, 2 * POINTS) for i in range(POINTS)]
    quantiles = np.array([noise.interval_around(0.0, level)[1] for level in levels])
    return _Table(table.name, quantiles, sqrt(noise.variance(0.0)))


def _of_estimates(plan: Plan, table: Query | DerivedTable) -> _Table:
    known = reconciled_errors(plan).get(table.name)
    if known is None:
        return _of_noise(table)  # no other table tells anything of it
    if known[0] is None:
        raise PlanError(f"the errors of {table.name} once reconciled are not known: its noise has no variance")
    return _Table(table.name, known[0] * ndtri(0.5 + (np.arange(POINTS) + 0.5) / (2 * POINTS)), known[0])


def _errors(quantiles: Floats, totals: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(quantiles == 0, 0.0, quantiles / totals[:, None])


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
    return [
        {"label": limit.label, "at": limit.at.to_json()}
        | stated
        | {"all_no_larger": up_float(policy.loss_at(bound.at))}
        for limit, bound, stated in zip(plan.budget, limits_of(plan), losses_of_tables(plan, shown), strict=True)
    ]


def losses_of_tables(plan: Plan, names: set[str]) -> list[dict[str, Any]]:
    """Return, as JSON, rho of the tables with these names, and of the whole plan, at each limit's reference."""
    policy, stated = policy_of(plan), []
    for limit in plan.budget:
        queries, total = losses_at(plan, policy, limit.at)
        rho = sum(loss.rho for query, (_, loss) in zip(plan.queries, queries, strict=True) if query.name in names)
        stated.append({"label": limit.label, "tables": up_float(Fraction(rho)), "plan": up_float(total.rho)})
    return stated
