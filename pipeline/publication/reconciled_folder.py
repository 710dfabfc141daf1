"""A reconciled folder: tables that add up, the structure that says how, and a manifest, written last; and its check."""

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.canonical import code_digest, readable_json
from pipeline.base.errors import StateError, arg
from pipeline.base.log import share, telling
from pipeline.engines.writers import FORMATS, Hashed, Written, key_pieces
from pipeline.plan.domain.cells import Base, Int64s, QueryCells, RollUp, cheapest
from pipeline.plan.structure import Structure, TableFacts
from pipeline.publication.description import CODES, MADE_LATER, MEANINGS, PACKAGE, file_notes
from pipeline.publication.estimated_totals import multipliers_of, worth_drawing
from pipeline.publication.manifest import RECONCILED, Manifest, manifest_file, write_manifest
from pipeline.publication.public_totals import Atoms, in_common
from pipeline.publication.reconciled import Reconciliation, Solved
from pipeline.publication.release_folder import (
    DISPLAY,
    ERROR,
    PUBLISHED,
    VALUE,
    description_of,
    numbers,
    published_part,
    structure_of,
)
from pipeline.publication.released_tables import EXACT, OwnNoise, ReleasedTable, Spread, drawn_of, variances_of
from pipeline.storage.location import Location
from pipeline.storage.paths import UNFINISHED, filled
from pipeline.storage.staging import STRUCTURE, safe_name
from udfs.numbers.arrays import Floats

if TYPE_CHECKING:
    from pipeline.publication.signing import PublicKey, SigningKey

COLUMNS = (VALUE, "lower", "upper", ERROR, PUBLISHED, DISPLAY)


class Made(NamedTuple):
    """What the manifest says of one group: the group, its tables by name, and their files."""

    group: dict[str, Any]
    tables: dict[str, dict[str, Any]]
    files: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class MakeGroup:
    """Solves one group, by its number, and writes its tables to `home`, which all workers reach: a task of an engine.

    Files appear whole, and have the same contents each time.
    """

    reconciliation: Reconciliation
    home: Path
    described: "Described | None"
    csv: bool

    def __call__(self, number: int) -> Made:
        """Return what was made; raises StateError where this machine does not reach the folder."""
        if not self.home.is_dir():
            raise StateError(
                f"{arg('out', self.home.parent)}: a worker does not reach this folder: give one that all machines share"
            )
        group, tables = self.reconciliation.groups[number], dict[str, Any]()
        what, every = f"reconciling tables of {group.label}", len(group.tables)
        with (
            tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=self.home) as unfinished,
            telling(lambda: share(what, len(tables), every)),
        ):
            own = Path(unfinished)
            solved = self.reconciliation.solved(group)
            files = list[dict[str, Any]]()
            for table, columns, facts in _columns(solved, self.reconciliation.options.draws, self.described):
                files += [file.facts(own) for file in _write(own, table, solved.atoms, columns, csv=self.csv)]
                tables[table.name] = facts
            for file in files:
                (self.home / file["path"]).parent.mkdir(exist_ok=True)
                (own / file["path"]).replace(self.home / file["path"])
        return Made(_group_facts(solved), tables, files)


