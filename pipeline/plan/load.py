"""From the text of a plan to the frozen plan: values of its variables, shape, domain, meaning, resolution.

All mistakes in the shape come out together; of a plan of the right shape those in its domain; of one whose domain can
be read, all that its parts say wrongly of each other.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, arg, hint, in_a_line
from pipeline.plan.domain import Domain, rank
from pipeline.plan.domain.cells import Base, cheapest
from pipeline.plan.domain.code_lists import read_domain, vintage_mistakes
from pipeline.plan.meaning import confidential_files, dataset_mistakes, domain_mistakes, plan_mistakes
from pipeline.plan.messages import Mistake, lines_of, missing, shape_mistakes
from pipeline.plan.model import OTHERS, Dataset, DerivedTable, Measure, Part, Plan, Query, Texts, UnitNames
from pipeline.plan.plan_mechanisms import Use, mechanism_of
from pipeline.plan.plan_schema import (
    DatasetSpec,
    DerivedSpec,
    PartsSpec,
    PlanSpec,
    QuerySpec,
    UnitNamesSpec,
    VariableSpec,
)
from pipeline.plan.plan_text import KeyPath, PlanText, read_text
from pipeline.plan.structure import Structure, closing, unweighted
from pipeline.plan.values import VARIABLE_NAME, Spec, VariableName, matches
from pipeline.storage.paths import locate
from udfs.mechanisms.base import Mechanism

MOST_SHOWN = 20  # mistakes
DRAFT = "this is a draft: write the plan with its scales, and use that one: prdp calibrate {}"
NOTHING: Mapping[str, str] = {}
MOST_SOUGHT = 1000  # mistakes of each kind; a file of a megabyte may hold hundreds of thousands


def load_plan(path: Path, values: Mapping[str, str] = NOTHING) -> Plan:
    """Return the resolved plan of the YAML file `path`; other paths in it are relative to its folder.

    Its digest depends on what the plan means, not on how or where it is written. `values`: those of its
    variables, by name; what is resolved holds none.

    Raises:
        PlanError: with a line for each mistake, in the order of the file, up to MOST_SHOWN of them.
    """
    return plan_of(read_text(path), path, values)


def plan_of(text: PlanText, path: Path, values: Mapping[str, str] = NOTHING) -> Plan:
    """Return the resolved plan of a text, as `load_plan` does of the file `path`, which need not be there."""
    plan, spec = draft_of(text, path, values)
    if spec.calibrate is not None:
        options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        call = shlex.join([str(path), *options, "--out", str(path.with_stem(f"{path.stem}-calibrated"))])
        raise PlanError(*_lines([Mistake(("calibrate",), DRAFT.format(call))], (), text, path))
    return plan


def draft_of(text: PlanText, path: Path, values: Mapping[str, str] = NOTHING) -> tuple[Plan, PlanSpec]:
    """Resolve a plan or draft, of which some scales are still to be chosen; return it and its shape.

    Where the plan's own calibrate is to choose a scale, it has one that means nothing.
    """
    text = filled(text, path, values)
    try:
        spec = PlanSpec.model_validate(text.data)
    except ValidationError as error:
        broken = islice(shape_mistakes(error.errors(include_url=False)), MOST_SOUGHT)
        raise PlanError(*_lines(broken, (), text, path)) from None
    hidden = list(confidential_files(spec, path.parent))
    if hidden:
        raise PlanError(*_lines(hidden, (), text, path))
    domain, wrong, wrong_files = _domain(spec, path.parent)
    of_plan = dataset_mistakes(spec.dataset) if domain is None else plan_mistakes(spec, domain, path.parent)
    mistakes = [*wrong, *islice(of_plan, MOST_SOUGHT)]
    if mistakes or wrong_files or domain is None:
        raise PlanError(*_lines(mistakes, wrong_files, text, path))
    plan = replace(_resolve(spec, domain, path), together=FrozenMap.of(text.together))
    if untold := list(_derived_mistakes(plan)):
        raise PlanError(*_lines(untold, (), text, path))
    return plan, spec


def _domain(spec: PlanSpec, folder: Path) -> tuple[Domain | None, Sequence[Mistake], Sequence[str]]:
    """Return the domain, if it can be read, the mistakes in it, and a line for each of its files that is wrong."""
    wrong, years = list(domain_mistakes(spec.domain, spec.dataset)), vintage_mistakes(spec.domain.vintage)
    if wrong:
        return None, [*wrong, *years], ()
    domain, unreadable, lines = read_domain(spec.domain, spec.dataset, folder)
    return domain, [*years, *unreadable], lines


def _lines(mistakes: Iterable[Mistake], wrong_files: Iterable[str], text: PlanText, path: Path) -> list[str]:
    """Return all lines in the order of the plan's file, those about the domain's files at the key domain."""
    lines = lines_of(mistakes, text, path, at=((("domain",), line) for line in wrong_files))
    return (
        lines if len(lines) <= MOST_SHOWN else [*lines[:MOST_SHOWN], f"{path}: and more mistakes: correct these first"]
    )


def _resolve(spec: PlanSpec, domain: Domain, path: Path) -> Plan:
    """Return the frozen plan; mappings are in a fixed order, so that equal digests mean equal plans."""
    dataset = resolved_dataset(spec.dataset, path.parent)
    measures = {measure.name: measure for measure in dataset.measures}
    queries = [_query(query, measures, domain, spec, path.parent) for query in spec.queries]
    return Plan(
        release=spec.release,
        supersedes=spec.supersedes,
        dataset=dataset,
        domain=domain,
        interval=spec.interval,
        max_left_out=spec.max_left_out,
        queries=_with_shared_mechanisms(queries),
        budget=tuple(limit.resolved(dataset.unit) for limit in spec.budget),
        path=Path(os.path.abspath(path)),
        texts=Texts(title=spec.title, about=spec.about, contact=spec.contact),
        derived=tuple(_derived(table) for table in spec.derived),
        unit_names=_unit_names(spec.unit_names),
    )


def resolved_dataset(spec: DatasetSpec, folder: Path) -> Dataset:
    """Return the frozen dataset; its path is relative to `folder`."""
    return Dataset(
        name=spec.name,
        path=locate(spec.path, what="dataset.path", folder=folder) if spec.path is not None else None,
        table=spec.source.table if spec.source is not None else None,
        record=spec.record,
        duplicates=spec.duplicates,
        unit=spec.unit,
        bad_records=spec.bad_records,
        keys=FrozenMap.of({key: spec.keys[key] for key in sorted(spec.keys, key=rank)}),
        measures=tuple(
            Measure(name, measure.column, measure.type, measure.step or Fraction(1))
            for name, measure in sorted(spec.measures.items())
        ),
        family=spec.family,
    )


def _query(spec: QuerySpec, measures: Mapping[str, Measure], domain: Domain, plan: PlanSpec, folder: Path) -> Query:
    (statistic,) = spec.statistics
    read = [measures[name] for name in statistic.measures]
    step = statistic.step(read[0].step if read else Fraction(1))
    use = Use(statistic, step, measures, plan.interval, folder, drafted=plan.calibrate is not None)
    split, parts = _parts(spec, domain, partial(mechanism_of, use=use))
    return Query(
        name=spec.name,
        statistic=statistic,
        integer=all(measure.type == "integer" for measure in read),
        by=tuple(spec.by),
        where=_where(spec),
        split=split,
        parts=parts,
        texts=_texts_of(spec),
    )


def _derived(spec: DerivedSpec) -> DerivedTable:
    (statistic,) = spec.statistics
    return DerivedTable(spec.name, statistic, tuple(spec.by), _where(spec), _texts_of(spec))


def _where(spec: DerivedSpec) -> FrozenMap[tuple[str, ...]]:
    return FrozenMap.of({level: tuple(sorted(codes)) for level, codes in sorted(spec.where.items())})


def _texts_of(spec: DerivedSpec) -> Texts:
    return Texts(title=spec.title, about=spec.about, unit=spec.unit)


def _unit_names(spec: UnitNamesSpec | None) -> UnitNames:
    if spec is None:
        return UnitNames()
    (record, records), (owner, owners) = spec.record, spec.owner
    return UnitNames((record, records), (owner, owners), stated=True)


def _with_shared_mechanisms(queries: Iterable[Query]) -> tuple[Query, ...]:
    """Return the queries with one object for all equal mechanisms, so that its tables are computed once."""
    known: dict[Mechanism, Mechanism] = {}
    return tuple(
        replace(
            query,
            parts=tuple(
                replace(part, mechanism=known.setdefault(part.mechanism, part.mechanism)) for part in query.parts
            ),
        )
        for query in queries
    )


def _parts(
    spec: QuerySpec, domain: Domain, mechanism: Callable[[Spec], Mechanism]
) -> tuple[str | None, tuple[Part, ...]]:
    """Return the level that splits the query's cells, and the parts: those that the plan names, then the rest."""
    split = spec.mechanism
    if not isinstance(split, PartsSpec):
        return None, (Part(None, (), mechanism(split)),)
    parts = [Part(code, (code,), mechanism(each)) for code, each in sorted(split.parts.items())]
    if split.others is not None:
        rest = tuple(code for code in domain.codes_met(split.by, spec.where) if code not in split.parts)
        parts.append(Part(OTHERS, rest, mechanism(split.others)))
    return split.by, tuple(parts)


