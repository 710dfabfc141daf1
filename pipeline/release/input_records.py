"""From rows to records, where a plan has a rule for rows of one id (`duplicates: reject`, or `combine`), or for owners.

    chunks ─► rows, checked one by one, to buckets by their ids ─► records of each bucket, sealed ─► chunks of those

Where owners are counted, or codes follow from all their records, these go to buckets by owner next (`by_owner`).

Sealed records are chunks as any other: they are summed, and their losses counted, by the same tasks. Their measures
stand in whole steps. Bad records, where they are dropped, stand among them without codes, so that they are counted as
dropped. Nothing on disk can be read without the seal, which ends with the run.
"""

import os
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError, file_errors
from pipeline.engines.protocol import Engine, Input, grouped, in_buckets
from pipeline.engines.tasks import decoded
from pipeline.engines.totals import Layout, layout_of, measure_columns, require_unbroken
from pipeline.ledger.store import Ledger
from pipeline.microdata import frames, source
from pipeline.microdata.frames import ArrowFrame, Contents, Frame, FrameColumns, PandasFrame, SealPart
from pipeline.microdata.lakehouse import microdata_at
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk, Piece, require_columns
from pipeline.plan.model import Dataset, Plan
from pipeline.release.pinned import FOLDER, SealedRecords
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging, prepare_root, scratch
from udfs.records.contract import ContractBroken, Fault, Rule, as_coded_text, as_text, buckets_of
from udfs.records.decoding import CodeColumn, Decoder, SumSpec
from udfs.records.decoding import Records as Decoded
from udfs.records.sums import Combined, Duplicates, Rows, by_owner, combined, owners_known

BUCKET_BYTES = 1 << 25  # of the files: about a chunk's records
BROKEN = -1  # the bucket of the broken rules
CELL, COUNT = "(cell)", "(count)"
RECORD, OWNER, GOOD = "(record)", "(owner)", "(good)"  # no measure's names


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """Records made of rows, in sealed chunks.

    `broken`: for each cell that stands for a broken rule, how many rows or records break it.
    """

    chunks: Sequence[Chunk]
    broken: Counter[int]


@dataclass(frozen=True, eq=False, repr=False)
class ByRecord:
    """Sends rows, checked one by one, to buckets by their ids, and the rules they break to a bucket of its own.

    `record`: the column of ids. `by`: RECORD, or OWNER, by whose names rows are then sent.
    """

    spec: SumSpec
    buckets: int
    record: str
    by: str = RECORD

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the rows of each batch, by bucket."""
        return decoded(chunk, self.spec, lambda decoder, batch: self.rows(batch, decoder.records(batch)))

    def rows(self, batch: pa.RecordBatch, records: Decoded) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of a batch by bucket, and in the bucket BROKEN the rules that they break by themselves."""
        spec = self.spec
        good = np.ones(len(batch), dtype=np.bool_) if records.good is None else records.good
        names = {RECORD: _without(as_text(batch.column(self.record)), records.faults, self.record)}
        columns: dict[str, object] = {**names, GOOD: good} | codes_of(batch, spec)
        if spec.owner is not None:
            columns[OWNER] = as_coded_text(batch.column(spec.owner))
            names[OWNER] = _without(as_text(batch.column(spec.owner)), records.faults, spec.owner)
        rows = pa.record_batch(columns | {m.name: records.values[m.name] for m in spec.measures})
        return [*rule_rows(by_cell(spec, records.faults)), *in_buckets(rows, buckets_of(names[self.by], self.buckets))]


@dataclass(frozen=True, eq=False, repr=False)
class OneRecord:
    """Makes the records of a bucket's rows, and seals them in a file."""

    spec: SumSpec
    duplicates: Duplicates | None  # None: what follows from all records of an owner is made, each row being a record
    folder: Location
    seal: Seal

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> Records:
        """Return the records of a bucket; of the bucket BROKEN, the rules that rows break."""
        if bucket == BROKEN:
            return Records([], rule_counts(batches))
        rows = rows_of(batches, self.spec)
        if self.duplicates is None:
            made = Combined(np.arange(len(rows.good)), rows.values, rows.good, [])
            records = _batch(rows, made, self.spec)
            known = Decoder(in_steps(self.spec)).records(records)
            of_owner = by_owner(known, as_text(records.column(OWNER)), self.spec)
            batch = pa.record_batch({**dict(zip(records.schema.names, records.columns, strict=True)), **of_owner})
        else:
            made = combined(rows, self.spec, self.duplicates)
            batch = _batch(rows, made, self.spec)
        path = self.folder / f"records-{bucket:06d}"
        self.seal.write_batch(path, batch)
        return Records([(Piece(str(path), None, self.seal),)], by_cell(self.spec, made.faults))


