"""The base of a group: the finest common cells of its tables, and where each table's cells lie in it.

A key's *atoms* are its finest codes, those that no table of the group tells apart taken as one. The base is the product
of the atoms of all keys; where a domain lists its cells, it has one axis, whose atoms are made of listed cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.plan.cells import Int32s, QueryCells
from pipeline.plan.domain import Domain
from pipeline.plan.keys import Where
from udfs.estimates.tables import joint_positions
from udfs.numbers.arrays import Floats

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
    def of(cls, domain: Domain, tables: Mapping[str, QueryCells], most: int = MAX_CELLS) -> "Atoms":
        """Return the base of tables with cells, by name; PlanError names them where it has more than `most` cells."""
        numbers = sorted({axis.key for cells in tables.values() for axis in cells.axes})
        axes: tuple[int | None, ...] = tuple(numbers) if domain.cells is None else (None,)
        of_code = []
        for number in axes:
            positions = np.stack([_positions(domain, cells, number) for cells in tables.values()])
            met = (positions >= 0).any(axis=0)
            joint = np.full(positions.shape[1], -1, dtype=np.int32)
            joint[met] = joint_positions(list(positions[:, met]))
            of_code.append(joint)
        found = cls(domain, axes, tuple(of_code))
        if found.size > most:
            told = [domain.dimensions[n].key if n is not None else "cells" for n in axes]
            shape = " × ".join(f"{width:,} of {key}" for key, width in zip(told, found.shape, strict=True))
            largest = sorted(tables, key=lambda name: -tables[name].size)
            raise PlanError(
                f"tables {', '.join(largest[:3])}{', …' if len(largest) > 3 else ''}: their finest common cells are "
                f"{found.size:,} ({shape}), more than --max-cells {most:,}: allow more, or give fewer tables"
            )
        return found

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
        """For each axis a finest code of each atom."""
        firsts = []
        for of_code, width in zip(self.of_code, self.shape, strict=True):
            _, where = np.unique(of_code, return_index=True)  # of −1, if any, then of the atoms in order
            firsts.append(where[len(where) - width :].astype(np.int32))
        return firsts

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

    def mask(self, where: Where) -> Floats:
        """Return 1 for the base's cells that meet a filter, else 0; PlanError where no tables tell them apart."""
        masks = [each.mask(where) for each in self.domain.dimensions]
        if self.domain.cells is not None:
            inside = np.logical_and.reduce([m[of] for m, of in zip(masks, self.domain.cells, strict=True)])
            masks = [inside]
        else:
            used = {self.domain.levels[level] for level in where}
            if lacking := used - set(self.axes):
                raise PlanError(f"no table of these records tells {self.domain.dimensions[min(lacking)].key} apart")
            masks = [masks[number] for number in self.axes if number is not None]
        result = np.ones(self.shape)
        for axis, (mask, of_code, width) in enumerate(zip(masks, self.of_code, self.shape, strict=True)):
            met = of_code >= 0
            every = np.bincount(of_code[met], minlength=width)
            inside = np.bincount(of_code[met & mask], minlength=width)
            if ((inside > 0) & (inside < every)).any() or (mask & ~met).any():
                raise PlanError(
                    f"{_told(where)}: the tables do not show all of these cells, or do not tell them from others"
                )
            result = result * (inside > 0).reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        if not result.any():
            raise PlanError(f"{_told(where)}: no cell of the tables meets all of this")
        return result


def _told(where: Where) -> str:
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