def make_reconciled(
    reconciliation: Reconciliation,
    out: Path,
    *,
    csv: bool = False,
    each: "Callable[[MakeGroup, list[int], str], list[Made]] | None" = None,
    signing: "SigningKey | None" = None,
) -> dict[str, Any]:
    """Write the reconciled tables of releases to `out`; return the manifest, which a killed run leaves out.

    The same releases, options and build give the same bytes, whether an engine's `each` solves the groups, whose
    workers reach the releases and `out`, or none. Raises PlanError where tables and options do not fit together,
    StateError where a release's file changed, `out` cannot be filled, or a worker does not reach it.
    """
    numbers = reconciliation.weighted_groups()
    with filled(out, RECONCILED.name) as home:
        described = Described.of(reconciliation.folders, reconciliation.options.interval)
        make = MakeGroup(reconciliation, home.resolve(), described, csv)
        done = each(make, numbers, "groups of tables") if each else [make(number) for number in numbers]
        for left in home.glob(f"{UNFINISHED}*"):  # of a worker that died
            shutil.rmtree(left, ignore_errors=True)
        groups = [one.group for one in done]
        tables = {
            name: facts | {"group": number} for number, one in enumerate(done) for name, facts in one.tables.items()
        }
        made = [file for one in done for file in one.files]
        structure = _joined(reconciliation).to_json().encode()
        beside = described.files(tables, ("parquet", "csv") if csv else ("parquet",)) if described else {}
        for name, data in ({STRUCTURE: structure} | beside).items():
            (home / name).parent.mkdir(exist_ok=True)
            (home / name).write_bytes(data)
            made.append(manifest_file(data, name))
        manifest = {
            "dataset": reconciliation.structure.dataset,
            "releases": reconciliation.releases,
            "options": reconciliation.options.to_json(),
            "build": code_digest(),
            "groups": groups,
            "tables": tables,
            "not_reconciled": dict(reconciliation.not_reconciled()),
            "apart": reconciliation.apart(),
            "files": sorted(made, key=lambda file: str(file["path"])),
        }
        write_manifest(home, RECONCILED.name, manifest, signing)
    return manifest


def _columns(
    solved: Solved, draws: int, described: "Described | None"
) -> Iterator[tuple[ReleasedTable, "Columns", dict[str, Any]]]:
    drawn = drawn_of(solved.estimates, [table.name for table in solved.tables], draws)
    shown = solved.estimates.display()
    errors: dict[str, tuple[Floats, dict[str, Any]]] = {}
    multipliers: dict[str, Floats] = {}
    if worth_drawing(solved, draws):
        errors = {table.name: variances_of(solved.estimates, table.name, drawn) for table in solved.tables}
        multipliers = multipliers_of(solved, {name: variances for name, (variances, _) in errors.items()}, draws)
    for table in solved.tables:
        known = errors.pop(table.name) if errors else variances_of(solved.estimates, table.name, drawn)
        variances, how = known
        most = multipliers.pop(table.name, np.array(np.inf))
        how["intervals"] = "drawn" if np.isfinite(most).any() else "bound"
        how |= {"derived": True} if table.released is None else {}
        own = table.additive and table.name not in solved.why and how["errors"] == EXACT
        spread = OwnNoise.of(table, solved.spread) if own else solved.spread
        notes = described.notes(table.name) if described else {}
        columns = Columns(solved.estimates.table(table.name), variances, shown.pop(table.name), most, spread, notes)
        yield table, columns, how | {"rows": table.cells.size, "at_expected_totals": solved.expected}


def _joined(reconciliation: Reconciliation) -> Structure:
    measures: dict[str, Mapping[str, Any]] = {}
    tables: dict[str, TableFacts] = {}
    for each in reconciliation.structures.values():
        measures |= dict(each.measures)
        tables |= dict(each.tables)
    tables |= {name: table.facts for name, table in reconciliation.derived.items()}
    return replace(reconciliation.structure, measures=measures, tables=tables, derived={})


def _group_facts(solved: Solved) -> dict[str, Any]:
    estimates = solved.estimates
    return {
        "of": solved.group.label,
        "keys": sorted(solved.group.keys),
        "tables": [table.name for table in solved.tables],
        "unweighted": dict(solved.why),
        "unit": estimates.unit,
        "base_cells": solved.atoms.size,
        "iterations": estimates.iterations,
        "residual": estimates.residual,
    }


class Columns(NamedTuple):
    """Of a table's cells, on the base's axes: estimates, variances, what is displayed; how far intervals reach.

    `most`: standard errors that an interval needs at most, whatever `spread` says. `notes`: what the Parquet file says
    of the table.
    """

    value: Floats
    variance: Floats
    display: Int64s
    most: Floats
    spread: Spread | OwnNoise
    notes: dict[str, str]


