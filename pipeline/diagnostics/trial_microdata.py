"""The microdata of a trial: the synthetic economy in a plan's own columns, or a file that its user states to be public.

Nothing here reads a plan's own microdata. What is written carries the mark of synthetic microdata.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.accounting.targets import HEADER, Sizes, read_sizes
from pipeline.base.errors import PlanError, arg
from pipeline.engines.totals import layout_of
from pipeline.microdata.read import read, require_schema
from pipeline.microdata.source import Piece, find
from pipeline.plan.model import Dataset, Plan
from pipeline.planning.economy.generate import generate, write_parquet
from pipeline.planning.economy.like import generate_like
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import LARGEST_LIST, open_input
from udfs.numbers.arrays import Mask
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.influence import in_domain

RECORDS: Final = 300_000  # establishments, where nothing else is asked for
SIZE: Final = "employment"  # the measure of the economy that a file of sizes takes the place of
MEASURES: Final = (SIZE, "payroll", "payroll_q1")  # of the economy; the last with published figures alone
COLUMNS: Final[Mapping[str, str]] = {"naics": "naics", "county": "county", "form": "lfo", "zip": "zip"}
RECORD, OWNER = "establishment_id", "firm_id"
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
        spec = layout_of(plan).spec
        key = repr((sorted(columns.items()), plan.domain.digest, spec.columns, spec.measures))
        if key not in self._known:
            self._known[key] = self._written(plan, columns, spec, self._folder / f"microdata-{len(self._known)}")
        return self._known[key]

    def _columns(self, dataset: Dataset) -> dict[str, str]:
        """Return the column of the economy for each column of the plan."""
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
        owner = dataset.owner or OWNER
        if owner not in columns:
            columns[owner] = OWNER
        return columns | {dataset.record: RECORD}

    def _written(self, plan: Plan, columns: Mapping[str, str], spec: SumSpec, out: Path) -> Microdata:
        out.mkdir()
        coded = [*plan.dataset.keys.values()]
        steps = {measure.column: measure.step for measure in plan.dataset.measures}
        made = kept = 0
        for number, table in enumerate(self._tables()):
            taken = {name: _stepped(table[column], steps.get(name)) for name, column in columns.items()}
            path, whole = out / f"part-{number:05d}.parquet", out / ".whole.parquet"
            write_parquet([pa.table(taken)], whole, coded)
            inside = _inside(whole, spec)
            made, kept = made + len(inside), kept + int(inside.sum())
            write_parquet([pq.read_table(whole).filter(pa.array(inside))], path, coded)
            whole.unlink()
        if not kept:
            raise PlanError("the plan's domain has none of the economy's codes: it would be tried on empty cells")
        return Microdata(out, made, kept, plan.dataset.owner or (OWNER if columns.get(OWNER) == OWNER else None))

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
    at = np.searchsorted(shares, (rank + rng.random(len(before))) / len(before))
    after = np.rint(sizes.value[np.minimum(at, len(shares) - 1)]).astype(np.int64)
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
    whole = int(step)
    return pc.multiply(pc.divide(column, whole), whole)


def _inside(path: Path, spec: SumSpec) -> Mask:
    """Return which rows of a Parquet file are in the domain of a scan."""
    decoder, masks = Decoder(spec), [np.zeros(0, dtype=np.bool_)]
    groups = tuple(range(pq.ParquetFile(path).metadata.num_row_groups))
    for batch in read((Piece(str(path), groups),), spec):
        mask = in_domain(decoder.records(batch), spec)
        masks.append(np.ones(len(batch), dtype=np.bool_) if mask is None else mask)
    return np.concatenate(masks)


def _own_file() -> str:
    return f"give records of your own that are public with {arg('sizes')} FILE {arg('declared_public_by')} NAME"
