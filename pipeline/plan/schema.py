"""The shape of a plan: every key, its type and its bounds; unknown keys are errors.

What depends on other parts of the plan or on the domain is checked in check.py. Mechanisms come from the catalogue: a
new one needs no line here.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic import create_model as new_model

from pipeline.accounting.calibrate import scale_of
from pipeline.plan.model import RECORD
from pipeline.plan.values import (
    Name,
    NonNegative,
    Positive,
    ReferenceValue,
    Share,
    TableName,
    Text,
    Year,
    number_type,
)
from udfs.exact import exact
from udfs.mechanisms.base import Mechanism, Parameter
from udfs.mechanisms.catalogue import CATALOGUE

MOST_PARTS = 100  # of a query's partition: a record's worst place is searched among their meetings
INTERVAL = 0.95  # coverage, where a plan names none


class Spec(BaseModel):
    """A mapping of known keys; assignments are checked too, so that the sound keys of a broken one can be kept."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_assignment=True)


def _parameter_type(parameter: Parameter) -> Any:
    if parameter.kind == "choice":
        return Annotated[Literal[parameter.choices], Field(description=parameter.doc)]
    bounds: dict[str, object] = {
        "exclusiveMinimum" if parameter.exclusive else "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "multipleOf": 1 if parameter.whole else None,
    }
    given = {key: bound for key, bound in bounds.items() if bound is not None}
    return Annotated[number_type(parameter.rule, parameter.allows, **given), Field(description=parameter.doc)]


ASKED = ("standard_error", "mean_absolute_error", "interval", "loss")


class CalibrateSpec(Spec):
    """What is asked in place of a noise scale: an error, or an interval's width, at a true total; or a record's loss.

    Numbers are in the measure's unit.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["standard_error"], "properties": {"at": False}},
                {"required": ["mean_absolute_error"], "properties": {"at": False}},
                {"required": ["interval"], "properties": {"at": False}},
                {"required": ["loss"], "properties": {"total": False}},
            ]
        }
    )
    standard_error: Positive | None = None
    mean_absolute_error: Positive | None = None
    interval: Positive | None = None
    loss: Positive | None = None
    total: NonNegative | None = None
    at: dict[Name, NonNegative] | None = None


def _scaled(scale: str | None) -> type[Spec]:
    """Return the base of the kinds whose noise scale may be left to calibration."""
    if scale is None:
        return Spec
    config = ConfigDict(json_schema_extra={"oneOf": [{"required": [scale]}, {"required": ["calibrate"]}]})
    return type("Scaled", (Spec,), {"model_config": config, "__module__": __name__})


def _mechanism_spec(kind: str, mechanism: type[Mechanism]) -> type[Spec]:
    scale = scale_of(mechanism)
    keys: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, parameter in mechanism.parameters().items():
        absent = _nothing() if name == scale else ...
        keys[name] = (_parameter_type(parameter), absent if parameter.default is None else parameter.default)
    if scale is not None:
        keys["calibrate"] = (CalibrateSpec, _nothing())
    doc = (mechanism.__doc__ or "").split("\n\n")[0]
    return new_model(kind, __base__=_scaled(scale), __doc__=doc, **keys)


def _nothing() -> Any:
    """Return the field of a key that may be left out, but not be null."""
    return Field(default_factory=lambda: None)


if TYPE_CHECKING:
    MechanismSpec = Spec
else:
    MechanismSpec = Annotated[
        Union[tuple(_mechanism_spec(kind, mechanism) for kind, mechanism in CATALOGUE.items())],  # noqa: UP007
        Field(discriminator="kind"),
    ]


class PartsSpec(Spec):
    """A mechanism for each part of a query's cells: by their codes at the level `by`, and one for all other codes."""

    by: str
    parts: Annotated[dict[str, MechanismSpec], Field(min_length=1, max_length=MOST_PARTS)]
    others: MechanismSpec | None = None


