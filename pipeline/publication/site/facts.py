"""What a public site says beside figures, as site/metadata.json holds it: of plan and public lists alone.

With the tables and structure.json it is all that a site is made of, so that whoever has a release's folder can make
another one.
"""

import csv
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from pipeline.accounting.convert import DELTA
from pipeline.accounting.interpretation import interpret_at
from pipeline.accounting.left_out import LeftOutTest
from pipeline.base.columns import reference_text
from pipeline.plan.code_lists import CONF, vintage_of
from pipeline.plan.domain import Domain
from pipeline.plan.model import Plan, Query
from pipeline.plan.total_policy import classes_decide, located, policy_of, total_loss
from pipeline.publication.policy_document import guarantee
from pipeline.publication.site.report_page import mechanisms_of, oddities
from udfs.estimates.intervals import combined, law_of, multiplier
from udfs.numbers.exact import as_json
from udfs.records.codes import LEVELS, NATION, OTHER

METADATA = "metadata.json"
PACKAGE, CODES = "datapackage.json", "codes"  # beside the tables: what describes them, lists of codes with names
Facts = dict[str, Any]  # JSON

LABELS = {
    "nation": "Nation",
    "state": "State",
    "county": "County",
    "cbsa": "Metropolitan or micropolitan area",
    "csa": "Combined statistical area",
    "zip": "ZIP code",
    "naics2": "Sector (NAICS 2)",
    "naics3": "Subsector (NAICS 3)",
    "naics4": "Industry group (NAICS 4)",
    "naics5": "Industry (NAICS 5)",
    "naics6": "National industry (NAICS 6)",
}
NAMES = {"state": "products/states.csv", "cbsa": "products/areas.csv"}  # public lists, by level
TITLES = {first: f"products/naics_titles_{first}.csv" for first in (2007, 2017, 2022)}  # by a vintage's first year
WHOLE = {NATION: "United States", OTHER: "All codes that the lists do not name"}
GROUPED = re.compile(r"(?<![\w.])\d{4,}(?![\w.])")  # whole numbers that are read more easily in groups of three

PROMISE = (
    "The figures are totals over confidential {units}; random noise was added to every one of them before anybody saw "
    "it.",
    "How well somebody who knows all other {units} could tell from this release whether one {unit} is there has an "
    "upper bound, which is a public function of that {unit}'s values and is stated below for some sizes.",
    "The bound holds whatever else a reader knows, and for whatever is computed from the figures; over several "
    "releases such losses add up.",
)
DO_NOT = (
    "Do not quote a figure without its interval: a single cell can be well off.",
    "Do not rank cells whose intervals overlap, and do not read a small figure as proof that anybody is there.",
    "Do not take the difference of two figures for a fact about one {unit}: the noise of both is in it.",
)


def site_facts(plan: Plan, test: LeftOutTest) -> Facts:
    """Return what the site of a plan's release says beside figures, as JSON; losses are upper bounds."""
    unit = "record" if plan.dataset.owner is None else "firm"
    texts = {"title": _words(plan.release), "about": None, "contact": None} | plan.texts.given()
    used = {level for query in plan.queries for level in query.by}
    used |= {coarse for level in used for coarse in coarser(plan.domain, level)}
    return texts | {
        "release": plan.release,
        "supersedes": plan.supersedes,
        "plan_digest": plan.digest,
        "dataset": plan.dataset.name,
        "unit": unit,
        "interval": as_json(plan.interval),
        "promise": [text.format(unit=unit, units=f"{unit}s") for text in PROMISE],
        "guarantee": guarantee(plan.dataset.owner, plan.dataset.duplicates, test, classes=classes_decide(plan)),
        "losses": list(_losses(plan, test)),
        "do_not": [*(text.format(unit=unit) for text in DO_NOT), *oddities(plan)],
        "levels": {level: {"label": _label(level), "names": code_names(plan.domain, level)} for level in sorted(used)},
        "tables": [_table(plan, query) for query in plan.queries],
    }


