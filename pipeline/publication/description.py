"""What a release says of itself: one frozen description, of plan, reserved test and public lists alone.

policy.json, structure.json, site/metadata.json, report.html, datapackage.json (a Frictionless Data Package, version 1)
and the footers of Parquet files are views of it: the same for all microdata, engines and attempts. A site is made of
the tables, structure.json and metadata.json alone.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import pyarrow as pa

from pipeline.accounting.accountant import LeftOutTest
from pipeline.accounting.convert import DELTA
from pipeline.accounting.interpretation import interpret_at
from pipeline.accounting.policy import PolicySum
from pipeline.base.canonical import readable_json
from pipeline.base.plain import mechanism_text, reference_text
from pipeline.engines.writers import FORMATS, PARQUET
from pipeline.plan.domain import ALL_LEVELS, Domain
from pipeline.plan.domain.code_lists import CONF, vintage_of
from pipeline.plan.model import DerivedTable, Plan, Query
from pipeline.plan.structure import Structure
from pipeline.plan.total_policy import located, policy_of, total_loss
from pipeline.publication.policy_document import named, public_policy
from pipeline.storage.location import Location
from udfs.estimates.intervals import combined, law_of, multiplier
from udfs.records.codes import LEVELS, NATION, OTHER

SITE, METADATA = "site", "metadata.json"  # the folder of pages, in that of the attempt; what they say beside figures
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

COLUMNS = (
    ("value", "the published figure: the true total of the cell plus random noise, so single cells can be well off"),
    ("lower, upper", "an interval that holds the true total with at least the stated probability, cell by cell"),
    ("standard_error", "the typical size of the error; of log, root, groupwise kinds it is estimated from the figure"),
)
NOT_ADDING = (
    "Figures of different tables do not add up to each other: each table has noise of its own. The command prdp "
    "reconcile estimates all of them together, so that they do."
)
SUMS = "For a sum of n cells, standard errors add as the root of the sum of their squares."
ODDITIES = (
    "Every public cell has a row, also those without any {record}: a figure in an empty cell is noise alone.",
    "Figures can be negative, and need not be whole numbers. They are left so: cutting or rounding them would bias "
    "every sum made from them.",
    "The largest figures of a table have, on average, noise that raised them.",
    NOT_ADDING,
    SUMS,
)
OF_MEANS = "Where noise grows with the figure, small figures that are right on average can lie outside their interval."
OF_MEDIANS = "Some tables' figures are as often too high as too low, but not right on average: do not add them up."
OF_INFINITE = "A standard error of inf is no mistake: noise of such heavy tails has none. Its intervals hold."
OF_OWNERS = "A count of {owners} has each of them once in every cell that it is in: never add its cells up."
OF_OTHER = (
    "The code other stands for all codes that the plan's lists do not name: its {records} are in no row of a code "
    "that lies above those, only in totals of all codes and in tables without that key."
)

MADE_LATER = "none: made by prdp reconcile of the measured tables"  # in place of a derived table's noise

MEANINGS = {name: what for names, what in COLUMNS for name in names.split(", ")}
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


@dataclass(frozen=True)
class Description:
    """What the release of a plan, which reserved `test`, says of itself; each part is made once."""

    plan: Plan
    test: LeftOutTest

    @cached_property
    def losses(self) -> PolicySum:
        """The policy of the release with its own test."""
        return policy_of(self.plan, self.test)

    @cached_property
    def policy(self) -> dict[str, Any]:
        """policy.json: mechanisms, parameters, policy functions and their sum at the plan's references."""
        return public_policy(self.plan, self.test, self.losses)

    @cached_property
    def structure(self) -> Structure:
        """structure.json: what the tables' keys are, and roll up to."""
        return Structure.of(self.plan)

    @cached_property
    def facts(self) -> Facts:
        """What the site says beside figures, as JSON; losses are upper bounds."""
        plan, (unit, units) = self.plan, self.plan.protected
        texts = {"title": _words(plan.release), "about": None, "contact": None} | plan.texts.stated()
        used = {level for table in plan.published for level in table.by}
        used |= {coarse for level in used for coarse in coarser(plan.domain, level)}
        names = {level: code_names(plan.domain, level) for level in sorted(used)}
        return (
            texts
            | {
                "release": plan.release,
                "supersedes": plan.supersedes,
                "plan_digest": plan.digest,
                "dataset": plan.dataset.name,
                "unit": unit,
                "units": units,
                "records": plan.unit_names.record[1],
                "interval": self.policy["interval"],
                "promise": [text.format(unit=unit, units=units) for text in PROMISE],
                "guarantee": self.policy["guarantee"],
                "losses": list(_losses(plan, self.losses)),
                "do_not": [*(text.format(unit=unit) for text in DO_NOT), *oddities(plan)],
                "levels": {level: {"label": _label(plan, level), "names": each} for level, each in names.items()},
                "tables": [_table(plan, query) for query in plan.queries],
            }
            | ({"derived": [_shown(plan, table) for table in plan.derived]} if plan.derived else {})
        )

    def notes(self, table: str) -> dict[str, str]:
        """Return what the Parquet files of a table say of it, by key, as `file_notes`."""
        about = next(about for about in self.facts["tables"] if about["name"] == table)
        return file_notes(self.facts, _resource(self.facts, about, PARQUET.name, {}))

    def stage_package(self, attempt: Location, formats: Sequence[str]) -> set[str]:
        """Write datapackage.json and codes/LEVEL.csv of the tables staged in `attempt`; return their paths."""
        lists = dict(_code_lists(self.structure, self.facts))
        (attempt / CODES).make_private()
        for path, text in lists.items():
            (attempt / path).write(text.encode())
        resources = [
            _resource(self.facts, about, kind, _types(attempt, about["name"]))
            for about in self.facts["tables"]
            for kind in formats
        ]
        package = _package(self.facts, resources, [path.split("/")[1][:-4] for path in lists])
        if self.plan.derived:
            noise = {"mechanisms": [MADE_LATER]}
            package["derived"] = [
                _resource(self.facts, about | noise, PARQUET.name, {}) for about in self.facts["derived"]
            ]
        (attempt / PACKAGE).write(readable_json(package, 1).encode())
        return {PACKAGE, *lists}


