"""Public totals from files: known without noise and held fixed, or expected, from which weights are made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pipeline.base.errors import PlanError, hint, in_a_line
from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import Int32s, QueryCells
from pipeline.plan.domain.keys import Where
from pipeline.plan.structure import TableFacts
from pipeline.publication.release_folder import VALUE
from pipeline.storage.paths import LARGEST_LIST, open_input
from udfs.estimates.tables import Observed, Sums, common, joint_positions
from udfs.numbers.arrays import Floats
from udfs.records.statistics import Statistic

LARGEST: Final = 2.0**63  # steps: totals are held below it


@dataclass(frozen=True, eq=False)
class PublicTotals:
    """Totals by some levels, in key order of their cells; NaN where none is given."""

    name: str
    keys: frozenset[str]
    cells: QueryCells
    values: Floats


def measure_of(statistic: Statistic) -> str:
    """Return the name by which a call names what tables total: a measure, or records or owners, which are counted."""
    return statistic.measure or statistic.counted


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
        code_numbers = np.array([index.get(code, -1) for code in frame[level]], dtype=np.int64)
        if (code_numbers < 0).any():
            wrong = in_a_line(str(frame[level].iloc[int(np.argmax(code_numbers < 0))]))
            raise PlanError(f'{path}: column {level}: the domain has no code "{wrong}"')
        positions.append(code_numbers)
    positions += [np.zeros(len(frame), dtype=np.int64)] * (len(cells.axes) - len(by))
    cell = cells.numbers(positions)
    if (cell < 0).any():
        raise PlanError(f"{path}: row {int(np.argmax(cell < 0)) + 1}: the domain has no such cell")
    if len(np.unique(cell)) < len(cell):
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
    values[cell] = numbers
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

    values: Floats = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64)
    return values


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


def named_files(files: Mapping[str, Path], statistics: Mapping[str, Statistic], option: str) -> dict[Statistic, Path]:
    """Return files by what their totals are of; PlanError names a measure that no table is of."""
    by_statistic = {}
    for name, path in files.items():
        if name not in statistics:
            raise PlanError(
                f"{option} {in_a_line(name)}={path}: no table is of it{hint(name, list(statistics), 'measure')}"
            )
        by_statistic[statistics[name]] = path
    return by_statistic


# The base of a group: the finest common cells of its tables, and where each table's cells lie in it.
#
# A key's *atoms* are its finest codes, those that no table of the group tells apart taken as one. The base is the
# product of the atoms of all keys; where a domain lists its cells, its one axis has atoms that are made of listed ones.

MAX_CELLS = 200_000_000


@dataclass(frozen=True, eq=False)
class Atoms:
    """The base of some tables of a domain.

    Attributes:
        axes: The number in the domain of the key of each axis; one axis without a key where cells are listed.
        of_code: For each axis the atom of each finest code (or listed cell), −1 for one that is in no table.
    """

    domain: Domain
    axes: tuple[int | None, ...]
    of_code: tuple[Int32s, ...]

    @classmethod
    def of(cls, domain: Domain, tables: Mapping[str, QueryCells]) -> "Atoms":
        """Return the base of tables with cells, by name."""
        numbers = sorted({axis.key for cells in tables.values() for axis in cells.axes})
        axes: tuple[int | None, ...] = tuple(numbers) if domain.cells is None else (None,)
        of_code = []
        for number in axes:
            positions = np.stack([_positions(domain, cells, number) for cells in tables.values()])
            met = (positions >= 0).any(axis=0)
            joint = np.full(positions.shape[1], -1, dtype=np.int32)
            joint[met] = joint_positions(list(positions[:, met]))
            of_code.append(joint)
        return cls(domain, axes, tuple(of_code))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The number of atoms on each axis."""
        return tuple(int(each.max(initial=-1)) + 1 for each in self.of_code)

    @property
    def size(self) -> int:
        """The number of the base's cells."""
        return prod(self.shape)

    @cached_property
    def _firsts(self) -> list[Int32s]:
        firsts = []
        for of_code, width in zip(self.of_code, self.shape, strict=True):
            _, where = np.unique(of_code, return_index=True)  # of −1, if any, then of the atoms in order
            firsts.append(where[len(where) - width :].astype(np.int32))
        return firsts

    @property
    def in_words(self) -> str:
        """How many cells the base has, and of which keys."""
        keys = [self.domain.dimensions[n].key if n is not None else "cells" for n in self.axes]
        shape = " × ".join(f"{width:,} of {key}" for key, width in zip(keys, self.shape, strict=True))
        return f"{self.size:,} ({shape})"

    def positions(self, cells: QueryCells) -> tuple[Int32s, ...]:
        """Return, on each axis, the position of each atom in a table's cells, −1 for none."""
        return tuple(
            _positions(self.domain, cells, number)[first] for number, first in zip(self.axes, self._firsts, strict=True)
        )

    def widths(self, cells: QueryCells) -> tuple[int, ...]:
        """Return the number of a table's positions on each axis."""
        if cells.listed is not None:
            return (len(cells.listed),)
        width = {axis.key: len(axis.kept) for axis in cells.axes}
        return tuple(width.get(number, 1) for number in self.axes if number is not None)

    def placed(self, cells: QueryCells, values: NDArray[Any]) -> NDArray[Any]:
        """Return all values of a table in key order, or some broadcastable to its shape, on the base's axes."""
        if cells.listed is not None:
            return values
        grid = values.reshape(cells.shape) if values.size == cells.size else values
        order = np.argsort([axis.key for axis in cells.axes], kind="stable")
        keys, grid = sorted(axis.key for axis in cells.axes), grid.transpose(order)
        return grid.reshape([grid.shape[keys.index(n)] if n in keys else 1 for n in self.axes if n is not None])

    def in_key_order(self, cells: QueryCells, values: NDArray[Any]) -> NDArray[Any]:
        """Return a table's values on the base's axes in key order."""
        if cells.listed is not None:
            return values
        keys = [axis.key for axis in cells.axes]
        grid = values.reshape([len(axis.kept) for axis in sorted(cells.axes, key=lambda axis: axis.key)])
        return grid.transpose([sorted(keys).index(key) for key in keys]).reshape(-1)

    def mask(self, where: Where) -> tuple[Floats, ...]:
        """Return 1 for the entries of each axis that meet a filter, else 0: a cell meets it where all its entries do.

        PlanError where no tables tell them apart.
        """
        masks = [each.mask(where) for each in self.domain.dimensions]
        if self.domain.cells is not None:
            inside = np.logical_and.reduce([m[of] for m, of in zip(masks, self.domain.cells, strict=True)])
            masks = [inside]
        else:
            used = {self.domain.levels[level] for level in where}
            if lacking := used - set(self.axes):
                raise PlanError(f"no table of these records tells {self.domain.dimensions[min(lacking)].key} apart")
            masks = [masks[number] for number in self.axes if number is not None]
        result = []
        for mask, of_code, width in zip(masks, self.of_code, self.shape, strict=True):
            met = of_code >= 0
            every = np.bincount(of_code[met], minlength=width)
            inside = np.bincount(of_code[met & mask], minlength=width)
            if ((inside > 0) & (inside < every)).any() or (mask & ~met).any():
                raise PlanError(
                    f"{_in_words(where)}: the tables do not show all of these cells, or do not tell them from others"
                )
            result.append((inside > 0).astype(np.float64))
        if not all(each.any() for each in result):
            raise PlanError(f"{_in_words(where)}: no cell of the tables meets all of this")
        return tuple(result)


