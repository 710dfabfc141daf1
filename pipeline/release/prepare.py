"""`prdp prepare`: raw microdata → a private folder of records, checked, typed, sorted, one file an industry.

    records of a chunk ─► to the bucket of their 3-digit industry ─► sorted by industry, county and row id, one file

The files depend on the records alone, not on their order or cut: records are sorted by all that they hold. Everything
is written to a folder within, and moved out of it at the end; the manifest comes last. The output of a killed run has
no manifest: releases refuse it, and the next run starts anew.
"""

import fcntl
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.canonical import code_digest, digest
from pipeline.base.errors import MicrodataError, PlanError, StateError, arg
from pipeline.base.log import Log
from pipeline.engines.protocol import Engine, grouped, in_buckets
from pipeline.engines.tasks import decoded
from pipeline.engines.totals import contract_checked, layout_of, measure_columns, require_unbroken
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.lakehouse import Place
from pipeline.microdata.read import require_schema
from pipeline.microdata.source import Chunk
from pipeline.plan.model import Plan, default_out
from pipeline.release.attempts import private_folder, release_folders, require_apart
from pipeline.release.input_records import (
    BROKEN,
    OWNER,
    RECORD,
    by_cell,
    code_columns,
    codes_of,
    grouped_records,
    in_steps,
    rule_counts,
    rule_rows,
)
from pipeline.release.pinned import FILE_NAME, MANIFEST, VERSION, WORK, contract_of, identity, prepared_at
from pipeline.storage.local import LocalPath, sync_file, sync_folder
from pipeline.storage.location import Location
from pipeline.storage.paths import SYNTHETIC
from pipeline.storage.staging import scratch
from udfs.records.codes import NAICS_LEVELS, is_code, roll_up
from udfs.records.contract import as_coded_text, as_text, decimal_digits, in_units, ranked
from udfs.records.decoding import LEFT_OUT, CodeColumn, Decoder, SumSpec

ROW_GROUP = 1 << 17  # records
LEVEL = "naics3"
BUCKETS = 100  # where records have no industry


@dataclass(frozen=True)
class Written:
    """A file and its number of records; or, for the bucket BROKEN, how often each rule is broken, by its cell.

    For that bucket `records` is the number of bad records.
    """

    name: str
    records: int
    broken: Counter[int]


@dataclass(frozen=True)
class AllWritten:
    """The files of all records; how often each rule is broken, by its cell; how many bad records were dropped."""

    files: Sequence[Written]
    broken: Counter[int]
    dropped: int