def coarser(domain: Domain, level: str) -> list[str]:
    """Return the levels that group the codes of a level, by which a page can filter: each code has one code there."""
    dimension = domain.dimension(level)
    fine = len(dimension.index(level))
    groups = {each: dimension.between(level, each) for each in dimension.levels if each != level}
    return [each for each, of in groups.items() if of is not None and 1 < len(dimension.index(each)) < fine]


def oddities(plan: Plan) -> list[str]:
    """Return what readers should know of the plan's tables, by what its mechanisms are like."""
    mechanisms = [mechanism for query in plan.queries for mechanism in query.mechanisms]
    estimators = {mechanism.estimator for mechanism in mechanisms}
    texts = {
        OF_MEANS: "mean" in estimators,
        OF_MEDIANS: "median" in estimators,
        OF_INFINITE: not all(isfinite(mechanism.variance(0.0)) for mechanism in mechanisms),
        OF_OWNERS: not all(query.statistic.adds_up for query in plan.queries),
        OF_OTHER: bool(plan.domain.other),
    }
    kept = [*ODDITIES, *(text for text, holds in texts.items() if holds)]
    names = plan.unit_names
    return [text.format(record=names.record[0], records=names.record[1], owners=names.owner[1]) for text in kept]


def mechanisms_of(query: Query) -> list[str]:
    """Return the mechanism of each part of a query in words."""
    names = ("" if part.name is None else f"{query.split} {part.name}: " for part in query.parts)
    return [name + mechanism_text(part.mechanism.describe()) for name, part in zip(names, query.parts, strict=True)]


def _losses(plan: Plan, policy: PolicySum) -> Iterator[dict[str, Any]]:
    """Yield what units no larger than each reference of the plan's budget lose at most, and what that means."""
    for reference in (limit.at for limit in plan.budget):
        here = located(plan, reference, below=True)
        total = total_loss(policy, here)
        means = interpret_at(policy, here, total, DELTA)
        label = GROUPED.sub(lambda digits: f"{int(digits[0]):,}", reference_text(reference.to_json()).replace("=", " "))
        kept = ("epsilon", "delta", "power", "size")
        yield {"at": label, "rho": total.to_json()["rho"]} | {key: means[key] for key in kept}


