"""The page to play with a plan: what it holds as data, and its rendering as one file that loads nothing."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from pipeline.accounting.accountant import NAME
from pipeline.accounting.calibrate import SCALES, scale_of
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit, Reference, spans_json
from pipeline.base.canonical import FrozenMap
from pipeline.base.plain import Table, mechanism_text, number, percent, reference_text, rendered
from pipeline.base.plots import family_look
from pipeline.plan.model import OTHERS, Plan, Query
from pipeline.plan.plan_text import written
from pipeline.plan.total_policy import limits_of, policy_of
from pipeline.planning.study.equal_publication import SizedCells
from pipeline.planning.trial_scales import families_of, scale_at
from pipeline.planning.verdict import standings
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, bound_text, up_float

SIZES: Final = (10.0, 1000.0)  # references, where a plan has none
DASHES: Final = {"-": "none", "--": "7 3", "-.": "8 3 2 3", ":": "2 3"}  # of SVG
TOKEN: Final = "@{}@"  # stands in the plan's text for a number that the page knows
FARTHEST: Final = 100.0  # times the largest reference, up to which losses are known
LEAST_FARTHEST: Final = 1e6

Json = Mapping[str, Any]


def trial_page(plan: Plan, written_as: Json, document: Json, cells: Sequence[SizedCells]) -> str:
    """Return the page for the first plan of a trial's document; `written_as`: the plan's own text as plain data."""
    tried, data = document["plans"][0], page_data(plan, written_as, cells)
    drawn = [(table["name"], _drawn(table["classes"])) for table in tried["tables"]] if document["draws"] else []
    label = document["microdata"]["label"]
    sentence = label[:1].upper() + label[1:]
    return rendered(
        "try.html",
        title=f"Plan {plan.release}: try its scales",
        figures=True,
        lead=f"{sentence}: {tried['records']['in_domain']:,} records in the plan's domain.",
        data=data,
        draws=document["draws"],
        drawn=drawn,
        seen=_seen(tried["usable"]),
        reconciled=_reconciled([*tried["tables"], *tried["derived"]]),
        within=percent(tried["usable"]["within"]),
        notes=data["notes"],
        digest=plan.digest,
        file=plan.path.name,
    )


def page_data(plan: Plan, written_as: Json, cells: Sequence[SizedCells]) -> dict[str, Any]:
    """Return all that the page computes from, as JSON.

    `policies` in the order of the plan's policy, the test of records left out being the last; `families`: losses and
    errors over scales; `limits` with the query sets and spans that their references can meet; `yaml`: the plan's text
    with a token for each number that the page changes.
    """
    policy = policy_of(plan)
    mechanisms = [query.mechanism for query in policy.queries if query.name != NAME]
    families, numbers = families_of(mechanisms)
    limits, notes = _limits(plan, policy)
    largest = max((value for limit in limits for value in limit["values"].values()), default=1.0)
    of_parts = [(t, p, part) for t, query in enumerate(plan.queries) for p, part in enumerate(query.parts)]
    policies: list[dict[str, Any]] = []
    for i, (t, p, part) in enumerate(of_parts):
        statistic, sized = plan.queries[t].statistic, cells[t]
        bins = [[float(f"{q:.6g}"), n] for q, n in zip(sized.totals[p].tolist(), sized.counts[p].tolist(), strict=True)]
        scale = scale_at(part.mechanism)
        policies.append(
            {
                "table": t,
                "part": part.name,
                "measure": None if statistic.counts else statistic.measure,
                "family": numbers[i],
                "scale": None if scale is None else float(scale),
                "cells": [each for each in bins if each[1]],
            }
        )
    test = policy.queries[-1]
    policies.append({"table": None, "loss": up_float(test.mechanism.loss_at(test.statistic.influence({})))})
    return {
        "release": plan.release,
        "file": plan.path.name,
        "families": [
            family.to_json(max(LEAST_FARTHEST, FARTHEST * largest)) | _look(family.mechanism) for family in families
        ],
        "policies": policies,
        "tables": [_table(query, t, of_parts) for t, query in enumerate(plan.queries)],
        "limits": limits,
        "left_out": sum(len(limit.at.records) > 1 for limit in plan.budget),
        "test": NAME,
        "notes": notes,
        "yaml": written(_with_tokens(plan, written_as, of_parts, limits)),
    }


def _look(mechanism: Mechanism) -> dict[str, Any]:
    colour, dash = family_look(mechanism.describe())
    return {"colour": colour, "dash": DASHES[dash] if isinstance(dash, str) else " ".join(map(str, dash[1]))}


def _table(query: Query, number_of: int, of_parts: Sequence[tuple[int, int, Any]]) -> dict[str, Any]:
    kinds = list(dict.fromkeys(mechanism.kind for mechanism in query.mechanisms))
    scale = next((name for mechanism in query.mechanisms if (name := scale_of(type(mechanism)))), None)
    return {
        "name": query.name,
        "about": f"{query.statistic.label} by {' × '.join(query.by)}",
        "measure": query.statistic.measure or "records",
        "split": query.split,
        "mechanism": _text(query.mechanisms[0]) if query.split is None else f"{', '.join(kinds)} by {query.split}",
        "colour": family_look(query.mechanisms[-1].describe())[0],
        "scale": scale,
        "more_noise": SCALES.get(str(scale), 1),
        "policies": [i for i, (t, _, _) in enumerate(of_parts) if t == number_of],
    }


def _text(mechanism: Mechanism) -> str:
    described = {name: value for name, value in mechanism.describe().items() if name != scale_of(type(mechanism))}
    return mechanism_text(described)


def _limits(plan: Plan, policy: PolicySum) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the limits that the page recomputes, and a note on those that it cannot."""
    notes = []
    stated = list(plan.budget)
    if not stated:
        measures = [measure.name for measure in plan.dataset.measures]
        listed = plan.dataset.owner is not None
        bare = [Limit(Reference.of(dict.fromkeys(measures, size), listed), Fraction(1)) for size in SIZES]
        notes.append("The plan states no limit: losses are those of two sizes of records.")
    else:
        bare = stated
    located = limits_of(replace(plan, budget=tuple(_in_any_class(plan, limit) for limit in bare)))
    standing = standings(plan, policy) if stated else [None] * len(bare)
    limits = []
    for number_of, (limit, there, stands) in enumerate(zip(bare, located, standing, strict=True)):
        if len(limit.at.records) > 1:
            loss = "" if stands is None else f"it loses ρ {bound_text(stands.rho)} of {as_json(limit.rho)}."
            now = f" As the plan is, {loss}" if loss else ""
            notes.append(
                f"The limit at {reference_text(limit.at.to_json())} is of several records, whose placements prdp "
                f"explain goes through: it is not recomputed here.{now}"
            )
            continue
        record, (stated_record,) = there.at.records[0], limit.at.records
        anywhere = record.query_sets is None
        limits.append(
            {
                "number": number_of if stated else None,
                "rho": as_json(limit.rho) if stated else None,
                "within": None if stands is None else stands.within,  # of the plan as it is
                "values": {name: float(value) for name, value in stated_record.values.items()},
                "keys": ", ".join(f"{level} {code}" for level, code in stated_record.keys.items()),
                "sets": [sorted(each) for each in (policy.query_sets if anywhere else record.query_sets or ())],
                "spans": spans_json(policy.spans if anywhere else record.spans),
            }
        )
    return limits, notes


