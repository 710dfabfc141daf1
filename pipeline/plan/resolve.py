"""A plan without mistakes → frozen facts, every default explicit."""

import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from pipeline.domain import Domain
from pipeline.frozenmap import FrozenMap
from pipeline.plan.model import Dataset, Limit, Measure, Plan, Query
from pipeline.plan.schema import DatasetSpec, LimitSpec, PlanSpec, QuerySpec
from udfs.mechanisms.catalogue import build


def resolve(spec: PlanSpec, domain: Domain, path: Path) -> Plan:
    """Return the frozen plan; mappings are in a fixed order, so that equal digests mean equal plans."""
    dataset = _dataset(spec.dataset, path.parent)
    measures = {measure.name: measure for measure in dataset.measures}
    return Plan(
        release=spec.release,
        supersedes=spec.supersedes,
        dataset=dataset,
        domain=domain,
        interval=spec.interval,
        queries=tuple(_query(query, measures) for query in spec.queries),
        budget=tuple(_limit(limit) for limit in spec.budget),
        path=Path(os.path.abspath(path)),
    )


def _dataset(spec: DatasetSpec, folder: Path) -> Dataset:
    return Dataset(
        name=spec.name,
        path=Path(os.path.abspath(folder / spec.path)),
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


def _query(spec: QuerySpec, measures: Mapping[str, Measure]) -> Query:
    measure = measures[spec.sum] if spec.sum is not None else None
    step = measure.step if measure else Fraction(1)
    return Query(
        name=spec.name,
        measure=measure,
        by=tuple(spec.by),
        where=FrozenMap.of({level: tuple(sorted(codes)) for level, codes in sorted(spec.where.items())}),
        mechanism=build(dict(spec.mechanism), step),
    )


def _limit(spec: LimitSpec) -> Limit:
    return Limit(FrozenMap.of(dict(sorted(spec.at.items()))), spec.rho)