# Variables of a plan, such as `release: cbp-{{ year }}`: values take their place before anything else is read of it.
#
# They are replaced in the data that YAML gives, so a value never changes a plan's structure, and before the digest:
# what is resolved, reserved and published holds no variable. They stand where a release is named, never where its
# noise, its cells or its limits are stated: a plan has one guarantee, whatever the values.

PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
VALUE = r"(?!.*\.\.)[A-Za-z0-9._-]{1,100}"  # never a step to another folder, nor anything that YAML or HTML would read
PLACES = (
    "release, supersedes, dataset.name, dataset.path, domain.vintage and texts "
    "(title, about, contact, the unit of a table)"
)
DEEPEST, MOST_VALUES = 50, 1_000_000
DATASET_NAME, VINTAGE = ("dataset", "name"), ("domain", "vintage")


class _Declared(Spec):
    variables: dict[VariableName, VariableSpec] = Field(default={})


@dataclass(frozen=True)
class _Text:
    """A text of a plan with variables in it; `is_key`: it is the last key of `path` itself."""

    path: KeyPath
    text: str
    names: tuple[str, ...]
    is_key: bool = False

    def filled(self, values: Mapping[str, str]) -> str | int:
        """Return the text with values in place of its variables; a year as a number."""
        text = PLACEHOLDER.sub(lambda match: values[match[1]], self.text)
        return int(text) if self.path[:-1] == VINTAGE and text.isascii() and text.isdigit() else text

    @property
    def may_vary(self) -> bool:
        match self.path:
            case _ if self.is_key:
                return False
            case ("release" | "supersedes" | "title" | "about" | "contact",):
                return True
            case ("dataset", "name" | "path") | ("domain", "vintage", _):
                return True
            case ("queries" | "derived", _, "title" | "about" | "unit"):
                return True
        return False


