"""The structure message of SDMX (JSON 2.0): of each table a dataflow and its data structure; concepts; lists of codes.

Not as XML: the schemas of SDMX-ML 3.0 allow no parent code that begins with a digit, as those of states do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.base.canonical import readable_json

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
