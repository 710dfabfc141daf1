"""Published tables for statistical offices' tools: SDMX-CSV 2.0, and the structure message that says what they are.

Every code of a table is in its list, where coarser levels stand as parents. A code is its own identifier; signs that
SDMX does not allow there stand as $ and their hexadecimal number (UTF-8): the class 10+ is 10$2B.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pipeline.base.canonical import readable_json
from pipeline.base.errors import PlanError, arg, in_a_line
from pipeline.plan.domain.keys import Dimension
from pipeline.publication.release_folder import Published
from udfs.records.codes import OTHER

# The structure message of SDMX (JSON 2.0): of each table a dataflow and its data structure; concepts; lists of codes.
#
# Not as XML: the schemas of SDMX-ML 3.0 allow no parent code that begins with a digit, as those of states do.

SCHEMA: Final = (
    "https://raw.githubusercontent.com/sdmx-twg/sdmx-json/master/structure-message/tools/schemas/2.0.0/"
    "sdmx-json-structure-schema.json"
)
URN: Final = "urn:sdmx:org.sdmx.infomodel"
VERSION: Final = "1.0.0"
MEASURE: Final = "OBS_VALUE"
ATTRIBUTES: Final = {  # beside a table's figures: name, what it is
    "OBS_STATUS": ("Observation status", "A: as it was released; E: estimated from released tables"),
    "CONF_STATUS": ("Confidentiality status", "F: free for publication, as noise was added before"),
    "UNIT_MEASURE": ("Unit of measure", "what the figures count or add up"),
    "UNIT_MULT": ("Unit multiplier", "the power of ten by which figures are to be multiplied"),
    "CONFIDENCE_LEVEL": ("Confidence level", "the least probability with which an interval holds the true total"),
}
TIME: Final = {"TIME_PERIOD": ("Time period", "the year that the figures are of")}
KEPT_IN: Final = {"CL": "codelist.Codelist", "CS": "conceptscheme.ConceptScheme", "DSD": "datastructure.DataStructure"}
FORMATS: Final = {  # of what is the same for all rows
    "UNIT_MEASURE": "String",
    "UNIT_MULT": "Integer",
    "CONFIDENCE_LEVEL": "Double",
}


@dataclass(frozen=True)
class ListedCode:
    """A code, its name, and the coarser code that it is part of, if any."""

    code: str
    name: str
    parent: str | None


STATUSES: Final = {  # of observations, by those codes of SDMX's own lists that are used
    "OBS_STATUS": (ListedCode("A", "Normal value", None), ListedCode("E", "Estimated value", None)),
    "CONF_STATUS": (ListedCode("F", "Free (free for publication)", None),),
}


@dataclass(frozen=True)
class Component:
    """A key of a table (`level`), or a figure (`column`, of the type `text_type`)."""

    id: str
    name: str
    what: str = ""
    level: str = ""
    column: str = ""
    text_type: str = ""


@dataclass(frozen=True)
class Flow:
    """A table: what it is called and is, its components, and what is the same for all its rows."""

    id: str
    name: str
    description: str
    components: Sequence[Component]
    constants: Mapping[str, str]
    period: Mapping[str, str]
    notes: Sequence[tuple[str, str]]


def structure_message(
    agency: str, scope: str, title: str, flows: Sequence[Flow], lists: Mapping[str, Sequence[ListedCode]]
) -> bytes:
    """Return the text of a structure message of an agency's tables `flows`, and of the codes of each level in `lists`.

    `scope`: the part of the identifiers that tells it from others of that agency. `title`: what the tables are.
    """
    maintained = _Maintained(agency, scope)
    names = {each.level: each.name for flow in flows for each in flow.components}
    concepts = {each.id: (each.name, each.what) for flow in flows for each in flow.components} | ATTRIBUTES
    concepts |= TIME if any(flow.period for flow in flows) else {}
    message = {
        "meta": {
            "schema": SCHEMA,
            "id": scope,
            "test": False,
            "prepared": f"{datetime.now(UTC):%Y-%m-%d}T00:00:00Z",
            "sender": {"id": agency.replace(".", "_")},
        },
        "data": {
            "codelists": [
                *(maintained.codes(scoped(scope, level), names[level], codes) for level, codes in lists.items()),
                *(maintained.codes(name, ATTRIBUTES[name][0], codes) for name, codes in STATUSES.items()),
            ],
            "conceptSchemes": [
                maintained.named("CS", scope, f"Concepts of {title}")
                | {"concepts": [_named(id, *texts) for id, texts in concepts.items()]}
            ],
            "dataflows": [maintained.flow(each) for each in flows],
            "dataStructures": [maintained.definition(each) for each in flows],
        },
    }
    return readable_json(message, 1).encode()


def scoped(scope: str, name: str) -> str:
    """Return what tells a table or a level of a release from those of others."""
    return f"{scope}_{name.upper()}"


@dataclass(frozen=True)
class _Maintained:
    """What an agency maintains of one release."""

    agency: str
    scope: str

    def named(self, kind: str, name: str, title: str, description: str = "") -> dict[str, Any]:
        return _named(f"{kind}_{name}", title, description) | {"agencyID": self.agency, "version": VERSION}

    def codes(self, name: str, title: str, codes: Sequence[ListedCode]) -> dict[str, Any]:
        listed = [_named(each.code, each.name) | ({"parent": each.parent} if each.parent else {}) for each in codes]
        return self.named("CL", name, title) | {"codes": listed}

    def flow(self, flow: Flow) -> dict[str, Any]:
        """Return the dataflow of a table, with what is known of it as annotations."""
        name = scoped(self.scope, flow.id)
        notes = [{"type": kind, "text": text} for kind, text in flow.notes]
        return self.named("DF", name, flow.name, flow.description) | {
            "annotations": notes,
            "structure": self._urn("DSD", name),
        }

    def definition(self, flow: Flow) -> dict[str, Any]:
        """Return the data structure of a table: its dimensions, attributes and measure."""
        figures = [each for each in flow.components if each.column]
        dimensions: dict[str, Any] = {
            "id": "DimensionDescriptor",
            "dimensions": [
                self._component(each.id, {"enumeration": self._urn("CL", scoped(self.scope, each.level))})
                | {"position": position}
                for position, each in enumerate(each for each in flow.components if each.level)
            ],
        }
        for name in flow.period:
            dimensions["timeDimension"] = self._component(name, _format("GregorianYear"))
        attributes = [
            self._attribute(each.id, "observation", _format(each.text_type)) for each in figures if each.id != MEASURE
        ]
        attributes += [
            self._attribute(name, "observation", {"enumeration": self._urn("CL", name)}) for name in STATUSES
        ]
        attributes += [self._attribute(name, "dataflow", _format(text_type)) for name, text_type in FORMATS.items()]
        measures = [
            self._component(each.id, _format(each.text_type)) | {"usage": "mandatory"}
            for each in figures
            if each.id == MEASURE
        ]
        return self.named("DSD", scoped(self.scope, flow.id), flow.name) | {
            "dataStructureComponents": {
                "dimensionList": dimensions,
                "attributeList": {"id": "AttributeDescriptor", "attributes": attributes},
                "measureList": {"id": "MeasureDescriptor", "measures": measures},
            }
        }

    def _attribute(self, name: str, of: str, represented: Mapping[str, Any]) -> dict[str, Any]:
        return self._component(name, represented) | {"usage": "mandatory", "attributeRelationship": {of: {}}}

    def _component(self, name: str, represented: Mapping[str, Any]) -> dict[str, Any]:
        concept = f"{self._urn('CS', self.scope)}.{name}".replace("ConceptScheme=", "Concept=")
        return {"id": name, "conceptIdentity": concept, "localRepresentation": represented}

    def _urn(self, kind: str, name: str) -> str:
        return f"{URN}.{KEPT_IN[kind]}={self.agency}:{kind}_{name}({VERSION})"


def _named(name: str, title: str, description: str = "") -> dict[str, Any]:
    return {"id": name, "name": title} | ({"description": description} if description else {})


def _format(data_type: str) -> dict[str, Any]:
    return {"format": {"dataType": data_type}}


# Rows, and the codes of their levels.

STRUCTURE: Final = "sdmx-structure.json"
AGENCY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*")
TYPES: Final = {"integer": "Long", "number": "Double"}
TAKEN: Final = {
    *ATTRIBUTES,
    *TIME,
    MEASURE,
    "STRUCTURE",
    "STRUCTURE_ID",
    "STRUCTURE_NAME",
    "ACTION",
    "SERIES_KEY",
    "OBS_KEY",
}
FREE, NORMAL, ESTIMATED = "F", "A", "E"  # for publication; a normal value; an estimated one: the codes of SDMX


def write_sdmx(published: Published, home: Path, *, agency: str = "PRDP", year: int | None = None) -> dict[str, str]:
    """Write <table>.csv for every table, and sdmx-structure.json of all of them; return each table's file.

    `agency` maintains the structures; `year` is the dimension TIME_PERIOD, which is absent without it. Raises PlanError
    where they are none, or two tables differ in signs alone that SDMX does not allow.
    """
    if not AGENCY.fullmatch(agency):
        raise PlanError(
            f"{arg('agency', in_a_line(agency))}: use letters, digits, '_' and '-', a letter first, such as CENSUS"
        )
    if year is not None and not 1900 <= year <= 2999:
        raise PlanError(f"{arg('year', year)}: must be a year, such as 2023")
    scope = "_".join(map(identifier, published.facts.get("releases", ())))
    scope = f"RECONCILED_{scope}" if scope else identifier(published.name)
    flows = {name: _flow(published, name, year) for name in published.tables}
    named: dict[str, str] = {}
    for name, flow in flows.items():
        if (other := named.setdefault(flow.id, name)) != name:
            raise PlanError(
                f"tables {other} and {name}: both are {flow.id} in SDMX: choose one of them by "
                f"{arg('tables', flag='table')}"
            )
    levels = sorted({each.level for flow in flows.values() for each in flow.components if each.level})
    lists = {level: listed_codes(published, level) for level in levels}
    title = (published.package or {})["title"]
    (home / STRUCTURE).write_bytes(structure_message(agency, scope, title, list(flows.values()), lists))
    for name in published.each():
        flow = flows[name]
        _write_rows(published, name, flow, home / f"{name}.csv", f"{agency}:DF_{scoped(scope, flow.id)}({VERSION})")
    return {name: f"{name}.csv" for name in published.tables}


def identifier(name: str) -> str:
    """Return a name of prdp's as a part of an identifier of SDMX."""
    return re.sub(r"[^A-Z0-9_]", "_", name.upper())