def filled(text: PlanText, path: Path, values: Mapping[str, str]) -> PlanText:
    """Return a plan's text with `values` in place of its variables, and without their declaration.

    A plan without variables is returned as it is. `path` names it in messages.

    Raises:
        PlanError: With a line for each variable that is declared wrongly, not declared, without a value, without a
            place, in a place where none may stand; each value that is not its pattern's; and each name that is not the
            plan's.
    """
    if "{{" not in text.source and "variables" not in text.data and not values:
        return text
    try:
        declared = _Declared.model_validate({"variables": text.data.get("variables", {})}).variables
    except ValidationError as error:
        raise PlanError(*lines_of(shape_mistakes(error.errors(include_url=False), _Declared), text, path)) from None
    data = {key: value for key, value in text.data.items() if key != "variables"}
    texts = list(_texts(data, path))
    mistakes = [mistake for each in texts for mistake in _misplaced(each, declared)]
    used = {name for each in texts for name in each.names}
    for name, variable in declared.items():
        if rule := _value_rule(name, variable, values.get(name), name in used):
            mistakes.append(Mistake(("variables", name), rule))
    dataset = data.get("dataset")
    family = dataset.get("family") if isinstance(dataset, Mapping) else None
    if family is None and any(each.path == DATASET_NAME for each in texts):
        why = ": a dataset whose name has a variable belongs to one, over which losses add up whatever its value"
        mistakes.append(missing(("dataset", "family"), why))
    unknown = [
        f"{path}: {arg('set')} {in_a_line(name)}: {_unknown(name, declared)}" for name in values if name not in declared
    ]
    if mistakes or unknown:
        raise PlanError(*unknown, *lines_of(mistakes, text, path))
    for each in texts:
        data = _replaced(data, each.path, each.filled(values))
    return replace(text, data=data)


