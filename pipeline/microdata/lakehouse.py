"""Lakehouse tables as microdata: a version of a Delta table or a snapshot of an Iceberg table, and how files are read.

A library reads the table's log: which files a version has, which of their rows are deleted, what its columns are called
there. Only these files are read, by the code that reads plain Parquet. What a log may ask for beyond that is refused by
name: a row that is deleted must not be counted, and none twice. No message repeats a library's own, for logs hold the
least and the greatest value of each column.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import PlanError
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.store import StorePath

LOG = "_delta_log"  # the folder that makes a folder a Delta table
METADATA, ICEBERG = "metadata", ".metadata.json"  # the folder, and how its files end, of an Iceberg table
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
        unnumbered: of files without field ids, the field ids of columns by their names there.
        deleted: the numbers of rows that are deleted, as bytes of ascending 64-bit integers.
        bytes, records: the file's size, and how many rows it holds, the deleted ones included; None: not stated.
    """

    schema: pa.Schema
    names: Mapping[str, str | int]
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    unnumbered: Mapping[str, int] = field(default_factory=dict)
    deleted: bytes = b""
    bytes: int | None = None
    records: int | None = None

    def columns_in(self, file: pa.Schema) -> dict[str, str]:
        """Return the name in a file of each of the table's columns that it holds; the others have one value each.

        Raises PlanError, which begins with the column, where a file's column cannot be the table's.
        """
        numbers = [_id(each) for each in file]
        if all(number is None for number in numbers):
            numbers = [self.unnumbered.get(each.name) for each in file]
        by_number = any(isinstance(known, int) for known in self.names.values())
        if by_number and all(number is None for number in numbers):
            raise PlanError("a file of the table numbers no column, and the table has no names for it; write it anew")
        keys: list[str | int | None] = [*(numbers if by_number else file.names)]
        found: dict[str, str] = {}
        for name, known in self.names.items():
            if keys.count(known) > 1 or (known not in keys and _in_another_case(known, file)):
                raise PlanError(f"column {name} cannot be told apart in a file of the table; write the table anew")
            if known in keys:
                column = file.field(keys.index(known))
                if not _widened(column.type, self.schema.field(name).type):
                    raise PlanError(f"column {name} is of another type in a file of the table; write the table anew")
                found[name] = column.name
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

    def __init__(self, at: Location, version: int | None = None, metadata: Location | None = None) -> None:
        self.at = at
        self.version = version
        self._metadata = metadata  # of Iceberg, the file to read; None: the folder's latest

    def __str__(self) -> str:
        return str(self.at) if self.version is None else f"{self.at}@v{self.version}"

    @property
    def remote(self) -> bool:
        """Whether it lies in a store."""
        return self.at.remote

    @cached_property
    def listing(self) -> Listing:
        """The files of the version; raises PlanError where they cannot be known, or rows could be counted twice."""
        if self._metadata is not None or is_iceberg(self.at):
            from pipeline.microdata import iceberg  # noqa: PLC0415 — for such a table alone

            self.version, made = iceberg.listing(self.at, self.version, self._metadata)
        elif _is_delta(self.at):
            from pipeline.microdata import delta  # noqa: PLC0415

            self.version, made = delta.listing(self.at, self.version)
        else:
            raise PlanError(f"microdata {self}: no Delta or Iceberg table lies there; set dataset.path or --data")
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
        version = int(named[2]) if named and not location.exists() else None
        if named and version is not None:
            location = _moved(location, location.key.removesuffix(location.name) + named[1])
        if location.name.endswith(ICEBERG) and location.parts[-2] == METADATA:
            return TableVersion(_moved(location, location.key.rpartition(f"/{METADATA}/")[0]), version, location)
        table = version is not None or _is_delta(location) or is_iceberg(location)
        return TableVersion(location, version) if table else location
    except OSError:
        return location  # what reads it says why it cannot


def folders_above(location: Location) -> Iterator[Location]:
    """Yield the folders that hold a location, the nearest first, whatever links lead to it."""
    key = location.resolve().key
    while key:
        key = key.rpartition("/")[0]
        yield _moved(location, key if location.remote else key or "/")


def _moved(location: Location, key: str) -> Location:
    """Return the location of another key, without links."""
    return replace(location, path=key) if isinstance(location, StorePath) else LocalPath(Path(key)).resolve("microdata")


def _is_delta(at: Location) -> bool:
    return (at / LOG).exists()


def is_iceberg(at: Location) -> bool:
    """Whether it is an Iceberg table, and no Delta table that other readers may take for one."""
    return not _is_delta(at) and any(name.endswith(ICEBERG) for name in (at / METADATA).children())


def address(at: Location) -> str:
    """Return a location as the libraries of tables want it: a path, or a URI without options."""
    return f"{at.root}/{at.key}" if isinstance(at, StorePath) else str(at)


def store_options(at: Location) -> dict[str, str]:
    """Return the endpoint and region of a store, as far as its URI names them; credentials are the environment's."""
    options = dict(parse_qsl(at.query)) if isinstance(at, StorePath) else {}
    reached = {name: options[name] for name in ("region",) if name in options}
    if "endpoint_override" in options:
        reached["endpoint"] = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    return reached


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
