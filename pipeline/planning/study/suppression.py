"""A plan's tables by today's practice, cell suppression and multiplicative noise, beside the plan's own noise.

Synthetic microdata alone are read: which cells are suppressed, and what an attacker finds, is confidential of others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.base.errors import PlanError, arg, hint
from pipeline.base.log import Log
from pipeline.base.plain import QUANTILES
from pipeline.base.plots import FORMATS, PRACTICES, Picture, picture
from pipeline.engines.totals import Table, layout_of
from pipeline.plan.model import Plan, Query
from pipeline.planning.study.study_figures import quantile, write_study
from pipeline.planning.study.suppression_program import Linked, attacked, suppressed
from pipeline.planning.study.todays_practice import Contributions, FactorNoise, Rules, by_rule, losses_of_tables
from pipeline.storage.paths import filled
from udfs.noise.keystream import SeededBits
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import bound_text
from udfs.records.statistics import Sum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OWNER: Final = "firm_id"  # as `prdp generate` writes it
SIZES: Final = (1, 20, 100, 500, 5_000)  # the least true total of each class of cells
USABLE: Final = 0.1  # the largest relative error of a usable figure
MOST_SUMS: Final = 100_000
TODAY: Final = FactorNoise(a=1.05, b=1.15)  # invented: agencies keep theirs secret
METHODS: Final = ("suppression", "multiplicative noise", "prdp")


@dataclass(frozen=True, kw_only=True)
class SuppressionJob:
    """Which tables of the plan, by which rules.

    `rows`: reads the plan's synthetic microdata, their firms in a named column, into the cells of these tables;
    `measure`: what is summed (None: the plan's first); `tables`: names (none: all of that measure that have no filter
    and one mechanism); `firm`: the column of firms, where the plan's unit is the record.
    """

    plan: Plan
    rows: "Callable[[Plan, str, Sequence[Table]], Rows]"
    measure: str | None = None
    tables: tuple[str, ...] = ()
    rules: Rules = field(default_factory=Rules)
    today: FactorNoise = TODAY
    firm: str = OWNER
    draws: int = 20
    seed: int = 0
    log: Log = field(default_factory=Log)


@dataclass(frozen=True, eq=False)
class Rows:
    """The records in the tables, in the measure's unit: of each its firm, its value and its cell in each table."""

    firms: Int64s
    values: Floats
    cells: Int64s  # tables × records, −1 where it is in none


@dataclass(frozen=True, eq=False)
class Cells:
    """Of a table's cells: which are hidden, and the protection that the rules ask of each."""

    hidden: Mask
    protection: Floats


def suppression(job: SuppressionJob) -> dict[str, Any]:
    """Return what suppression, multiplicative noise and the plan's own noise do to the same tables, as JSON.

    `tables`: of each its cells with records, how many are suppressed as `primary` and as `secondary`, and their shares
    of cells, of the measure and of the records. `primary`: sums that each rule hides. `attack`: of these, how many an
    attacker who knows the published sums finds out `exactly`, and nearer than the rules' protection (`too_near`),
    `before` and `after` secondary suppression; and the share of noisy values that lie so near to the truth. `errors`:
    by the cells' true total and over `all`, of each method the share of cells withheld, the median and the 90 %
    quantile of the relative error of what is published, and the share of all these cells that are published within
    10 %. `losses`: rho of these tables, and of the whole plan, at the plan's references; `quantiles`: of these tables,
    over the records. Records that break the contract are left out.

    Raises:
        PlanError: There are no such tables, or too many cells, or the microdata have values below 0.
    """
    plan = job.plan
    queries = _queries(job)
    tables = [table for table in layout_of(plan).tables if table.query in queries]
    job.log.progress("microdata")
    rows = job.rows(plan, job.firm, tables)
    if not len(rows.values):
        raise PlanError(f"microdata {plan.dataset.path}: no record lies in these tables")
    if (rows.values < 0).any():
        raise PlanError(f"{arg('measure', flag='sum')}: suppression is for measures that are never below 0")
    combinations, base = np.unique(rows.cells, axis=1, return_inverse=True)
    linked, numbers = Linked.of(list(combinations), np.bincount(base.ravel(), weights=rows.values).astype(np.float64))
    sums = len(linked.totals)
    if sums > MOST_SUMS:
        raise PlanError(f"{arg('tables')}: {sums:,} sums are linked, at most {MOST_SUMS:,} can be: name fewer tables")
    stated = _protections(job.rules, rows, numbers, sums)
    protection = np.max(list(stated.values()), axis=0, initial=0.0)
    job.log.progress("secondary suppression")
    hidden = suppressed(linked, protection)
    job.log.progress("attack")
    attacks = {
        when: _attack(linked, mask, protection) for when, mask in (("before", protection > 0), ("after", hidden))
    }
    job.log.progress("errors")
    asked = [np.where(number >= 0, protection[number], 0.0) for number in numbers]
    cells = [Cells(number_hidden(each, hidden), needed) for each, needed in zip(numbers, asked, strict=True)]
    errors, near = _errors(job, tables, rows, cells)
    return {
        "plan": plan.release,
        "measure": queries[0].statistic.measure,
        "rules": job.rules.to_json(),
        "multiplicative_noise": {"a": job.today.a, "b": job.today.b},
        "records": len(rows.values),
        "firms": len(np.unique(rows.firms)),
        "sums": sums,
        "tables": [
            _table_json(table, number, cells, rows.values, (protection > 0, hidden))
            for table, number, cells in zip(tables, numbers, rows.cells, strict=True)
        ],
        "primary": {rule: int((needed > 0).sum()) for rule, needed in stated.items()}
        | {"any": int((protection > 0).sum())},
        "secondary": int(hidden.sum() - (protection > 0).sum()),
        "attack": attacks | near,
        "usable": USABLE,
        "errors": errors,
        "losses": losses_of_tables(plan, {query.name for query in queries}),
        "quantiles": _quantiles(queries, rows.values),
    }


