"""A verdict for people: at most LINES lines of at most WIDTH columns, however many tables and limits a plan has."""

import textwrap
from collections.abc import Mapping, Sequence
from math import floor, inf, log10
from typing import Any

from pipeline.accounting.calibrate import SCALES, scale_of
from pipeline.base.columns import WIDTH, cut, fitted, reference_text
from pipeline.plan.model import Plan, Query
from pipeline.plan.structure import size_of, warnings
from pipeline.planning.explain.remedies import MOST_TRIED, Remedy
from pipeline.planning.explain.verdict import CELLS, Standing, Verdict, table_errors
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
    ending, tables = _endings(plan.queries), list(plan.queries)
    room = LINES - len(lines) - len(ending) - 3  # a blank line and the heads of the errors
    if standings:
        shares = [each.shares for each in standings]
        tables.sort(key=lambda query: -max(share[query.name] for share in shares))
        room -= 2  # a blank line and the head of the shares
        shown = len(tables) if 2 * len(tables) <= room else max(1, (room - 1) // 2)
        lines += ["", *_shares(_nearest(standings, MOST_SHARES), tables, shown)]
    else:
        shown = room
    lines += ["", *_errors(tables[:shown]), *ending]
    return "\n".join(cut(line, WIDTH) for line in lines)


def _head(verdict: Verdict) -> list[str]:
    plan, size = verdict.plan, size_of(verdict.plan)
    owner = plan.dataset.owner
    unit = "record" if owner is None else f"firm, by {owner}"
    kept = [each.within for each in verdict.standings if each.within is not None]
    limits = f"{len(kept)} limits" if len(kept) > 1 else "limit"
    stated = f"within its {limits}" if all(kept) else f"BREAKS {kept.count(False)} of its {limits}"
    if len(kept) == 1 and not all(kept):
        stated = "BREAKS its limit"
    return [
        f"release  {plan.release}   dataset {plan.dataset.name}",
        f"size     {size.cells:,} cells, a row each, in {size.tables:,} tables; protected: each {unit}",
        f"verdict  {f'{stated} by this release alone (no ledger was asked)' if kept else NO_LIMIT}",
    ]


def _totals(verdict: Verdict) -> list[str]:
    if not verdict.standings:
        return ["no limit and no reference: give --at, for instance --at employment=10"]
    unit = "record" if verdict.plan.dataset.owner is None else "firm"
    rows = [[f"loss of every {unit} no larger than", "rho", "limit", ""]]
    shown = _nearest(verdict.standings, MOST_REFERENCES)
    for i, each in shown.items():
        limit = "-" if each.limit is None else str(as_json(each.limit))
        rows.append([f"{i} {reference_text(each.at.to_json())}", bound_text(each.rho, 4), limit, _state(each)])
    more = [each for i, each in enumerate(verdict.standings, 1) if i not in shown]
    broken = sum(each.within is False for each in more)
    rest = [f"  … {len(more)} others" + (f", {broken} of which broken" if broken else "")] if more else []
    return fitted(rows, WIDTH) + rest


def _nearest(standings: Sequence[Standing], most: int) -> dict[int, Standing]:
    """Return so many of the references, those nearest to their limits or beyond, by their numbers, in order."""
    numbered = sorted(enumerate(standings, 1), key=lambda each: _nearness(each[1]), reverse=True)
    return dict(sorted(numbered[:most], key=lambda each: each[0]))


def _nearness(each: Standing) -> float:
    return inf if each.within is False and each.used is None else each.used or 0.0


def _state(each: Standing) -> str:
    if each.within is None:
        return "no limit"
    if each.within:
        return "within" if each.used is None else f"within: {bound_text(100 * exact(each.used), 3)} %"
    return "BROKEN" if each.used is None else f"BROKEN: {bound_text(each.used, 3)} times"


def _remedy_lines(verdict: Verdict) -> list[str]:
    """Return what would mend a broken limit."""
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
        texts[-1:] = [f"{text} (no scale of one {_tried(verdict)} does)" for text in texts[-1:]]
    if not verdict.remedies:
        texts = ["no larger scale does: leave tables out, or raise the limit in the plan's budget"]
    return textwrap.wrap(f"to mend it: {'; or '.join(texts)}", WIDTH - 2, initial_indent="  ", subsequent_indent="    ")


def _divided(plan: Plan, remedy: Remedy) -> str:
    """Return which scales are divided instead, those by which noise falls."""
    mechanisms = (each for query in plan.queries if remedy.table in (None, query.name) for each in query.mechanisms)
    names = {name for each in mechanisms if SCALES.get(name := scale_of(type(each)) or "", 1) < 0}
    return f" ({', '.join(sorted(names))}: divided by it, rounded down to three digits)" if names else ""


def _tried(verdict: Verdict) -> str:
    group = any(each.at.listed for each in verdict.standings) and len(verdict.plan.queries) > MOST_TRIED
    return f"of the {MOST_TRIED} largest tables" if group else "table"


def _shares(standings: Mapping[int, Standing], tables: Sequence[Query], shown: int) -> list[str]:
    """Return the shares of the first `shown` tables, and of all others together."""
    shares = [each.shares for each in standings.values()]
    rows = [["share of the loss", *(f"at {i}" for i in standings)]]
    rows += [[query.name, *(_percent(share[query.name]) for share in shares)] for query in tables[:shown]]
    if others := tables[shown:]:
        rest = [sum(share[query.name] for query in others) for share in shares]
        rows.append([f"… {len(others):,} others", *map(_percent, rest)])
    return fitted(rows, WIDTH)


def _errors(tables: Sequence[Query]) -> list[str]:
    """Return the errors of each table, of parts those of the noisiest."""
    rows = [["in a cell of a true total of", *(f"{total:,}" for total in CELLS)]]
    for query in tables:
        errors = table_errors(query)
        noisiest = max(errors, key=lambda error: error["standard_error"] or inf)
        of_part = [error for error in errors if error.get("part") == noisiest.get("part")]
        label = query.name if query.split is None else f"{query.name} ({noisiest['part']})"
        rows.append([label, *map(_error, of_part)])
    parts = "; of parts the noisiest" if any(query.split for query in tables) else ""
    return [f"  errors: half are below this share of the total; ± standard error{parts}", *fitted(rows, WIDTH)]


def _error(error: dict[str, Any]) -> str:
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


def _endings(queries: Sequence[Query]) -> list[str]:
    warned = [query.name for query in queries if warnings(query)]
    names = ", ".join(warned)
    return [f"  warning: errors are not as stated in {names}: see --detail"] if warned else []