def code_identifier(code: str) -> str:
    """Return the identifier of a code: no two codes have the same."""
    return re.sub(r"[^A-Za-z0-9_@-]", lambda sign: "".join(f"${byte:02X}" for byte in sign[0].encode()), code)


def listed_codes(published: Published, level: str) -> list[ListedCode]:
    """Return the codes of a level, after those that they roll up to, level by level: each names its parent.

    `other` is one code of all these levels. A coarser level that shares codes with a finer one, as five digits may be
    an area's and a county's, is left out, and all beyond it.
    """
    dimension = published.structure.domain.dimension(level)
    listed: dict[str, ListedCode] = {}
    above: str | None = None
    for coarser in reversed(_rolled_up(dimension, level)):
        names = published.names(coarser)
        parents: list[str | None] = [None] * len(dimension.index(coarser))
        if above is not None and (parent_of := dimension.between(coarser, above)) is not None:
            parents = [code_identifier(dimension.level_codes(above)[each]) for each in parent_of]
        for code, parent in zip(dimension.level_codes(coarser), parents, strict=True):
            listed.setdefault(code, ListedCode(code_identifier(code), names.get(code) or code, parent))
        above = coarser
    return list(listed.values())


def _rolled_up(dimension: Dimension, level: str) -> list[str]:
    """Return a level, and the coarser ones, one above the other, that share no code with finer ones but `other`."""
    above, codes = [level], set(dimension.level_codes(level))
    while (up := _coarser(dimension, above[-1])) is not None:
        of_up = set(dimension.level_codes(up))
        if codes & of_up - {OTHER}:
            break
        above.append(up)
        codes |= of_up
    return above


