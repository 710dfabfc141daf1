"""A study's file, checked with all its mistakes at once, and its microdata: always synthetic, written for each run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import yaml
from pydantic import Field, ValidationError

from pipeline.accounting.calibrate import SCALES, scale_of
from pipeline.base.errors import PlanError, hint
from pipeline.engines.totals import Layout, layout_of
from pipeline.plan.domain import ALL_LEVELS
from pipeline.plan.load import load_plan
from pipeline.plan.messages import Mistake, lines_of, missing, shape_mistakes
from pipeline.plan.plan_text import STUDY, KeyPath, read_text
from pipeline.plan.values import Name, NonNegative, Positive, Spec, Text, number_type
from pipeline.planning.economy.generate import generate, write_cattle
from pipeline.planning.study.equal_mechanisms import HEAVY, PAPER, Data, Entry, Equal, EqualBy, Panel, Study, unit_noise
from pipeline.planning.study.todays_practice import FactorNoise
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.transformed_kinds import Log, Root

OWNER: Final = "firm_id"
CATTLE_PLAN: Final = {
    "release": "cattle-synthetic",
    "dataset": {
        "name": "cattle-synthetic",
        "path": "microdata",
        "record": "farm_id",
        "keys": {"naics": "naics", "county": "county"},
        "measures": {"head": {"column": "head", "type": "integer"}},
    },
    "domain": {"naics": "domain/naics.csv", "county": "domain/counties.csv"},
}


def _cattle(records: int, seed: int, folder: Path) -> dict[str, Any]:
    write_cattle(records, seed, folder)
    return dict(CATTLE_PLAN)


WRITERS: Final[Mapping[str, Callable[[int, int, Path], dict[str, Any]]]] = {
    "establishments": lambda records, seed, folder: read_text(generate(records, seed, folder).plan).data,
    "cattle": _cattle,
}
MEASURES: Final = {"establishments": ("employment", "payroll"), "cattle": ("head",)}


def write_microdata(study: Study, folder: Path) -> tuple[Path, Layout]:
    """Write the study's microdata into `folder`; return their path, and the layout of the study's one table.

    Records name their owner: multiplicative noise has one factor a firm. Raises PlanError on too many records.
    """
    plan = WRITERS[study.data.synthetic](study.data.records, study.data.seed, folder)
    query = {"name": study.name, "sum": study.measure, "by": list(study.by)}
    plan |= {
        "dataset": plan["dataset"] | {"unit": OWNER},
        "queries": [query | {"mechanism": {"kind": "gaussian", "sigma": 1}}],  # nothing is released
        "budget": [],
    }
    path = folder / "study-plan.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return folder / "microdata", layout_of(load_plan(path))


KINDS = tuple(kind for kind, mechanism in CATALOGUE.items() if not mechanism.counts_only)  # a study's table is a sum
CURVES = (Root.kind, Log.kind)
SIZES = tuple(Fraction(10**n) for n in range(5))
LIMITS = (Fraction(1, 10), Fraction(1), Fraction(10), Fraction(100))
LARGEST_COUNT = 10**12
TRIAL = Fraction(1, 8)  # a noise scale that every family takes, to check the other parameters with

if TYPE_CHECKING:
    Count = Fraction
    Size = Fraction
    Factor = Fraction
else:
    Count = number_type(
        "a whole number of at least 0", lambda x: x.denominator == 1 and 0 <= x <= LARGEST_COUNT, minimum=0
    )
    Size = number_type(
        "a whole number of at least 1", lambda x: x.denominator == 1 and 1 <= x <= LARGEST_COUNT, minimum=1
    )
    Factor = number_type("above 1 and at most 2", lambda x: 1 < x <= 2, exclusiveMinimum=1, maximum=2)


class DataSpec(Spec):
    """The synthetic microdata; a study never reads others."""

    synthetic: Literal["establishments", "cattle"]
    records: Count
    seed: Count = Fraction(0)


class TableSpec(Spec):
    """The table that would be released."""

    sum: Name
    by: Annotated[list[str], Field(min_length=1, max_length=2)]


class EqualSpec(Spec):
    """The accuracy that all mechanisms of a panel have at a true total: a variance, or its root."""

    variance: Positive | None = None
    standard_error: Positive | None = None
    total: NonNegative

    @property
    def read(self) -> Equal:
        """The accuracy, of a specification without mistakes."""
        variance = self.variance if self.standard_error is None else self.standard_error**2
        assert variance is not None
        return Equal(variance, self.total)


class EntrySpec(Spec):
    """A mechanism without its noise scale."""

    label: Text
    mechanism: Annotated[dict[str, Any], Field(min_length=1)]
    policies: Annotated[list[Text], Field(min_length=1, default_factory=lambda: [PAPER])]
    equal: EqualBy = "variance"


class PanelSpec(Spec):
    """Mechanisms that are drawn into one picture."""

    name: Name
    title: Text
    equal: EqualSpec | None = None
    errors: bool = False
    entries: Annotated[list[EntrySpec], Field(min_length=1, max_length=20)]


class TodaySpec(Spec):
    """Multiplicative noise as agencies use it: its factors lie between a and b, or as far below 1."""

    a: Factor
    b: Factor
    own_magnitudes: bool = False


class StudySpec(Spec):
    """A study."""

    study: Name
    title: Text
    data: DataSpec
    query: TableSpec
    equal: EqualSpec
    sizes: Annotated[list[Size], Field(min_length=1, default_factory=lambda: [*SIZES])]
    limits: Annotated[list[Positive], Field(min_length=1, default_factory=lambda: [*LIMITS])]
    panels: Annotated[list[PanelSpec], Field(min_length=1)]
    today: TodaySpec | None = None


def load_study(path: Path) -> Study:
    """Return the study in the YAML file `path`; raises PlanError with one line for each mistake."""
    text = read_text(path, STUDY)
    try:
        spec = StudySpec.model_validate(text.data)
    except ValidationError as error:
        mistakes = list(shape_mistakes(error.errors(include_url=False), StudySpec))
    else:
        mistakes = list(_mistakes(spec))
    if mistakes:
        raise PlanError(*lines_of(mistakes, text, path))
    return _study(spec)


def _mistakes(spec: StudySpec) -> Iterator[Mistake]:
    known = MEASURES[spec.data.synthetic]
    if spec.query.sum not in known:
        advice = hint(spec.query.sum, known, "measure")
        yield Mistake(("query", "sum"), f"unknown measure of these data{advice}")
    for i, level in enumerate(spec.query.by):
        if level not in ALL_LEVELS:
            yield Mistake(("query", "by", i), f"unknown level{hint(level, ALL_LEVELS, 'level')}")
    yield from _equal(spec.equal, ("equal",))
    if spec.today is not None and not spec.today.a < spec.today.b:
        yield Mistake(("today", "b"), "must be above a")
    names: set[str] = set()
    for i, panel in enumerate(spec.panels):
        path: KeyPath = ("panels", i)
        if panel.name in names:
            yield Mistake((*path, "name"), "another panel has this name")
        names.add(panel.name)
        if panel.equal is not None:
            yield from _equal(panel.equal, (*path, "equal"))
        labels: set[str] = set()
        for j, entry in enumerate(panel.entries):
            if entry.label in labels:
                yield Mistake((*path, "entries", j, "label"), "another entry of the panel has this label")
            labels.add(entry.label)
            yield from _entry(entry, (*path, "entries", j))


def _equal(equal: EqualSpec, path: KeyPath) -> Iterator[Mistake]:
    if (equal.variance is None) == (equal.standard_error is None):
        either = ((*path, "variance"), (*path, "standard_error"))
        yield Mistake(path, "must have either variance or standard_error", absent=either)


def _entry(entry: EntrySpec, path: KeyPath) -> Iterator[Mistake]:
    shape, here = dict(entry.mechanism), (*path, "mechanism")
    noise: dict[str, Any] | None = None
    if isinstance(shape.get("noise"), dict) and shape.get("kind") in CURVES:
        noise = shape.pop("noise")
    wrong = [*_parameters(shape, KINDS, here)]
    if noise is not None:
        wrong += _parameters(noise, HEAVY, (*here, "noise"))
    if wrong:
        yield from wrong
        return
    yield from _policies(entry, CATALOGUE[shape["kind"]], (*path, "policies"))
    if noise is not None and shape["kind"] == Root.kind and shape["k"] == 1:
        yield Mistake((*here, "k"), "must be at least 2; with k = 1 the noise is additive")
    if entry.equal == "continuous":
        additive = noise is None and shape["kind"] not in CURVES and scale_of(CATALOGUE[shape["kind"]]) == "sigma"
        if not additive or not isfinite(unit_noise(build({**shape, "sigma": TRIAL}, Fraction(1))).moment(2)):
            yield Mistake((*path, "equal"), "continuous is for additive noise whose density has a variance")
        return
    without_variance = noise is not None and shape["kind"] == Log.kind
    if without_variance != (entry.equal == "quartiles"):
        rule = "must be quartiles: no noise with heavier tails than Laplace's gives a logarithm's value a variance"
        yield Mistake((*path, "equal"), rule if without_variance else "must be variance: this mechanism has one")


def _parameters(shape: Mapping[str, Any], kinds: Sequence[str], path: KeyPath) -> Iterator[Mistake]:
    """Yield what is wrong with a mechanism that stands without its noise scale and its policy."""
    kind = shape.get("kind")
    if kind is None:
        yield missing((*path, "kind"))
        return
    if kind not in kinds:
        yield Mistake((*path, "kind"), f"unknown kind{hint(str(kind), kinds, 'kind')}")
        return
    mechanism, scale = CATALOGUE[kind], scale_of(CATALOGUE[kind])
    if scale is None:
        yield Mistake((*path, "kind"), "has no noise scale that equality could decide")
        return
    names = [name for name in mechanism.parameters() if name not in (scale, "policy")]
    wrong = False
    for name in shape:
        if name in (*SCALES, "policy"):
            wrong = True
            rule = "leave it out: equality decides it" if name in SCALES else "leave it out, and name policies instead"
            yield Mistake((*path, name), rule)
        elif name not in (*names, "kind"):
            wrong = True
            yield Mistake((*path, name), f"unknown key{hint(name, ('kind', *names), 'key')}", unknown=True)
    for name in names:
        if mechanism.parameters()[name].default is None and name not in shape:
            wrong = True
            yield missing((*path, name))
    if not wrong:
        try:
            build({**shape, scale: TRIAL}, Fraction(1))
        except ParameterError as error:
            yield Mistake((*path, error.parameter), f"must be {error.rule}")


def _policies(entry: EntrySpec, mechanism: type[Mechanism], path: KeyPath) -> Iterator[Mistake]:
    declared = mechanism.parameters().get("policy")
    choices = declared.choices if declared is not None else ("paper",)
    for i, policy in enumerate(entry.policies):
        if policy not in choices:
            yield Mistake((*path, i), f"must be {'one of ' if len(choices) > 1 else ''}{', '.join(map(str, choices))}")
        if policy in entry.policies[:i]:
            yield Mistake((*path, i), "stands twice")


def _study(spec: StudySpec) -> Study:
    today = spec.today
    panels = (
        Panel(
            name=panel.name,
            title=panel.title,
            equal=(panel.equal or spec.equal).read,
            entries=tuple(Entry(e.label, e.mechanism, tuple(e.policies), e.equal) for e in panel.entries),
            errors=panel.errors,
        )
        for panel in spec.panels
    )
    return Study(
        name=spec.study,
        title=spec.title,
        data=Data(spec.data.synthetic, int(spec.data.records), int(spec.data.seed)),
        measure=spec.query.sum,
        by=tuple(spec.query.by),
        sizes=tuple(int(size) for size in spec.sizes),
        limits=tuple(spec.limits),
        panels=tuple(panels),
        today=None
        if today is None
        else FactorNoise(a=float(today.a), b=float(today.b), own_magnitudes=today.own_magnitudes),
    )
