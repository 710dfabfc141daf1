"""Delta tables written by hand: what the package deltalake reads, but writes none of."""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TYPES = {pa.string(): "string", pa.int64(): "long", pa.int32(): "integer"}
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def column(name: str, kind: str, number: int | None = None, held: str | None = None) -> dict[str, Any]:
    """A column of a schema; of a mapped one, its number and its name in files."""
    mapped = {} if number is None else {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": held}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapped}


def columns_of(table: pa.Table) -> list[dict[str, Any]]:
    return [column(each.name, TYPES[each.type]) for each in table.schema]


def add(root: Path, path: str, rows: pa.Table | None = None, **facts: Any) -> dict[str, Any]:
    """The action that adds a file, which is written first where there are rows; `path` stands in the log as it is."""
    file = root / path
    if rows is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, file, row_group_size=100)
    held = {"size": file.stat().st_size, "stats": json.dumps({"numRecords": pq.read_metadata(file).num_rows})}
    return {"add": {"path": path, "partitionValues": {}, "modificationTime": 0, "dataChange": True} | held | facts}


def commit(
    root: Path,
    columns: Sequence[Mapping[str, Any]],
    actions: Sequence[Mapping[str, Any]],
    features: Sequence[str] = ("deletionVectors",),
    *,
    partitions: Sequence[str] = (),
    mapping: str = "none",
) -> Path:
    """Write version 0 of a table at `root`."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    metadata = {
        "id": "by-hand",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": partitions,
        "configuration": {"delta.columnMapping.mode": mapping},
    }
    head = [{"protocol": protocol | {"readerFeatures": features, "writerFeatures": features}}, {"metaData": metadata}]
    (root / "_delta_log").mkdir(parents=True, exist_ok=True)
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, [*head, *actions])))
    return root


def vector(rows: Sequence[int]) -> dict[str, Any]:
    """A deletion vector of rows below 2¹⁶, which stands in the log itself: a RoaringBitmapArray of one array container.

    By the Delta protocol's "Deletion Vector Format" and the portable format of Roaring bitmaps.
    """
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<iqi", 1681511377, 1, 0) + container
    text = base64.b85encode(data + bytes(-len(data) % 4)).translate(bytes.maketrans(_B85, _Z85)).decode()
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}
