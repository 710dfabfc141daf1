"""Public totals from files: known without noise and held fixed, or expected, from which weights are made."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import sparse

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.names import hint
from pipeline.plan.cells import QueryCells
from pipeline.plan.domain import Domain
from pipeline.plan.structure import TableFacts
from pipeline.publication.reconcile.sources import VALUE
from pipeline.storage.inputs import LARGEST_LIST, open_input
from udfs.numbers.arrays import Floats
from udfs.records.statistics import RECORDS, Statistic

LARGEST: Final = 2.0**63  # steps: totals are held below it


@dataclass(frozen=True, eq=False)
class PublicTotals:
    """Totals by some levels, in key order of their cells; NaN where none is given."""

    name: str
    keys: frozenset[str]
    cells: QueryCells
    values: Floats


def measure_of(statistic: Statistic) -> str:
    """Return the name by which a call names what tables total: a measure, or records where they are counted."""
    return statistic.measure or RECORDS


def read_totals(path: Path, statistic: Statistic, domain: Domain, step: Fraction) -> PublicTotals:
    """Return the totals of a CSV or Parquet file: a column for each level, and `value`; `step`: that of the measure.

    Raises PlanError naming the file where it cannot be read, holds nothing, what the domain does not have, a cell
    twice, or what is no finite number that a total can be.
    """
    frame = _frame(path)
    by = [str(name) for name in frame.columns if name != VALUE]
    if VALUE not in frame or not by:
        raise PlanError(f"{path}: columns of levels and one named {VALUE} are needed")
    known = domain.levels
    for level in by:
        if level not in known:
            raise PlanError(f"{path}: column {in_a_line(level)}: unknown level{hint(level, list(known), 'level')}")
    by.sort(key=known.__getitem__)
    if len({known[level] for level in by}) < len(by):
        raise PlanError(f"{path}: two columns are levels of one key: give one of each key")
    facts = TableFacts(str(path), statistic, tuple(by), {}, None, {None: ()})
    cells = facts.cells(domain)
    positions = []
    for level, axis in zip(by, cells.axes, strict=False):
        index = {axis.codes[code]: position for position, code in enumerate(axis.kept.tolist())}
        found = np.array([index.get(code, -1) for code in frame[level]], dtype=np.int64)
        if (found < 0).any():
            wrong = in_a_line(str(frame[level].iloc[int(np.argmax(found < 0))]))
            raise PlanError(f'{path}: column {level}: the domain has no code "{wrong}"')
        positions.append(found)
    positions += [np.zeros(len(frame), dtype=np.int64)] * (len(cells.axes) - len(by))
    at = cells.numbers(positions)
    if (at < 0).any():
        raise PlanError(f"{path}: row {int(np.argmax(at < 0)) + 1}: the domain has no such cell")
    if len(np.unique(at)) < len(at):
        raise PlanError(f"{path}: a cell stands twice")
    if not len(frame):
        raise PlanError(f"{path}: it holds no totals")
    numbers = _numbers(frame[VALUE])
    if not np.isfinite(numbers).all():
        raise PlanError(f"{path}: row {int(np.argmin(np.isfinite(numbers))) + 1}: {VALUE}: a finite number is needed")
    if not (np.abs(numbers) < LARGEST * float(step)).all():
        row = int(np.argmax(np.abs(numbers) >= LARGEST * float(step))) + 1
        raise PlanError(f"{path}: row {row}: {VALUE}: no total is beyond ±2⁶³ steps of the measure")
    values = np.full(cells.size, np.nan)
    values[at] = numbers
    return PublicTotals(str(path), facts.keys(domain), cells, values)


def _frame(path: Path) -> Any:
    import pandas as pd  # noqa: PLC0415

    try:
        with open_input(path, LARGEST_LIST) as file:
            csv = path.suffix == ".csv"
            return pd.read_csv(file, dtype=str, keep_default_na=False) if csv else pd.read_parquet(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is neither CSV (by its name) nor Parquet"
        raise PlanError(f"{path}: cannot be read: {reason}") from None


def _numbers(column: Any) -> Floats:
    import pandas as pd  # noqa: PLC0415

    found: Floats = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    return found


def spread_evenly(domain: Domain, totals: Floats, of: QueryCells, over: QueryCells) -> Floats:
    """Return totals of the cells `of` for the cells `over`, in the shape of their axes (listed cells: flat).

    Each total is shared out evenly among the finest cells in its cell, and these are added up.
    """
    if of.listed is not None and over.listed is not None and domain.cells is not None:
        at_of, at_over = (
            cells.numbers([axis.position[domain.cells[axis.key]] for axis in cells.axes]) for cells in (of, over)
        )
        shared: Floats = _shares(at_of, of.size, at_over, over.size) @ totals
        return shared
    positions = {axis.key: (axis.position, len(axis.kept)) for axis in over.axes}
    grid, left = totals.reshape(of.shape), [axis.key for axis in of.axes]
    for place, axis in enumerate(of.axes):
        to, width = positions.get(axis.key, (np.zeros(len(axis.position), dtype=np.int32), 1))
        shares = _shares(axis.position, len(axis.kept), to, width)
        moved = np.moveaxis(grid, place, 0)
        grid = np.moveaxis((shares @ moved.reshape(len(moved), -1)).reshape(width, *moved.shape[1:]), 0, place)
    for axis in over.axes:
        if axis.key not in left:  # the totals are summed over this key: each code has its share
            to = axis.position[axis.position >= 0]
            shares = np.bincount(to, minlength=len(axis.kept)) / len(axis.position)
            grid, left = grid[..., None] * shares, [*left, axis.key]
    keys = [axis.key for axis in over.axes]
    gone = tuple(place for place, key in enumerate(left) if key not in keys)
    grid, left = grid.squeeze(gone), [key for key in left if key in keys]
    return grid.transpose([left.index(key) for key in keys])


def _shares(of: Any, width_of: int, over: Any, width_over: int) -> sparse.csr_array:
    """Return the matrix that shares each of `width_of` totals out evenly among its entries and adds these up."""
    counts = np.bincount(of[of >= 0], minlength=width_of)
    both = (of >= 0) & (over >= 0)
    return sparse.csr_array((1 / counts[of[both]], (over[both], of[both])), shape=(width_over, width_of))


def named_files(given: Mapping[str, Path], statistics: Mapping[str, Statistic], option: str) -> dict[Statistic, Path]:
    """Return files by what their totals are of; PlanError names a measure that no table is of."""
    found = {}
    for name, path in given.items():
        if name not in statistics:
            raise PlanError(
                f"{option} {in_a_line(name)}={path}: no table is of it{hint(name, list(statistics), 'measure')}"
            )
        found[statistics[name]] = path
    return found
