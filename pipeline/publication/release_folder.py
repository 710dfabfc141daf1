"""Published files as others read them: each held against its manifest as it is read."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, PrdpError, StateError, arg, in_a_line
from pipeline.base.log import counted
from pipeline.base.plain import plain_json, rule_of_name
from pipeline.plan.model import VALUES, Plan
from pipeline.plan.structure import Structure
from pipeline.publication.description import CODES, PACKAGE, code_names, field_note
from pipeline.publication.manifest import RECONCILED, RELEASE, File, Manifest, published_bytes
from pipeline.storage.location import Location
from pipeline.storage.paths import input_lines
from pipeline.storage.staging import STRUCTURE, safe_name
from udfs.estimates.intervals import Law, law_of
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact


def published_part(folder: Location, file: File, coded: Sequence[str] = ()) -> pq.ParquetFile:
    """Return a file of a manifest, read with the columns `coded` as dictionaries.

    Raises StateError, also while it is read, where it changed since it was verified or is no table of prdp's.
    """
    path, data = folder / file["path"], published_bytes(folder, file)
    with as_written(path):
        return _Part(path, data, coded)


class _Part(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file that fits its manifest, whoever wrote both."""

    def __init__(self, at: Location, data: bytes, coded: Sequence[str]) -> None:
        super().__init__(pa.BufferReader(data), read_dictionary=list(coded))
        self._at = at
        figures = [field.type for field in self.schema_arrow if field.name in VALUES]
        if not all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in figures):
            raise TypeError

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows, of some columns or of all."""
        return self.read_row_groups(range(self.num_row_groups), columns)

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a row group."""
        return self.read_row_groups([group], columns)

    def read_row_groups(
        self, groups: Iterable[int], columns: Sequence[str] | None = None, use_threads: bool = True
    ) -> pa.Table:
        """Return the rows of row groups."""
        with as_written(self._at):
            table = super().read_row_groups(list(groups), columns, use_threads=use_threads)
            table.select(columns or [])  # KeyError for a column that is not there
            return table

    def iter_batches(self, batch_size: int = 65536, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch."""
        batches = super().iter_batches(batch_size, columns=columns)
        while True:
            with as_written(self._at):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.select(columns or [])
            yield batch


@contextmanager
def as_written(at: Location) -> Iterator[None]:
    """Read a file of a manifest in a block; StateError where it is not as prdp writes it, whatever its digest."""
    try:
        yield
    except (PrdpError, MemoryError):
        raise
    except (pa.ArrowException, OSError, LookupError, TypeError, AttributeError, ValueError):
        raise StateError(f"{at}: is not as prdp writes it, though it fits its manifest: both were changed") from None


def json_in(manifest: Manifest, path: str) -> Any:
    """Return what a JSON file of a verified folder holds; StateError where it changed, or is no JSON."""
    with as_written(manifest.folder / manifest.home / path):
        return plain_json(manifest.contents(path))


def structure_of(manifest: Manifest, plans: Sequence[Plan] = ()) -> Structure:
    """Return the structure of a verified folder: its own, or that of the one of `plans` a release was made of.

    Raises PlanError where an older release has none and its plan is not given, StateError where its file changed.
    """
    folder = manifest.folder
    if STRUCTURE in manifest.files:
        return Structure.from_json(manifest.contents(STRUCTURE), str(folder / manifest.home / STRUCTURE))
    for plan in plans:
        if plan.digest == manifest["plan_digest"]:
            return Structure.of(plan)
    other = "none of the plans given is its own" if plans else f"give its plan by {arg('plans', flag='plan')}"
    raise PlanError(f"{folder}: this release does not say what its keys are (it has no {STRUCTURE}): {other}")


def description_of(manifest: Manifest) -> tuple[dict[str, Any] | None, dict[str, bytes]]:
    """Return what datapackage.json of a verified folder says, None without one, and its lists of codes, by resource."""
    if PACKAGE not in manifest.files:
        return None, {}
    package: dict[str, Any] = json_in(manifest, PACKAGE)
    with as_written(manifest.folder / manifest.home / PACKAGE):
        _require_package(package)
    lists = [path for path in manifest.files if path.startswith(f"{CODES}/")]
    return package, {path.removesuffix(".csv"): manifest.contents(path) for path in lists}


def _require_package(package: dict[str, Any]) -> None:
    """Touch what readers take from a datapackage.json; KeyError or TypeError where it lacks that."""
    texts = [package[key] for key in ("release", "plan_digest", "title")]
    for resource in (*package["resources"], *package.get("derived", ())):
        tells = ("name",) if str(resource["name"]).startswith(CODES) else ("name", "description")
        texts += [resource[key] for key in tells] + list(resource["schema"]["primaryKey"])
        texts += [field["name"] for field in resource["schema"]["fields"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError


# What a verified folder of released or reconciled tables holds: rows by table, descriptions, names of codes.


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """A table's number of rows, and its Parquet files as the manifest names them."""

    rows: int
    files: tuple[File, ...]


@dataclass(frozen=True, eq=False)
class Published:
    """Tables of a verified folder; `name` is the release's, or "reconciled".

    `package`: what datapackage.json says, None where an earlier build wrote the folder. `lists`: by the name of their
    resource, the CSV files of codes that these tables need.
    """

    manifest: Manifest
    name: str
    facts: Mapping[str, Any]
    tables: Mapping[str, PublishedTable]
    package: Mapping[str, Any] | None
    lists: Mapping[str, bytes]

    def each(self) -> Iterator[str]:
        """Yield the name of each table, whose writing the log counts."""
        return counted("writing tables", self.tables, len(self.tables))

    def only(self, names: Sequence[str]) -> "Published":
        """Return the same with these tables alone, and the lists of their codes."""
        chosen = replace(self, tables={name: self.tables[name] for name in names})
        keys = {level for each in chosen.described.values() for level in each["schema"]["primaryKey"]}
        levels = {safe_name("level", level) for level in keys}
        return replace(chosen, lists={name: self.lists[name] for name in sorted(f"{CODES}/{x}" for x in levels)})

    @cached_property
    def described(self) -> dict[str, dict[str, Any]]:
        """What is said of each table: its resource, by its name; nothing where there is no package."""
        resources = () if self.package is None else self.package["resources"]
        return {each["name"]: each for each in resources if each["name"] in self.tables}

    @cached_property
    def structure(self) -> Structure:
        """What the tables' keys are and roll up to; PlanError where an earlier build left nothing that says so."""
        return structure_of(self.manifest)

    def rows(self, table: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return a table's columns and its rows, batch by batch; StateError where a file changed meanwhile."""
        parts = (published_part(self.manifest.folder, file) for file in self.tables[table].files)
        first = next(parts)
        return first.schema_arrow, _rows(first, parts)

    def names(self, level: str) -> dict[str, str]:
        """Return the names of a level's codes, empty or absent where a code has none; public ones where no list is."""
        if f"{CODES}/{level}" not in self.lists:
            return code_names(self.structure.domain, level)
        rows = csv.DictReader(io.StringIO(self.lists[f"{CODES}/{level}"].decode(), newline=""))
        return {row["code"]: row["name"] for row in rows}

    def notes(self, table: str) -> dict[str, str]:
        """Return, by column, what it is; by "" what the table is and where it comes from."""
        package, about = self.package or {}, self.described[table]
        notes = {"": f"{about['description']} Release {package['release']}, plan {package['plan_digest']}."}
        for field in about["schema"]["fields"]:
            notes[field["name"]] = field_note(field)
        return notes


def published_in(folder: Location) -> Published:
    """Return the tables of a folder, which is verified first; raises StateError where a file is not as it should be."""
    kind = RECONCILED if (folder / RECONCILED.name).is_file() else RELEASE
    manifest = Manifest.verified(folder, kind)
    if kind is RECONCILED:
        tables = {
            name: PublishedTable(each["rows"], (manifest.files[f"tables/{name}.parquet"],))
            for name, each in manifest["tables"].items()
        }
        name, facts = "reconciled", {"dataset": manifest["dataset"]}
        facts |= {"releases": [each["release"] for each in manifest["releases"]]}
    else:
        tables = {
            each["query"]: PublishedTable(
                each["rows"], tuple(file for file in each["files"] if file["path"].endswith(".parquet"))
            )
            for each in manifest["tables"]
        }
        name, facts = safe_name("release", manifest["release"]), {key: manifest[key] for key in ("release", "attempt")}
    for table in tables:
        safe_name("query", table)
    return Published(manifest, name, facts, tables, *description_of(manifest))


def _rows(first: pq.ParquetFile, others: Iterator[pq.ParquetFile]) -> Iterator[pa.RecordBatch]:
    yield from first.iter_batches()
    for part in others:
        yield from part.iter_batches()


# Released tables as a product reads them: verified, in key order, piece by piece, side by side by their position.

VALUE, ERROR = "value", "standard_error"
PUBLISHED, DISPLAY = "published", "display"  # of a reconciled table: the released value; whole numbers that add up


@dataclass(frozen=True, eq=False)
class Source:
    """A table of a verified folder: `levels` are its keys, the first one outermost in its order of rows.

    `query`: what policy.json says of it. `interval`: how often its intervals hold.
    """

    name: str
    folder: Location
    files: tuple[File, ...]
    rows: int
    levels: tuple[str, ...]
    query: Mapping[str, Any]
    interval: float = 0.95

    @property
    def additive(self) -> bool:
        """Whether its noise is additive, so that cells may be added up."""
        parts = self.query.get("parts", [self.query])
        return all(CATALOGUE[part["mechanism"]["kind"]].additive for part in parts)

    @cached_property
    def law(self) -> Law | None:
        """What is known of its errors' law; None where they have no variance that holds at all totals."""
        parts = self.query.get("parts", [self.query])
        try:
            noise = [build(part["mechanism"], exact(part["step"])) for part in parts]
        except (KeyError, TypeError, ValueError):  # withheld, or of an earlier version
            return Law.SYMMETRIC if self.additive else None
        varies = not all(each.additive and each.variance(0.0) < math.inf for each in noise)
        return None if varies else max(map(law_of, noise))

    @property
    def step(self) -> float:
        """The step of its measure."""
        return float(exact(self.query.get("parts", [self.query])[0].get("step", 1)))

    def pieces(
        self, figures: Sequence[str] = (VALUE, ERROR), groups: int = 1, *, threads: bool = True
    ) -> Iterator[pa.Table]:
        """Yield keys, as dictionaries, and figures, in key order; so many row groups of a file at once.

        `threads`: by those of Arrow, where no other threads read.
        """
        for file in self.files:
            part = published_part(self.folder, file, self.levels)
            every = range(part.num_row_groups)
            for first in range(0, max(1, len(every)), groups):
                yield part.read_row_groups(every[first : first + groups], [*self.levels, *figures], threads)

    def reader(self) -> "Reader":
        """Return what reads the table from its first row on."""
        return Reader(self.pieces())


class Reader:
    """Reads a table on, so many rows at a time."""

    def __init__(self, pieces: Iterator[pa.Table]) -> None:
        self._pieces = pieces
        self._left: list[pa.Table] = []

    def take(self, rows: int) -> pa.Table:
        """Return the next rows in one chunk a column, fewer where the table ends."""
        read = sum(len(piece) for piece in self._left)
        while read < rows:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left.append(piece)
            read += len(piece)
        table = pa.concat_tables([piece for piece in self._left if len(piece)] or self._left[:1])
        self._left = [table.slice(rows)]
        return table.slice(0, rows).unify_dictionaries().combine_chunks()


def released(manifests: Sequence[Manifest]) -> tuple[dict[str, Source], list[dict[str, Any]]]:
    """Return the tables of verified releases by name, and what the manifest of what is made of them says of them.

    Raises StateError where policy.json is not as prdp writes it, PlanError where two tables have one name.
    """
    sources: dict[str, Source] = {}
    for manifest in manifests:
        folder = manifest.folder
        with as_written(folder / manifest.home / "policy.json"):
            policy = json_in(manifest, "policy.json")
            interval = float(exact(policy["interval"]))
            queries = {query["name"]: query for query in policy["queries"]}
            levels = {table["query"]: tuple(queries[table["query"]]["by"]) for table in manifest["tables"]}
        for table in manifest["tables"]:
            name, query = table["query"], queries[table["query"]]
            if name in sources:
                raise PlanError(f"{folder} and {sources[name].folder}: both releases have a table {name}: give one")
            parts = tuple(file for file in table["files"] if file["path"].endswith(".parquet"))
            sources[name] = Source(name, folder, parts, table["rows"], levels[name], query, interval)
    names = ("release", "attempt", "date", "plan_digest")
    return sources, [{key: of[key] for key in names} | {"manifest_sha256": of.sha256} for of in manifests]


def names_of(lists: Iterable[str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return the names of codes: those of CSV files with the header code,name, and `texts`, which go before them."""
    names: dict[str, str] = {}
    for path in lists:
        try:
            with input_lines(Path(path)) as lines:
                names |= {row["code"]: row["name"] for row in csv.DictReader(lines)}
        except (OSError, ValueError, KeyError, csv.Error):
            raise PlanError(f"{path}: no list of names: a CSV file with the header code,name is needed") from None
    names |= texts
    for code, name in names.items():
        if rule := rule_of_name(name):
            raise PlanError(f'the name of code {in_a_line(code)}, "{in_a_line(name)}": {rule}')
    return names


def text_of(keys: pa.Array, texts: Mapping[str, str]) -> pa.Array:
    """Return the name of each code of a dictionary array; empty where a code has none."""
    named = pa.array([texts.get(code, "") for code in keys.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(keys.indices, named)


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table that was taken at once."""
    chunks = table.column(name)
    return chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()  # which copies even a single one


def same_keys(one: pa.Table, other: pa.Table, levels: Sequence[str]) -> bool:
    """Whether two pieces have the same keys, row by row."""
    if len(one) != len(other):
        return False
    pairs = [(column(one, level), column(other, level)) for level in levels]
    return all(a.equals(b) or a.cast(pa.string()).equals(b.cast(pa.string())) for a, b in pairs)


def coefficient(values: NDArray[Any], errors: Floats) -> Floats:
    """Return coefficients of variation in percent: the error over the absolute value; 0 where there is no error."""
    percent: Floats = 100.0 * errors
    size = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.divide(percent, np.abs(size, out=size), out=percent)
    if not errors.min(initial=1) > 0:
        percent[errors == 0] = 0
    return percent


def rounded_to(values: NDArray[Any], unit: int = 1) -> NDArray[np.int64]:
    """Return values rounded to multiples of `unit`, the middle to even ones, held at the last doubles within ±2⁶³."""
    if values.dtype == np.int64 and unit == 1:
        return values
    top = np.nextafter(2.0**63, 0)
    rounded: NDArray[np.int64] = np.clip(np.rint(values.astype(np.float64) / unit) * unit, -top, top).astype(np.int64)
    return rounded


def numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers."""
    values: NDArray[Any] = column(table, name).to_numpy(zero_copy_only=False)
    return values


def equal_codes(one: pa.Array, codes: pa.Array) -> NDArray[np.int64]:
    """Return of each code of a dictionary array its number among `codes`, −1 where it is none of them."""
    position = pc.index_in(one.dictionary, codes).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers: NDArray[np.int64] = position[one.indices.to_numpy(zero_copy_only=False)]
    return numbers
