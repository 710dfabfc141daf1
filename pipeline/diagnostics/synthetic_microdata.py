"""The microdata of a trial: the synthetic economy in a plan's own columns, or a file that its user states to be public.

Nothing here reads a plan's own microdata. What is written carries the mark of synthetic microdata.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.accounting.targets import HEADER, Sizes, read_sizes
from pipeline.base.errors import PlanError, StateError, arg
from pipeline.engines.protocol import Engine, grouped, in_buckets
from pipeline.engines.tasks import decoded
from pipeline.engines.totals import Layout, Table, layout_of, row_by_row
from pipeline.microdata import source
from pipeline.microdata.read import read, require_schema
from pipeline.microdata.source import Chunk, Piece, find, identity_of
from pipeline.plan.model import Dataset, Plan
from pipeline.planning.economy.generate import generate, write_parquet
from pipeline.planning.economy.like import generate_like
from pipeline.planning.study.study_figures import Aggregates, Cells
from pipeline.planning.study.suppression import Rows
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import LARGEST_LIST, open_input
from pipeline.storage.staging import Staging
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.records.contract import as_text, distinct
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.influence import in_domain

RECORDS: Final = 300_000  # establishments, where nothing else is asked for
SIZE: Final = "employment"  # the measure of the economy that a file of sizes takes the place of
MEASURES: Final = (SIZE, "payroll", "payroll_q1")  # of the economy; the last with published figures alone
COLUMNS: Final[Mapping[str, str]] = {"naics": "naics", "county": "county", "form": "lfo", "zip": "zip"}
RECORD, FIRM = "establishment_id", "firm_id"
STREAM = 5  # of the seed: other synthetic data have 0 to 4


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the microdata come from: `records` (None: RECORDS) of the economy, published figures, or a public file.

    `sizes`: CSV with the header value,count takes the place of the economy's employment; any other file or folder holds
    records in the plan's own columns. `declared_public_by`: who states that the file is public; nothing proves it.
    """

    records: int | None = None
    like: str | None = None
    states: tuple[str, ...] = ()
    sizes: Path | None = None
    declared_public_by: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.records is not None and self.like is not None:
            raise PlanError(
                f"{arg('records')}: it goes without {arg('like')}: the figures say how many establishments there are"
            )
        if self.states and self.like is None:
            raise PlanError(f"{arg('states')}: it goes with {arg('like')} alone")
        if (self.sizes is None) != (self.declared_public_by is None):
            raise PlanError(
                f"{arg('sizes')} and {arg('declared_public_by')}: give both: a file, and who declares it to be public"
            )
        if self.declared_public_by is not None and not self.declared_public_by.strip():
            raise PlanError(f"{arg('declared_public_by')}: the name of a person or an office is needed")
        if self.like is not None and self.sizes is not None:
            raise PlanError(
                f"{arg('sizes')}: it goes without {arg('like')}: the file's sizes are not those of the figures"
            )

    @property
    def has_records(self) -> bool:
        """Whether the file of sizes holds records, not a distribution."""
        return self.sizes is not None and not _is_distribution(self.sizes)

    def to_json(self) -> dict[str, Any]:
        """Return what outputs say of the microdata."""
        return {
            "economy": None if self.has_records else self.like or "prdp generate",
            "states": list(self.states),
            "sizes": None if self.sizes is None else str(self.sizes),
            "declared_public_by": self.declared_public_by,
            "seed": self.seed,
        }

    @property
    def label(self) -> str:
        """The microdata in a few words."""
        declared = "" if self.sizes is None else f", {self.sizes.name} declared public by {self.declared_public_by}"
        if self.has_records:
            return f"records of a file{declared}"
        states = f" in {', '.join(self.states)}" if self.states else ""
        return f"synthetic establishments ({self.like or 'prdp generate'}{states}, seed {self.seed}){declared}"


def require_apart(plan: Plan, sizes: Location, file: Location) -> None:
    """Raise PlanError where a file of the declared public `sizes` is one of the plan's own microdata, by its name.

    Also where it would be a part of them, or they of it; nothing is looked at but links.
    """
    own = plan.dataset.path
    if own is not None and (file.is_relative_to(own) or file.overlaps(own)):
        raise PlanError(
            f"--sizes {sizes}: these are the plan's own microdata, and prdp try reads none: leave --sizes out, or "
            "give a public file"
        )