def _write(home: Path, table: ReleasedTable, atoms: Atoms, columns: Columns, *, csv: bool) -> list[Hashed]:
    cells = table.cells

    def flat(of_cells: NDArray[Any]) -> NDArray[Any]:
        return atoms.in_key_order(cells, np.broadcast_to(of_cells, atoms.widths(cells)))

    values, variances, display, most = map(flat, columns[:4])
    parts = flat(atoms.placed(cells, table.part_numbers())) if len(table.mechanisms) > 1 else None
    path = home / "tables" / f"{safe_name('query', table.name)}.parquet"
    reader = None if table.released is None else table.released.reader()
    columns_of = [name for name in COLUMNS if reader is not None or name != PUBLISHED]
    with Written(path, *([path.with_suffix(".csv")] if csv else []), notes=columns.notes) as made:
        for piece, keys in key_pieces(cells):
            value, variance = values[piece], variances[piece]
            reach = columns.spread.half_width(variance, 0 if parts is None else parts[piece])
            half = np.minimum(reach, np.multiply(most[piece], np.sqrt(variance), out=reach.copy(), where=variance > 0))
            published = [] if reader is None else [numbers(reader.take(piece.stop - piece.start), VALUE)]
            shown = (value, value - half, value + half, np.sqrt(variance), *published, display[piece])
            figures = {name: pa.array(each) for name, each in zip(columns_of, shown, strict=True)}
            made.write(pa.table(keys | figures))
    return made.files


@dataclass(frozen=True)
class VerifiedTables:
    """A reconciled folder whose every file matches its manifest and whose tables add up.

    `sums` counts the cells that were held against the sums of finer ones, `value` and `display` each; `signed_by` is
    the fingerprint of the key whose signature was checked, None where none was asked for.
    """

    dataset: str
    releases: tuple[str, ...]
    files: int
    bytes: int
    sums: int
    signed_by: str | None = None


def verify_reconciled(folder: Location, key: "PublicKey | None" = None) -> VerifiedTables:
    """Return what was verified: each file is the manifest's, every coarser cell is the sum of finer ones, and tables
    that are not sums of others have the same sums wherever two of them tell one.

    The sums are repeated from the files alone, in whole units: `value` in the group's unit and `display`. Raises
    StateError naming the first file, or the first table, that is not as it should be; with `key` also where the
    manifest is not signed by it.
    """
    manifest = Manifest.verified(folder, RECONCILED, key)
    structure = structure_of(manifest)
    if lacking := manifest["tables"].keys() - structure.tables.keys():
        raise StateError(f"{folder / STRUCTURE}: it does not have the table {min(lacking)}: it was changed")
    sums = 0
    for group in manifest["groups"]:
        cells = {name: structure.tables[name].cells(structure.domain) for name in group["tables"]}
        columns = ((VALUE, group["unit"]), (DISPLAY, 1))
        largest = []
        for name, of_table in cells.items():
            for roll_up, finer in _finer(name, cells):
                fold = roll_up.fold()
                for column, unit in columns:
                    other = fold(_in_units(manifest, finer, column, unit))
                    if not np.array_equal(_in_units(manifest, name, column, unit), other):
                        raise StateError(
                            f"{folder}: {column} of the table {name} is not the sum of that of {finer}: the tables "
                            "do not add up"
                        )
                sums += of_table.size
                break
            else:
                largest.append(name)
        for column, unit in columns:  # all others are sums of these, so that every pair of tables agrees
            of_largest = ((name, cells[name], _in_units(manifest, name, column, unit)) for name in largest)
            for pair, shared, agree in in_common(structure.domain, list(of_largest)):
                if not agree:
                    raise StateError(
                        f"{folder}: {column} of the tables {pair} do not have the same sums: the tables do not add up"
                    )
                sums += shared if column == VALUE else 0
    releases = tuple(each["release"] for each in manifest["releases"])
    return VerifiedTables(manifest["dataset"], releases, *manifest.size, sums, manifest.signed_by)