def number_hidden(number: Int64s, hidden: Mask) -> Mask:
    """Return which cells of a table are hidden; those without a sum are not."""
    return (number >= 0) & hidden[number]


def _queries(job: SuppressionJob) -> list[Query]:
    sums = [query for query in job.plan.queries if isinstance(query.statistic, Sum)]
    measure = job.measure or (sums[0].statistic.measure if sums else None)
    known = [q.name for q in sums if q.statistic.measure == measure and not q.where and q.split is None]
    wrong = [name for name in job.tables if name not in known]
    if wrong or not known:
        name = wrong[0] if wrong else arg("measure", flag="sum")
        what = f"the plan has no table of sums of {measure} without filter and with one mechanism"
        raise PlanError(f"{name}: {what}{hint(name, known, 'table') if wrong and known else ''}")
    return [query for query in sums if query.name in (job.tables or known)]


def _protections(rules: Rules, rows: Rows, numbers: Sequence[Int64s], sums: int) -> dict[str, Floats]:
    asked: dict[str, Floats] = {}
    for number, cells in zip(numbers, rows.cells, strict=True):
        here = cells >= 0
        of = Contributions.of(cells[here], rows.firms[here], rows.values[here], len(number), rules.n)
        for rule, needed in by_rule(rules, of).items():
            met = number >= 0
            asked.setdefault(rule, np.zeros(sums))[number[met]] = needed[met]
    return asked


def _attack(linked: Linked, hidden: Mask, protection: Floats) -> dict[str, Any]:
    learned, primary = attacked(linked, hidden, protection), protection > 0
    counts = {"exactly": learned.high - learned.low < 1, "too_near": ~learned.protected}
    stated: dict[str, Any] = {}
    for name, mask in counts.items():
        count = (primary & mask).sum()
        stated |= {name: int(count), f"{name}_share": float(count / max(int(primary.sum()), 1))}
    return stated


def _table_json(table: Table, number: Int64s, cells: Int64s, values: Floats, hidden: Sequence[Mask]) -> dict[str, Any]:
    """Return a table's shares; `hidden`: the sums that are primary, and all that are hidden."""
    first, all_hidden = (number_hidden(number, mask) for mask in hidden)
    inside = cells >= 0
    lost = all_hidden[cells[inside]]
    count, values = int((number >= 0).sum()), values[inside]
    return {
        "name": table.name,
        "by": list(table.query.by),
        "cells": count,
        "primary": int(first.sum()),
        "secondary": int(all_hidden.sum() - first.sum()),
        "cells_share": float(all_hidden.sum() / max(count, 1)),
        "measure_share": float(values[lost].sum() / values.sum()) if values.sum() else 0.0,
        "records_share": float(lost.mean()) if len(lost) else 0.0,
    }


