"""A DataFrame as the microdata of one run: sealed in private staging, pinned by its contents, destroyed afterwards.

    frame ─► types checked ─► sealed files in staging/<release>/frame-… ─► the ledger: its pin ─► summed ─► destroyed

The seal ends with the run: what a killed run leaves can be read by nobody, and is removed by the next run of the
release or by `prdp ledger staging purge`. The pin is keyed by a secret file beside the ledger's staging, so that nobody
who reads the ledger can test guesses of a record against it.
"""

import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pyarrow as pa

from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError
from pipeline.engines.protocol import Engine
from pipeline.engines.totals import layout_of, measure_columns
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.frames import (
    ArrowFrame,
    Contents,
    Frame,
    FrameColumns,
    PandasFrame,
    SealPart,
    checked_batch,
    contents_of,
    unfit,
)
from pipeline.microdata.lakehouse import microdata_at
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk, Piece, require_columns
from pipeline.plan.model import Plan
from pipeline.release.pinned import FOLDER, SealedRecords
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location, file_errors
from pipeline.storage.paths import locate
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging, prepare_root
from udfs.records.contract import ContractBroken
from udfs.records.decoding import SumSpec

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
            raise unfit(measure.column, "is a measure and a code or a name: give each a column of its own")
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
                contents += contents_of(checked_batch(batch, self.columns), self.columns, self.key)
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