@dataclass(frozen=True)
class Microdata:
    """Files of microdata for one plan; `made` records were made, of which the domain has `kept`; None: not known."""

    path: Path
    made: int | None
    kept: int | None
    owner: str | None  # a column that names each record's firm


class Economy:
    """The microdata of a trial, made once in `folder`, and written for each plan in its own columns."""

    def __init__(self, origin: Origin, folder: Path) -> None:
        self._origin, self._folder = origin, folder
        self._known: dict[str, Microdata] = {}
        self._made: Path | None = None

    def for_plan(self, plan: Plan) -> Microdata:
        """Return the microdata for a plan; plans with the same columns and domain share one copy.

        Raises PlanError where the plan has keys or measures that the economy has not.
        """
        if self._origin.has_records:
            assert self._origin.sizes is not None
            path = self._origin.sizes.absolute()
            require_schema(find(LocalPath(path)), layout_of(plan).spec, plan.dataset.record)
            return Microdata(path, None, None, plan.dataset.owner)
        columns = self._columns(plan.dataset)
        spec = row_by_row(plan)
        key = repr((sorted(columns.items()), plan.domain.digest, spec.columns, spec.measures))
        if key not in self._known:
            self._known[key] = self._written(plan, columns, spec, self._folder / f"microdata-{len(self._known)}")
        return self._known[key]

    def _columns(self, dataset: Dataset) -> dict[str, str]:
        here = self._origin.like is not None
        keys = [key for key in COLUMNS if here or key in ("naics", "county")]
        for key in dataset.keys:
            if key not in keys:
                more = "" if here or key not in COLUMNS else f"; with {arg('like')} cbp-2011 it has"
                raise PlanError(f"key {key}: the economy has {', '.join(keys)} alone{more}: {_own_file()}")
        measures = [name for name in MEASURES if here or name != MEASURES[-1]]
        columns = {column: COLUMNS[key] for key, column in dataset.keys.items()}
        for measure in dataset.measures:
            source = measure.name
            if source not in measures and self._origin.sizes is not None and len(dataset.measures) == 1:
                source = SIZE  # whose values are those of the file
            if source not in measures:
                raise PlanError(f"measure {measure.name}: the economy has {', '.join(measures)} alone: {_own_file()}")
            columns[measure.column] = source
        owner = dataset.owner or FIRM
        if owner not in columns:
            columns[owner] = FIRM
        return columns | {dataset.record: RECORD}

    def _written(self, plan: Plan, columns: Mapping[str, str], spec: SumSpec, out: Path) -> Microdata:
        out.mkdir()
        coded = [*plan.dataset.keys.values()]
        steps = {measure.column: measure.step for measure in plan.dataset.measures}
        made = kept = 0
        for number, table in enumerate(self._tables()):
            taken = {name: _stepped(table[column], steps.get(name)) for name, column in columns.items()}
            path, complete = out / f"part-{number:05d}.parquet", out / ".whole.parquet"
            write_parquet([pa.table(taken)], complete, coded)
            inside = _inside(complete, spec)
            made, kept = made + len(inside), kept + int(inside.sum())
            write_parquet([pq.read_table(complete).filter(pa.array(inside))], path, coded)
            complete.unlink()
        if not kept:
            raise PlanError("the plan's domain has none of the economy's codes: it would be tried on empty cells")
        return Microdata(out, made, kept, plan.dataset.owner or (FIRM if columns.get(FIRM) == FIRM else None))

    def _tables(self) -> Iterator[pa.Table]:
        if self._made is None:
            self._made = self._folder / "economy"
            if self._origin.like is not None:
                seed, states = self._origin.seed, self._origin.states
                generate_like(self._origin.like, seed, self._made, states=states)
            else:
                records = RECORDS if self._origin.records is None else self._origin.records
                generate(records, self._origin.seed, self._made)
        sizes = None if self._origin.sizes is None else read_sizes(self._origin.sizes)
        files = sorted((self._made / "microdata").iterdir())
        for number, path in enumerate(files):
            table = pq.read_table(path)
            rng = np.random.default_rng(np.random.SeedSequence(self._origin.seed, spawn_key=(STREAM, number)))
            yield table if sizes is None else _resized(table, sizes, rng)