def _errors(
    job: SuppressionJob, tables: Sequence[Table], rows: Rows, cells_of: Sequence[Cells]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return relative errors of each method over all cells with a total of at least 1, by classes and in all.

    And of the noisy values of primary cells, over cells and draws, how many lie nearer to the truth than the rules ask.
    """
    totals: list[Floats] = []
    errors: dict[str, list[Floats]] = {method: [] for method in METHODS}
    random = np.random.default_rng(np.random.SeedSequence(job.seed, spawn_key=(len(tables),)))
    firms = int(rows.firms.max()) + 1
    factors = [job.today.draw(random, firms)[rows.firms] for _ in range(job.draws)]
    for table, cells, of in zip(tables, rows.cells, cells_of, strict=True):
        inside = cells >= 0
        summed = partial(np.bincount, cells[inside], minlength=len(of.hidden))
        total = summed(weights=rows.values[inside]).astype(np.float64)
        totals.append(total)
        errors["suppression"].append(np.zeros((1, len(total))))
        noisy = np.array([summed(weights=(rows.values * factor)[inside]) for factor in factors], dtype=np.float64)
        errors["multiplicative noise"].append(np.abs(noisy - total))
        errors["prdp"].append(np.abs(_released(table, total, job) - total))
    every = np.concatenate(totals)
    hidden, protection = (np.concatenate([getattr(of, name) for of in cells_of]) for name in ("hidden", "protection"))
    joined = {method: np.concatenate(parts, axis=1) for method, parts in errors.items()}
    primary = protection > 0
    near = {
        method: {"too_near_share": float((joined[method][:, primary] < protection[primary]).mean())}
        for method in METHODS[1:]
        if primary.any()
    }
    shown = every >= SIZES[0]
    relative = {method: error[:, shown] / every[shown] for method, error in joined.items()}
    size = np.searchsorted(SIZES, every[shown], side="right") - 1
    classes = [{"from": least} | _class(relative, hidden[shown], size == i) for i, least in enumerate(SIZES)]
    return {"all": _class(relative, hidden[shown], size >= 0), "sizes": classes}, near


def _released(table: Table, totals: Floats, job: SuppressionJob) -> Floats:
    """Return values that the table's mechanism draws for the totals, draws × cells, in the measure's unit."""
    (mechanism,) = table.query.mechanisms
    steps = np.tile(np.rint(totals / float(mechanism.step)).astype(np.int64), job.draws)
    bits = SeededBits(len(steps), job.seed, table.number)
    values = mechanism.release(steps, bits, job.plan.interval).value.astype(np.float64)
    return values.reshape(job.draws, -1) * (float(mechanism.step) if mechanism.additive else 1.0)


def _class(errors: dict[str, Floats], lost: Mask, cells: Mask) -> dict[str, Any]:
    stated: dict[str, Any] = {"cells": int(cells.sum())}
    for method, each in errors.items():
        shown = cells & ~lost if method == "suppression" else cells
        mine = each[:, shown]
        median, ninety = np.quantile(mine, (0.5, 0.9)).tolist() if mine.size else (None, None)
        usable = (mine <= USABLE).sum() / max(len(each) * int(cells.sum()), 1)
        withheld = 1 - shown.sum() / cells.sum() if cells.any() else 0.0
        stated[method] = {"withheld": float(withheld), "median": median, "ninety": ninety, "usable": float(usable)}
    return stated


def _quantiles(queries: Sequence[Query], values: Floats) -> dict[str, float]:
    distinct_values, counts = np.unique(values, return_counts=True)
    losses = np.sum([query.mechanisms[0].loss(distinct_values) for query in queries], axis=0)
    return {q: quantile(losses, counts, Fraction(q)) for q in QUANTILES} | {"largest": float(losses.max())}


DOCUMENT: Final = "suppression.json"
RULES: Final = {"p_percent": "p % rule", "dominance": "(n, k) rule", "threshold": "threshold", "any": "any of them"}
ATTACKS: Final = {"before": "by margins, without secondary suppression", "after": "by margins, with it"}
NOTES: Final = (
    "Synthetic microdata: no figure here is an estimate about real establishments, nor confidential.",
    "within: relative error; cells by their true total, of all tables together, over cells and draws.",
    "An attacker here knows the published sums and that nothing is below 0, and no firm's own figure. Suppression and",
    "multiplicative noise bound no record's loss; prdp does (rho), whatever the attacker knows.",
)


def columns(figures: dict[str, Any]) -> Iterator[list[list[str]]]:
    """Yield tables of text: the tables' suppressed cells, the attack, errors by size, and losses."""
    measure = figures["measure"]
    rows = [["table", "cells", "primary", "secondary", "withheld: cells", measure, "records"]]
    for table in figures["tables"]:
        counts = (f"{table[name]:,}" for name in ("cells", "primary", "secondary"))
        shares = (f"{table[f'{name}_share']:.1%}" for name in ("cells", "measure", "records"))
        rows.append([table["name"], *counts, *shares])
    yield rows
    primary = figures["primary"]
    yield [["primary sums by", *(RULES[rule] for rule in primary)], ["", *(f"{count:,}" for count in primary.values())]]
    rows = [["of these are found", "exactly", "nearer than the rules allow"]]
    for when, shares in figures["attack"].items():
        shown = [f"{shares[of]:.0%}" if of in shares else "" for of in ("exactly_share", "too_near_share")]
        rows.append([ATTACKS.get(when, f"by the values of {when}"), *shown])
    yield rows
    first, *noisy = methods = [name for name in figures["errors"]["all"] if name != "cells"]
    heads = [f"{name}: {quantile}" for name in noisy for quantile in ("median", "90 %")]
    rows = [["true total", "cells", "suppressed", *(f"within 10 %: {name}" for name in methods), *heads]]
    for each in [*figures["errors"]["sizes"], figures["errors"]["all"]]:
        name = f"from {each['from']:,}" if "from" in each else "all"
        usable = (_percent(each[method]["usable"]) for method in methods)
        wrong = (_percent(each[method][quantile]) for method in noisy for quantile in ("median", "ninety"))
        rows.append([name, f"{each['cells']:,}", _percent(each[first]["withheld"]), *usable, *wrong])
    yield rows
    rows = [["a record of", "loses in these tables", "in the whole plan"]]
    rows += [[each["label"], *(bound_text(each[of], 3) for of in ("tables", "plan"))] for each in figures["losses"]]
    of = figures["quantiles"]
    quantiles = {"half of all records, at most": of["0.5"], "99 %": of["0.99"]}
    yield [*rows, *([name, bound_text(rho, 3), ""] for name, rho in quantiles.items())]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}" if 0 < share < 0.1 else f"{share:,.0%}"


