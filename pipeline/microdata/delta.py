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

from pipeline.microdata.table_file import Listing, TableFile, Unread, address, store_options
from pipeline.storage.location import Location

VECTORS, WIDENING = "deletionVectors", {"typeWidening", "typeWidening-preview"}
# The last five change how the log is kept, or types that no column of a plan has.
HONOURED = {"columnMapping", VECTORS, *WIDENING, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
HONOURED |= {"variantType", "variantType-preview"}
MAPPING = "delta.columnMapping."
FACTS = ["path", "size_bytes", "num_records"]  # not the least and greatest values, which stand beside them
ADVICE = "write its records out as a plain table"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def listing(at: Location, version: int | None, metadata: Location | None) -> tuple[int, Listing]:
    """Return a version of the Delta table at `at` (None: the latest) by its number, and its files.

    Raises Unread where it asks of its readers what prdp does not do; no other error's text may be shown.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 — an extra

    options = store_options(at, endpoint="AWS_ENDPOINT_URL", region="AWS_REGION")
    if options.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        options["AWS_ALLOW_HTTP"] = "true"
    table = DeltaTable(address(at), version=version, storage_options=options)
    features = set(table.protocol().reader_features or ())
    both = features & {VECTORS, *WIDENING}  # of which the package reads no deletion vectors
    unread = features - HONOURED or (both if VECTORS in both and len(both) > 1 else set())
    if unread:
        raise Unread(f"the Delta table uses {' with '.join(sorted(unread))}, which prdp does not read; {ADVICE}")
    identity = ("delta", str(table.metadata().id), table.version())
    return table.version(), Listing(identity, list(_files(table, at, not features & WIDENING)))


def _files(table: Any, at: Location, with_vectors: bool) -> Iterator[tuple[Location, TableFile]]:
    schema, partitions = pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
    mode = table.metadata().configuration.get(f"{MAPPING}mode", "none")
    key = {"none": None, "name": f"{MAPPING}physicalName", "id": f"{MAPPING}id"}[mode]
    names = {of.name: of.name if key is None else of.metadata[key] for of in table.schema().fields}
    plain = TableFile(schema, {name: known for name, known in names.items() if name not in partitions})
    vectors = _vectors(table) if with_vectors else {}  # also where no feature announces them
    actions = pa.table(table.get_add_actions())
    for action in actions.select(FACTS + ["partition"] * bool(partitions)).to_pylist():
        parts = [unquote(part) for part in action["path"].split("/")]
        if SCHEME.match(action["path"]) or any(part in ("", ".", "..") or "/" in part for part in parts):
            raise Unread(f"the Delta table has files of another table, as a shallow clone has; {ADVICE}")
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
