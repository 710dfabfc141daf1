"""The tables that a product shows: released, reconciled, or both; in the order of keys that the product wants."""

import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import PlanError, arg
from pipeline.engines.writers import PIECE
from pipeline.publication.description import CODES
from pipeline.publication.manifest import RECONCILED, Manifest
from pipeline.publication.release_folder import (
    DISPLAY,
    ERROR,
    VALUE,
    Reader,
    Source,
    column,
    description_of,
    equal_codes,
    numbers,
    released,
    same_keys,
    structure_of,
)
from pipeline.storage.location import Location
from pipeline.storage.staging import STRUCTURE
from udfs.estimates.intervals import Law, multiplier

LOWER, UPPER = "lower", "upper"
RELEASED = ("released", "released_error")  # beside estimates: the released value and its standard error


@dataclass(frozen=True, eq=False)
class ShownTable:
    """A table that a product shows: `released`, or with `estimates` in front, which may also stand alone.

    `group`: the number of the tables that its estimates add up with. `expected`: whether errors of estimates hold at
    expected totals alone. `kept`: its cells in the order of other `levels`, or of other codes, each of which is the sum
    of at most `merged` cells. `adds_up`: whether sums of its cells are totals.
    """

    name: str
    released: Source | None
    estimates: Source | None = None
    group: int | None = None
    expected: bool = False
    kept: "Kept | None" = None
    adds_up: bool = True
    merged: int = 1

    @property
    def own(self) -> Source:
        """The file whose figures are shown."""
        source = self.estimates or self.released
        assert source is not None
        return source

    @property
    def levels(self) -> tuple[str, ...]:
        """Its keys, the first one outermost in its order of rows."""
        return self.own.levels if self.kept is None else tuple(self.kept.codes)

    @property
    def rows(self) -> int:
        """Its number of cells."""
        return self.own.rows if self.kept is None else prod(map(len, self.kept.codes.values()))

    @property
    def reconciled(self) -> bool:
        """Whether it shows estimates."""
        return self.estimates is not None

    @property
    def additive(self) -> bool:
        """Whether errors of sums of its cells are known: of additive noise, and as bounds of all estimates."""
        return self.reconciled or self.own.additive

    @property
    def reach(self) -> float:
        """How many standard errors the interval of a sum reaches: sums of additive noise are symmetric, one peak."""
        symmetric = not self.expected if self.reconciled else self.own.additive
        return multiplier(1 - self.own.interval, Law.SYMMETRIC if symmetric else Law.ANY)

    @property
    def law(self) -> Law | None:
        """What is known of its errors' law, also of sums of cells; None where an interval alone tells of an error."""
        if self.reconciled:
            return Law.ANY if self.expected else Law.SYMMETRIC
        return self.own.law

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns of figures that it has."""
        beside = RELEASED if self.reconciled and self.released is not None else ()
        return (VALUE, ERROR, LOWER, UPPER, *([DISPLAY] if self.reconciled else []), *beside)

    @property
    def shown(self) -> str:
        """The column that is shown: whole numbers that add up, where it is reconciled."""
        return DISPLAY if self.reconciled else VALUE

    def reader(self, groups: int = 1, without: str | None = None) -> Reader:
        """Return what reads the table from its first row on, so many row groups at once, `without` a figure or not."""
        return Reader(self.pieces(groups, without) if self.kept is None else self.kept.pieces())

    def pieces(self, groups: int = 1, without: str | None = None) -> Iterator[pa.Table]:
        """Yield keys, as dictionaries, and all figures, in key order; PlanError where estimates are of other cells."""
        if self.estimates is None or self.released is None:
            yield from self.own.pieces([name for name in self.figures if name != without], groups, threads=False)
            return
        beside = Reader(self.released.pieces(groups=groups, threads=False))
        for piece in self.estimates.pieces(self.figures[: -len(RELEASED)], groups, threads=False):
            other = beside.take(len(piece))
            if not same_keys(piece, other, self.levels):
                raise PlanError(
                    f"{self.estimates.folder}: the cells of the table {self.name} are not those of the release"
                )
            for name, figure in zip(RELEASED, (VALUE, ERROR), strict=True):
                piece = piece.append_column(name, other.column(figure))  # noqa: PLW2901 — the same piece, longer
            yield piece

    def turned(self, levels: Sequence[str], home: Path, file: str) -> "ShownTable":
        """Return the same cells in the order of `levels`, which are its keys; `home` holds them meanwhile.

        Raises PlanError, which names the product's `file`, where they are not all combinations of codes.
        """
        return self if tuple(levels) == self.levels else replace(self, kept=self._cubes(levels, home, file))

    def codes(self) -> dict[str, list[str]]:
        """Return the codes of each of its levels, in the order of its rows."""
        if self.kept is not None:
            return {level: codes.to_pylist() for level, codes in self.kept.codes.items()}
        codes: dict[str, dict[str, None]] = {level: {} for level in self.levels}
        for piece in self.own.pieces(()):
            for level, known in codes.items():
                known.update(dict.fromkeys(column(piece, level).dictionary.to_pylist()))
        return {level: list(known) for level, known in codes.items()}

    def following(
        self, became: Mapping[str, Mapping[str, str]], codes: Mapping[str, Sequence[str]], home: Path, file: str
    ) -> "ShownTable":
        """Return the table of later `codes`, by level: the sums of those that `became` them, NaN where none did.

        Errors of sums are those of layouts; PlanError where they are not known.
        """
        kept, places = self.kept or self._cubes(self.levels, home, file), []
        lists = {level: codes.get(level, own.to_pylist()) for level, own in kept.codes.items()}
        for level, own in kept.codes.items():
            numbers_of = {code: number for number, code in enumerate(lists[level])}
            names = (became[level].get(code, "") if level in became else code for code in own.to_pylist())
            places.append(np.array([numbers_of.get(name, -1) for name in names]))
        axes, shape = np.meshgrid(*places, indexing="ij"), tuple(map(len, lists.values()))
        inside = np.min(axes, axis=0) >= 0
        cells = np.ravel_multi_index([axis[inside] for axis in axes], shape)
        count = np.bincount(cells, minlength=prod(shape))
        if count.max() > 1 and not (self.additive and self.adds_up):
            why = "noise is not additive" if self.adds_up else "cells each count an owner"
            raise PlanError(f"{file}: a concordance adds up codes of the table {self.name}, whose {why}")

        def total(name: str, power: int = 1) -> Any:
            sums = np.bincount(cells, kept.figures[name][inside].astype(np.float64) ** power, prod(shape))
            return np.where(count > 0, sums, np.nan)

        sums, own = {name: total(name) for name in self.figures}, count == 1
        if RELEASED[1] in sums:
            sums[RELEASED[1]] = np.where(own, sums[RELEASED[1]], np.sqrt(total(RELEASED[1], 2)))
        error = sums[ERROR] if self.reconciled else np.sqrt(total(ERROR, 2))
        sums[ERROR] = np.where(own, sums[ERROR], np.minimum(error, sums.get(RELEASED[1], np.inf)))
        for name, side in ((LOWER, -1), (UPPER, 1)):
            sums[name] = np.where(own, sums[name], sums[VALUE] + side * self.reach * sums[ERROR])
        cubes = {name: each.reshape(shape) for name, each in sums.items()}
        kept = Kept({level: pa.array(each, pa.string()) for level, each in lists.items()}, cubes)
        return replace(self, kept=kept, merged=int(count.max()))

    def _cubes(self, levels: Sequence[str], home: Path, file: str) -> "Kept":
        lists = {level: pa.array(known, pa.string()) for level, known in self.codes().items()}
        shape = [len(known) for known in lists.values()]
        kept: dict[str, Any] = {}
        row = 0
        for piece in self.pieces():
            rows = slice(row, row := row + len(piece))
            places = [equal_codes(column(piece, level), codes) for level, codes in lists.items()]
            if row > prod(shape) or not (np.ravel_multi_index(places, shape) == np.arange(rows.start, row)).all():
                break
            for name in self.figures:
                figures = numbers(piece, name)
                if name not in kept:
                    with tempfile.TemporaryFile(dir=home) as unnamed:
                        kept[name] = np.memmap(unnamed, figures.dtype, "w+", shape=(prod(shape),))
                kept[name][rows] = figures
        else:
            if row == prod(shape):
                axes = [self.levels.index(level) for level in levels]
                cubes = {name: figures.reshape(shape).transpose(axes) for name, figures in kept.items()}
                return Kept({level: lists[level] for level in levels}, cubes)
        raise PlanError(
            f"{file}: the table {self.name} is a list of cells with the keys {', '.join(self.levels)}: the order "
            f"{', '.join(levels)} needs all combinations of codes"
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """Cells of all combinations of codes: `codes` by level, the first one outermost, and figures on these axes."""

    codes: Mapping[str, pa.Array]
    figures: Mapping[str, Any]

    def pieces(self) -> Iterator[pa.Table]:
        """Yield keys, as dictionaries, and figures, some codes of the first level at a time."""
        shape = [len(codes) for codes in self.codes.values()]
        inside = prod(shape[1:])
        step = max(1, PIECE // max(inside, 1))
        for first in range(0, shape[0], step):
            count = min(step, shape[0] - first)
            places = np.unravel_index(np.arange(first * inside, (first + count) * inside), shape)
            columns: dict[str, Any] = {
                level: pa.DictionaryArray.from_arrays(pa.array(place.astype(np.int32)), codes)
                for (level, codes), place in zip(self.codes.items(), places, strict=True)
            }
            columns |= {name: cube[first : first + count].ravel() for name, cube in self.figures.items()}
            yield pa.table(columns)


@dataclass(frozen=True, eq=False)
class Grid:
    """A table whose cells are, in each area, the same product of codes.

    `codes`: of each of its levels but the area, in their order. `since`: of the earlier releases of a change.
    """

    source: ShownTable
    codes: Mapping[str, pa.Array]
    since: bool = False

    @classmethod
    def of(cls, source: ShownTable, file: str) -> "Grid":
        """Return the grid of a table, as its first area shows it; `pieces` hold every other area against it."""
        (area, *levels), rows = source.levels, PIECE
        while True:
            keys = (Reader(source.own.pieces(())) if source.kept is None else source.reader()).take(rows)
            places = column(keys, area).indices.to_numpy(zero_copy_only=False)
            if len(keys) == source.rows or places[-1] != places[0]:
                break
            rows *= 4
        first = keys.slice(0, (len(places) and int(np.argmax(places != places[0]))) or len(places))
        grid = cls(source, {level: column(first, level).cast(pa.string()).unique() for level in levels})
        if not prod(grid.shape) or source.rows % prod(grid.shape) or not grid.fits(first, 1):
            raise grid.refused(file)
        return grid

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of codes of each level but the area."""
        return tuple(len(codes) for codes in self.codes.values())

    def fits(self, rows: pa.Table, areas: int) -> bool:
        """Whether rows are those of so many areas, one after the other."""
        inside = prod(self.shape)
        if len(rows) != areas * inside:
            return False
        for number, (level, codes) in enumerate(self.codes.items()):
            each = prod(self.shape[number + 1 :])
            keys = column(rows, level)
            numbers = keys.indices.to_numpy(zero_copy_only=False).reshape(-1, len(codes), each)
            places = pc.index_in(codes, keys.dictionary).fill_null(-1).to_numpy().astype(numbers.dtype)
            if not (numbers == places[None, :, None]).all():
                return False
        area = column(rows, self.source.levels[0]).indices.to_numpy(zero_copy_only=False).reshape(areas, inside)
        return bool((area == area[:, :1]).all())

    @property
    def areas(self) -> int:
        """The number of areas."""
        return self.source.rows // prod(self.shape)

    def areas_of(self, rows: pa.Table) -> pa.Array:
        """Return the codes of the areas of rows that fit."""
        keys = column(rows, self.source.levels[0])
        return keys.take(pa.array(np.arange(0, len(keys), prod(self.shape)))).cast(pa.string())

    def refused(self, file: str) -> PlanError:
        """Return the error that the table is no grid."""
        return PlanError(
            f"{file}: the cells of the table {self.source.name} are not the same in each "
            f"{self.source.levels[0]}: a layout needs tables of all combinations of codes"
        )


