"""One scan of the microdata that sees what is wrong with rows: rules, codes, ids that stand twice, sizes.

    chunks ─► rows, checked one by one, to buckets by their ids; what is counted of them to a bucket of its own
           ─► of each bucket, the rules that several rows of one id break

The rows are decoded, and brought together by their ids, as a release does it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.diagnostics.check_codes import CodeJudge, Judgement, Wrong
from pipeline.engines.tasks import decoded
from pipeline.microdata.source import Chunk
from pipeline.preparation.duplicates import BROKEN, ByRecord, by_cell, rows_of, rule_counts, rule_rows
from udfs.records.contract import Rule, text_codes
from udfs.records.decoding import Decoder, Records, SumSpec
from udfs.records.sums import Duplicates, combined

SEEN = BROKEN - 1  # the bucket of what is counted beside the broken rules
MOST_CODES = 1000  # different codes of one kind that a batch tells; the rows of further ones are counted together
ROWS, CODE, BEYOND, LEFT_OUT = "rows", "code", "beyond", "left out"


class Seen(NamedTuple):
    """What is counted: ROWS, and those LEFT_OUT; what is `wrong` with a CODE; rows BEYOND all references."""

    what: str
    of: str = ""
    wrong: str = ""
    code: str = ""
    meant: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Found:
    """How many rows, or records of several rows, break each rule, by its cell; and what else is counted."""

    broken: Counter[int]
    seen: Counter[Seen]

    @classmethod
    def merged(cls, parts: Iterable["Found"]) -> "Found":
        """Return what all parts found."""
        found = cls(Counter(), Counter())
        for part in parts:
            found.broken.update(part.broken)
            found.seen.update(part.seen)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class LookAt:
    """Looks at the rows of chunks, and sends them to buckets by their ids where ids are compared.

    `references`: for each reference record of the budget, the steps of each measure.
    """

    spec: SumSpec
    judges: tuple[CodeJudge, ...]
    references: tuple[Mapping[str, int], ...]
    by_record: ByRecord | None

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield for each batch its rows by bucket, and what is counted of them."""
        return decoded(chunk, self.spec, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        records = decoder.records(batch)
        seen = Counter({Seen(ROWS): len(batch), Seen(LEFT_OUT): self._left_out(records, len(batch))})
        if not any(rule == Rule.LINE for _, rule, _ in records.faults):
            for judge in self.judges:
                seen.update(_codes(judge, batch))
            seen.update(self._beyond(records, len(batch)))
        rows = rule_rows(by_cell(self.spec, records.faults))
        if self.by_record is not None:
            rows = self.by_record.rows(batch, records)
        return [(SEEN, _batch(seen)), *rows]

    def _left_out(self, records: Records, count: int) -> int:
        """Return how many rows a release leaves out; bad ones only where they are dropped."""
        _, kept = records.cells(self.spec.bases[0])
        out = np.zeros(count, dtype=np.bool_) if kept is None else ~kept
        return int(
            np.count_nonzero(out if self.spec.bad_records == "drop" or records.good is None else out & records.good)
        )

    def _beyond(self, records: Records, count: int) -> Counter[Seen]:
        """Return how many good rows are larger than each reference in some measure, and than all in one measure."""
        if not self.references or not self.spec.measures:
            return Counter()
        good = np.ones(count, dtype=np.bool_) if records.good is None else records.good
        sizes = {m.name: np.abs(records.values[m.name]) for m in self.spec.measures}
        larger = [{name: size > at.get(name, -1) for name, size in sizes.items()} for at in self.references]
        beyond = {name: np.logical_and.reduce([each[name] for each in larger]) for name in sizes}
        beyond[""] = np.logical_and.reduce([np.logical_or.reduce(list(each.values())) for each in larger])
        counts = {Seen(BEYOND, name): int(np.count_nonzero(rows & good)) for name, rows in beyond.items()}
        return Counter({seen: rows for seen, rows in counts.items() if rows})


@dataclass(frozen=True, eq=False, repr=False)
class OneId:
    """Finds the rules that rows of one id break together."""

    spec: SumSpec
    duplicates: Duplicates

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> Found:
        """Return what a bucket's rows break; of BROKEN and SEEN, what was counted."""
        if bucket == SEEN:
            return Found(Counter(), _counts(batches))
        if bucket == BROKEN:
            return Found(rule_counts(batches), Counter())
        made = combined(rows_of(batches, self.spec), self.spec, self.duplicates)
        return Found(by_cell(self.spec, made.faults), Counter())


def _codes(judge: CodeJudge, batch: pa.RecordBatch) -> Counter[Seen]:
    """Return how many rows have each code with which something is wrong."""
    column = judge.key.column
    coded = text_codes(batch.column(column), column)
    kind = pa.binary() if pa.types.is_string(coded.dictionary.type) else pa.large_binary()
    codes = [None if c is None else c.decode(errors="replace") for c in coded.dictionary.cast(kind).to_pylist()]
    rows = np.bincount(np.asarray(coded.indices.cast(pa.int64()).fill_null(len(codes))), minlength=len(codes) + 1)
    seen: Counter[Seen] = Counter()
    told: Counter[Wrong] = Counter()
    for code, count in zip([*codes, None], rows.tolist(), strict=True):
        judgement = judge.judged(code) if count else None
        if judgement is not None:
            told[judgement.wrong] += 1
            seen[_seen(column, judgement, told[judgement.wrong] <= MOST_CODES)] += count
    return seen


def _seen(column: str, judgement: Judgement, told: bool) -> Seen:
    code, meant = (judgement.code, judgement.meant) if told else ("", "")
    return Seen(CODE, column, judgement.wrong.name, code, meant)


def _batch(seen: Counter[Seen]) -> pa.RecordBatch:
    columns = {name: pa.array([getattr(each, name) for each in seen], pa.string()) for name in Seen._fields}
    return pa.record_batch(columns | {"count": pa.array(list(seen.values()), pa.int64())})


def _counts(batches: Iterable[pa.RecordBatch]) -> Counter[Seen]:
    seen: Counter[Seen] = Counter()
    for batch in batches:
        columns: Sequence[list[object]] = [batch.column(name).to_pylist() for name in (*Seen._fields, "count")]
        for *fields, count in zip(*columns, strict=True):
            seen[Seen(*map(str, fields))] += int(str(count))
    return seen