def rows_of(batches: Iterable[pa.RecordBatch], spec: SumSpec) -> Rows:
    """Return the rows of a bucket that `ByRecord` sent there, at least one, as records are made of them."""
    batch = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    return Rows(
        ids=batch.column(RECORD),
        codes={column: batch.column(mine) for column, mine in code_columns(spec).items()},
        owner=batch.column(OWNER) if spec.owner is not None else None,
        values={m.name: batch.column(m.name).to_numpy() for m in spec.measures},
        good=batch.column(GOOD).to_numpy(zero_copy_only=False),
    )


@contextmanager
def records_of(
    microdata: Input, plan: Plan, engine: Engine, root: Location, prepared: bool
) -> Iterator[tuple[Input, Layout]]:
    """Yield the records of microdata for a block, and the layout by which they are summed.

    Where row ids are trusted, or the microdata are `prepared`, each row is a record: row ids are not even read then,
    all else is checked. Else records are made of rows and lie, sealed, in folders of the release in the private folder
    `root`, which are destroyed after the block. So they do, with what follows from all records of an owner, where the
    plan counts owners or has codes of theirs.

    Raises MicrodataError where bad records are refused, naming every broken rule, the same however the rows are cut.
    """
    layout, dataset = layout_of(plan), plan.dataset

    @contextmanager
    def made(
        microdata: Input, spec: SumSpec, made_by: Callable[[Input, Dataset, SumSpec, Engine, Staging], Records], of: str
    ) -> Iterator[Sequence[Chunk]]:
        with scratch(root, plan.release, of) as kept:
            kept.create()
            records = made_by(microdata, dataset, spec, engine, kept)
            if dataset.bad_records == "refuse":
                require_unbroken(replace(layout, spec=spec), sorted(records.broken))
            yield records.chunks

    with ExitStack() as stack:
        spec = layout.spec
        if not isinstance(microdata, Sequence) and (spec.needs_owners or spec.record is not None):
            kept, seal = stack.enter_context(scratch(root, plan.release, "table")), Seal.fresh()
            kept.create()
            files = microdata.seal(list(dict.fromkeys((*spec.columns, dataset.record))), kept.path, seal)
            microdata = [(Piece(str(kept.path / file), None, seal),) for file in files]
        if dataset.duplicates == "trust" or prepared:
            spec = replace(spec, record=None)
        else:
            microdata = stack.enter_context(made(microdata, spec, grouped_records, "records"))
            spec = in_steps(spec)
        if spec.needs_owners:
            microdata = stack.enter_context(made(microdata, spec, owned_records, "owners"))
            spec = owners_known(in_steps(spec))
        yield microdata, replace(layout, spec=spec)


def grouped_records(microdata: Input, dataset: Dataset, spec: SumSpec, engine: Engine, kept: Staging) -> Records:
    """Return the records of all rows, sealed in the folder `kept`; broken rules are counted, whatever the plan says."""
    assert isinstance(microdata, Sequence)  # rows of a table are sealed
    split, rule = ByRecord(spec, bucket_count(microdata), dataset.record), dataset.duplicates
    return _grouped(split, None if rule == "trust" else rule, microdata, engine, kept)


def owned_records(microdata: Input, dataset: Dataset, spec: SumSpec, engine: Engine, kept: Staging) -> Records:
    """Return records, a row each, with what follows from all records of their owners, sealed in the folder `kept`."""
    assert isinstance(microdata, Sequence)  # rows of a table are sealed
    record = RECORD if RECORD in spec.also else dataset.record
    read_too = replace(spec, also=tuple(dict.fromkeys((*spec.also, record))))
    split = ByRecord(read_too, bucket_count(microdata), record, by=OWNER)
    return _grouped(split, None, microdata, engine, kept)


def _grouped(
    split: ByRecord, duplicates: Duplicates | None, microdata: Sequence[Chunk], engine: Engine, kept: Staging
) -> Records:
    merge = OneRecord(split.spec, duplicates, kept.path, Seal.fresh())
    with scratch(kept.root, kept.release, "rows") as between:
        parts = grouped(engine.each, split, microdata, merge, between)
    broken: Counter[int] = Counter()
    for part in parts:
        broken.update(part.broken)
    return Records([chunk for part in parts for chunk in part.chunks], broken)


