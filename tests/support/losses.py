"""What records and firms lose, by plain loops over exact fractions: what the kernels are held against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.plan.model import Plan, Query
from udfs.mechanisms.base import Mechanism
from udfs.records.codes import NAICS_LEVELS, roll_up

Row = Mapping[str, Any]  # column → value
CLOSE = Fraction(1, 10**9)


@dataclass(frozen=True)
class Met:
    """What a record does to a query: its influence, the keys of its cell, and the mechanism there."""

    influence: Fraction
    cell: tuple[str, ...]
    mechanism: Mechanism

    @property
    def loss(self) -> Fraction:
        return self.mechanism.loss_at(self.influence)


def met(plan: Plan, query: Query, row: Row) -> Met | None:
    """Return what a record does to a query, None where it is in none of its cells."""
    columns = plan.dataset.keys
    codes = {key: row[columns[key]] for key in ("naics", "county")}
    if not in_domain(plan, codes):
        return None
    at = {level: roll_up(codes[plan.domain.dimension(level).key], level) for level in (*query.by, *query.where)}
    if any(at[level] not in allowed for level, allowed in query.where.items()):
        return None
    columns_of = {measure.name: measure.column for measure in plan.dataset.measures}
    value = query.statistic.influence({name: Fraction(str(row[columns_of[name]])) for name in query.statistic.measures})
    part = query.parts[0]
    if query.split is not None:
        code = roll_up(codes["naics" if query.split in NAICS_LEVELS else "county"], query.split)
        (part,) = [part for part in query.parts if code in part.codes]
    return Met(value, tuple(at[level] for level in query.by), part.mechanism)


def in_domain(plan: Plan, codes: Mapping[str, str]) -> bool:
    naics, county = (
        roll_up(codes[key], plan.domain.keys[key].level) if codes[key] else None for key in ("naics", "county")
    )
    lists = [each.codes for each in plan.domain.dimensions]
    if naics not in lists[0] or county not in lists[1]:
        return False
    if plan.domain.cells is None:
        return True
    pair = (lists[0].index(naics), lists[1].index(county))
    return pair in set(zip(*(places.tolist() for places in plan.domain.cells), strict=True))


def record_losses(plan: Plan, row: Row) -> list[Fraction]:
    """Return a record's loss in each query."""
    found = [met(plan, query, row) for query in plan.queries]
    return [Fraction(0) if one is None else one.loss for one in found]


def firm_losses(plan: Plan, rows: Iterable[Row]) -> dict[str, list[Fraction]]:
    """Return each firm's loss in each query: in a cell its influences add up, losses add up over cells."""
    assert plan.dataset.owner is not None
    firms: dict[str, list[Row]] = {}
    for row in rows:
        firms.setdefault(str(row[plan.dataset.owner]), []).append(row)
    return {owner: [_of_query(plan, query, own) for query in plan.queries] for owner, own in firms.items()}


def whole(losses: Iterable[Fraction], kept: int = 1, left_out: int = 0) -> Fraction:
    """Return the sum of losses in queries, and that of the test of records left out: n²/(2·100²) for n in a count."""
    return sum(losses, Fraction(kept**2 + left_out**2, 20_000))


def _of_query(plan: Plan, query: Query, rows: Iterable[Row]) -> Fraction:
    cells: dict[tuple[str, ...], list[Met]] = {}
    for one in (met(plan, query, row) for row in rows):
        if one is not None:
            cells.setdefault(one.cell, []).append(one)
    together = [(sum((one.influence for one in own), Fraction(0)), own[0].mechanism) for own in cells.values()]
    return sum((mechanism.loss_at(influence) for influence, mechanism in together), Fraction(0))


def wrong(found: Sequence[float], exact: Sequence[Fraction]) -> list[int]:
    """Return where a stated loss is below the exact one, or above it by more than one part in 10⁹."""
    assert len(found) == len(exact)
    pairs = [(Fraction(float(f)), e) for f, e in zip(found, exact, strict=True)]
    return [i for i, (f, e) in enumerate(pairs) if not e <= f <= e * (1 + CLOSE)]


def economy(seed: int, count: int, naics: Sequence[str], counties: Sequence[str], owners: Sequence[Any]) -> pa.Table:
    """Return random establishments, some of them giants, whose firms have from none to many."""
    random = np.random.default_rng(seed)
    size = np.exp(random.normal(2, 3, count)).astype(np.int64)
    return pa.table(
        {
            "establishment_id": [f"E{i}" for i in range(count)],
            "naics": np.array(naics)[random.integers(0, len(naics), count)],
            "county": np.array(counties)[random.integers(0, len(counties), count)],
            "employment": size,
            "payroll": size * random.integers(0, 90, count),
            "firm_id": pa.array([owners[int(i)] for i in random.integers(0, len(owners), count)]),
        }
    )
