"""The shape of a plan: every key, its type and its bounds; unknown keys are errors.

What depends on other parts of the plan or on the domain is checked in meaning.py. Mechanisms come from the catalogue
and statistics from their registry: a new one needs no line here.
"""

import builtins
import json
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic import create_model as new_model

from pipeline.accounting.calibrate import offset_of, scale_of
from pipeline.accounting.references import Limit, Reference
from pipeline.plan import values
from pipeline.plan.model import OTHERS, RECORD
from pipeline.plan.values import ClassesSpec, MainSpec, Spec
from udfs.mechanisms.base import Mechanism, Parameter
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import exact
from udfs.records.codes import MOST_KEYS
from udfs.records.statistics import OWNERS, RECORDS, STATISTICS, Statistic, statistic_of

MOST_PARTS = 100  # of a query's mechanism: the worst cell is searched among all sets of parts that share one
INTERVAL = 0.95  # coverage, where a plan names none
MOST_LEVELS = 8  # of one query
ErrorName = Literal["standard_error", "mean_absolute_error", "relative_error", "interval"]
ERRORS = get_args(ErrorName)  # which an allocation may minimise, …
UNUSABLE = "unusable"  # … or the share of cells whose errors are larger than `within` times their totals
WITHIN = Fraction("0.3")  # where a draft names none
WISHES = (*ERRORS, "within")  # accuracies that it may be given
BY_PLAN = "plan"  # as a mechanism's calibrate: the plan's own key calibrate chooses the scale


def _parameter_type(parameter: Parameter) -> Any:
    if parameter.kind == "choice":
        return Annotated[Literal[parameter.choices], Field(description=parameter.doc)]
    if parameter.kind == "table":
        return Annotated[str | dict[str, Any], Field(description=parameter.doc)]
    bounds = {
        "exclusiveMinimum" if parameter.exclusive else "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "multipleOf": 1 if parameter.integral else None,
    }
    stated = {key: bound for key, bound in bounds.items() if bound is not None}
    return Annotated[values.number_type(parameter.rule, parameter.allows, **stated), Field(description=parameter.doc)]


class CalibrateSpec(Spec):
    """A target in place of a noise scale: an error, or an interval's width, at a true total; or a record's loss or ε.

    Numbers are in the measure's unit. `with_test`: a loss or pure ε includes the test of records left out.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["standard_error"], "properties": {"at": False}},
                {"required": ["mean_absolute_error"], "properties": {"at": False}},
                {"required": ["relative_error", "total"], "properties": {"at": False}},
                {"required": ["interval"], "properties": {"at": False}},
                {"required": ["loss"], "properties": {"total": False}},
                {"required": ["epsilon"], "properties": {"total": False}},
            ],
            "dependentRequired": {
                "delta": ["epsilon"],
                "bound": ["delta"],
                "group_loss": ["relative_error", "group"],
                "group": ["group_loss"],
            },
        }
    )
    standard_error: values.Positive | None = None
    mean_absolute_error: values.Positive | None = None
    relative_error: values.Positive | None = None
    group_loss: values.Positive | None = None
    group: values.Positive | None = None
    interval: values.Positive | None = None
    loss: values.Positive | None = None
    epsilon: values.Positive | None = None
    delta: values.Share | None = None
    bound: Literal["exact", "closed"] | None = None
    with_test: Literal[True] | None = None
    total: values.NonNegative | None = None
    at: dict[values.Name, values.NonNegative] | None = None


Calibrate = Annotated[
    Annotated[CalibrateSpec, Tag("target")] | Annotated[Literal["plan"], Tag(BY_PLAN)],
    Discriminator(lambda value: BY_PLAN if isinstance(value, str) else "target"),
]


def _mechanism_spec(kind: str, mechanism: type[Mechanism]) -> type[Spec]:
    """Return the shape of a mechanism's parameters; its noise scale may be left to calibration."""
    scale, offset = scale_of(mechanism), offset_of(mechanism)
    base: type[Spec] = Spec
    optional: Any = Field(default_factory=lambda: None)  # it may be left out, but not be null
    keys: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for name, parameter in mechanism.parameters().items():
        absent = optional if name in (scale, offset) else ...
        keys[name] = (_parameter_type(parameter), absent if parameter.default is None else parameter.default)
    if scale is not None:
        needed: Any = [name for name in (offset, scale) if name is not None]
        config = ConfigDict(json_schema_extra={"oneOf": [{"required": needed}, {"required": ["calibrate"]}]})

        class Scaled(Spec):
            model_config = config

        base = Scaled
        keys["calibrate"] = (Calibrate, optional)
    doc = (mechanism.__doc__ or "").split("\n\n")[0]
    return new_model(kind, __base__=base, __doc__=doc, **keys)


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
    """Return whether a query's `mechanism` is meant as several, for the parts of its cells."""
    keys = value.keys() if isinstance(value, dict) else ()
    return isinstance(value, PartsSpec) or ("kind" not in keys and not PartsSpec.model_fields.keys().isdisjoint(keys))


