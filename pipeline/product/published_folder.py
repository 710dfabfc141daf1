"""What a verified folder of released or reconciled tables holds: rows by table, descriptions, names of codes."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.log import counted
from pipeline.plan.structure import Structure
from pipeline.product.reconciled_folder import MANIFEST, read_reconciled_manifest, require_files, structure_in
from pipeline.product.sources import structure_of
from pipeline.release.export import description_in, published_part
from pipeline.release.manifest import read_manifest, verify_release
from pipeline.report.data_package import field_note
from pipeline.report.site.facts import CODES, code_names
from pipeline.storage.location import Location
from pipeline.storage.staging import safe_name


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """A table's number of rows, and its Parquet files as the manifest names them."""

    rows: int
    files: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Published:
    """Tables of a verified folder.

    Attributes:
        folder: Holds release.json or reconciled.json.
        name: The release's, or "reconciled".
        facts: Release and attempt, or the releases that were reconciled.
        tables: By name.
        package: What datapackage.json says; None where an earlier build wrote the folder.
        lists: By the name of their resource, the CSV files of codes that these tables need.
    """

    folder: Location
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
        if (self.folder / MANIFEST).is_file():
            return structure_in(self.folder, read_reconciled_manifest(self.folder))
        return structure_of(self.folder)

    def rows(self, table: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return a table's columns and its rows, batch by batch; StateError where a file changed meanwhile."""
        parts = (published_part(self.folder, file) for file in self.tables[table].files)
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
    if (folder / MANIFEST).is_file():
        made = read_reconciled_manifest(folder)
        require_files(folder, made)
        files = {file["path"]: file for file in made["files"]}
        tables = {
            safe_name("query", name): PublishedTable(each["rows"], (files[f"tables/{name}.parquet"],))
            for name, each in made["tables"].items()
        }
        facts = {"dataset": made["dataset"], "releases": [each["release"] for each in made["releases"]]}
        return Published(folder, "reconciled", facts, tables, *description_in(folder, files))
    verified, manifest = verify_release(folder), read_manifest(folder)
    tables = {
        safe_name("query", table["query"]): PublishedTable(
            table["rows"], tuple(file for file in table["files"] if file["path"].endswith(".parquet"))
        )
        for table in manifest["tables"]
    }
    files = {file["path"].removeprefix(f"{verified.attempt}/"): file for file in manifest["files"]}
    facts = {"release": verified.release, "attempt": verified.attempt}
    return Published(folder, safe_name("release", verified.release), facts, tables, *description_in(folder, files))


def _rows(first: pq.ParquetFile, others: Iterator[pq.ParquetFile]) -> Iterator[pa.RecordBatch]:
    yield from first.iter_batches()
    for part in others:
        yield from part.iter_batches()
