"""A verdict for people: at most LINES lines of at most WIDTH columns, however many tables and limits a plan has."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import floor, inf, log10
from typing import Any

from pipeline.accounting.accountant import NAME
from pipeline.accounting.calibrate import SCALES, scale_of
from pipeline.accounting.interpretation import NOTES, interpretation_text, posterior_lines, unknown_lines
from pipeline.base import plain
from pipeline.base.errors import arg
from pipeline.base.plain import WIDTH
from pipeline.plan.model import DerivedTable, Plan, Query
from pipeline.plan.structure import size_of, warnings
from pipeline.planning.explanation import loss_lines, tight_queries
from pipeline.planning.verdict import CELLS, MOST_TRIED, Remedy, Standing, Verdict
from pipeline.publication.policy_document import composition, named
from udfs.mechanisms.additive_kinds import Gaussian
from udfs.numbers.exact import as_json, bound_text, exact, up_text

LINES = 25
MOST_REFERENCES = 5
MOST_SHARES = 4  # references at which shares are shown
NO_LIMIT = "none: the plan has no budget"
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def render_verdict(verdict: Verdict) -> str:
    """Return the verdict for people."""
    plan, standings = verdict.plan, list(verdict.standings)
    lines = [*_head(verdict), "", *_totals(verdict), *_remedy_lines(verdict)]
    warned, tables = ", ".join(query.name for query in plan.queries if warnings(query)), _together(plan)
    ending = [f"  warning: errors are not as stated in {warned}: see --detail"] if warned else []
    room = LINES - len(lines) - len(ending) - 3  # a blank line and the heads of the errors
    if standings:
        shares = [each.shares for each in standings]
        tables = dict(sorted(tables.items(), key=lambda each: -max(_share(share, each[1]) for share in shares)))
        room -= 2  # a blank line and the head of the shares
        needed = list(accumulate(1 + len(names) for names in tables.values()))  # lines of a share, and of errors
        shown = len(tables) if needed[-1] <= room else max(1, sum(lines_of < room for lines_of in needed))
        lines += ["", *_shares(_nearest(standings, MOST_SHARES), tables, shown)]
        room -= shown + (shown < len(tables))
    else:
        shown = len(tables)
    names = [name for of_table in list(tables.values())[:shown] for name in of_table]
    names = [*names, *(each.name for each in plan.derived)][: max(room, 1)]
    lines += ["", *_errors(verdict, names), *ending]
    return "\n".join(plain.cut(line, WIDTH) for line in lines)


def _head(verdict: Verdict) -> list[str]:
    plan, size = verdict.plan, size_of(verdict.plan)
    owner = plan.dataset.owner
    unit = plan.protected[0] + ("" if owner is None else f", by {owner}")
    kept = [each.within for each in verdict.standings if each.within is not None]
    limits = f"{len(kept)} limits" if len(kept) > 1 else "limit"
    names = ", ".join(table.name for table in plan.derived)
    derived = [f"derived  {len(plan.derived)} when reconciled, at no loss: {names}"] if names else []
    stated = f"within its {limits}" if all(kept) else f"BREAKS {kept.count(False)} of its {limits}"
    if len(kept) == 1 and not all(kept):
        stated = "BREAKS its limit"
    return [
        f"release  {plan.release}   dataset {plan.dataset.name}",
        f"size     {size.cells:,} cells, a row each, in {size.tables:,} tables; protected: each {unit}",
        *derived,
        f"verdict  {f'{stated} by this release alone (no ledger was asked)' if kept else NO_LIMIT}",
    ]


def _totals(verdict: Verdict) -> list[str]:
    if not verdict.standings:
        return [f"no limit and no reference: {_any_reference(verdict.plan)}"]
    rows = [[f"loss of every {verdict.plan.protected[0]} no larger than", "rho", "limit", ""]]
    shown = _nearest(verdict.standings, MOST_REFERENCES)
    for i, each in shown.items():
        limit = "-" if each.limit is None else str(as_json(each.limit))
        rows.append([f"{i} {plain.reference_text(each.at.to_json())}", bound_text(each.rho, 4), limit, _state(each)])
    more = [each for i, each in enumerate(verdict.standings, 1) if i not in shown]
    broken = sum(each.within is False for each in more)
    rest = [f"  … {len(more)} others" + (f", {broken} of which broken" if broken else "")] if more else []
    return plain.fitted(rows, WIDTH) + rest


def _nearest(standings: Sequence[Standing], most: int) -> dict[int, Standing]:
    near = [inf if each.within is False and each.used is None else each.used or 0.0 for each in standings]
    nearest = sorted(range(len(near)), key=near.__getitem__, reverse=True)[:most]
    return {i + 1: standings[i] for i in sorted(nearest)}


def _state(each: Standing) -> str:
    if each.within is None:
        return "no limit"
    if each.within:
        return "within" if each.used is None else f"within: {bound_text(100 * exact(each.used), 3)} %"
    return "BROKEN" if each.used is None else f"BROKEN: {bound_text(each.used, 3)} times"


def _remedy_lines(verdict: Verdict) -> list[str]:
    if verdict.within is not False:
        return []
    texts = []
    for remedy in verdict.remedies:
        if remedy.parameter is not None and remedy.before is not None and remedy.after is not None:
            change = f"{up_text(remedy.before)} to {up_text(remedy.after)}"
            texts.append(f"{remedy.parameter} of {remedy.table} from {change}")
        else:
            whose = "all scales" if remedy.table is None else f"all scales of {remedy.table}"
            texts.append(f"{whose} times {up_text(remedy.factor)}{_divided(verdict.plan, remedy)}")
    if not any(remedy.table for remedy in verdict.remedies) and len(verdict.plan.queries) > 1:
        group = any(each.at.listed for each in verdict.standings) and len(verdict.plan.queries) > MOST_TRIED
        tried = f"of the {MOST_TRIED} largest tables" if group else "table"
        texts[-1:] = [f"{text} (no scale of one {tried} does)" for text in texts[-1:]]
    if not verdict.remedies:
        texts = ["no larger scale does: leave tables out, or raise the limit in the plan's budget"]
    return textwrap.wrap(f"to mend it: {'; or '.join(texts)}", WIDTH - 2, initial_indent="  ", subsequent_indent="    ")


def _divided(plan: Plan, remedy: Remedy) -> str:
    mechanisms = (each for query in plan.queries if remedy.table in (None, query.name) for each in query.mechanisms)
    names = {name for each in mechanisms if SCALES.get(name := scale_of(type(each)) or "", 1) < 0}
    return f" ({', '.join(sorted(names))}: divided by it, rounded down to three digits)" if names else ""


def _any_reference(plan: Plan) -> str:
    values = ",".join(
        f"{name}=10" for name in sorted({name for each in plan.queries for name in each.statistic.measures})
    )
    return f"give {arg('at')}, for instance {arg('at')} {values}"


def _together(plan: Plan) -> dict[str, list[str]]:
    """Return the names of the queries, those of one table of several measures by its name."""
    tables: dict[str, list[str]] = {}
    for query in plan.queries:
        tables.setdefault(plan.together.get(query.name, query.name), []).append(query.name)
    return tables


def _share(shares: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(shares[name] for name in names)


def _shares(standings: Mapping[int, Standing], tables: Mapping[str, Sequence[str]], shown: int) -> list[str]:
    """Return the shares of the first `shown` tables, and of all others together."""
    shares = [each.shares for each in standings.values()]
    rows = [["share of the loss", *(f"at {i}" for i in standings)]]
    of_tables = [(name, [_share(share, names) for share in shares]) for name, names in tables.items()]
    rows += [[name, *map(_percent, of_table)] for name, of_table in of_tables[:shown]]
    if others := of_tables[shown:]:
        rest = [sum(each) for each in zip(*(of_table for _, of_table in others), strict=True)]
        rows.append([f"… {len(others):,} others", *map(_percent, rest)])
    return plain.fitted(rows, WIDTH)


def _errors(verdict: Verdict, names: Sequence[str]) -> list[str]:
    """Return the errors of these tables, of parts those of the noisiest."""
    rows = [["at a true total of", *(f"{total:,}" for total in CELLS), "reconciled"]]
    of_tables, has_parts = dict(verdict.errors), False
    for name in names:
        errors = of_tables[name]
        noisiest = max(errors, key=lambda error: error["standard_error"] or inf)
        of_part = [error for error in errors if error.get("part") == noisiest.get("part")]
        label = f"{name} ({noisiest['part']})" if "part" in noisiest else name
        has_parts |= "part" in noisiest
        rows.append([label, *map(_error, of_part), _reconciled(of_part)])
    parts = " (of parts the noisiest)" if has_parts else ""
    return [f"  errors: half are below this share; ± standard error{parts}; ≈ estimated", *plain.fitted(rows, WIDTH)]


def _reconciled(errors: Sequence[dict[str, Any]]) -> str:
    known = {error["reconciled"] for error in errors}
    return "released" if len(known) > 1 else "–" if None in known else f"≈{_short(known.pop())}"


def _error(error: dict[str, Any]) -> str:
    if error["standard_error"] is None and error["median_relative_error"] is None:
        return "–"
    relative = error["median_relative_error"]
    return f"{'∞' if relative is None else _percent(relative)} ±{_short(error['standard_error'])}"


def _percent(share: float) -> str:
    percent = 100 * share
    if percent >= 10_000:
        return ">9999 %"
    return "<0.01 %" if 0 < percent < 0.005 else f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _short(number: float | None) -> str:
    """Return a number ≥ 0 in three digits, with a letter for thousands; None is infinite."""
    if number is None:
        return "∞"
    thousands = 0 if number < 999.5 else floor(log10(number * 1.0005)) // 3
    if thousands >= len(PREFIXES):
        return f"{number:.0e}"
    return f"{number / 1000**thousands:.3g}{PREFIXES[thousands]}"


OF_RECORDS = (
    "rho is the per-record zCDP loss, epsilon the pure one (- where there is none). Both are upper bounds, and bind "
    "every record whose values are in magnitude at most the reference's; a larger one may lose more, without limit.",
    "too high by: how far rho may lie above what the noise itself loses, at most; certified from below.",
)
OF_CLASSES = (
    "rho is the zCDP loss of a record or firm of these very values, epsilon the pure one (- where there is none), both "
    "upper bounds. Classes of a measure have cells or noise of their own, so that a smaller one may lose more.",
    "all no larger: the most that any record or firm loses none of whose values is larger, in any class, where that is "
    "not the reference's own loss; limits are against it.",
)
OF_FIRMS = (
    "rho is the zCDP loss of a firm, epsilon the pure one (- where there is none). Both are upper bounds, and "
    "bind every firm whose records can be matched one to one with records of the reference that are at least as "
    "large, in the cells that these name; a firm with more or larger records may lose more, without a limit.",
)
OF_GROUPS = ("Several records together lose at most rho, wherever they lie; the simple bound is J·ΣP for J records.",)
OF_PLACEMENTS = (
    "at most … times the true one: rho over what a placement of the records loses that was found in the domain.",
)
OF_COUNTS = (
    "in a cell of n records: rho of one of them, where larger groups lose less. The count of an actual cell is "
    "confidential, and so is this loss: it must not be published cell by cell.",
)
OF_CHANGES = (
    "A change: rho and epsilon bound the loss from distinguishing two values of a record that is known to be there and "
    "to stay in its codes; counts add nothing. Into another class it moves between cells, and loses P(x) + P(x′).",
    "best test: between the two values.",
)
RHO_OF_YEARS = ("rho_a_year", "rho_same", "rho_growing")
OF_YEARS = (
    "The same: of records or firms that are in each year no larger than the reference. Growing: of those whose values "
    "grow by at most so much from one year to the next, from the reference's or less. The policies of all years are "
    "added up, each with its test; limits of a family bind such sums."
)
UNBOUNDED = "no bound: larger records change by more, or into classes of which a value is not named"

Json = Mapping[str, Any]


def render(explained: Json, plan: Plan) -> str:
    """Return all that a plan promises, but for the verdict, for people."""
    owner = plan.dataset.owner
    lines = [f"plan     {explained['plan_digest']}", f"size     {_size(explained['size'])}", ""]
    paper, tight = explained.get("paper", ()), tight_queries(plan)
    for entry, query in zip(explained["queries"], plan.queries, strict=True):
        lines.append(_shown(query))
        for part in query.parts:
            name = "" if query.split is None else f"{query.split} {part.name}: "
            lines.append(f"    {name}{plain.mechanism_text(part.mechanism.describe())}")
            lines.append(f"        P(Δ) = {part.mechanism.formula}")
        bounds = [f"   (paper's bound: rho {bound_text(bound['queries'][query.name])})" for bound in paper]
        beside = bounds if query.name in tight else [""] * len(entry["losses"])
        above = plain.aligned([[plain.excess_text(share)] for share in entry["excess"]]) if entry["excess"] else []
        lines += _losses(entry["losses"], [a.strip() + b for a, b in zip(above, beside, strict=True)])
        lines += _groups(entry.get("groups", ()))
        lines += [*error_lines(entry["accuracy"], plan.interval), ""]
    for table, made in zip(plan.derived, explained.get("derived", ()), strict=True):
        error = f"; standard error {plain.figure(made['reconciled'], none='not known')}, as estimated"
        lines.append(f"{_shown(table)}: derived, when reconciled (no noise, no loss){error}")
    lines += [""] * bool(plan.derived)
    test = explained["left_out_test"]
    noise = f"{test.get('noise', Gaussian.kind)} noise of scale {test['sigma']:g} on two counts"
    lines.append(f"{NAME}: refused beyond a share of {test['share']:g}; {noise}")
    lines += [*_losses(test["losses"], []), ""]
    reference = named("a record of these values" if owner is None else "a firm of these records", plan.unit_names)
    totals = explained["total"]
    lines.append(f"total: the most that {reference} loses in this release, wherever it is")
    rows = [row for loss, means in zip(totals, explained["total_means"], strict=True) for row in _total(loss, means)]
    names, interpreted = [name for name, _, _ in rows], [means for _, _, means in rows]
    lines += plain.aligned([[name, plain.loss_text(loss), interpretation_text(means)] for name, loss, means in rows])
    lines += posterior_lines(names, interpreted)
    if not totals:
        lines.append(f"    (no reference: {_any_reference(plan)})")
    classes = len(rows) > len(totals)
    stated = (*OF_CLASSES, *OF_RECORDS[1:]) if classes else OF_RECORDS if owner is None else OF_FIRMS
    lines += ["", *loss_lines(plan), "", *(named(text, plan.unit_names) for text in stated), *NOTES]
    lines += unknown_lines(names, interpreted)
    if any("rho_simple" in loss for loss in totals):
        lines += OF_GROUPS
    if any("rho_found" in loss for loss in totals):
        lines += OF_PLACEMENTS
    if any("groups" in entry for entry in explained["queries"]):
        lines += OF_COUNTS
    lines.append(composition(plan))
    lines += [f"warning: {text}" for entry in explained["queries"] for text in entry["warnings"]]
    return "\n".join(part for line in lines for part in plain.wrapped(line))


def _shown(table: Query | DerivedTable) -> str:
    where = "".join(f", {level} in {{{', '.join(codes)}}}" for level, codes in table.where.items())
    return f"{table.name}: {table.statistic.label} by {' × '.join(table.by)}{where}"


def _size(size: Json) -> str:
    memory = f"{size['gibibytes']:.2g} GiB" if size["gibibytes"] >= 0.05 else "little memory"
    return f"{size['cells']:,} cells in {size['tables']:,} tables, from {size['sums']:,} sums of records: {memory}"


def render_changes(explained: Sequence[Json]) -> str:
    """Return the changes for people."""
    lines = []
    for entry in explained:
        lines += ["", f"change: {_change(entry['change'])}"]
        losses = {query["name"]: query for query in entry["queries"]} | {"total": entry["total"]}
        texts = {name: UNBOUNDED if loss["rho"] is None else plain.loss_text(loss) for name, loss in losses.items()}
        if entry["means"] is not None:
            texts["total"] += f"   {interpretation_text(entry['means'])}"
        lines += plain.aligned([*texts.items()])
    return "\n".join(part for line in (*lines, "", *OF_CHANGES) for part in plain.wrapped(line))


def render_years(explained: Sequence[Json], plan: Plan) -> str:
    """Return what several years cost for people."""
    years, growth = (explained[0][name] for name in ("years", "growth")) if explained else (0, 0)
    head = [
        f"rho over {years} years, a release like this in each",
        "a year",
        "the same",
        f"growing {100 * growth:g} % a year",
    ]
    rows = [
        [plain.reference_text(each["at"]), *(bound_text(each[name], 4) for name in RHO_OF_YEARS)] for each in explained
    ]
    lines = ["", *plain.fitted([head, *rows], WIDTH), "", named(OF_YEARS, plan.unit_names)]
    return "\n".join(part for line in lines for part in plain.wrapped(line))


def error_lines(accuracy: Sequence[Json], interval: Fraction) -> list[str]:
    """Return the errors at some totals in aligned columns; those of additive noise are the same at all totals."""
    totals = Counter(entry.get("part") for entry in accuracy)
    beside = any("reconciled" in entry for entry in accuracy)
    rows = [["", "standard error", "mean error", f"{float(100 * interval):.4g} % interval"]]
    if beside:
        rows = [["", "standard error", "reconciled", *rows[0][2:]]]
    for entry in accuracy:
        part = f"{entry['part']}, " if "part" in entry else ""
        errors = [entry["standard_error"], entry["mean_absolute_error"]]
        total, bounds = f"total {entry['total']:,.0f}", f"{entry['lower']:,.6g} to {entry['upper']:,.6g}"
        if totals[entry.get("part")] == 1:
            total, bounds = "any total", f"total ± {entry['upper']:,.6g}"
        texts = [plain.figure(error, none="infinite") for error in errors]
        if beside:
            texts.insert(1, "–" if entry["reconciled"] is None else f"≈ {plain.figure(entry['reconciled'], 4)}")
        rows.append([part + total, *texts, bounds])
    return plain.aligned(rows)


def _losses(losses: Sequence[Json], beside: Sequence[str]) -> list[str]:
    rows = [[plain.reference_text(loss["at"]), plain.loss_text(loss)] for loss in losses]
    return (
        plain.aligned([[*row, text] for row, text in zip(rows, beside or [""] * len(rows), strict=True)])
        if rows
        else []
    )


def _total(loss: Json, means: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield a name, a loss and what it means: of a reference, then of all no larger, where that is another bound."""
    name = plain.reference_text(loss["at"])
    yield name, loss, means
    if "below" in means:
        yield f"all no larger than {name}", {kind: loss[f"{kind}_below"] for kind in ("rho", "epsilon")}, means["below"]


def _groups(groups: Sequence[Json]) -> list[str]:
    parts: dict[str, list[str]] = {}
    for entry in groups:
        loss = f"{entry['count']:,}: {bound_text(entry['rho'], 4)}"
        parts.setdefault(entry.get("part", ""), []).append(loss)
    return [
        f"    {part + ', ' if part else ''}in a cell of n records   {'   '.join(texts)}"
        for part, texts in parts.items()
    ]


def _change(change: Json) -> str:
    if "factor" in change:
        return f"all values of a record, or others within a factor of {change['factor']}"
    return ", ".join(
        f"{name}={value}" if isinstance(value, str) else f"{name} {value[0]} or {value[1]}"
        for name, value in change.items()
    )