if TYPE_CHECKING:
    OneOrParts = Spec
else:
    OneOrParts = Annotated[
        Annotated[MechanismSpec, Tag("one")] | Annotated[PartsSpec, Tag("parts")],
        Discriminator(lambda value: "parts" if is_by_parts(value) else "one"),
    ]


class MeasureSpec(Spec):
    """A column of numbers; a decimal has a step of which every value is a whole multiple, an integer the step 1."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"type": {"const": "integer"}}},
            "then": {"properties": {"step": {"const": 1}}},
            "else": {"required": ["step"]},
        }
    )
    column: values.Text
    type: Literal["integer", "decimal"]
    step: values.Positive | None = None


class SourceSpec(Spec):
    """Microdata that Spark reads from its catalog."""

    table: values.TableName


class DatasetSpec(Spec):
    """The confidential microdata: files at a path, or a table of Spark's catalog."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["path"]}, {"required": ["source"]}]})
    name: values.NameWithVariables
    family: values.Name | None = None
    path: values.Text | None = None
    source: SourceSpec | None = None
    record: values.Text
    duplicates: Literal["trust", "reject", "combine"] = "trust"
    unit: values.Text = RECORD
    bad_records: Literal["refuse", "drop"] = "refuse"
    keys: Annotated[dict[values.LevelName, values.Text], Field(min_length=1, max_length=MOST_KEYS)]
    measures: dict[values.Name, MeasureSpec] = Field(default={})


class ListSpec(Spec):
    """The codes of a key as a CSV file, which of its columns are coarser levels, and whether a record may have none.

    `code`, `name` and `parent` are columns of a file as an office published it, or a language of SDMX-JSON (`name`).
    """

    list: values.Text
    levels: Annotated[builtins.list[values.LevelName], Field(json_schema_extra={"uniqueItems": True})] = Field(
        default=[]
    )
    optional: bool = False
    code: values.Line | None = None
    name: values.Line | None = None
    parent: values.Line | None = None


def _kind_of_codes(value: object) -> str:
    if isinstance(value, MainSpec) or (isinstance(value, dict) and "main" in value):
        return "main"
    if isinstance(value, ClassesSpec) or (isinstance(value, dict) and not {"of", "classes"}.isdisjoint(value)):
        return "classes"
    return "list" if isinstance(value, dict | ListSpec) else "file"


KeyCodes = Annotated[
    Annotated[values.Text, Tag("file")]
    | Annotated[ListSpec, Tag("list")]
    | Annotated[ClassesSpec, Tag("classes")]
    | Annotated[MainSpec, Tag("main")],
    Discriminator(_kind_of_codes),
]


class VintageSpec(Spec):
    """The years of the code lists."""

    naics: values.YearOrVariable | None = None
    county: values.YearOrVariable | None = None


class DomainSpec(Spec):
    """The public codes of each key, by its name; all their combinations are cells, or those that one file lists.

    For each key in `other` the list has one more code, `other`: all well-formed codes that it does not name.
    """

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "anyOf": [
                {"not": {"required": ["cells"]}, "minProperties": 1},
                {"required": ["cells"], "properties": {"naics": False, "county": False, "other": {"maxItems": 0}}},
            ]
        },
    )
    __pydantic_extra__: dict[str, KeyCodes]
    naics: KeyCodes | None = None
    county: KeyCodes | None = None
    cells: values.Text | None = None
    vintage: VintageSpec = VintageSpec()
    other: Annotated[list[values.LevelName], Field(json_schema_extra={"uniqueItems": True})] = Field(default=[])

    @property
    def codes(self) -> dict[str, "ListSpec | ClassesSpec | MainSpec"]:
        """What names the codes of each key."""
        named = {"naics": self.naics, "county": self.county} | dict(self.model_extra or {})
        return {
            key: ListSpec.model_construct(list=codes, levels=[], optional=False) if isinstance(codes, str) else codes
            for key, codes in named.items()
            if codes is not None
        }


class _Named(Spec):
    name: values.Name


if TYPE_CHECKING:
    _Statistics = _Named
else:
    _Statistics = new_model(
        "_Statistics",
        __base__=_Named,
        **{
            kind: ((values.Name if statistic.reads_measure else Literal[RECORDS, OWNERS]) | None, None)
            for kind, statistic in STATISTICS.items()
        },
    )


class DerivedSpec(_Statistics):
    """A table that is published but not measured: `prdp reconcile` makes it of the queries' tables."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in STATISTICS]})
    by: Annotated[list[str], Field(min_length=1, max_length=MOST_LEVELS)]
    where: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(default={})
    title: values.Line | None = None
    about: values.Prose | None = None
    unit: values.Line | None = None

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that the query names, of which there must be one."""
        named = {kind: getattr(self, kind) for kind in STATISTICS}
        return tuple(statistic_of({kind: value}) for kind, value in named.items() if value is not None)


