"""What files of microdata are, wherever they lie: fingerprints of their contents, and the mark of synthetic ones.

A content fingerprint is the digest of a file's size and of blocks at fixed places; of a small file, of all its bytes.
Equal files have equal ones, so copies are known by them; no record is decoded.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pipeline.errors import StateError
from pipeline.microdata.source import REQUESTS, Source, footer_of, unreadable
from pipeline.storage.location import Location
from pipeline.storage.new_folder import SYNTHETIC

BLOCK = 1 << 16  # bytes
BLOCKS = 4  # of each file, the first and the last among them: few enough for a store, which is asked for each


@dataclass(frozen=True)
class Identity:
    """The content fingerprints of files with records, in order, and whether they carry the mark of synthetic ones.

    `synthetic` is None where that cannot be known: of a table, and of a DataFrame without the mark.
    """

    fingerprints: tuple[str, ...] = ()
    synthetic: bool | None = None


def identity_of(files: Source) -> Identity:
    """Return the identity of files; CSV files carry no mark, and files without a record have no part in it.

    Raises PlanError where a file cannot be read, StateError where some are marked and others not.
    """
    with ThreadPoolExecutor(REQUESTS if files.root.remote else 1) as pool:
        each = list(pool.map(_of_file, files.files, [files.format] * len(files.files)))
    marks = {marked for _, marked in each}
    if len(marks) > 1:
        raise StateError(
            f"microdata {files.root}: some of its files carry the mark of prdp generate and others do not: "
            "keep synthetic and other microdata apart"
        )
    return Identity(tuple(known for known, _ in each if known is not None), marks == {True})


def is_marked(metadata: dict[bytes, bytes] | None) -> bool:
    """Return whether the metadata of a schema carry the mark of synthetic microdata."""
    return metadata is not None and metadata.items() >= SYNTHETIC.items()


def _of_file(file: Location, form: str) -> tuple[str | None, bool]:
    footer = footer_of(file)[0] if form == "parquet" else None
    marked = footer is not None and is_marked(footer.metadata)
    if footer is not None and not footer.num_rows:
        return None, marked
    try:
        with file.open() as raw:
            size = raw.size()
            blocks = list(_blocks(raw, size))
    except OSError:
        raise unreadable(file) from None
    if footer is None and size <= BLOCK and len(blocks[0].strip().splitlines()) < 2:
        return None, marked  # a header alone
    digest = hashlib.sha256(size.to_bytes(8))
    for block in blocks:
        digest.update(block)
    return digest.hexdigest(), marked


def _blocks(raw: Any, size: int) -> Iterator[bytes]:
    """Yield all bytes of a small file, else blocks that are evenly spread over it."""
    if size <= BLOCK * BLOCKS:
        yield raw.read()
        return
    for block in range(BLOCKS):
        raw.seek((size - BLOCK) * block // (BLOCKS - 1))
        yield raw.read(BLOCK)
