"""Tables that explain themselves: a Frictionless Data Package (version 1), and lists of codes with their names.

datapackage.json describes each table's files: title, unit, keys and figures with their types and meanings, mechanisms.
Parquet files hold the same of their table in their footer. All of it is what plan and public lists say: it is the same
for all microdata, engines and attempts.
"""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.plan.structure import Structure
from pipeline.report.page import COLUMNS
from pipeline.report.site.facts import CODES, METADATA, PACKAGE, Facts
from pipeline.report.site.write import SITE
from pipeline.storage.location import Location
from pipeline.tables.writers import FORMATS, PARQUET

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
    (attempt / PACKAGE).write(package_text(_package(facts, resources, [path.split("/")[1][:-4] for path in lists])))
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


def field_note(field: Mapping[str, Any]) -> str:
    """Return what a column is, of its field in a package."""
    return ": ".join(field[key] for key in ("title", "description") if key in field)


def package_text(package: Mapping[str, Any]) -> bytes:
    """Return the contents of datapackage.json."""
    return (json.dumps(package, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


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
