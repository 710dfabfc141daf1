"""Published tables in other formats: made from verified published files alone, without ledger, plan or microdata.

What is exported was published already: it is post-processing, and costs no loss.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import PlanError, StateError
from pipeline.names import hint
from pipeline.release.verify import read_manifest, verify_release
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.new_folder import filled, require_no_release
from pipeline.storage.staging import safe_name
from pipeline.tables.writers import FORMATS, PARQUET

EXPORTS = tuple(name for name in FORMATS if name != PARQUET.name)  # every release has its tables as Parquet


def export(folder: Location, to: str, out: Path | None = None) -> dict[str, Any]:
    """Write every table of the published release in `folder` to `out` in the format `to`; return what was written.

    A table has the bytes that the release would have published in this format.

    Args:
        folder: Holds release.json.
        to: One of EXPORTS.
        out: The folder to write, new or empty. Default: <release>-<format> in the working folder.

    Raises:
        PlanError: The format is unknown.
        StateError: A file of the release is missing, changed or too many; `out` is neither absent nor empty, or lies in
            a release's folder.
    """
    if to not in EXPORTS:
        raise PlanError(f"{to}: unknown format{hint(to, EXPORTS, 'format')}")
    verified = verify_release(folder)
    manifest = read_manifest(folder)
    at = out or Path(f"{safe_name('release', verified.release)}-{to}")
    require_no_release(at)
    made = {}
    with filled(at) as unfinished:
        for table in manifest["tables"]:
            query = safe_name("query", table["query"])
            (name,) = FORMATS[to].files(query, table["rows"])
            parts = published_parts(folder, table)
            first = next(parts)
            FORMATS[to].write(LocalPath(unfinished) / name, first.schema_arrow, _rows(first, parts))
            made[query] = {"path": str(at / name), "rows": table["rows"]}
    return {"release": verified.release, "attempt": verified.attempt, "format": to, "out": str(at), "tables": made}


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


def _rows(first: pq.ParquetFile, others: Iterator[pq.ParquetFile]) -> Iterator[pa.RecordBatch]:
    yield from first.iter_batches()
    for part in others:
        yield from part.iter_batches()