def _finer(name: str, cells: Mapping[str, QueryCells]) -> Iterator[tuple[RollUp, str]]:
    """Yield the sums that lead to a table from the smallest other one with finer cells, or equal ones before it."""
    names = list(cells)
    able = [
        each for number, each in enumerate(names) if (cells[each].size, number) > (cells[name].size, names.index(name))
    ]
    bases = [Base(cells[each], ("",)) for each in able]
    finer = cheapest(bases, cells[name], "")
    if finer is not None:
        yield RollUp.of(bases[finer], cells[name]), able[finer]


def _in_units(manifest: Manifest, name: str, column: str, unit: float) -> Int64s:
    part = published_part(manifest.folder, manifest.files[f"tables/{name}.parquet"])
    units: Int64s = np.rint(part.read([column]).column(column).to_numpy() / unit).astype(np.int64)
    return units


# What a reconciled folder says of its tables: the descriptions of the releases, with the columns of estimates.

ESTIMATED = {  # column → type and meaning
    "value": ("number", "the estimate of the cell's total from all tables together"),
    "lower": ("number", MEANINGS["lower"]),
    "upper": ("number", MEANINGS["upper"]),
    "standard_error": ("number", "the size of the estimate's error, or an upper bound of it"),
    "published": (None, "the published figure"),  # of the type that it had
    "display": ("integer", "the estimate in whole units that are not negative, which add up too"),
}


@dataclass(frozen=True, eq=False)
class Described:
    """What the releases that are reconciled say: of all tables together, of each table and list, and the lists."""

    package: dict[str, Any]
    resources: dict[str, dict[str, Any]]
    lists: dict[str, bytes]
    interval: float

    @classmethod
    def of(cls, folders: Iterable[Location], interval: float) -> "Described | None":
        """Return the description of verified releases; None where an earlier build left one of them without."""
        packages: list[dict[str, Any]] = []
        lists: dict[str, bytes] = {}
        for folder in folders:
            package, codes = description_of(Manifest.read(folder))
            if package is None:
                return None
            packages.append(package)
            lists |= codes
        together = packages[0] | {
            "name": "reconciled",
            "title": f"{packages[0]['title']}: tables that add up",
            "release": ", ".join(each["release"] for each in packages),
            "plan_digest": ", ".join(each["plan_digest"] for each in packages),
        }
        together.pop("derived", None)
        known = {each["name"]: each for package in packages for each in package.get("derived", ())}
        known |= {each["name"]: each for package in packages for each in package["resources"]}
        return cls(together, known, lists, interval)

    def notes(self, table: str) -> dict[str, str]:
        """Return what the Parquet file of a table's estimates says of it."""
        return file_notes(self.package, _estimated(self.resources[table], self.interval, "parquet"))

    def files(self, tables: Collection[str], formats: Collection[str]) -> dict[str, bytes]:
        """Return datapackage.json and lists of codes, by path; `formats`: those of the tables' files."""
        resources = [_estimated(self.resources[name], self.interval, each) for name in tables for each in formats]
        levels = {level for each in resources for level in each["schema"]["primaryKey"]}
        used = sorted(f"{CODES}/{level}" for level in levels)
        package = self.package | {"resources": [*resources, *(self.resources[name] for name in used)]}
        return {PACKAGE: readable_json(package, 1).encode()} | {f"{name}.csv": self.lists[name] for name in used}


def _estimated(released: dict[str, Any], interval: float, kind: str) -> dict[str, Any]:
    name, fields = released["name"], {field["name"]: field for field in released["schema"]["fields"]}
    keys = [fields[level] for level in released["schema"]["primaryKey"]]
    columns = [
        {
            "name": column,
            "type": of or fields["value"]["type"],
            "description": f"{meaning}; in {released['unit']}",
            "unit": released["unit"],
        }
        for column, (of, meaning) in ESTIMATED.items()
        if column != PUBLISHED or released["mechanisms"] != [MADE_LATER]
    ]
    return released | {
        "name": name if kind == "parquet" else f"{kind}/{name}",
        "path": f"tables/{name}.{kind}",
        "format": kind,
        "mediatype": FORMATS[kind].media,
        "description": f"{released['description']} Estimated from all tables together (prdp reconcile).",
        "interval": interval,
        "schema": released["schema"] | {"fields": [*keys, *columns]},
    }