@dataclass(frozen=True, eq=False)
class ShownTables:
    """All tables of the folders that a product is made of, by name.

    `releases` and `reconciled`: what the product's manifest says of them; `lists`: names of codes, by level, as the
    folders have them; `not_reconciled`: by table, why it has no estimates; `derived`: tables that were not measured;
    `remarks`: what readers must know of codes, as files are made.
    """

    tables: Mapping[str, ShownTable]
    releases: list[dict[str, Any]]
    reconciled: dict[str, Any] | None
    lists: Mapping[str, bytes]
    not_reconciled: Mapping[str, str]
    derived: frozenset[str]
    since: "ShownTables | None" = None
    remarks: set[str] = field(default_factory=set)

    def after(self, earlier: "ShownTables") -> "ShownTables":
        """Return the same with the tables of earlier releases, for changes; PlanError where an attempt is in both."""
        both = {each["attempt"] for each in self.releases} & {each["attempt"] for each in earlier.releases}
        if both:
            raise PlanError(f"{arg('since')}: attempt {min(both)} is on both sides: its noise is no independent noise")
        return replace(self, since=earlier)

    @classmethod
    def of(cls, folders: Sequence[Location], reconciled: Location | None = None) -> "ShownTables":
        """Return the tables of verified releases, and of one reconciled folder, among `folders` or beside them.

        Raises StateError where a file is not its manifest's, PlanError where two tables have one name, two folders
        are reconciled, or the reconciled one was made of a release that is not given while others are.
        """
        estimates = [folder for folder in folders if (folder / RECONCILED.name).is_file()]
        manifests = [Manifest.verified(folder) for folder in folders if folder not in estimates]
        estimates += [] if reconciled is None else [reconciled]
        if len(estimates) > 1:
            raise PlanError(f"{estimates[0]} and {estimates[1]}: both hold reconciled tables: give one such folder")
        sources, facts = released(manifests)
        lists = {name: data for each in manifests for name, data in description_of(each)[1].items()}
        structures = [structure_of(each) for each in manifests if STRUCTURE in each.files]
        alone = {name for of in structures for name, each in of.tables.items() if not each.statistic.adds_up}
        tables = {name: ShownTable(name, source, adds_up=name not in alone) for name, source in sources.items()}
        derived = frozenset(name for each in structures for name in each.derived)
        if not estimates:
            return cls(tables, facts, None, lists, {}, derived)
        (folder,) = estimates
        manifest = Manifest.verified(folder, RECONCILED)
        digests = {each["manifest_sha256"] for each in facts}
        for each in manifest["releases"]:
            if facts and each["manifest_sha256"] not in digests:
                raise PlanError(
                    f"{folder}: it was made of the release {each['release']}, which is not given, or differs"
                )
        structure, interval = structure_of(manifest), manifest["options"]["interval"]
        by = {**structure.tables, **structure.derived}
        for name, about in manifest["tables"].items():
            files = (manifest.files[f"tables/{name}.parquet"],)
            statistic = by[name].statistic
            measure = statistic.measure
            step = 1 if measure is None else structure.measures[measure]["step"]
            source = Source(name, folder, files, about["rows"], by[name].by, {"step": step}, interval)
            shown = ShownTable(name, sources.get(name), source, about["group"], about["at_expected_totals"])
            tables[name] = replace(shown, adds_up=statistic.adds_up)
        about = {"manifest_sha256": manifest.sha256, "tables": sorted(manifest["tables"])}
        lists = description_of(manifest)[1] | lists
        derived |= {name for name, each in manifest["tables"].items() if each.get("derived")}
        return cls(tables, facts or manifest["releases"], about, lists, manifest["not_reconciled"], derived)

    def only_released(self) -> "ShownTables":
        """Return the same without estimates."""
        tables = {
            name: replace(each, estimates=None, group=None) for name, each in self.tables.items() if each.released
        }
        return replace(self, tables=tables, reconciled=None)

    def names(self, level: str) -> dict[str, str]:
        """Return the names of a level's codes that the folders' own lists have."""
        data = self.lists.get(f"{CODES}/{level}", b"code,name\n")
        rows = csv.DictReader(io.StringIO(data.decode(), newline=""))
        return {row["code"]: row["name"] for row in rows if row["name"]}

    def has(self, wanted: Sequence[str] | str) -> bool:
        """Whether there is a table of this name, or of one of these."""
        return self._first(wanted) is not None

    def needed(
        self, values: Mapping[str, Sequence[str] | str], file: str, *, all_reconciled: bool
    ) -> dict[str, ShownTable]:
        """Return, by measure, the tables of a file of the product.

        Of several names it is the first that there is, and that adds up with the last of them that there is.

        PlanError names those that no folder has, and with `all_reconciled` those that have no estimates.
        """
        lacking = sorted({" or ".join(_names(wanted)) for wanted in values.values() if not self.has(wanted)})
        if lacking:
            reasons = sorted({self.not_reconciled[name] for name in lacking if name in self.not_reconciled})
            also = f" (not reconciled: {', '.join(reasons)}; give the release too)" if reasons else ""
            if any(not self.derived.isdisjoint(_names(wanted)) for wanted in values.values() if not self.has(wanted)):
                also += ": no release measured it: show the figures that prdp reconcile makes of these releases"
            raise PlanError(f"{file}: no folder has the table{'s' * (len(lacking) > 1)} {', '.join(lacking)}{also}")
        tables = {measure: self.tables[str(self._first(wanted))] for measure, wanted in values.items()}
        for each in tables.values():
            if all_reconciled and not each.reconciled:
                why = self.not_reconciled.get(each.name, "the folder does not have it")
                raise PlanError(
                    f"{file}: the table {each.name} is not reconciled ({why}), and the product shows reconciled "
                    f"figures: ask for released ones with {arg('released')}"
                )
        return tables

    def _first(self, wanted: Sequence[str] | str) -> str | None:
        known = [name for name in _names(wanted) if name in self.tables]
        return next((name for name in known if self.tables[name].group == self.tables[known[-1]].group), None)


def _names(wanted: Sequence[str] | str) -> Sequence[str]:
    return [wanted] if isinstance(wanted, str) else wanted