def write(figures: dict[str, Any], out: Path) -> None:
    """Write the figures and the picture into `out`, a folder that is absent or empty; raises as `filled` does."""
    drawn = board(figures)
    with filled(out) as folder:
        write_study(folder, "suppression", figures, {"suppression": drawn})


def board(figures: dict[str, Any]) -> Picture:
    """Return the picture: what readers can use, how wrong it is, and what an attacker finds."""
    sizes = [each for each in figures["errors"]["sizes"] if each["cells"]]
    methods = [name for name in sizes[0] if name not in ("cells", "from")] if sizes else []
    places = np.arange(len(sizes))

    def draw(panels: Sequence["Axes"]) -> None:
        use, wrong, attack = panels
        for method in methods:
            style: Any = {"color": PRACTICES[method], "linewidth": 1.5, "marker": "o", "markersize": 4}
            use.plot(places, [100 * each[method]["usable"] for each in sizes], label=method, **style)
            if method != "suppression":
                for quantile, dash in (("median", "-"), ("ninety", "--")):
                    shown = [100 * (each[method][quantile] or np.nan) for each in sizes]
                    wrong.semilogy(places, shown, **style | {"linestyle": dash})
        for axes in (use, wrong):
            axes.set_xticks(places, [f"from {each['from']:,}" for each in sizes])
            axes.set(xlabel=f"true total of the cell: {figures['measure']}")
        use.set(ylim=(0, 102), ylabel="published within 10 % of the truth, in % of cells")
        wrong.set(ylabel="relative error in %: median, dashed 90 %")
        bars = [(name, PRACTICES["suppression"]) for name in ("margins of\nprimary alone", "with\nsecondary")]
        bars += [("multiplicative\nnoise", PRACTICES["multiplicative noise"]), ("prdp", PRACTICES["prdp"])]
        for i, (attacked_by, (_, colour)) in enumerate(zip(figures["attack"].values(), bars, strict=False)):
            share = 100 * attacked_by["too_near_share"]
            attack.bar(i, share, 0.6, color=colour, zorder=2)
            attack.text(i, share + 1, f"{share:.0f} %" if share >= 1 or not share else "< 1 %", ha="center")
        attack.set_xticks(range(4), [name for name, _ in bars], fontsize=8.5)
        attack.set(ylim=(0, 105), ylabel="primary cells found nearer than the rules allow, in %")

    title = f"{figures['plan']}: suppression, multiplicative noise and prdp at the same tables"
    return picture(title, draw, panels=3, size=(14, 4.8), formats=FORMATS)
