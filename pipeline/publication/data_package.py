"""Tables that explain themselves: a Frictionless Data Package (version 1), and lists of codes with their names.

datapackage.json describes each table's files: title, unit, keys and figures with their types and meanings, mechanisms.
Parquet files hold the same of their table in their footer. All of it is what plan and public lists say: it is the same
for all microdata, engines and attempts.
"""

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.base.canonical import readable_json
from pipeline.engines.writers import FORMATS, PARQUET
from pipeline.plan.structure import Structure
from pipeline.publication.manifest import Manifest
from pipeline.publication.release_folder import description_of, field_note
from pipeline.publication.site.facts import CODES, METADATA, PACKAGE, Facts
from pipeline.publication.site.report_page import COLUMNS
from pipeline.publication.site.site_files import SITE
from pipeline.storage.location import Location

MEDIA = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
MEANINGS = {name: what for names, what in COLUMNS for name in names.split(", ")}


def stage_description(structure: Structure, attempt: Location, formats: Sequence[str]) -> set[str]:
    """Write datapackage.json and codes/LEVEL.csv of the staged tables and site in `attempt`; return their paths."""
    facts: Facts = json.loads((attempt / SITE / METADATA).read())
    lists = dict(_code_lists(structure, facts))
    (attempt / CODES).make_private()
    for path, text in lists.items():
        (attempt / path).write(text.encode())
    resources = [
        _table(facts, about, each, FORMATS[each].files(about["name"], about["cells"]), _types(attempt, about["name"]))
        for about in facts["tables"]
        for each in formats
    ]
    package = _package(facts, resources, [path.split("/")[1][:-4] for path in lists])
    (attempt / PACKAGE).write(readable_json(package, 1).encode())
    return {PACKAGE, *lists}


def notes_of(facts: Facts, table: str) -> dict[str, str]:
    """Return what the Parquet files of a table say of it, by key, as `file_notes`."""
    about = next(each for each in facts["tables"] if each["name"] == table)
    return file_notes(facts, _table(facts, about, PARQUET.name, PARQUET.files(table, about["cells"]), {}))


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


def _table(
    facts: Facts, about: Mapping[str, Any], kind: str, files: Sequence[str], types: Mapping[str, pa.DataType]
) -> Facts:
    """Return what is said of a table's files of one format."""
    name, paths, keys = about["name"], [f"tables/{file}" for file in files], list(about["by"])
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
        "mediatype": MEDIA[kind],
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
    fields = [
        {"name": "code", "type": "string", "constraints": {"required": True, "unique": True}},
        {"name": "name", "type": "string", "description": "empty where no public list names the code"},
    ]
    return {
        "name": f"{CODES}/{level}",
        "path": f"{CODES}/{level}.csv",
        "format": "csv",
        "mediatype": MEDIA["csv"],
        "encoding": "utf-8",
        "title": f"{label}: codes and their names",
        "schema": {"fields": fields, "primaryKey": ["code"]},
    }


def _code_lists(structure: Structure, facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield path and text of the list of each level by which there is a table: all its codes, with their names."""
    for level in sorted({level for about in facts["tables"] for level in about["by"]}):
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


# What a reconciled folder says of its tables: the descriptions of the releases, with the columns of estimates.

ESTIMATED = {  # column → type and meaning
    "value": ("number", "the estimate of the cell's total from all tables together"),
    "lower": ("number", MEANINGS["lower"]),
    "upper": ("number", MEANINGS["upper"]),
    "standard_error": ("number", "the size of the estimate's error, or an upper bound of it"),
    "published": (None, "the published figure"),  # of the type that it had
    "display": ("integer", "the estimate in whole units that are not negative, which add up too"),
}


@dataclass(frozen=True, eq=False)
class Description:
    """What the releases that are reconciled say: of all tables together, of each table and list, and the lists."""

    package: dict[str, Any]
    resources: dict[str, dict[str, Any]]
    lists: dict[str, bytes]
    interval: float

    @classmethod
    def of(cls, folders: Iterable[Location], interval: float) -> "Description | None":
        """Return the description of verified releases; None where an earlier build left one of them without."""
        packages: list[dict[str, Any]] = []
        lists: dict[str, bytes] = {}
        for folder in folders:
            package, codes = description_of(Manifest.read(folder))
            if package is None:
                return None
            packages.append(package)
            lists |= codes
        together = packages[0] | {
            "name": "reconciled",
            "title": f"{packages[0]['title']}: tables that add up",
            "release": ", ".join(each["release"] for each in packages),
            "plan_digest": ", ".join(each["plan_digest"] for each in packages),
        }
        known = {each["name"]: each for package in packages for each in package["resources"]}
        return cls(together, known, lists, interval)

    def notes(self, table: str) -> dict[str, str]:
        """Return what the Parquet file of a table's estimates says of it."""
        return file_notes(self.package, _estimated(self.resources[table], self.interval, "parquet"))

    def files(self, tables: Collection[str], formats: Collection[str]) -> dict[str, bytes]:
        """Return datapackage.json and lists of codes, by path; `formats`: those of the tables' files."""
        resources = [_estimated(self.resources[name], self.interval, each) for name in tables for each in formats]
        levels = {level for each in resources for level in each["schema"]["primaryKey"]}
        used = sorted(f"{CODES}/{level}" for level in levels)
        package = self.package | {"resources": [*resources, *(self.resources[name] for name in used)]}
        return {PACKAGE: readable_json(package, 1).encode()} | {f"{name}.csv": self.lists[name] for name in used}


def _estimated(released: dict[str, Any], interval: float, kind: str) -> dict[str, Any]:
    """Return what is said of a table's estimates in files of one format, of what the release says of it."""
    name, fields = released["name"], {field["name"]: field for field in released["schema"]["fields"]}
    keys = [fields[level] for level in released["schema"]["primaryKey"]]
    columns = [
        {
            "name": column,
            "type": of or fields["value"]["type"],
            "description": f"{meaning}; in {released['unit']}",
            "unit": released["unit"],
        }
        for column, (of, meaning) in ESTIMATED.items()
    ]
    return released | {
        "name": name if kind == "parquet" else f"{kind}/{name}",
        "path": f"tables/{name}.{kind}",
        "format": kind,
        "mediatype": MEDIA[kind],
        "description": f"{released['description']} Estimated from all tables together (prdp reconcile).",
        "interval": interval,
        "schema": released["schema"] | {"fields": [*keys, *columns]},
    }
