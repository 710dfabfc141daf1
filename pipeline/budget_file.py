"""The file that an officer writes to register a dataset or a family of datasets, or to state limits anew."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.firm import Row
from pipeline.errors import PlanError
from pipeline.ledger.datasets import Budget
from pipeline.microdata.pinned import Table, source_of
from pipeline.nearest import nearest
from pipeline.plan.check import dataset_mistakes
from pipeline.plan.messages import Mistake, shape_mistakes
from pipeline.plan.model import RECORD
from pipeline.plan.resolve import resolved_dataset
from pipeline.plan.schema import DatasetSpec, LimitSpec, Spec
from pipeline.plan.text import read_text
from pipeline.plan.values import Name, Text
from pipeline.references import label_of

Limits = Annotated[list[LimitSpec], Field(min_length=1)]


class DatasetBudgetSpec(Spec):
    """A dataset, described as plans describe it, with its limits and the family that it belongs to."""

    dataset: DatasetSpec
    family: Name | None = None
    limits: Limits


class FamilyBudgetSpec(Spec):
    """A family of datasets of the same establishments: their common unit, and limits over all of them."""

    unit: Text
    limits: Limits


def load_budget(path: Path, name: str) -> Budget:
    """Return the budget in the YAML file `path` for the dataset or family `name`; paths in it are relative to it.

    A file with the key `dataset` is a dataset's, one with `unit` a family's. Raises PlanError with one line for each
    mistake.
    """
    text = read_text(path)
    kind = DatasetBudgetSpec if "dataset" in text.data else FamilyBudgetSpec
    if kind is FamilyBudgetSpec and "unit" not in text.data:
        raise PlanError(f"{path}: missing key dataset, as plans have it (or unit, for a family of datasets)")
    try:
        spec = kind.model_validate(text.data)
    except ValidationError as error:
        mistakes = list(shape_mistakes(error.errors(include_url=False), kind))
    else:
        mistakes = list(_mistakes(spec, name))
    if mistakes:
        lines = sorted((text.position(mistake.path), f"{path}: {mistake.line}") for mistake in mistakes)
        raise PlanError("\n".join(line for _, line in lines))
    return _budget(spec, name, path.parent)


def _mistakes(spec: DatasetBudgetSpec | FamilyBudgetSpec, name: str) -> Iterator[Mistake]:
    measures = None
    unit = spec.unit if isinstance(spec, FamilyBudgetSpec) else spec.dataset.unit
    if isinstance(spec, DatasetBudgetSpec):
        measures = spec.dataset.measures
        yield from dataset_mistakes(spec.dataset, measures)
        if spec.dataset.name != name:
            yield Mistake(("dataset", "name"), f"must be {name}, as in the command")
    for i, limit in enumerate(spec.limits):
        if isinstance(limit.at, list) and unit == RECORD:
            yield Mistake(("limits", i, "at"), "must be a mapping; a list is for a unit that is an owner column")
        for record in limit.records:
            for measure, value in record.items():
                path = ("limits", i, "at", measure)
                if isinstance(value, str):
                    yield Mistake(path, "must be a number of a measure: a dataset's limit holds anywhere")
                elif measures is not None and measure not in measures:
                    hint = f"; nearest known measure: {nearest(measure, measures)}" if measures else ""
                    yield Mistake(path, f"unknown measure{hint}")


def _budget(spec: DatasetBudgetSpec | FamilyBudgetSpec, name: str, folder: Path) -> Budget:
    if isinstance(spec, FamilyBudgetSpec):
        return Budget(name=name, unit=spec.unit, limits=_limits(spec.limits, spec.unit))
    dataset = resolved_dataset(spec.dataset, folder)
    return Budget(
        name=name,
        unit=dataset.unit,
        limits=_limits(spec.limits, dataset.unit),
        facts=dataset.facts(),
        source=source_of(Table(dataset.table or "") if dataset.path is None else dataset.path.resolve()),
        family=spec.family,
    )


def _limits(specs: list[LimitSpec], unit: str) -> list[BudgetLimit]:
    return [_limit(spec, unit) for spec in specs]


def _limit(spec: LimitSpec, unit: str) -> BudgetLimit:
    records: list[Mapping[str, Fraction]] = [
        {measure: value for measure, value in sorted(record.items()) if isinstance(value, Fraction)}
        for record in spec.records
    ]
    at = records[0] if unit == RECORD else tuple(Row(record) for record in records)
    return BudgetLimit(at, spec.rho, label_of(at))