def _texts(data: Mapping[str, Any], path: Path) -> Iterator[_Text]:
    """Yield every text with variables in plain data, keys of mappings too.

    Aliases of YAML can make data that are endless, or all but: PlanError where they are deeper or larger than a plan.
    """
    waiting: list[tuple[KeyPath, Any]] = [((), data)]
    seen = 0
    while waiting:
        here, value = waiting.pop()
        seen += 1
        if len(here) > DEEPEST or seen > MOST_VALUES:
            raise PlanError(f"{path}: nested too deeply, or with too many values, for a plan with variables")
        if isinstance(value, str):
            if names := PLACEHOLDER.findall(value):
                yield _Text(here, value, tuple(names))
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if names := PLACEHOLDER.findall(key):
                    yield _Text((*here, key), key, tuple(names), is_key=True)
                waiting.append(((*here, key), each))
        elif isinstance(value, list):
            waiting += [((*here, i), each) for i, each in enumerate(value)]


def _misplaced(text: _Text, declared: Mapping[str, VariableSpec]) -> Iterator[Mistake]:
    if not text.may_vary:
        yield Mistake(text.path, f"no variable may stand here, only in {PLACES}: write the value itself")
        return
    for name in dict.fromkeys(text.names):
        if not re.fullmatch(VARIABLE_NAME, name):
            shown = in_a_line(f"{{{{ {name} }}}}")
            yield Mistake(text.path, f"{shown}: write the name of a variable alone; there are no expressions")
        elif name not in declared:
            yield Mistake(text.path, f"{{{{ {name} }}}}: {_unknown(name, declared)}")


def _unknown(name: str, declared: Mapping[str, VariableSpec]) -> str:
    return f"unknown variable{hint(name, declared, 'variable')}" if declared else "the plan declares no variables"


def _value_rule(name: str, variable: VariableSpec, value: Any, used: bool) -> str | None:
    """Return the rule that a declared variable or its value breaks, in words; None for none."""
    said = f"({variable.about.rstrip('.')}; pattern {variable.pattern})"
    if not used:
        return f"stands nowhere in the plan: write {{{{ {name} }}}} where its value belongs, or leave it out"
    if value is None:
        return f"has no value: give it by {arg('set')} {name}=VALUE {said}"
    if not isinstance(value, str):
        return "the value must be text; put it in quotes"
    if not re.fullmatch(VALUE, value):
        return f"the value {in_a_line(value)!r} must be 1 to 100 of A-Z a-z 0-9 . _ - without .."
    if not matches(variable.pattern, value):
        return f"the value {value!r} does not match {said}"
    return None


def _replaced(data: Any, path: KeyPath, value: Any) -> Any:
    """Return plain data with another value at `path`; what lies elsewhere is shared, not copied."""
    if not path:
        return value
    step, *rest = path
    parts = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
    parts[step] = _replaced(parts[step], tuple(rest), value)
    return parts if isinstance(data, Mapping) else list(parts.values())


def _derived_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Yield the derived tables that reconciling cannot make, or that others are already, and what to do."""
    structure, domain = Structure.of(plan), plan.domain
    known = dict(structure.tables)
    cells = {name: each.cells(domain) for name, each in known.items()} if plan.derived else {}
    for i, (name, table) in enumerate(structure.derived.items()):
        if same := next((each for each in known.values() if each.shows_what(table)), None):
            yield Mistake(("derived", i), f"is the very table {same.name}: leave one of them out")
            continue
        known[name] = table
        own = table.cells(domain)
        finer = [
            query
            for query in plan.queries
            if query.statistic == table.statistic
            and cheapest([Base(cells[query.name].closed(), ("",))], own, "") is not None
        ]
        keys = table.keys(domain)
        alike = [query for query in finer if structure.tables[query.name].keys(domain) == keys]
        reasons = {query.name: unweighted(query.mechanisms) for query in alike}
        if None in reasons.values():
            continue
        if alike:
            why = "; ".join(f"{query}: {reason}" for query, reason in reasons.items())
            rule = f"no query that measures it can be weighted: {why}; give one of them other noise"
        elif finer:
            left_out = structure.tables[finer[0].name].keys(domain) ^ keys
            rule = f"{finer[0].name} measures it of other records: {closing(domain, left_out)}"
        else:
            what = f"{table.statistic.label} at these cells or finer ones"
            rule = f"no query measures {what}: add one, or leave the table out"
        yield Mistake(("derived", i), rule)