def _table(plan: Plan, query: Query) -> dict[str, Any]:
    shown = _shown(plan, query) | ({} if query.statistic.adds_up else {"adds_up": False})
    return shown | {
        "mechanisms": mechanisms_of(query),
        "additive": all(each.additive for each in query.mechanisms),
        "nonnegative": _nonnegative(plan, query),
        "sums": _sums(plan, query),
    }


def _shown(plan: Plan, table: Query | DerivedTable) -> dict[str, Any]:
    """Return what a table shows, measured or not."""
    unit = _words(table.statistic.measure or "").lower() or plan.unit_names.counted(table.statistic)
    where = "; ".join(f"{_label(plan, level)}: {', '.join(codes)}" for level, codes in table.where.items())
    shown = {"name": table.name, "title": _title(plan, table), "about": None, "unit": unit} | table.texts.stated()
    return shown | {
        "statistic": named(table.statistic.label, plan.unit_names),
        "by": list(table.by),
        "where": where or None,
        "cells": plan.domain.query_cells(table.by, table.where).size,
    }


def _nonnegative(plan: Plan, query: Query) -> bool:
    """Return whether the contract of records keeps totals from being negative: by a class, or a mechanism."""
    measures = set(query.statistic.measures)
    classed = any(each.classes is not None and each.classes.measure in measures for each in plan.domain.dimensions)
    alike = (each for each in plan.queries if measures & set(each.statistic.measures))
    refused = any(m.needs_nonnegative for each in alike if each.statistic.can_be_negative for m in each.mechanisms)
    return classed or refused or not query.statistic.can_be_negative


def _sums(plan: Plan, query: Query) -> dict[str, float] | None:
    """Return how many standard errors, and what more, hold the error of a sum of cells; None where sums do not say it.

    A sum lies on the noise's own lattice (docs/mathematics.md, section 15).
    """
    if not query.statistic.adds_up or not all(m.additive and isfinite(m.variance(0.0)) for m in query.mechanisms):
        return None
    law = combined(law_of(each) for each in query.mechanisms)
    return {"multiplier": multiplier(float(1 - plan.interval), law), "half_step": float(query.mechanisms[0].step) / 2}


def _title(plan: Plan, query: Query | DerivedTable) -> str:
    counted, summed = plan.unit_names.counted(query.statistic), query.statistic.label.removeprefix("sum of ")
    what = f"Number of {counted}" if query.statistic.counts else _words(summed)
    labels = (_label(plan, level) for level in query.by)
    keys = [each if each.startswith("NAICS") else each[0].lower() + each[1:] for each in labels]
    return f"{what} by {', '.join(keys[:-1])}{' and ' if len(keys) > 1 else ''}{keys[-1]}"


def _label(plan: Plan, level: str) -> str:
    known = level not in ALL_LEVELS or plan.domain.is_conventional(level)
    return LABELS.get(level, _words(level)) if known else _words(level)


def _words(name: str) -> str:
    text = name.replace("_", " ").replace("-", " ")
    return text[:1].upper() + text[1:]


def code_names(domain: Domain, level: str) -> dict[str, str]:
    """Return the names of a level's codes: those of the plan's lists, else of public ones."""
    dimension = domain.dimension(level)
    names = {code: text for code, text in WHOLE.items() if code == OTHER or domain.is_conventional(level)}
    if level in NAMES and dimension.key == "county":
        names |= _listed(NAMES[level])
    if level in LEVELS["naics"] and domain.is_conventional(level):
        vintage = vintage_of("naics", domain.vintage.get("naics", 0))
        if vintage is not None or level == "naics2":  # sectors have kept their titles
            names |= _listed(TITLES[2022 if vintage is None else vintage.first])
    if level == dimension.level:
        names |= dict(dimension.names.items())
    elif level in dimension.further:
        names |= dict(dimension.coarser_names.items())
    return {code: names[code] for code in dimension.level_codes(level) if code in names}


def _listed(file: str) -> dict[str, str]:
    rows = csv.DictReader(CONF.joinpath(file).read_text(encoding="utf-8-sig").splitlines())
    return {row["code"]: row["name"] for row in rows}


def field_note(field: Mapping[str, Any]) -> str:
    """Return what a column is, of its field in a package."""
    return ": ".join(field[key] for key in ("title", "description") if key in field)