class QuerySpec(DerivedSpec):
    """One table."""

    mechanism: OneOrParts

    @property
    def mechanisms(self) -> list[tuple[str | None, Spec]]:
        """The mechanism of each part, OTHERS last; None stands for all cells."""
        if not isinstance(self.mechanism, PartsSpec):
            return [(None, self.mechanism)]
        others = [] if self.mechanism.others is None else [(OTHERS, self.mechanism.others)]
        return [*self.mechanism.parts.items(), *others]


RecordValues = dict[str, values.ReferenceValue]


class LimitSpec(Spec):
    """A limit on the dataset's accumulated loss at a reference record, or at the list of a firm's records."""

    at: Annotated[
        Annotated[RecordValues, Tag("record")] | Annotated[list[RecordValues], Field(min_length=1), Tag("firm")],
        Discriminator(lambda value: "firm" if isinstance(value, list) else "record"),
    ]
    rho: values.NonNegative

    @property
    def records(self) -> list[RecordValues]:
        """The records, of which there is one where no list is given."""
        return self.at if isinstance(self.at, list) else [self.at]

    def resolved(self, unit: str) -> Limit:
        """Return the limit of a dataset with this unit; for an owner's column its records are a list, be it of one."""
        records = [dict(sorted(record.items())) for record in self.records]
        return Limit(Reference.of(records[0] if unit == RECORD else records), self.rho)


class WishSpec(Spec):
    """What is wanted of one table: a weight of its squared errors, or an accuracy, in the measure's unit.

    `usable`: the share of its cells that are to be usable at least, beside a weight.
    """

    weight: values.Positive | None = None
    usable: values.Share | None = None
    standard_error: values.Positive | None = None
    mean_absolute_error: values.Positive | None = None
    relative_error: values.Positive | None = None
    quantile: values.Share | None = None
    interval: values.Positive | None = None
    within: values.Positive | None = None
    share: values.Share | None = None
    sizes: values.Text | None = None
    total: values.NonNegative | None = None
    proportions: Annotated[dict[str, values.Positive], Field(max_length=MOST_PARTS + 1)] = Field(default={})


class AllocationSpec(Spec):
    """What the scales of all mechanisms with `calibrate: plan` are chosen for; a plan with it is a draft.

    `years`: the plan's tables are released so many times within the limits. `reconciled`: errors of weighted tables
    are those after `prdp reconcile`. `within`: of which errors a cell is unusable, as a share of its total.
    `kinds`: of noise, of which each table takes the best. `derive`: tables that others tell need not be measured.
    """

    minimise: ErrorName | Literal["unusable"] = "standard_error"
    within: values.Share | None = None
    reconciled: bool = False
    kinds: Annotated[list[MechanismSpec], BeforeValidator(values.without_design)] = Field(default=[])
    derive: bool = False
    limits: list[LimitSpec] = Field(default=[])
    years: values.Years = Fraction(1)
    queries: dict[values.Name, WishSpec] = Field(default={})


class VariableSpec(Spec):
    """A variable: the regular expression that its whole value matches, and what it is, in a sentence."""

    pattern: values.Pattern
    about: values.Line


class UnitNamesSpec(Spec):
    """What public texts call a record, and an owner: one, and several, such as [farm, farms]."""

    record: Annotated[list[values.Line], Field(min_length=2, max_length=2)] = Field(default=["record", "records"])
    owner: Annotated[list[values.Line], Field(min_length=2, max_length=2)] = Field(default=["firm", "firms"])


class PlanSpec(Spec, defer_build=False):  # with its parts: a validator of each would take twice as long
    """A release: the tables to publish and the noise that protects each record in them."""

    release: values.NameWithVariables
    supersedes: values.NameWithVariables | None = None
    title: values.Line | None = None
    about: values.Prose | None = None
    contact: values.Line | None = None
    dataset: DatasetSpec
    domain: DomainSpec
    interval: Annotated[values.Share, Field(json_schema_extra={"default": INTERVAL})] = exact(INTERVAL)
    max_left_out: values.ShareOrNone | None = None
    calibrate: AllocationSpec | None = None
    queries: Annotated[list[QuerySpec], Field(min_length=1)]
    budget: list[LimitSpec] = Field(default=[])
    derived: list[DerivedSpec] = Field(default=[])
    unit_names: UnitNamesSpec | None = None
    variables: dict[values.VariableName, VariableSpec] = Field(default={})  # replaced before this shape is checked


def export_schema() -> str:
    """Return the JSON Schema of plans, as conf/plan.schema.json holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | PlanSpec.model_json_schema()
    for name in ("QuerySpec", "DerivedSpec"):  # of several measures, any value but these may be one for each of them
        one = schema["$defs"][name]
        known = {key: one["properties"][key] for key in ("name", "by", "where") if key in one["properties"]}
        several = {"sum": {"type": "array", "items": {"type": "string"}, "minItems": 2, "uniqueItems": True}}
        listed = one | {"properties": dict.fromkeys(one["properties"], True) | known | several}
        is_list = {"required": ["sum"], "properties": {"sum": {"type": "array"}}}
        schema["$defs"][name] = {"if": is_list, "then": listed, "else": one}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
