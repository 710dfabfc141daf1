"""Published files as others read them: each held against its manifest as it is read."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StateError
from pipeline.report.site.facts import CODES, PACKAGE
from pipeline.storage.location import Location


def published_parts(folder: Location, table: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """Yield the Parquet files of a table of a manifest; StateError where one changed since it was verified."""
    for file in table["files"]:
        if file["path"].endswith(".parquet"):
            yield published_part(folder, file)


def published_part(folder: Location, file: Mapping[str, Any], coded: Sequence[str] = ()) -> pq.ParquetFile:
    """Return a file of a manifest, read with the columns `coded` as dictionaries.

    Raises StateError where it changed since it was verified.
    """
    return pq.ParquetFile(pa.BufferReader(published_bytes(folder, file)), read_dictionary=list(coded))


def published_bytes(folder: Location, file: Mapping[str, Any]) -> bytes:
    """Return the contents of a file of a manifest; StateError where they changed since it was verified."""
    data: bytes = (folder / file["path"]).read()
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
    package: dict[str, Any] = json.loads(published_bytes(folder, files[PACKAGE]))
    lists = [path for path in files if path.startswith(f"{CODES}/")]
    return package, {path.removesuffix(".csv"): published_bytes(folder, files[path]) for path in lists}
