"""Lakehouse tables as microdata: one version of a Delta table, and how its files are read.

A library reads the table's log: which files a version has, which of their rows are deleted, what its columns are called
there. Only these files are read, by the code that reads plain Parquet. What a log may ask for beyond that is refused by
name: a row that is deleted must not be counted, and none twice. No message repeats a library's own, for logs hold the
least and the greatest value of each column.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import PlanError
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.store import StorePath

LOG = "_delta_log"  # the folder that makes a folder a Delta table
VERSION = re.compile(r"(.+)@v([0-9]{1,19})", re.DOTALL)
ROW_NUMBER_BYTES = 8
FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, repr=False)
class TableFile:
    """How a version of a table reads one of its Parquet files.

    Attributes:
        schema: the table's columns, by the names and types that they have in this version.
        names: of each column that files hold, its name or its field id in the file.
        values: of columns that the file may lack, such as partition columns, the value that all its rows have.
        deleted: the numbers of rows that are deleted, as bytes of ascending 64-bit integers.
        bytes, records: the file's size, and how many rows it holds, the deleted ones included; None: not stated.
    """

    schema: pa.Schema
    names: Mapping[str, str | int]
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    deleted: bytes = b""
    bytes: int | None = None
    records: int | None = None

    def columns_in(self, file: pa.Schema) -> dict[str, str]:
        """Return the name in a file of each of the table's columns that it holds; the others have one value each.

        Raises PlanError, which begins with the column, where a file's column cannot be the table's.
        """
        found: dict[str, str] = {}
        for name, known in self.names.items():
            same = [each for each in file if (_id(each) if isinstance(known, int) else each.name) == known]
            if len(same) > 1 or (not same and _in_another_case(known, file)):
                raise PlanError(f"column {name} cannot be told apart in a file of the table; write the table anew")
            if same and not _widened(same[0].type, self.schema.field(name).type):
                raise PlanError(f"column {name} is of another type in a file of the table; write the table anew")
            if same:
                found[name] = same[0].name
        return found

    def value(self, name: str) -> pa.Scalar:
        """Return the value of a column that a file lacks: null, where the column was added after the file."""
        return self.values.get(name, pa.scalar(None, self.schema.field(name).type))

    def is_deleted(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the file's rows of these numbers are deleted."""
        return np.isin(rows, np.frombuffer(self.deleted, np.int64))


@dataclass(frozen=True, repr=False)
class Listing:
    """The files of a version by their locations, and what tells it apart from every other version of every table."""

    identity: Sequence[str | int]
    files: Sequence[tuple[Location, TableFile]]


class TableVersion:
    """A table at `at`, at a version; None is the latest when it is first read, and that one from then on."""

    def __init__(self, at: Location, version: int | None = None) -> None:
        self.at = at
        self.version = version

    def __str__(self) -> str:
        return str(self.at) if self.version is None else f"{self.at}@v{self.version}"

    @property
    def remote(self) -> bool:
        """Whether it lies in a store."""
        return self.at.remote

    @cached_property
    def listing(self) -> Listing:
        """The files of the version; raises PlanError where they cannot be known, or rows could be counted twice."""
        from pipeline.microdata.delta import listing  # noqa: PLC0415 — for such a table alone

        self.version, made = listing(self.at, self.version)
        if len({file.key for file, _ in made.files}) < len(made.files):
            raise PlanError(f"microdata {self}: the table lists a file twice, whose rows would count twice; restore it")
        if not made.files:
            raise PlanError(f"microdata {self}: the table has no file in this version; name another, PATH@vVERSION")
        return made


Place = Location | TableVersion


def microdata_at(location: Location) -> Place:
    """Return what lies at a location: the version of a table that `PATH@vVERSION` names, a table, or the location."""
    named = VERSION.fullmatch(location.name)
    try:
        if named and not location.exists():
            return TableVersion(_beside(location, named[1]), int(named[2]))
        return TableVersion(location) if (location / LOG).exists() else location
    except OSError:
        return location  # what reads it says why it cannot


def _beside(location: Location, name: str) -> Location:
    """Return the location of that name beside one, without links."""
    if isinstance(location, StorePath):
        return replace(location, path=location.path.removesuffix(location.name) + name)
    return LocalPath(Path(location.key).with_name(name)).resolve("microdata")


def _id(column: pa.Field) -> int | None:
    stated = (column.metadata or {}).get(FIELD_ID)
    return None if stated is None else int(stated)


def _in_another_case(name: str | int, file: pa.Schema) -> bool:
    return isinstance(name, str) and name.casefold() in {each.casefold() for each in file.names}


def _widened(was: pa.DataType, now: pa.DataType) -> bool:
    """Return whether every value of one type is the same value in another, as when a column's type was widened."""
    types = pa.types
    inner = was.value_type if types.is_dictionary(was) else was
    if _is_text(inner) and _is_text(now):
        return True
    if types.is_integer(inner):
        whole = types.is_integer(now) and inner.bit_width <= now.bit_width
        return bool(whole or types.is_decimal(now) or types.is_float64(now))
    if types.is_decimal(inner) and types.is_decimal(now):
        return bool(inner.scale <= now.scale and inner.precision - inner.scale <= now.precision - now.scale)
    return bool(inner == now or (types.is_floating(inner) and types.is_float64(now)))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
