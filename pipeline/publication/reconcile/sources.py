"""Released tables as a product reads them: verified, in key order, piece by piece, side by side by their position."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.plain import rule_of_name
from pipeline.publication.manifest import File, Manifest
from pipeline.publication.release_folder import as_written, json_in, published_part
from pipeline.storage.inputs import input_lines
from pipeline.storage.location import Location
from udfs.mechanisms.catalogue import CATALOGUE

VALUE, ERROR = "value", "standard_error"
PUBLISHED = ("published", "published_error")  # of a reconciled table, the released value and its standard error
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Source:
    """A table of a verified release: `levels` are its keys, the first one outermost in its order of rows.

    `query`: what policy.json says of it. `reconciled`: a verified folder of reconciled tables, and the table's file
    there; where there is one, values and standard errors are those estimates, and the released ones stand beside them.
    """

    name: str
    folder: Location
    files: tuple[File, ...]
    rows: int
    levels: tuple[str, ...]
    query: Mapping[str, Any]
    reconciled: tuple[Location, File] | None = None

    @property
    def additive(self) -> bool:
        """Whether its noise is additive, so that cells may be added up."""
        parts = self.query.get("parts", [self.query])
        return all(CATALOGUE[part["mechanism"]["kind"]].additive for part in parts)

    def pieces(self, figures: Sequence[str] = (VALUE, ERROR)) -> Iterator[pa.Table]:
        """Yield keys, as dictionaries, and figures, in key order; where it is reconciled, both figures and PUBLISHED.

        Raises PlanError where the reconciled table has other cells.
        """
        if self.reconciled is None:
            yield from self._read(self.folder, self.files, figures)
            return
        folder, file = self.reconciled
        estimates = Reader(self._read(folder, [file]))
        for piece in self._read(self.folder, self.files):
            found = estimates.take(len(piece))
            if not same_keys(piece, found, self.levels):
                raise PlanError(f"{folder}: the cells of the table {self.name} are not those of the release")
            for name, published in zip((VALUE, ERROR), PUBLISHED, strict=True):
                found = found.append_column(published, piece.column(name))
            yield found

    def _read(
        self, folder: Location, files: Iterable[File], figures: Sequence[str] = (VALUE, ERROR)
    ) -> Iterator[pa.Table]:
        for file in files:
            part = published_part(folder, file, self.levels)
            columns = [*self.levels, *figures]
            if not part.num_row_groups:
                yield part.read(columns)
            for group in range(part.num_row_groups):
                yield part.read_row_group(group, columns)

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
        found = sum(len(piece) for piece in self._left)
        while found < rows:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._left.append(piece)
            found += len(piece)
        table = pa.concat_tables(self._left)
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
            queries = {query["name"]: query for query in json_in(manifest, "policy.json")["queries"]}
            levels = {table["query"]: tuple(queries[table["query"]]["by"]) for table in manifest["tables"]}
        for table in manifest["tables"]:
            name, query = table["query"], queries[table["query"]]
            if name in sources:
                raise PlanError(f"{folder} and {sources[name].folder}: both releases have a table {name}: give one")
            parts = tuple(file for file in table["files"] if file["path"].endswith(".parquet"))
            sources[name] = Source(name, folder, parts, table["rows"], levels[name], query)
    told = ("release", "attempt", "date", "plan_digest")
    return sources, [{key: of[key] for key in told} | {"manifest_sha256": of.sha256} for of in manifests]


def needed(sources: Mapping[str, Source], values: Mapping[str, str], file: str) -> dict[str, Source]:
    """Return, by measure, the tables of a file of the product; PlanError names those that no release has."""
    lacking = sorted({table for table in values.values() if table not in sources})
    if lacking:
        raise PlanError(f"{file}: no release has the table{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    return {measure: sources[table] for measure, table in values.items()}


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
    return named.take(keys.indices)


def column(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a table that was taken at once."""
    return table.column(name).combine_chunks()


def same_keys(one: pa.Table, other: pa.Table, levels: Sequence[str]) -> bool:
    """Whether two pieces have the same keys, row by row."""
    if len(one) != len(other):
        return False
    pairs = [(column(one, level), column(other, level)) for level in levels]
    return all(a.equals(b) or a.cast(pa.string()).equals(b.cast(pa.string())) for a, b in pairs)


def coefficient(values: NDArray[Any], errors: Floats) -> Floats:
    """Return coefficients of variation in percent: the error over the absolute value; 0 where there is no error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 100 * errors / np.abs(values.astype(np.float64))
    return np.where(errors == 0, 0.0, found)


def whole(values: NDArray[Any], unit: int = 1) -> NDArray[np.int64]:
    """Return values rounded to multiples of `unit`, the middle to even ones, held at the last doubles within ±2⁶³."""
    if values.dtype == np.int64 and unit == 1:
        return values
    top = np.nextafter(2.0**63, 0)
    rounded: NDArray[np.int64] = np.clip(np.rint(values.astype(np.float64) / unit) * unit, -top, top).astype(np.int64)
    return rounded


def numbers(table: pa.Table, name: str) -> NDArray[Any]:
    """Return a column of numbers."""
    found: NDArray[Any] = column(table, name).to_numpy(zero_copy_only=False)
    return found


def equal_codes(one: pa.Array, codes: pa.Array) -> NDArray[np.int64]:
    """Return of each code of a dictionary array its number among `codes`, −1 where it is none of them."""
    found = pc.index_in(one.dictionary, codes).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers: NDArray[np.int64] = found[one.indices.to_numpy(zero_copy_only=False)]
    return numbers