def _coarser(dimension: Dimension, level: str) -> str | None:
    """Return the finest level that groups all codes of a level: a built-in one, else a column of the key's list."""
    codes = len(dimension.index(level))
    for levels in (dimension.built_in, tuple(dimension.further)):
        sizes = {each: len(dimension.index(each)) for each in levels if dimension.between(level, each) is not None}
        if able := [each for each, size in sizes.items() if size < codes]:
            return max(able, key=sizes.__getitem__)
    return None


def _flow(published: Published, name: str, year: int | None) -> Flow:
    about, package = published.described[name], published.package or {}
    keys, components = about["schema"]["primaryKey"], []
    for field in about["schema"]["fields"]:
        what, column = field["description"].removesuffix(f"; in {about['unit']}"), field["name"]
        if column in keys:
            name_of_key = identifier(column) + "_KEY" * (identifier(column) in TAKEN)
            components.append(Component(name_of_key, field["title"], level=column))
        else:
            name_of_figure = MEASURE if column == "value" else identifier(column)
            title = column.replace("_", " ").capitalize()
            components.append(Component(name_of_figure, title, what, column=column, text_type=TYPES[field["type"]]))
    constants = {"OBS_STATUS": ESTIMATED if "releases" in published.facts else NORMAL, "CONF_STATUS": FREE}
    constants |= {"UNIT_MEASURE": about["unit"], "UNIT_MULT": "0", "CONFIDENCE_LEVEL": str(about["interval"])}
    notes = [
        ("RELEASE", package["release"]),
        ("PLAN_DIGEST", package["plan_digest"]),
        ("STATISTIC", about["statistic"]),
    ]
    notes += [("FILTER", about["where"])] if about["where"] else []
    notes += [("MECHANISM", text) for text in about["mechanisms"]]
    notes += [("CONTACT", each["title"]) for each in package.get("contributors", ())]
    period = {} if year is None else {"TIME_PERIOD": str(year)}
    return Flow(identifier(name), about["title"], about["description"], tuple(components), constants, period, notes)


