"""Delta tables: the files of a version, by the package deltalake, which reads the table's log.

What the table asks of its readers (*reader features* of the Delta protocol) is honoured or refused by name.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from pipeline.errors import PlanError, require_package
from pipeline.microdata.lakehouse import Listing, TableFile, address, store_options
from pipeline.storage.location import Location

VECTORS, WIDENING = "deletionVectors", {"typeWidening", "typeWidening-preview"}
# The last five change how the log is kept, or types that no column of a plan has.
HONOURED = {"columnMapping", VECTORS, *WIDENING, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
HONOURED |= {"variantType", "variantType-preview"}
MAPPING = "delta.columnMapping."
FACTS = ["path", "size_bytes", "num_records"]  # not the least and greatest values, which stand beside them
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def listing(at: Location, version: int | None) -> tuple[int, Listing]:
    """Return a version of the Delta table at `at` (None: the latest) by its number, and its files.

    Raises PlanError where there is no such version, or where it asks of its readers what prdp does not do.
    """
    package = require_package("deltalake", f"microdata {at}: a Delta table")
    where = f"microdata {at}" if version is None else f"microdata {at}@v{version}"
    try:
        table = package.DeltaTable(address(at), version=version, storage_options=_options(at))
        features = set(table.protocol().reader_features or ())
        both = features & {VECTORS, *WIDENING}  # of which the package reads no deletion vectors
        unread = features - HONOURED or (both if VECTORS in both and len(both) > 1 else set())
        if not unread:
            identity = ("delta", str(table.metadata().id), table.version())
            return table.version(), Listing(identity, list(_files(table, at, not features & WIDENING)))
        problem = f"the Delta table uses {' with '.join(sorted(unread))}, which prdp does not read"
    except _OutsideError:
        problem = "the Delta table has files of another table, as a shallow clone has"
    except Exception:  # its message may hold values, which stand in the log
        problem = ""
    if problem:
        raise PlanError(f"{where}: {problem}; write its records out as a plain table")
    raise PlanError(
        f"{where}: the package deltalake cannot read this version of the Delta table; check that the version and its "
        "log are there, and are of no newer form than the package knows"
    )


class _OutsideError(Exception):
    """A file does not lie in the table's folder."""


def _files(table: Any, at: Location, with_vectors: bool) -> Iterator[tuple[Location, TableFile]]:
    schema, partitions = pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
    mode = table.metadata().configuration.get(f"{MAPPING}mode", "none")
    key = {"none": None, "name": f"{MAPPING}physicalName", "id": f"{MAPPING}id"}[mode]
    names = {each.name: each.name if key is None else each.metadata[key] for each in table.schema().fields}
    plain = TableFile(schema, {name: known for name, known in names.items() if name not in partitions})
    vectors = _vectors(table) if with_vectors else {}  # also where no feature announces them
    actions = pa.table(table.get_add_actions())
    for action in actions.select(FACTS + ["partition"] * bool(partitions)).to_pylist():
        parts = [unquote(part) for part in action["path"].split("/")]
        if SCHEME.match(action["path"]) or any(part in ("", ".", "..") or "/" in part for part in parts):
            raise _OutsideError
        file = at / "/".join(parts)
        yield (
            file,
            replace(
                plain,
                values={name: pa.scalar(action["partition"][name], schema.field(name).type) for name in partitions},
                deleted=vectors.pop(file.key.lstrip("/"), b""),
                bytes=action["size_bytes"],
                records=action["num_records"],
            ),
        )
    if vectors:
        raise ValueError("deleted rows of a file that is not listed")


def _vectors(table: Any) -> dict[str, bytes]:
    """Return the rows that deletion vectors delete, by the keys of files."""
    deleted = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for file, kept in zip(batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True):
            rows = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
            deleted[unquote(urlsplit(file).path).lstrip("/")] = rows.tobytes()
    return deleted


def _options(at: Location) -> dict[str, str]:
    named = {"endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION"}
    options = {named[option]: value for option, value in store_options(at).items()}
    return options | ({"AWS_ALLOW_HTTP": "true"} if options.get("AWS_ENDPOINT_URL", "").startswith("http:") else {})