def coarser(domain: Domain, level: str) -> list[str]:
    """Return the levels that group the codes of a level, by which a page can filter: each code has one code there."""
    dimension = domain.dimension(level)
    fine = len(dimension.index(level))
    groups = {each: dimension.between(level, each) for each in dimension.levels if each != level}
    return [each for each, of in groups.items() if of is not None and 1 < len(dimension.index(each)) < fine]


def _losses(plan: Plan, test: LeftOutTest) -> Iterator[dict[str, Any]]:
    """Yield what units no larger than each reference of the plan's budget lose at most, and what that means."""
    policy = policy_of(plan, test)
    for at in (limit.at for limit in plan.budget):
        here = located(plan, at, below=True)
        total = total_loss(policy, here)
        means = interpret_at(policy, here, total, DELTA)
        label = GROUPED.sub(lambda digits: f"{int(digits[0]):,}", reference_text(at.to_json()).replace("=", " "))
        kept = ("epsilon", "delta", "power", "size")
        yield {"at": label, "rho": total.to_json()["rho"]} | {key: means[key] for key in kept}


def _table(plan: Plan, query: Query) -> dict[str, Any]:
    cells = plan.domain.query_cells(query.by, query.where)
    unit = "records" if query.statistic.counts else _words(str(query.statistic.measure)).lower()
    where = "; ".join(f"{_label(level)}: {', '.join(codes)}" for level, codes in query.where.items())
    texts = {"title": _title(query), "about": None, "unit": unit} | query.texts.given()
    return (
        {"name": query.name}
        | texts
        | {
            "statistic": query.statistic.label,
            "by": list(query.by),
            "where": where or None,
            "cells": cells.size,
            "mechanisms": mechanisms_of(query),
            "additive": all(each.additive for each in query.mechanisms),
            "sums": _sums(plan, query),
        }
    )


def _sums(plan: Plan, query: Query) -> dict[str, float] | None:
    """Return how many standard errors, and what more, hold the error of a sum of cells; None where sums do not say it.

    A sum lies on the noise's own lattice (docs/mathematics.md, section 15).
    """
    if not all(each.additive and isfinite(each.variance(0.0)) for each in query.mechanisms):
        return None
    law = combined(law_of(each) for each in query.mechanisms)
    return {"multiplier": multiplier(float(1 - plan.interval), law), "half_step": float(query.mechanisms[0].step) / 2}


def _title(query: Query) -> str:
    what = "Number of records" if query.statistic.counts else _words(query.statistic.label.removeprefix("sum of "))
    keys = [_label(level) for level in query.by]
    keys = [each if "NAICS" in each and each.startswith("NAICS") else each[0].lower() + each[1:] for each in keys]
    return f"{what} by {', '.join(keys[:-1])}{' and ' if len(keys) > 1 else ''}{keys[-1]}"


def _label(level: str) -> str:
    return LABELS.get(level, _words(level))


def _words(name: str) -> str:
    text = name.replace("_", " ").replace("-", " ")
    return text[:1].upper() + text[1:]


def code_names(domain: Domain, level: str) -> dict[str, str]:
    """Return the names of a level's codes: those of the plan's lists, else of public ones."""
    dimension = domain.dimension(level)
    names = dict(WHOLE)
    if level in NAMES:
        names |= _listed(NAMES[level])
    if level in LEVELS["naics"]:
        vintage = vintage_of("naics", domain.vintage.get("naics", 0))
        if vintage is not None or level == "naics2":  # sectors have kept their titles
            names |= _listed(TITLES[2022 if vintage is None else vintage.first])
    if level == dimension.level:
        names |= dict(dimension.names.items())
    return {code: names[code] for code in dimension.level_codes(level) if code in names}


def _listed(file: str) -> dict[str, str]:
    rows = csv.DictReader(CONF.joinpath(file).read_text(encoding="utf-8-sig").splitlines())
    return {row["code"]: row["name"] for row in rows}