def is_by_parts(value: object) -> bool:
    """Return whether what a query gives as its mechanism is meant as several, for the parts of its cells."""
    keys = value.keys() if isinstance(value, dict) else ()
    return isinstance(value, PartsSpec) or ("kind" not in keys and not PartsSpec.model_fields.keys().isdisjoint(keys))


if TYPE_CHECKING:
    OneOrParts = Spec
else:
    OneOrParts = Annotated[
        Annotated[MechanismSpec, Tag("one")] | Annotated[PartsSpec, Tag("parts")],
        Discriminator(lambda value: "parts" if is_by_parts(value) else "one"),
    ]


class KeysSpec(Spec):
    """The columns that hold the public keys."""

    naics: Text
    county: Text


class MeasureSpec(Spec):
    """A column of numbers; a decimal has a step of which every value is a whole multiple, an integer the step 1."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"type": {"const": "integer"}}},
            "then": {"properties": {"step": {"const": 1}}},
            "else": {"required": ["step"]},
        }
    )
    column: Text
    type: Literal["integer", "decimal"]
    step: Positive | None = None


class SourceSpec(Spec):
    """Microdata that Spark reads from its catalog."""

    table: TableName


class DatasetSpec(Spec):
    """The confidential microdata: files at a path, or a table of Spark's catalog."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["path"]}, {"required": ["source"]}]})
    name: Name
    path: Text | None = None
    source: SourceSpec | None = None
    record: Text
    duplicates: Literal["trust", "reject", "combine"] = "trust"
    unit: Text = RECORD
    bad_records: Literal["refuse", "drop"] = "refuse"
    keys: KeysSpec
    measures: dict[Name, MeasureSpec] = {}


class VintageSpec(Spec):
    """The years of the code lists."""

    naics: Year | None = None
    county: Year | None = None


class DomainSpec(Spec):
    """The public cells: all pairs of two code lists, or the cells that one file lists.

    For each key in `other` the list has one more code, `other`: all well-formed codes that it does not name.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["naics", "county"]},
                {
                    "required": ["cells"],
                    "properties": {"naics": False, "county": False, "other": {"maxItems": 0}},
                },
            ]
        }
    )
    naics: Text | None = None
    county: Text | None = None
    cells: Text | None = None
    vintage: VintageSpec = VintageSpec()
    other: Annotated[list[Literal["naics", "county"]], Field(json_schema_extra={"uniqueItems": True})] = []


class QuerySpec(Spec):
    """One table."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["sum"]}, {"required": ["count"]}]})
    name: Name
    sum: Name | None = None
    count: Literal["records"] | None = None
    by: Annotated[list[str], Field(min_length=1, max_length=2)]
    where: dict[str, Annotated[list[str], Field(min_length=1)]] = {}
    mechanism: OneOrParts


RecordValues = dict[str, ReferenceValue]


class LimitSpec(Spec):
    """A limit on the dataset's accumulated loss at a reference record, or at the list of a firm's records."""

    at: Annotated[
        Annotated[RecordValues, Tag("record")] | Annotated[list[RecordValues], Field(min_length=1), Tag("firm")],
        Discriminator(lambda value: "firm" if isinstance(value, list) else "record"),
    ]
    rho: NonNegative

    @property
    def records(self) -> list[RecordValues]:
        """The records, of which there is one where no list is given."""
        return self.at if isinstance(self.at, list) else [self.at]


class PlanSpec(Spec):
    """A release: the tables to publish and the noise that protects each record in them."""

    release: Name
    supersedes: Name | None = None
    dataset: DatasetSpec
    domain: DomainSpec
    interval: Annotated[Share, Field(json_schema_extra={"default": INTERVAL})] = exact(INTERVAL)
    queries: Annotated[list[QuerySpec], Field(min_length=1)]
    budget: list[LimitSpec] = []


def export_schema() -> str:
    """Return the JSON Schema of plans, as conf/plan.schema.json holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | PlanSpec.model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