def file_notes(package: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, str]:
    """Return what files say of their table, of its resource in a package: texts by the keys prdp.title and so on."""
    fields = table["schema"]["fields"]
    notes = {key: table[key] for key in ("title", "description", "unit", "statistic", "where") if table[key]}
    notes |= {key: package[key] for key in ("release", "dataset", "plan_digest")}
    notes |= {"mechanism": "; ".join(table["mechanisms"]), "interval": str(table["interval"])}
    notes |= {"keys": ", ".join(table["schema"]["primaryKey"])}
    notes |= {f"column.{field['name']}": field_note(field) for field in fields}
    return {f"prdp.{key}": text for key, text in notes.items()}


def field_type(column: pa.DataType) -> str:
    """Return the type that a Data Package calls a column's: codes are text whatever they look like."""
    if pa.types.is_integer(column):
        return "integer"
    return "number" if pa.types.is_floating(column) else "string"


def _package(facts: Facts, tables: list[Facts], levels: Sequence[str]) -> Facts:
    about = {"description": facts["about"]} if facts["about"] else {}
    contact = {"contributors": [{"title": facts["contact"], "role": "publisher"}]} if facts["contact"] else {}
    own = {key: facts[key] for key in ("release", "supersedes", "dataset", "plan_digest", "guarantee")}
    lists = [_code_list(level, facts["levels"][level]["label"]) for level in levels]
    return {
        "name": facts["release"],
        "title": facts["title"],
        **about,
        **contact,
        **own,
        "resources": [*tables, *lists],
    }


def _resource(facts: Facts, about: Mapping[str, Any], kind: str, types: Mapping[str, pa.DataType]) -> Facts:
    name, keys = about["name"], list(about["by"])
    paths = [f"tables/{file}" for file in FORMATS[kind].files(name, about["cells"])]
    fields = [
        {
            "name": level,
            "type": "string",
            "title": facts["levels"][level]["label"],
            "description": f"its code, as text; {CODES}/{level}.csv has the names",
            "constraints": {"required": True},
        }
        for level in keys
    ]
    for figure, meaning in MEANINGS.items():
        unit = {"description": f"{meaning}; in {about['unit']}", "unit": about["unit"]}
        fields.append({"name": figure, "type": field_type(types.get(figure, pa.float64())), **unit})
    text = f"{about['title']}, in {about['unit']}."
    return {
        "name": name if kind == PARQUET.name else f"{kind}/{name}",
        "path": paths if len(paths) > 1 else paths[0],
        "format": kind,
        "mediatype": FORMATS[kind].media,
        "encoding": "utf-8",
        "title": about["title"],
        "description": f"{text} {about['about']}" if about["about"] else text,
        "table": name,
        "unit": about["unit"],
        "statistic": about["statistic"],
        "where": about["where"],
        "mechanisms": about["mechanisms"],
        "interval": facts["interval"],
        "schema": {
            "fields": fields,
            "primaryKey": keys,
            "foreignKeys": [
                {"fields": [level], "reference": {"resource": f"{CODES}/{level}", "fields": ["code"]}} for level in keys
            ],
        },
    }


def _code_list(level: str, label: str) -> Facts:
    code = {"name": "code", "type": "string", "constraints": {"required": True, "unique": True}}
    name = {"name": "name", "type": "string", "description": "empty where no public list names the code"}
    return {
        "name": f"{CODES}/{level}",
        "path": f"{CODES}/{level}.csv",
        "format": "csv",
        "mediatype": FORMATS["csv"].media,
        "encoding": "utf-8",
        "title": f"{label}: codes and their names",
        "schema": {"fields": [code, name], "primaryKey": ["code"]},
    }


def _code_lists(structure: Structure, facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield path and text of the list of each level by which there is a table: all its codes, with their names."""
    for level in sorted({level for about in (*facts["tables"], *facts.get("derived", ())) for level in about["by"]}):
        names, text = facts["levels"][level]["names"], io.StringIO()
        rows = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        rows.writerow(("code", "name"))
        rows.writerows((code, names.get(code, "")) for code in structure.domain.dimension(level).level_codes(level))
        yield f"{CODES}/{level}.csv", text.getvalue()


def _types(attempt: Location, table: str) -> dict[str, pa.DataType]:
    """Return the types of a table's columns; none where its files vanished, which completing the attempt finds."""
    try:
        schema = PARQUET.schema(attempt / "tables", table)
    except (IndexError, FileNotFoundError):
        return {}
    return dict(zip(schema.names, schema.types, strict=True))
