"""Published files as others read them: each held against its manifest as it is read."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PrdpError, StateError
from pipeline.plan.model import VALUES
from pipeline.report.site.facts import CODES, PACKAGE
from pipeline.storage.location import Location


def published_parts(folder: Location, table: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """Yield the Parquet files of a table of a manifest; StateError where one changed since it was verified."""
    for file in table["files"]:
        if file["path"].endswith(".parquet"):
            yield published_part(folder, file)


def published_part(folder: Location, file: Mapping[str, Any], coded: Sequence[str] = ()) -> pq.ParquetFile:
    """Return a file of a manifest, read with the columns `coded` as dictionaries.

    Raises StateError, also while it is read, where it changed since it was verified or is no table of prdp's.
    """
    at, data = folder / file["path"], published_bytes(folder, file)
    with as_written(at):
        return _Part(at, data, coded)


class _Part(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that fits its manifest, whoever wrote both."""

    def __init__(self, at: Location, data: bytes, coded: Sequence[str]) -> None:
        super().__init__(pa.BufferReader(data), read_dictionary=list(coded))
        self._at = at
        figures = [field.type for field in self.schema_arrow if field.name in VALUES]
        if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in figures):
            raise TypeError

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows, of some columns or of all."""
        return self.read_row_groups(range(self.num_row_groups), columns)

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a row group."""
        return self.read_row_groups([group], columns)

    def read_row_groups(self, groups: Iterable[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of row groups."""
        with as_written(self._at):
            table = super().read_row_groups(list(groups), columns)
            table.select(columns or [])  # KeyError for a column that is not there
            return table

    def iter_batches(self, batch_size: int = 65536, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch."""
        batches = super().iter_batches(batch_size, columns=columns)
        while True:
            with as_written(self._at):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.select(columns or [])
            yield batch


@contextmanager
def as_written(at: Location) -> Iterator[None]:
    """Read a file of a manifest in a block; StateError where it is not as prdp writes it, whatever its digest."""
    try:
        yield
    except PrdpError:
        raise
    except (pa.ArrowException, OSError, LookupError, TypeError, AttributeError, ValueError):
        raise StateError(f"{at}: is not as prdp writes it, though it fits its manifest: both were changed") from None


def published_json(folder: Location, file: Mapping[str, Any]) -> Any:
    """Return what a JSON file of a manifest holds; StateError where it changed, or is no JSON."""
    data = published_bytes(folder, file)
    with as_written(folder / file["path"]):
        return json.loads(data)


def published_bytes(folder: Location, file: Mapping[str, Any]) -> bytes:
    """Return the contents of a file of a manifest; StateError where they changed since it was verified."""
    try:
        data: bytes = (folder / file["path"]).read()
    except OSError as error:
        raise StateError(f"{folder / file['path']} cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise StateError(f"{folder / file['path']} differs from the manifest: its contents were changed")
    return data


def description_in(
    folder: Location, files: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """Return what a folder's datapackage.json says, None where there is none, and its lists of codes, by resource.

    `files`: those of its manifest, by their paths beside datapackage.json. Raises StateError where one changed.
    """
    if PACKAGE not in files:
        return None, {}
    package: dict[str, Any] = published_json(folder, files[PACKAGE])
    with as_written(folder / files[PACKAGE]["path"]):
        _require_package(package)
    lists = [path for path in files if path.startswith(f"{CODES}/")]
    return package, {path.removesuffix(".csv"): published_bytes(folder, files[path]) for path in lists}


def _require_package(package: dict[str, Any]) -> None:
    """Touch what readers take from a datapackage.json; KeyError or TypeError where it lacks that."""
    texts = [package[key] for key in ("release", "plan_digest", "title")]
    for resource in package["resources"]:
        tells = ("name",) if str(resource["name"]).startswith(CODES) else ("name", "description")
        texts += [resource[key] for key in tells] + list(resource["schema"]["primaryKey"])
        texts += [field["name"] for field in resource["schema"]["fields"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