def _in_any_class(plan: Plan, limit: Limit) -> Limit:
    """Return the limit at values of the highest classes, so that it can meet the cells of all of them."""
    lowest = {each.classes.measure: each.classes.lowest[-1] for each in plan.domain.dimensions if each.classes}
    records = tuple(
        replace(record, values=FrozenMap.of({m: max(v, lowest.get(m, v)) for m, v in record.values.items()}))
        for record in limit.at.records
    )
    return replace(limit, at=replace(limit.at, records=records))


def _with_tokens(
    plan: Plan, written_as: Json, of_parts: Sequence[tuple[int, int, Any]], limits: Sequence[Json]
) -> dict[str, Any]:
    """Return the plan's text as data, its mechanisms resolved, with tokens in place of scales and references."""
    data = deepcopy(dict(written_as))
    for t, query in enumerate(plan.queries):
        described = [_described(i, part.mechanism) for i, (u, _, part) in enumerate(of_parts) if u == t]
        if all(mechanism.kind == "designed" for mechanism in query.mechanisms):
            continue
        if query.split is None:
            data["queries"][t]["mechanism"] = described[0]
            continue
        parts = dict(zip((part.name for part in query.parts), described, strict=True))
        others = {OTHERS: parts.pop(OTHERS)} if OTHERS in parts else {}
        data["queries"][t]["mechanism"] = {"by": query.split, "parts": parts} | others
    for k, limit in enumerate(limits):
        if limit["number"] is not None:
            entry = data["budget"][limit["number"]]
            reference = entry["at"][0] if isinstance(entry["at"], list) else entry["at"]
            reference |= {name: TOKEN.format(f"limit {k} {name}") for name in limit["values"]}
            entry["rho"] = TOKEN.format(f"limit {k}")
    return data


def _described(number_of: int, mechanism: Mechanism) -> dict[str, Any]:
    name = scale_of(type(mechanism))
    described = mechanism.describe()
    return described if name is None else described | {name: TOKEN.format(f"scale {number_of}")}


def _seen(usable: Json) -> Table:
    """Return the shares of cells that the public can use, released and reconciled, by size of their total."""
    rows = [
        [row["total"], f"{row['cells']:,}", *(percent(row[way]) for way in ("released", "reconciled"))]
        for row in (*usable["sizes"], {**usable, "total": "all above 0"})
    ]
    return Table(["true total", "cells", "usable", "usable once reconciled (≈)"], rows, range(1, 4))


def _reconciled(tables: Sequence[Json]) -> Table:
    """Return the errors by table and part as they are released, and reconciled, and the shares of usable cells."""
    header = ["table", "part", "released ±", "reconciled ≈", "cells above 0", "usable", "usable reconciled"]
    rows = []
    for table in tables:
        usable = table["usable"]
        shares = [f"{usable['cells']:,}", *(percent(usable[way]) for way in ("released", "reconciled"))]
        for i, error in enumerate(table["errors"]):
            errors = [number(error[name]) for name in ("standard_error", "reconciled")]
            rows.append([table["name"], error.get("part", ""), *errors, *(shares if i == 0 else ("", "", ""))])
    return Table(header, rows, range(2, len(header)))


def _drawn(classes: Sequence[Json]) -> Table:
    header = ["true total", "cells", "bias", "± ", "mean error", "median", "90 %", "within 10 %", "coverage", "below 0"]
    rows = [
        [
            row["total"],
            f"{row['cells']:,}",
            *(number(row[name]) for name in ("bias", "bias_mc", "mean_absolute_error")),
            *(percent(row[f"{name}_relative_error"]) for name in ("median", "ninety")),
            percent(row["within"]["0.1"] if row["within"] else None),
            *(percent(row[name]) for name in ("coverage", "negative")),
        ]
        for row in classes
    ]
    return Table(header, rows, range(1, len(header)))