def in_steps(spec: SumSpec) -> SumSpec:
    """Return the scan of sealed records that equals the scan `spec` of rows."""
    columns = code_columns(spec)
    return replace(
        spec,
        keys=tuple(
            replace(key, column=columns[key.column]) if isinstance(key, CodeColumn) else key for key in spec.keys
        ),
        measures=tuple(replace(measure, column=measure.name, step=Fraction(1)) for measure in spec.measures),
        owner=None if spec.owner is None else OWNER,
        record=None,
        also=(RECORD,),
    )


def code_columns(spec: SumSpec) -> dict[str, str]:
    """Return, by the columns of codes, those of rows that hold them; no measure has such a name."""
    return {column: f"(code {number})" for number, column in enumerate(spec.code_columns)}


def codes_of(batch: pa.RecordBatch, spec: SumSpec) -> dict[str, object]:
    """Return the codes of a batch as columns of rows."""
    return {mine: as_coded_text(batch.column(column)) for column, mine in code_columns(spec).items()}


def rule_rows(broken: Counter[int]) -> list[tuple[int, pa.RecordBatch]]:
    """Return rows for the bucket BROKEN: the cell of each broken rule and how many rows break it."""
    columns = {CELL: pa.array(list(broken), pa.int64()), COUNT: pa.array(list(broken.values()), pa.int64())}
    return [(BROKEN, pa.record_batch(columns))] if broken else []


def rule_counts(batches: Iterable[pa.RecordBatch]) -> Counter[int]:
    """Return how often each rule is broken, from the rows of the bucket BROKEN."""
    broken: Counter[int] = Counter()
    for batch in batches:
        broken.update(dict(zip(batch.column(CELL).to_pylist(), batch.column(COUNT).to_pylist(), strict=True)))
    return broken


def by_cell(spec: SumSpec, faults: Sequence[Fault]) -> Counter[int]:
    """Return how many rows break each rule, by its cell."""
    broken: Counter[int] = Counter()
    for column, rule, mask in faults:
        broken[spec.broken_cell(column, rule)] += int(np.count_nonzero(mask))
    return broken


def bucket_count(chunks: Sequence[Chunk]) -> int:
    """Return a number of buckets with about a chunk's records in each."""
    paths = {piece.path for chunk in chunks for piece in chunk}
    return 1 + sum(locate(path).size() for path in paths) // BUCKET_BYTES


def _without(ids: pa.Array, faults: Sequence[Fault], column: str) -> pa.Array:
    for faulty, rule, mask in faults:
        if (faulty, rule) == (column, Rule.RECORD):
            return pc.if_else(pa.array(mask), pa.scalar(None, ids.type), ids)
    return ids


def _batch(rows: Rows, made: Combined, spec: SumSpec) -> pa.RecordBatch:
    """Return the records in the form that `in_steps` reads; those that are not good have no codes."""
    first = pa.array(made.first)
    kept = pa.array(made.first, mask=~made.good)
    columns: dict[str, object] = {RECORD: rows.ids.take(first)}
    columns |= {mine: rows.codes[column].take(kept) for column, mine in code_columns(spec).items()}
    if rows.owner is not None:
        columns[OWNER] = rows.owner.take(first)
    return pa.record_batch(columns | dict(made.values))


# A DataFrame as the microdata of one run: sealed in private staging, pinned by its contents, destroyed afterwards.
# The seal ends with the run: nobody can read what a killed run leaves, which the release's next run removes, or `prdp
# ledger admin staging purge`. The pin is keyed by a secret file beside the ledger's staging, so that nobody who reads
# the ledger can test guesses of a record against it.

KEY_FILE = ".frame-pins"  # no release's name
KEY_BYTES = 32
IN_ENGINES = {  # a library → the room of its frames
    "dask": ("pipeline.engines.dask", "DaskFrame"),
    "pyspark": ("pipeline.engines.spark_frames", "SparkFrame"),
}


def frame_of(data: object) -> Frame:
    """Return a DataFrame of pandas, Arrow, Dask or Spark as microdata; raises PlanError for anything else."""
    pandas = sys.modules.get("pandas")  # a library that is not loaded made no frame
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return PandasFrame(data)
    if isinstance(data, pa.Table | pa.RecordBatch):
        return ArrowFrame(data if isinstance(data, pa.Table) else pa.Table.from_batches([data]))
    library = type(data).__module__.partition(".")[0]
    if library in IN_ENGINES and type(data).__name__ == "DataFrame":
        module, kind = IN_ENGINES[library]
        frame: Frame = getattr(import_module(module), kind)(data)
        return frame
    raise PlanError(
        f"data: a {type(data).__name__} is neither a location nor a DataFrame of pandas, Arrow, Dask, Spark"
    )


