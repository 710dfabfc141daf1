"""One scan of the microdata that sees what is wrong with rows: rules, codes, ids that stand twice, sizes.

    chunks ─► rows, checked one by one, to buckets by their ids; what is counted of them to a bucket of its own
           ─► of each bucket, the rules that several rows of one id break

The rows are decoded, and brought together by their ids, as a release does it. What is probably wrong with a code
follows from public lists alone: the domain's and those of all vintages. A code is told only where one holds it, or what
it was meant to be: any other text could name a record.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.engines.tasks import decoded
from pipeline.microdata.source import Chunk
from pipeline.plan.domain import Domain
from pipeline.plan.domain.code_lists import Vintage, vintage_of, vintages
from pipeline.plan.domain.keys import Dimension
from pipeline.release.input_records import BROKEN, ByRecord, by_cell, rows_of, rule_counts, rule_rows
from udfs.records.codes import NAICS_LEVELS, OTHER, SECTOR_RANGES, is_code
from udfs.records.contract import Rule, text_codes
from udfs.records.decoding import ABSENT, MALFORMED, CodeColumn, Decoder, Records, SumSpec
from udfs.records.sums import Duplicates, combined

SEEN = BROKEN - 1  # the bucket of what is counted beside the broken rules
MOST_CODES = 1000  # different codes of one kind that a batch tells; the rows of further ones are counted together
ROWS, CODE, BEYOND, LEFT_OUT = "rows", "code", "beyond", "left out"
DIGITS = {"naics6": 6, "county": 5}  # of a record's code


class Wrong(StrEnum):
    """What is wrong with a code; OUTSIDE alone is no mistake."""

    EMPTY = "empty"
    LOST_ZEROS = "without its leading zeros"
    DECIMALS = "written as a number with decimals"
    SPACES = "with spaces around it"
    RANGE = "a range of sectors"
    COARSE = "of fewer digits: a coarser code"
    DIGITS = "of another number of digits"
    TEXT = "no code at all"
    EARLIER = "retired"
    LATER = "of a later vintage"
    UNKNOWN = "well formed, but in no public list"
    OUTSIDE = "valid, but outside the plan's domain"


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a code; the code, where it may be told, and what it was meant to be, where that is known."""

    wrong: Wrong
    code: str = ""
    meant: str = ""


@dataclass(frozen=True, eq=False)
class CodeJudge:
    """Judges the codes of one key column.

    `own`: the vintages of the domain, which are the declared one, or all that hold its every code (several, or none).
    """

    key: CodeColumn
    own: tuple[Vintage, ...]
    others: tuple[Vintage, ...]

    @classmethod
    def of(cls, key: CodeColumn, dimension: Dimension, domain: Domain) -> "CodeJudge":
        """Return the judge of a key column of a plan's domain."""
        known = vintages(dimension.key)
        year = domain.vintage.get(dimension.key)
        declared = None if year is None else vintage_of(dimension.key, year)
        fitting = (
            [v for v in known if not v.lacks(dimension.listed, dimension.level)] if declared is None else [declared]
        )
        return cls(key, tuple(fitting), tuple(v for v in known if v not in fitting))

    def judged(self, code: str | None) -> Judgement | None:
        """Return what is wrong with a record's code; None where nothing is."""
        index = self.key.index_of(code)
        if index == ABSENT:
            return None
        if code is None or not code.strip():
            return Judgement(Wrong.EMPTY)
        if index == MALFORMED:
            return self._malformed(code)
        return None if index >= 0 and index != self.key.other else self._outside(code)

    def _outside(self, code: str) -> Judgement:
        if not self.own and not self.others:
            return Judgement(Wrong.OUTSIDE)  # of a key of the plan's own no public list is known
        if self._in(self.own, code):
            return Judgement(Wrong.OUTSIDE, code)
        holders = [vintage for vintage in self.others if self._in([vintage], code)]
        if not holders:
            return Judgement(Wrong.UNKNOWN)
        if not self.own:
            return Judgement(Wrong.OUTSIDE, code)
        earlier = holders[-1].first < self.own[0].first
        return Judgement(Wrong.EARLIER if earlier else Wrong.LATER, code, str(holders[-1 if earlier else 0]))

    def _malformed(self, code: str) -> Judgement:
        bare = code.strip()
        if bare != code:
            return Judgement(Wrong.SPACES, code, bare) if self._known(bare) else Judgement(Wrong.TEXT)
        digits, point, zeros = code.partition(".")
        if point and not zeros.strip("0"):
            full = self._filled(digits)
            return Judgement(Wrong.DECIMALS, code, full) if full else Judgement(Wrong.TEXT)
        if code in SECTOR_RANGES.values() and self._of_industries:
            return Judgement(Wrong.RANGE, code)
        if not (code.isascii() and code.isdigit()):
            return Judgement(Wrong.TEXT)
        if self._of_industries and self._is_coarser(code):
            return Judgement(Wrong.COARSE, code)
        full = self._filled(code)
        return Judgement(Wrong.LOST_ZEROS, code, full) if full else Judgement(Wrong.DIGITS)

    @property
    def _of_industries(self) -> bool:
        return self.key.record_level in NAICS_LEVELS

    def _filled(self, digits: str) -> str:
        full = digits.zfill(self.key.digits or DIGITS.get(str(self.key.record_level), 0))
        return full if self._known(full) else ""

    def _known(self, code: str) -> bool:
        if not self.key.is_well_formed(code) or code == OTHER:
            return False
        return self.key.index_of(code) not in (MALFORMED, self.key.other) or self._in((*self.own, *self.others), code)

    def _is_coarser(self, code: str) -> bool:
        levels = [level for level in NAICS_LEVELS[:-1] if is_code(code, level)]
        listed = any(vintage.holds(code, level) for level in levels for vintage in (*self.own, *self.others))
        return code in SECTOR_RANGES or listed

    def _in(self, lists: Sequence[Vintage], code: str) -> bool:
        level = self.key.record_level
        return level is not None and any(vintage.holds(code, level) for vintage in lists)


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
        merged = cls(Counter(), Counter())
        for part in parts:
            merged.broken.update(part.broken)
            merged.seen.update(part.seen)
        return merged


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
        kept = records.kept(self.spec)
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
        larger = [{name: size > limit.get(name, -1) for name, size in sizes.items()} for limit in self.references]
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
    column = judge.key.column
    coded = text_codes(batch.column(column), column)
    kind = pa.binary() if pa.types.is_string(coded.dictionary.type) else pa.large_binary()
    codes = [None if c is None else c.decode(errors="replace") for c in coded.dictionary.cast(kind).to_pylist()]
    rows = np.bincount(np.asarray(coded.indices.cast(pa.int64()).fill_null(len(codes))), minlength=len(codes) + 1)
    seen: Counter[Seen] = Counter()
    kinds: Counter[Wrong] = Counter()
    for code, count in zip([*codes, None], rows.tolist(), strict=True):
        judgement = judge.judged(code) if count else None
        if judgement is not None:
            kinds[judgement.wrong] += 1
            shown = judgement if kinds[judgement.wrong] <= MOST_CODES else Judgement(judgement.wrong)
            seen[Seen(CODE, column, shown.wrong.name, shown.code, shown.meant)] += count
    return seen


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