def in_common(
    domain: Domain, tables: Sequence[tuple[str, QueryCells, NDArray[Any]]]
) -> Iterator[tuple[str, int, bool]]:
    """Yield of each two tables that have sums in common their names, how many sums, and whether these are the same.

    `tables`: names, cells, and whole numbers in key order.
    """
    atoms = Atoms.of(domain, {name: cells for name, cells, _ in tables})
    for pair in combinations(tables, 2):
        one, other = (Observed(name, atoms.positions(of), atoms.widths(of), None, None) for name, of, _ in pair)
        if both := common(one, other):
            first, second = (
                Sums(each.positions, each.widths).up(atoms.placed(cells, values).astype(np.float64))
                for each, (_, cells, values) in zip(both, pair, strict=True)
            )
            yield f"{one.name} and {other.name}", first.size, np.array_equal(first, second)


def _in_words(where: Where) -> str:
    return ", ".join(f"{level} in {','.join(codes)}" for level, codes in where.items())


def _positions(domain: Domain, cells: QueryCells, number: int | None) -> Int32s:
    """Return a table's position of each finest code of a key, or of each listed cell (None)."""
    if number is None:
        assert domain.cells is not None
        positions = [axis.position[domain.cells[axis.key]] for axis in cells.axes]
        return cells.numbers(positions).astype(np.int32)
    for axis in cells.axes:
        if axis.key == number:
            return axis.position
    return np.zeros(len(domain.dimensions[number].codes), dtype=np.int32)
