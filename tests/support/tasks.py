"""Tasks for the verb `each`; workers import this module, or get it by value."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from pipeline.base.errors import MicrodataError
from udfs.records.contract import ContractBroken

CANARY = "CANARY-735-00-1"


def squared(number: int) -> tuple[int, bytes]:
    return number**2, bytes(number)


def until_told(marker: Path, number: int) -> int:
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return number


def against_the_contract(number: int) -> int:
    raise ContractBroken("employment", "is empty (null)")


def unreadable(number: int) -> int:
    raise MicrodataError("microdata x: unreadable")


def talkative(number: int) -> int:
    raise ValueError(f"the record of {CANARY} is odd")


def missing(number: int) -> int:
    return len(Path(f"/{CANARY}").read_bytes())


def digits_of(number: int) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
    """Each digit of the number, in parts of two, to the bucket of its own value modulo 3."""
    digits = [int(digit) for digit in str(number)]
    for start in range(0, len(digits), 2):
        part = digits[start : start + 2]
        rows = {b: [f"{number}:{d}" for d in part if d % 3 == b] for b in range(3)}
        yield [(b, pa.record_batch({"text": pa.array(texts)})) for b, texts in rows.items() if texts]


def gathered(bucket: int, batches: Iterable[pa.RecordBatch]) -> tuple[int, list[str]]:
    return bucket, [text for batch in batches for text in batch.column("text").to_pylist()]


def lost(bucket: int, batches: Iterable[pa.RecordBatch]) -> int:
    raise ValueError(f"the owner {CANARY} is odd")