def _write_rows(published: Published, table: str, flow: Flow, path: Path, flow_id: str) -> None:
    _, batches = published.rows(table)
    keys = {each.level: each.id for each in flow.components if each.level}
    figures = {each.column: each.id for each in flow.components if each.column}
    before = {"STRUCTURE": "dataflow", "STRUCTURE_ID": flow_id, "ACTION": "I"}
    header = [*before, *keys.values(), *flow.period, *figures.values(), *flow.constants]
    columns = pa.schema([(name, pa.string()) for name in header])
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed")
    with path.open("wb") as file:
        file.write((",".join(header) + "\n").encode())  # plain: quotes around names are what some readers stumble over
        with pa.csv.CSVWriter(file, columns, write_options=options) as writer:
            for batch in batches:
                texts = {name: _identifiers(batch.column(level)) for level, name in keys.items()}
                texts |= {name: _numbers(batch.column(column)) for column, name in figures.items()}
                constant = {**before, **flow.period, **flow.constants}
                texts |= {name: pa.repeat(text, batch.num_rows) for name, text in constant.items()}
                writer.write(pa.table([texts[name] for name in header], schema=columns))


def _identifiers(codes: pa.Array) -> pa.Array:
    coded = codes.dictionary_encode()
    return pa.array(list(map(code_identifier, coded.dictionary.to_pylist())), pa.string()).take(coded.indices)


def _numbers(figures: pa.Array) -> pa.Array:
    return pc.replace_substring(figures.cast(pa.string()), "inf", "INF")  # as XML Schema writes it