def _is_distribution(path: Path) -> bool:
    try:
        with open_input(path, LARGEST_LIST) as file:
            first = file.readline(100)
    except OSError:
        return False  # a folder, or what cannot be read: whoever reads it next says so
    return first.decode("utf-8-sig", "replace").strip() == ",".join(HEADER)


def _resized(table: pa.Table, sizes: Sizes, rng: np.random.Generator) -> pa.Table:
    """Return the records with the file's sizes, by rank: the largest establishment has the largest size.

    Other measures grow or fall as the size does.
    """
    before = table[SIZE].to_numpy()
    rank = np.empty(len(before), dtype=np.int64)
    rank[np.lexsort((rng.random(len(before)), before))] = np.arange(len(before))
    shares = np.cumsum(sizes.count) / sizes.count.sum()
    position = np.searchsorted(shares, (rank + rng.random(len(before))) / len(before))
    after = np.rint(sizes.value[np.minimum(position, len(shares) - 1)]).astype(np.int64)
    factor = after / np.maximum(before, 1)
    for name in table.column_names:
        if name in MEASURES:
            values = after if name == SIZE else np.rint(table[name].to_numpy() * factor).astype(np.int64)
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return table


def _stepped(column: pa.ChunkedArray, step: Fraction | None) -> pa.ChunkedArray:
    """Return whole numbers as multiples of a step above 1, rounded down; others are multiples of it already."""
    if step is None or step <= 1:
        return column
    units = int(step)
    return pc.multiply(pc.divide(column, units), units)


def _inside(path: Path, spec: SumSpec) -> Mask:
    decoder, masks = Decoder(spec), [np.zeros(0, dtype=np.bool_)]
    groups = tuple(range(pq.ParquetFile(path).metadata.num_row_groups))
    for batch in read((Piece(str(path), groups),), spec):
        mask = in_domain(decoder.records(batch), spec)
        masks.append(np.ones(len(batch), dtype=np.bool_) if mask is None else mask)
    return np.concatenate(masks)


def _own_file() -> str:
    return f"give records of your own that are public with {arg('sizes')} FILE {arg('declared_public_by')} NAME"


# What studies need of microdata, exactly: influences and cells of a table, and the rows of a plan's tables.
#
# Only synthetic microdata come here: those that a study wrote for itself, or those that carry the mark of `prdp
# generate` and that no ledger knows.

BUCKETS = 16  # a bucket's records are in memory together
CELL, OWNER, INFLUENCE = "(cell)", "(owner)", "(influence)"  # columns of the rows that go to buckets


@dataclass(frozen=True, eq=False, repr=False)
class ByCell:
    """Sends records to buckets by their cell in the table."""

    spec: SumSpec
    table: Table

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the rows of each batch, by bucket."""
        return decoded(chunk, self.spec, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        records, cells = decoder.records(batch), self.table.cells
        inside = in_domain(records, self.spec)
        kept = np.arange(len(batch)) if inside is None else np.flatnonzero(inside)
        numbers = cells.of_codes({number: codes.codes()[kept] for number, codes in enumerate(records.keys)})
        columns = {
            CELL: numbers,
            OWNER: as_text(batch.column(str(self.spec.owner)).take(pa.array(kept))),
            INFLUENCE: np.abs(records.values[self.table.addend][kept]),
        }
        return in_buckets(pa.record_batch(columns), numbers * BUCKETS // max(cells.size, 1))


@dataclass(frozen=True, eq=False, repr=False)
class OneBucket:
    """Counts the influences of a bucket's records, and sums up its cells."""

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> tuple[Int64s, Int64s, Cells]:
        """Return distinct influences, their counts, and the bucket's cells."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        cells, values = rows.column(CELL).to_numpy(), rows.column(INFLUENCE).to_numpy()
        _, owners = distinct(rows.column(OWNER).chunk(0))
        influences, counts = np.unique(values, return_counts=True)
        return influences, counts.astype(np.int64), _sums(cells, owners, values)


def aggregate(engine: Engine, microdata: Path, layout: Layout, scratch: Staging) -> Aggregates:
    """Return the influences and cells of the layout's first table over all records: the same on every engine.

    What lies on disk in between is sealed, in `scratch`.
    """
    table, chunks = layout.tables[0], list(source.chunks(source.find(LocalPath(microdata))))
    parts = grouped(engine.each, ByCell(layout.spec, table), chunks, OneBucket(), scratch)
    if not parts:
        none, empty = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Aggregates(none, none, Cells(none, none, none, none, empty, empty), table.cells.size)
    influences, of_record = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(len(influences), dtype=np.int64)
    np.add.at(counts, of_record, np.concatenate([part[1] for part in parts]))
    names = Cells.__dataclass_fields__
    cells = {name: np.concatenate([getattr(part[2], name) for part in parts]) for name in names}
    return Aggregates(influences, counts, Cells(**cells), table.cells.size)


def _sums(cells: Int64s, owners: Int64s, values: Int64s) -> Cells:
    """Sum up in the order of cells, owners and values, so that sums of doubles do not depend on the rows' order."""
    order = np.lexsort((values, owners, cells))
    cells, owners, values = cells[order], owners[order], values[order]
    new_cell = np.append(True, np.diff(cells) != 0)
    firm_starts = np.flatnonzero(new_cell | np.append(True, np.diff(owners) != 0))
    cell_starts = np.flatnonzero(new_cell)
    firm_totals = np.add.reduceat(values, firm_starts)
    first_firm = np.searchsorted(firm_starts, cell_starts)  # of each cell
    return Cells(
        cells=cells[cell_starts],
        totals=np.add.reduceat(values, cell_starts),
        records=np.diff(np.append(cell_starts, len(cells))),
        firms=np.diff(np.append(first_firm, len(firm_starts))),
        squares=np.add.reduceat(values.astype(np.float64) ** 2, cell_starts),
        firm_squares=np.add.reduceat(firm_totals.astype(np.float64) ** 2, first_firm),
    )


