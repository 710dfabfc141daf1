"""A plan without mistakes → frozen facts, every default explicit."""

import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path

from pipeline.domain import Domain
from pipeline.frozenmap import FrozenMap
from pipeline.plan.calibration import Statistic, mechanism_of
from pipeline.plan.model import OTHERS, Dataset, Limit, Measure, Part, Plan, Query
from pipeline.plan.schema import DatasetSpec, LimitSpec, PartsSpec, PlanSpec, QuerySpec, Spec
from pipeline.storage import place
from udfs.mechanisms.base import Mechanism


def resolve(spec: PlanSpec, domain: Domain, path: Path) -> Plan:
    """Return the frozen plan; mappings are in a fixed order, so that equal digests mean equal plans."""
    dataset = resolved_dataset(spec.dataset, path.parent)
    measures = {measure.name: measure for measure in dataset.measures}
    return Plan(
        release=spec.release,
        supersedes=spec.supersedes,
        dataset=dataset,
        domain=domain,
        interval=spec.interval,
        queries=tuple(_query(query, measures, domain, spec.interval) for query in spec.queries),
        budget=tuple(_limit(limit, dataset) for limit in spec.budget),
        path=Path(os.path.abspath(path)),
    )


def resolved_dataset(spec: DatasetSpec, folder: Path) -> Dataset:
    """Return the frozen dataset; its path is relative to `folder`."""
    return Dataset(
        name=spec.name,
        path=place(spec.path, what="dataset.path", folder=folder) if spec.path is not None else None,
        table=spec.source.table if spec.source is not None else None,
        record=spec.record,
        duplicates=spec.duplicates,
        unit=spec.unit,
        bad_records=spec.bad_records,
        keys=FrozenMap.of({"naics": spec.keys.naics, "county": spec.keys.county}),
        measures=tuple(
            Measure(name, measure.column, measure.type, measure.step or Fraction(1))
            for name, measure in sorted(spec.measures.items())
        ),
    )


def _query(spec: QuerySpec, measures: Mapping[str, Measure], domain: Domain, coverage: Fraction) -> Query:
    measure = measures[spec.sum] if spec.sum is not None else None
    step = measure.step if measure else Fraction(1)
    split, parts = _parts(spec, domain, partial(mechanism_of, of=Statistic(spec.sum, step, measures, coverage)))
    return Query(
        name=spec.name,
        measure=measure,
        by=tuple(spec.by),
        where=FrozenMap.of({level: tuple(sorted(codes)) for level, codes in sorted(spec.where.items())}),
        split=split,
        parts=parts,
    )


def _parts(
    spec: QuerySpec, domain: Domain, mechanism: Callable[[Spec], Mechanism]
) -> tuple[str | None, tuple[Part, ...]]:
    """Return the level by which the query's mechanism is given, and the parts; those that it names, then the rest."""
    given = spec.mechanism
    if not isinstance(given, PartsSpec):
        return None, (Part(None, (), mechanism(given)),)
    parts = [Part(code, (code,), mechanism(each)) for code, each in sorted(given.parts.items())]
    if given.others is not None:
        rest = tuple(code for code in domain.codes_met(given.by, spec.where) if code not in given.parts)
        parts.append(Part(OTHERS, rest, mechanism(given.others)))
    return given.by, tuple(parts)


def _limit(spec: LimitSpec, dataset: Dataset) -> Limit:
    records = tuple(FrozenMap.of(dict(sorted(at.items()))) for at in spec.records)
    return Limit(records[0] if dataset.owner is None else records, spec.rho)