@contextmanager
def sealed(frame: Frame, plan: Plan, engine: Engine, ledger: Ledger, root: Location) -> Iterator[SealedRecords]:
    """Yield the frame's records for a block, sealed in a private folder under `root`, which is destroyed after it.

    Call it with the release's lock. Where the frame's contents are those of a dataset that is registered as files, they
    are those microdata; else their pin names them. Raises PlanError where a column is missing or its type does not fit,
    MicrodataError, which holds no value, where a value cannot be read, StateError where staging cannot be written.
    """
    spec = _spec(plan, frame.names)
    columns = _columns(plan, spec)
    require_columns("data", [name for name in frame.names if isinstance(name, str)], columns.all)
    frame.require_types(columns)
    key = pin_key(ledger)
    staging = Staging(root, plan.release, f"{FOLDER}-{uuid.uuid4().hex}")
    seal = Seal.fresh()
    try:
        staging.create()
        with file_errors(f"the staging folder {staging.root} cannot be written: ", ": run again"):
            parts = frame.write(SealPart(columns, staging.path, seal, key), engine)
        contents = sum((part.contents for part in parts), Contents())
        pin = contents.pin(columns, key)
        files = [staging.path / name for part in parts for name in part.files]
        yield SealedRecords(
            folder=staging.attempt,
            chunks=[(Piece(str(file), None, seal),) for file in files],
            pin=pin,
            synthetic=frame.synthetic,
            source=_registered(ledger, contents, _Compared(columns, spec, key), engine) or f"DataFrame {pin}",
        )
    finally:
        staging.destroy()


def _spec(plan: Plan, names: Sequence[Any]) -> SumSpec:
    """Return a scan of the columns that the plan reads, and of those others of its dataset that the frame has.

    All of them belong to the contents, so that the pin is one and the same for every plan of the dataset.
    """
    dataset, needed = plan.dataset, layout_of(plan).spec
    summed = {measure.name for measure in measure_columns(plan)}
    measures = tuple(
        replace(measure, nonnegative=False)
        for measure in measure_columns(plan, every=True)
        if measure.name in summed or measure.column in names
    )
    return replace(needed, measures=measures, bases=(), record=dataset.record)


def _columns(plan: Plan, spec: SumSpec) -> FrameColumns:
    coded = tuple(spec.code_columns)
    named = tuple(name for name in (spec.record, spec.owner) if name is not None)
    for measure in spec.measures:
        if measure.column in (*coded, *named):
            raise frames.unfit(measure.column, "is a measure and a code or a name: give each a column of its own")
    return FrameColumns(coded, tuple(name for name in named if name not in coded), spec.measures)


def pin_key(ledger: Ledger) -> bytes:
    """Return the secret by which frames are pinned, made where it is absent; it lies beside the ledger's staging.

    Without it a pin could be tested against guesses of the microdata; lost, it makes every frame look like a new one.
    """
    root = ledger.staging_root
    prepare_root(LocalPath(root))
    path = root / KEY_FILE
    with file_errors(f"{path} cannot be used: "):
        if not path.exists():
            LocalPath(path).create(
                os.urandom(KEY_BYTES), uuid.uuid4().hex, private=True
            )  # another process may be first
        key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise StateError(f"{path} is damaged: restore it from a backup, or remove it")
    return key


@dataclass(frozen=True, eq=False, repr=False)
class _Compared:
    """Takes the contents of a chunk of files as those of a frame are taken; None where they cannot be a frame's."""

    columns: FrameColumns
    spec: SumSpec
    key: bytes

    def __call__(self, chunk: Chunk) -> Contents | None:
        contents = Contents()
        try:
            for batch in read(chunk, self.spec):
                contents += frames.contents_of(frames.checked_batch(batch, self.columns), self.columns, self.key)
        except (ContractBroken, MicrodataError, PlanError):
            return None
        return contents


def _registered(ledger: Ledger, contents: Contents, task: _Compared, engine: Engine) -> str | None:
    """Return the source of the registered dataset that consists of files with these contents; None where none does."""
    for budget in ledger.budgets().values():
        if budget.source is None or budget.source.startswith(("table ", "DataFrame ")):
            continue
        try:
            files = source.find(microdata_at(locate(budget.source)))
            if source.records_of(files) not in (None, contents.records):
                continue
            parts = engine.each(task, list(source.chunks(files)), "reading")
        except PrdpError:  # they are not there, or not for this user to read
            continue
        if all(part is not None for part in parts) and sum(filter(None, parts), Contents()) == contents:
            return budget.source
    return None
