"""What formats of lakehouse tables share: the files of a version, and how its Parquet files are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.storage.location import Location
from pipeline.storage.store import StorePath
from udfs.records.names import is_text

METADATA, ICEBERG = "metadata", ".metadata.json"  # the folder, and how its files end, of an Iceberg table
ROW_NUMBER_BYTES = 8
FIELD_ID = b"PARQUET:field_id"


class Unread(Exception):
    """The table has what prdp does not read; the message says what."""


@dataclass(frozen=True, repr=False)
class TableFile:
    """How a version of a table reads one of its Parquet files."""

    schema: pa.Schema  # names and types of the table's columns in this version
    names: Mapping[str, str | int]  # of each column that files hold, its name or its field id there
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)  # of columns that the file may lack, in all rows
    unnumbered: Mapping[str, int] = field(default_factory=dict)  # field ids by name, of files without them
    deleted: bytes = b""  # the numbers of deleted rows, as ascending 64-bit integers
    bytes: int | None = None  # the file's size; None: not stated
    records: int | None = None  # its rows, the deleted ones included

    def columns_in(self, file: pa.Schema) -> dict[str, str]:
        """Return the name in a file of each of the table's columns that it holds; the others have one value each.

        Raises PlanError, which begins with the column, where a file's column cannot be the table's.
        """
        stated = [(column.metadata or {}).get(FIELD_ID) for column in file]
        numbers = [None if number is None else int(number) for number in stated]
        if not any(stated):
            numbers = [self.unnumbered.get(name) for name in file.names]
        by_number = any(isinstance(known, int) for known in self.names.values())
        if by_number and all(number is None for number in numbers):
            raise PlanError("a file of the table numbers no column, and the table has no names for it; write it anew")
        keys: list[str | int | None] = [*(numbers if by_number else file.names)]
        held: dict[str, str] = {}
        for name, known in self.names.items():
            if keys.count(known) > 1 or (known not in keys and _in_another_case(known, file)):
                raise PlanError(f"column {name} cannot be told apart in a file of the table; write the table anew")
            if known in keys:
                column = file.field(keys.index(known))
                if not _widened(column.type, self.schema.field(name).type):
                    raise PlanError(f"column {name} is of another type in a file of the table; write the table anew")
                held[name] = column.name
        return held

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


def address(at: Location) -> str:
    """Return a location as the libraries of tables want it: a path, or a URI without options."""
    return f"{at.root}/{at.key}" if isinstance(at, StorePath) else str(at)


def store_options(at: Location, *, endpoint: str, region: str) -> dict[str, str]:
    """Return the endpoint and region that a store's URI names, as a library calls them; it finds credentials itself."""
    options = dict(parse_qsl(at.query)) if isinstance(at, StorePath) else {}
    named = {region: options["region"]} if "region" in options else {}
    if "endpoint_override" in options:
        named[endpoint] = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    return named


def _in_another_case(name: str | int, file: pa.Schema) -> bool:
    return isinstance(name, str) and name.casefold() in {each.casefold() for each in file.names}


def _widened(was: pa.DataType, now: pa.DataType) -> bool:
    """Return whether every value of one type is the same value in another, as when a column's type was widened."""
    types = pa.types
    inner = was.value_type if types.is_dictionary(was) else was
    if is_text(inner) and is_text(now):
        return True
    if types.is_integer(inner):
        whole = types.is_integer(now) and inner.bit_width <= now.bit_width
        return bool(whole or types.is_decimal(now) or types.is_float64(now))
    if types.is_decimal(inner) and types.is_decimal(now):
        return bool(inner.scale <= now.scale and inner.precision - inner.scale <= now.precision - now.scale)
    return bool(inner == now or (types.is_floating(inner) and types.is_float64(now)))