def rows_in_tables(
    known: Callable[[Sequence[str]], str | None], plan: Plan, firm: str, tables: Sequence[Table]
) -> Rows:
    """Return the records of a plan's synthetic microdata that lie in its tables, of one measure.

    `known` returns the dataset of which a file with one of these fingerprints is, as far as a ledger knows, else None.

    Raises StateError where the microdata are a dataset's; PlanError where they are not those of `prdp generate` or lack
    the column of firms.
    """
    dataset, addend = plan.dataset, tables[0].addend
    if dataset.path is None:
        raise PlanError("dataset.path: synthetic microdata of prdp generate are needed, in files")
    files = source.find(dataset.path)
    identity = identity_of(files)
    if identity.synthetic is not True:
        raise PlanError(
            f"microdata {dataset.path}: they do not carry the mark of prdp generate; a study reads synthetic ones alone"
        )
    owned = known(identity.fingerprints)  # the mark proves nothing: a schema that is copied carries it along
    if owned is not None:
        raise StateError(
            f"microdata {dataset.path}: they carry the mark of prdp generate, but a file of them is one of dataset "
            f"{owned} in the ledger; a study reads synthetic microdata alone: generate some for it"
        )
    spec = replace(layout_of(plan).spec, owner=dataset.owner or firm)
    if spec.needs_owners:
        raise PlanError("a study of suppression reads no counts or codes of owners: leave them out of the plan")
    unit = float(tables[0].query.mechanisms[0].step)

    def rows(decoder: Decoder, batch: pa.RecordBatch) -> tuple[pa.Array, Floats, Int64s]:
        records = decoder.records(batch)
        codes = {number: key.codes() for number, key in enumerate(records.keys)}
        cells = np.array([table.cells.of_codes(codes) for table in tables], dtype=np.int64)
        if records.good is not None:
            cells[:, ~records.good] = -1
        kept = (cells >= 0).any(axis=0)
        return (
            batch.column(str(spec.owner)).filter(pa.array(kept)),
            (records.values[addend][kept] * unit).astype(np.float64),
            cells[:, kept],
        )

    parts = [part for chunk in source.chunks(files) for part in decoded(chunk, spec, rows)]
    if not parts:
        return Rows(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((len(tables), 0), dtype=np.int64))
    owners, values, cells = zip(*parts, strict=True)
    names = pa.chunked_array(owners).combine_chunks()
    firms = distinct(names.chunk(0) if isinstance(names, pa.ChunkedArray) else names)[1]
    return Rows(firms, np.concatenate(values), np.concatenate(cells, axis=1))