@dataclass(frozen=True, eq=False, repr=False)
class ByCode:
    """Sends good records to buckets by their 3-digit industry, or by codes of another key, where there is no industry.

    `record` is the column of their ids.
    """

    spec: SumSpec
    record: str

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the records of each batch, by bucket, and the rules that rows break."""
        return decoded(chunk, self.spec, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        spec, records = self.spec, decoder.records(batch)
        columns: dict[str, object] = {RECORD: as_text(batch.column(self.record))} | codes_of(batch, spec)
        if spec.owner is not None:
            columns[OWNER] = as_coded_text(batch.column(spec.owner))
        rows = pa.record_batch(columns | {m.name: records.values[m.name] for m in spec.measures})
        industries = _industries(spec)
        codes = rows.column(code_columns(spec)[industries.column if industries else next(iter(spec.code_columns))])
        of_code = [_bucket(industries is not None, code) for code in codes.dictionary.to_pylist()]
        buckets = np.array([*of_code, 0], dtype=np.int64)[np.asarray(codes.indices.fill_null(len(of_code)))]
        broken = by_cell(spec, records.faults)
        if records.good is not None:
            rows, buckets = rows.filter(pa.array(records.good)), buckets[records.good]
            broken[LEFT_OUT] = len(batch) - len(rows)
        return [*rule_rows(broken), *in_buckets(rows, buckets)]


@dataclass(frozen=True, eq=False, repr=False)
class SortedFile:
    """Sorts the records of a bucket, and writes their file into `folder`; `spec` names their columns and steps.

    `synthetic`: the files carry the mark of `prdp generate`, as those that they are made of.
    """

    spec: SumSpec
    record: str
    folder: Path
    synthetic: bool = False

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> Written:
        """Return what was written."""
        if bucket == BROKEN:
            broken = rule_counts(batches)
            return Written("", broken.pop(LEFT_OUT, 0), broken)
        table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        batch = table.to_batches()[0]
        return self.write(f"{_prefix(self.spec)}-{bucket:03d}.parquet", batch.take(_order(batch, self.spec)))

    def write(self, name: str, batch: pa.RecordBatch) -> Written:
        """Write the file of some records in their order."""
        spec = self.spec
        columns = {self.record: batch.column(RECORD).cast(pa.string())}
        coded = code_columns(spec)
        coded |= {spec.owner: OWNER} if spec.owner is not None else {}
        for column, mine in coded.items():
            columns.setdefault(column, batch.column(mine).dictionary_decode().cast(pa.string()).dictionary_encode())
        for measure in spec.measures:  # two of one column have the same values in it
            columns.setdefault(measure.column, in_units(batch.column(measure.name).to_numpy(), measure.step))
        table, sink = pa.table(columns), pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata(SYNTHETIC if self.synthetic else None),
            sink,
            compression="zstd",
            row_group_size=ROW_GROUP,
            use_dictionary=list(coded),
        )
        LocalPath(self.folder / name).write(sink.getvalue())
        return Written(name, len(batch), Counter())

    def none(self) -> Written:
        """Write a file of no records, for the columns and their types."""
        coded = pa.array([], pa.large_string()).dictionary_encode()
        columns = {RECORD: pa.array([], pa.large_string()), OWNER: coded}
        columns |= dict.fromkeys(code_columns(self.spec).values(), coded)
        measures = {measure.name: pa.array([], pa.int64()) for measure in self.spec.measures}
        return self.write(f"{_prefix(self.spec)}-none.parquet", pa.record_batch(columns | measures))


def _industries(spec: SumSpec) -> CodeColumn | None:
    return next((key for key in spec.code_columns.values() if key.record_level == NAICS_LEVELS[-1]), None)


def _prefix(spec: SumSpec) -> str:
    return "codes" if _industries(spec) is None else LEVEL


def _bucket(industries: bool, code: str | None) -> int:
    if not industries:
        return zlib.crc32((code or "").encode()) % BUCKETS
    return int(roll_up(code, LEVEL)) if code and is_code(code, "naics6") else 0


def _order(batch: pa.RecordBatch, spec: SumSpec) -> pa.Array:
    keys = {name: _sortable(batch.column(name)) for name in (*code_columns(spec).values(), RECORD)}
    keys |= {name: _sortable(batch.column(name)) for name in sorted({*batch.schema.names} - {*keys})}
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])


def _sortable(values: pa.Array) -> pa.Array:
    return pa.array(ranked(values)[1]) if pa.types.is_dictionary(values.type) else values


@dataclass(frozen=True, kw_only=True)
class PrepareJob:
    """One run: which microdata, by the contract of which plan, and where to."""

    plan: Plan
    raw: Place
    out: Path
    ledger: Ledger
    engine: Engine
    log: Log = field(default_factory=Log)


def prepare(job: PrepareJob) -> Path:
    """Write the records of the raw microdata to `job.out`, a new folder of mode 0700; return its manifest.

    Every row is checked by the plan's contract: all measures of the dataset where bad records are refused; those that
    the plan sums, and only they are written, where bad records are dropped. Records outside the domain are kept. The
    files are the same bytes for the same records, whatever the engine, the order and the cut of the raw files.

    Raises MicrodataError as a release does, StateError where `out` is refused or in use; nothing is left there then.
    """
    files = source.find(job.raw)
    raw = job.raw.as_path() if isinstance(job.raw, Location) else None
    if raw is not None and prepared_at(raw) is not None:
        raise PlanError(f"microdata {job.raw}: it is prepared already; give the raw microdata")
    spec = _spec(job.plan)
    record = job.plan.dataset.record
    require_schema(files, replace(spec, record=record), record)  # ids are written, also where they are trusted
    _clear(job.out)
    _require_apart(job)
    pin = source.pin(files)
    with private_folder(job.out), _alone(job.out):
        _make(job.out / WORK)
        made = _written(job, spec, list(source.chunks(files)))
        if source.pin(source.find(files.root)) != pin:
            raise MicrodataError(
                f"microdata {job.raw}: its files changed during the run; retry once nothing writes to them"
            )
        with job.log.stage("complete", "completing the folder"):
            _complete(job, made, _manifest(job, spec, pin, made))
    return job.out / MANIFEST


def _spec(plan: Plan) -> SumSpec:
    """Return the scan of every column of the contract; it sums nothing."""
    dataset = plan.dataset
    measures = measure_columns(plan, every=dataset.bad_records == "refuse")
    for measure in measures:
        if decimal_digits(measure.step) is None:
            raise PlanError(f"dataset.measures.{measure.name}.step: its multiples do not fit a decimal of 38 digits")
    also = (dataset.record,) if dataset.duplicates == "trust" else ()
    return replace(layout_of(plan).spec, measures=measures, bases=(), also=also)


def _written(job: PrepareJob, spec: SumSpec, chunks: Sequence[Chunk]) -> AllWritten:
    """Write the files; return them, and what was dropped, where bad records are."""
    dataset, work = job.plan.dataset, job.out / WORK
    layout = replace(layout_of(job.plan), spec=spec)

    def unbroken(broken: Counter[int]) -> Counter[int]:
        if dataset.bad_records == "refuse":
            require_unbroken(layout, sorted(broken))
        return broken

    merge = SortedFile(spec, dataset.record, _make(work / "files"), identity(job.raw).synthetic is True)
    with contract_checked(job.plan), scratch(LocalPath(work), job.plan.release, "records") as kept:
        if dataset.duplicates == "trust":
            with job.log.stage("sort", "checking and sorting the records"):
                parts = _sorted(job, ByCode(spec, dataset.record), chunks, merge)
            broken = unbroken(sum((part.broken for part in parts), Counter()))
        else:
            with job.log.stage("group", "making records of rows"):
                kept.create()
                made = grouped_records(chunks, dataset, spec, job.engine, kept)
                broken = unbroken(made.broken)
            with job.log.stage("sort", "sorting the records"):
                parts = _sorted(job, ByCode(in_steps(spec), RECORD), made.chunks, merge)
    files = [part for part in parts if part.name] or [merge.none()]
    return AllWritten(files, broken, sum(part.records for part in parts if not part.name))


def _sorted(job: PrepareJob, split: ByCode, chunks: Sequence[Chunk], merge: SortedFile) -> list[Written]:
    with scratch(LocalPath(job.out / WORK), job.plan.release, "rows") as between:
        return grouped(job.engine.each, split, chunks, merge, between)


def _manifest(job: PrepareJob, spec: SumSpec, pin: str, made: AllWritten) -> Any:
    contract = contract_of(job.plan, spec.measures)
    left_out: Counter[str] = Counter()
    for cell, count in made.broken.items():
        left_out[" ".join(spec.broken_rule(cell))] += count
    files = {part.name: _facts(job.out / WORK / "files" / part.name, part.records) for part in made.files}
    return {
        "prepared": VERSION,
        "confidential": True,
        "dataset": job.plan.dataset.name,
        "contract": contract,
        "contract_digest": digest(contract),
        "input": pin,
        "records": sum(part.records for part in made.files),
        "dropped": made.dropped,
        "left_out": dict(sorted(left_out.items())),
        "files": dict(sorted(files.items())),
        "code": code_digest(),
        "prdp": version("prdp"),
    }


def _facts(file: Path, records: int) -> dict[str, int]:
    sync_file(file)
    facts = file.stat()
    return {"records": records, "bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _complete(job: PrepareJob, made: AllWritten, manifest: Any) -> None:
    """Move the files out, then write the manifest, which makes the folder complete."""
    for part in made.files:
        os.replace(job.out / WORK / "files" / part.name, job.out / part.name)
    sync_folder(job.out)
    text = json.dumps(manifest, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    LocalPath(job.out / MANIFEST).write_durably(text.encode())
    shutil.rmtree(job.out / WORK)


def _require_apart(job: PrepareJob) -> None:
    require_apart(job.out, [default_out(job.plan), *release_folders(job.ledger)])
    raw = job.raw if isinstance(job.raw, Location) else job.raw.folder
    if LocalPath(job.out).overlaps(raw):
        raise StateError(f"{arg('out', job.out)}: it overlaps the raw microdata {job.raw}: give another folder")


def _clear(out: Path) -> None:
    """Remove the files of a killed run; raises StateError where another run is alive, or other files are there."""
    if (out / MANIFEST).exists() or not (out / WORK).is_dir():
        return
    with _alone(out):
        left = [path for path in out.iterdir() if path.name != WORK]
        if not all(FILE_NAME.fullmatch(path.name) or LocalPath(path).is_partial() for path in left):
            raise StateError(f"{arg('out', out)}: it holds files that prdp prepare did not write: give another folder")
        for path in left:
            path.unlink()
        shutil.rmtree(out / WORK)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold a lock on the folder that dies with this process; raises StateError where another one holds it."""
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError(f"{arg('out', out)}: another prdp prepare is at work there: wait until it ends") from None
        yield
    finally:
        os.close(descriptor)


def _make(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    folder.chmod(0o700)
    return folder
