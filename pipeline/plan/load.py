"""From the text of a plan to the frozen plan: read, check its shape, read the domain, check the rest, resolve.

All mistakes in the shape come out together; of a plan of the right shape, all that its parts say wrongly of each other.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from pipeline.accounting.references import Limit, Reference
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError
from pipeline.plan.calibrated_parameters import Use, mechanism_of
from pipeline.plan.domain import Domain, rank
from pipeline.plan.domain_check import domain_mistakes
from pipeline.plan.domain_files import WrongFiles, files_of, read_domain
from pipeline.plan.meaning import plan_mistakes
from pipeline.plan.messages import Mistake, lines_of, shape_mistakes
from pipeline.plan.model import OTHERS, RECORD, Dataset, Measure, Part, Plan, Query, Texts
from pipeline.plan.named_files import confidential_files
from pipeline.plan.plan_schema import (
    DatasetSpec,
    LimitSpec,
    PartsSpec,
    PlanSpec,
    QuerySpec,
)
from pipeline.plan.plan_text import PlanText, read_text
from pipeline.plan.values import Spec
from pipeline.plan.variables import filled
from pipeline.plan.vintages import foreign_codes, vintage_mistakes
from pipeline.storage.uri import locate
from udfs.mechanisms.base import Mechanism

MOST_SHOWN = 20  # mistakes
DRAFT = "this is a draft: write the plan with its scales, and use that one: prdp calibrate {}"
NOTHING: Mapping[str, str] = {}
MOST_SOUGHT = 1000  # mistakes of each kind; a file of a megabyte may hold hundreds of thousands


def load_plan(path: Path, given: Mapping[str, str] = NOTHING) -> Plan:
    """Return the resolved plan of the YAML file `path`; other paths in it are relative to its folder.

    Its digest depends on what the plan means, not on how or where it is written. `given`: the values of its
    variables, by name; what is resolved holds none.

    Raises:
        PlanError: with a line for each mistake, in the order of the file, up to MOST_SHOWN of them.
    """
    return plan_of(read_text(path), path, given)


def plan_of(text: PlanText, path: Path, given: Mapping[str, str] = NOTHING) -> Plan:
    """Return the resolved plan of a text, as `load_plan` does of the file `path`, which need not be there."""
    plan, spec = draft_of(text, path, given)
    if spec.calibrate is not None:
        values = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        call = shlex.join([str(path), *values, "--out", str(path.with_stem(f"{path.stem}-calibrated"))])
        raise PlanError(*_lines([Mistake(("calibrate",), DRAFT.format(call))], (), text, path))
    return plan


def draft_of(text: PlanText, path: Path, given: Mapping[str, str] = NOTHING) -> tuple[Plan, PlanSpec]:
    """Return the same of a plan that may be a draft, of which some scales are still to be chosen, and its shape.

    Where the plan's own calibrate is to choose a scale, it has one that means nothing.
    """
    text = filled(text, path, given)
    try:
        spec = PlanSpec.model_validate(text.data)
    except ValidationError as error:
        broken = islice(shape_mistakes(error.errors(include_url=False)), MOST_SOUGHT)
        raise PlanError(*_lines(broken, (), text, path)) from None
    hidden = list(confidential_files(spec, path.parent))
    if hidden:
        raise PlanError(*_lines(hidden, (), text, path))
    domain, wrong, wrong_files = _domain(spec, path.parent)
    mistakes = [*wrong, *islice(plan_mistakes(spec, domain, path.parent), MOST_SOUGHT)]
    if mistakes or wrong_files or domain is None:
        raise PlanError(*_lines(mistakes, wrong_files, text, path))
    return _resolve(spec, domain, path), spec


def _domain(spec: PlanSpec, folder: Path) -> tuple[Domain | None, Sequence[Mistake], Sequence[str]]:
    """Return the domain, if it can be read, the mistakes in it, and a line for each of its files that is wrong."""
    wrong, years = list(domain_mistakes(spec.domain, spec.dataset)), vintage_mistakes(spec.domain.vintage)
    mistakes = [*wrong, *years]
    if wrong:
        return None, mistakes, ()
    try:
        domain = read_domain(spec.domain, spec.dataset, folder)
    except WrongFiles as error:
        return None, [*mistakes, *error.mistakes], error.lines
    return domain, mistakes, list(foreign_codes(domain, files_of(spec.domain, spec.dataset, folder)))


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
        budget=tuple(limit_of(limit, dataset.unit) for limit in spec.budget),
        path=Path(os.path.abspath(path)),
        texts=Texts(title=spec.title, about=spec.about, contact=spec.contact),
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
        where=FrozenMap.of({level: tuple(sorted(codes)) for level, codes in sorted(spec.where.items())}),
        split=split,
        parts=parts,
        texts=Texts(title=spec.title, about=spec.about, unit=spec.unit),
    )


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


def limit_of(spec: LimitSpec, unit: str) -> Limit:
    """Return the limit of a dataset with this unit; for an owner's column its records are a list, be it of one."""
    at = [dict(sorted(record.items())) for record in spec.records]
    return Limit(Reference.of(at[0] if unit == RECORD else at), spec.rho)
