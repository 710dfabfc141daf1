"""The tables that are reconciled: what each shows on the public domain, its noise, and which belong together.

Tables that show the same statistic of the same records form a group. Tables that leave other records out, those
without a listed code in some other keys, say nothing on each other's records (docs/mathematics.md): they never meet.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pipeline.base.errors import PlanError, StateError, hint, in_a_line
from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import Base, Int32s, QueryCells, cheapest
from pipeline.plan.model import Plan
from pipeline.plan.structure import Structure, TableFacts, unweighted
from pipeline.publication.manifest import Manifest
from pipeline.publication.release_folder import VALUE, Source, column, equal_codes, numbers, released, structure_of
from pipeline.storage.location import Location
from udfs.estimates.intervals import Law, combined, law_of, multiplier
from udfs.estimates.solve import Estimates
from udfs.estimates.tables import sums_between
from udfs.estimates.variances import Drawn
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import build
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact
from udfs.records.statistics import Statistic

DERIVED = "it is derived: no release measured it"
DIGITS = 2  # of the expected totals at which variances are computed


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A released table: its source, its cells in the public domain, and the mechanisms of its parts.

    One that a plan derives has no source and no mechanisms: no release measured it.
    """

    released: Source | None
    facts: TableFacts
    domain: Domain
    cells: QueryCells
    mechanisms: Mapping[str | None, Mechanism]

    @classmethod
    def of(cls, source: Source, structure: Structure) -> "ReleasedTable":
        """Return the table; PlanError where policy.json lacks its mechanism, or its rows are not its public cells."""
        if source.name not in structure.tables:
            raise StateError(f"{source.folder}: its structure does not have the table {source.name}: it was changed")
        facts = structure.tables[source.name]
        cells = facts.cells(structure.domain)
        if cells.size != source.rows:
            raise PlanError(f"{source.folder}: the table {source.name} has not the cells that its structure tells")
        try:
            parts = {each.get("part"): each for each in source.query.get("parts", [source.query])}
            built = {part: build(parts[part]["mechanism"], exact(parts[part]["step"])) for part in facts.parts}
        except (KeyError, TypeError, ValueError) as error:
            what = str(error) if isinstance(error, ParameterError) else "kind, parameters or step are missing"
            raise PlanError(
                f"{source.folder}: policy.json does not tell the noise of the table {source.name} ({what}): "
                "tables whose noise is withheld cannot be weighted"
            ) from None
        return cls(source, facts, structure.domain, cells, built)

    @classmethod
    def of_derived(cls, facts: TableFacts, domain: Domain) -> "ReleasedTable":
        """Return a table that a plan derives."""
        return cls(None, facts, domain, facts.cells(domain), {})

    @property
    def source(self) -> Source:
        """Where its released values are, which a derived table has not."""
        assert self.released is not None
        return self.released

    @property
    def name(self) -> str:
        """The table's name."""
        return self.facts.name

    @property
    def statistic(self) -> Statistic:
        """What it totals."""
        return self.facts.statistic

    @property
    def additive(self) -> bool:
        """Whether the variance of every part's noise is the same at all totals."""
        return all(mechanism.additive for mechanism in self.mechanisms.values())

    @cached_property
    def unweighted(self) -> str | None:
        """Why no weights can be had for it, in words; None where they can."""
        return DERIVED if self.released is None else unweighted(self.mechanisms.values())

    def variance(self, expected: Floats | None) -> Floats:
        """Return the variance of each cell's noise, broadcastable to the shape of its axes (listed cells: flat).

        `expected`: true totals to be expected, in that shape, which transformed mechanisms need; they are taken in
        two digits.
        """
        of_part = self.part_numbers()
        if self.additive:
            return np.array([each.variance(0.0) for each in self.mechanisms.values()])[of_part]
        assert expected is not None
        totals, of_cell = np.unique(_rounded(np.maximum(expected, 0.0)), return_inverse=True)
        result = np.zeros(np.shape(expected))
        for number, mechanism in enumerate(self.mechanisms.values()):
            mine = np.broadcast_to(of_part == number, result.shape)
            variances = np.zeros(len(totals))
            needed = np.unique(of_cell.reshape(result.shape)[mine])
            variances[needed] = [mechanism.variance(float(total)) for total in totals[needed]]
            result[mine] = variances[of_cell.reshape(result.shape)[mine]]
        return result

    def part_numbers(self) -> Int32s:
        """Return the part of each cell, broadcastable to the shape of its axes (listed cells: flat)."""
        flat = self.cells.listed is not None
        if self.facts.split is None:
            return np.zeros((1,) * (1 if flat else len(self.cells.axes)), dtype=np.int32)
        dimension = self.domain.dimension(self.facts.split)
        place, level = next((i, each) for i, each in enumerate(self.facts.by) if each in dimension.levels)
        parent = dimension.between(level, self.facts.split)
        assert parent is not None  # a plan's check saw to it
        part_of = {code: i for i, codes in enumerate(self.facts.parts.values()) for code in codes}
        of_code = np.array([part_of.get(code, -1) for code in dimension.level_codes(self.facts.split)], dtype=np.int32)
        of_position: Int32s = of_code[parent][self.cells.axes[place].kept]
        if flat:
            listed: Int32s = of_position[self.cells.positions_of(self.cells.listed)[place]]  # type: ignore[arg-type]
            return listed
        return of_position.reshape([-1 if i == place else 1 for i in range(len(self.cells.axes))])

    def values(self) -> Floats:
        """Return the released values in key order; PlanError where the rows are not the public cells in key order."""
        values, start = np.empty(self.cells.size), 0
        for piece in self.source.pieces():
            stop = start + len(piece)
            keys = self.cells.keys(start, stop) if stop <= len(values) else {}
            for level, (codes, indices) in keys.items():
                coded = column(piece, level)
                if not np.array_equal(np.array(_numbered(coded, codes)), indices):
                    keys = {}
                    break
            if len(piece) and not keys:
                raise PlanError(f"{self.source.folder}: the rows of the table {self.name} are not its public cells")
            values[start:stop] = numbers(piece, VALUE)
            start = stop
        return values


def _numbered(coded: Any, codes: Sequence[str]) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return equal_codes(coded, pa.array(codes, pa.string()))


def _rounded(totals: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        places = np.where(totals > 0, np.floor(np.log10(totals)), 0) - (DIGITS - 1)
    step = 10.0**places
    return np.rint(totals / step) * step


@dataclass(frozen=True, eq=False)
class Group:
    """Tables of one statistic that leave the same records out: those without a listed code in one of `keys`."""

    statistic: Statistic
    keys: frozenset[str]
    tables: tuple[ReleasedTable, ...]

    @property
    def label(self) -> str:
        """The group in words."""
        return self.statistic.label

    @property
    def told_apart(self) -> frozenset[str]:
        """The keys that any of the tables uses."""
        domain = self.tables[0].domain
        return frozenset(domain.dimensions[axis.key].key for each in self.tables for axis in each.cells.axes)

    def refined(self, table: ReleasedTable, by: Iterable[ReleasedTable]) -> bool:
        """Whether a table's cells are unions of those of another one of `by`."""
        bases = [Base(each.cells, ("",)) for each in by if each is not table]
        return cheapest(bases, table.cells, "") is not None


class Releases:
    """Verified releases of one dataset: `releases` says which, `structures` are by the text of their folders.

    Raises PlanError where they are not of one dataset, or their lists, or the units of a measure, differ.
    """

    def __init__(self, folders: Sequence[Location], plans: Sequence[Plan] = ()) -> None:
        manifests = [Manifest.verified(folder) for folder in folders]
        sources, self.releases = released(manifests)
        self.folders = [one.folder for one in manifests]
        self.structures = {str(one.folder): structure_of(one, plans) for one in manifests}
        _require_alike(self.structures)
        self.tables = {
            name: ReleasedTable.of(source, self.structures[str(source.folder)]) for name, source in sources.items()
        }

    @cached_property
    def derived(self) -> Mapping[str, ReleasedTable]:
        """The tables that the releases publish without measuring them; PlanError where a name stands for two tables.

        One that another release measures, or derives as well, is one table.
        """
        known = {name: table.facts for name, table in self.tables.items()}
        derived = {}
        for folder, structure in self.structures.items():
            for name, facts in structure.derived.items():
                if not known.setdefault(name, facts).shows_what(facts):
                    raise PlanError(f"{folder}: its derived table {name} is another table than that of a release given")
                if name not in self.tables:
                    derived[name] = ReleasedTable.of_derived(facts, structure.domain)
        return derived

    @property
    def structure(self) -> Structure:
        """That of the first release: all have the same dataset and domain."""
        return next(iter(self.structures.values()))

    def named(self, name: str) -> ReleasedTable:
        """Return a table by its name; PlanError where there is none."""
        if name not in self.tables:
            raise PlanError(f"{in_a_line(name)}: no release has this table{hint(name, list(self.tables), 'table')}")
        return self.tables[name]


def _require_alike(structures: Mapping[str, Structure]) -> None:
    (home, first), *others = structures.items()
    for folder, other in others:
        if other.dataset != first.dataset:
            raise PlanError(
                f"{folder} is of the dataset {other.dataset}, {home} of {first.dataset}: tables of different "
                "datasets do not describe the same records"
            )
        if other.domain != first.domain:
            raise PlanError(
                f"{folder} and {home}: their lists of codes differ, so that their cells cannot be compared: "
                f"{_difference(first.domain, other.domain)}"
            )
        for name in first.measures.keys() & other.measures.keys():
            one, two = (
                ({k: each.measures[name].get(k) for k in ("column", "type", "step")}) for each in (first, other)
            )
            if one != two:
                raise PlanError(f"{folder} and {home}: the measure {name} has different columns, types or steps")


def _difference(one: Domain, other: Domain) -> str:
    if one.keys.keys() != other.keys.keys():
        return f"keys {', '.join(one.keys)} and {', '.join(other.keys)}"
    keys = [key for key in one.keys if one.keys[key].to_json() != other.keys[key].to_json()]
    return f"of {', '.join(keys)}" if keys else "cells that are listed, or vintages"


def groups_of(tables: Sequence[ReleasedTable]) -> Iterator[Group]:
    """Yield the groups of tables with cells, in the order of their first tables."""
    members_of: dict[tuple[Statistic, frozenset[str], str], list[ReleasedTable]] = {}
    for each in tables:
        if each.cells.size:
            alone = "" if each.statistic.adds_up else each.name  # no other table's cells tell anything of its own
            members_of.setdefault((each.statistic, each.facts.keys(each.domain), alone), []).append(each)
    for (statistic, keys, _), members in members_of.items():
        yield Group(statistic, keys, tuple(members))


def require_tables(named: Collection[str], tables: Mapping[str, Any], option: str) -> None:
    """Raise PlanError that names the first of `named` that is no table."""
    for name in named:
        if name not in tables:
            raise PlanError(f"{option} {name}: no release has this table{hint(name, list(tables), 'table')}")


# The errors of estimates: their variances, exact where that is cheap, and how far intervals reach for a variance.

EXACT, BOUND, DRAWN = "exact", "bound", "drawn"  # standard errors: what they are; no less; no less, nearly surely
SHARES = (0.0, 0.02, 0.1, 0.3)  # of the probability to be outside an interval: what may be due to others' noise
ROUNDING = 1e-12  # relative: an estimate whose variance is that much below its own noise's is the published value
WORK = 5_000_000  # cells of a table times cells of the base: seconds, if one solve for each cell is to be worth it


@dataclass(frozen=True)
class Spread:
    """How far an interval reaches for a standard error: what is known of the noise of the tables that are weighted.

    Noise on a lattice of step λ has no density with one peak, but has one with noise uniform on half a step to both
    sides added: so σ² + λ²/12 stands for σ², and half a step is added. That is proved for equal factors of the noise,
    and an allowance that simulation confirms for unequal ones (docs/mathematics.md, section 15, multipliers).
    """

    law: Law
    k: float
    step: float
    interval: float

    @classmethod
    def of(cls, weighted: list[ReleasedTable], interval: float) -> "Spread":
        """Return the spread of sums of the tables' noise: Gaussian, or symmetric where it is additive."""
        laws = [law_of(mechanism) for each in weighted for mechanism in each.mechanisms.values()]
        steps = [float(mechanism.step) for each in weighted for mechanism in each.mechanisms.values()]
        cells = max((each.cells.size for each in weighted), default=0)
        transformed = Law.UNIMODAL in laws and (cells > 1 or len(laws) > 1)
        law = Law.ANY if transformed else combined(laws)
        return cls(law, multiplier(1 - interval, law), max(steps, default=0.0), interval)

    def half_width(self, variance: Floats | float, _: Int32s | int = 0) -> Any:
        """Return half the interval's length for a variance; 0 for 0."""
        return self.reach(variance, self.k)

    def reach(self, variance: Floats | float, k: float) -> Any:
        """Return what errors of this variance exceed no more often than `k` says; 0 for 0."""
        wide = k * np.sqrt(np.asarray(variance) + self.step**2 / 12) + self.step / 2
        return np.where(np.asarray(variance) > 0, wide, 0.0)


@dataclass(frozen=True, eq=False)
class OwnNoise:
    """Intervals of a weighted table whose estimates are little else than its own published values.

    With V the variance of a cell's own noise Z and F that of its estimate, the best estimate's error is (F/V)·Z + R,
    Var R = F·(1 − F/V). So it exceeds (F/V)·c + r with probability at most P(|Z| > c) + P(|R| > r), where the first is
    known as the noise is drawn (docs/mathematics.md, section 15). It needs F as it is, and additive noise.
    """

    spread: Spread
    variance: Floats  # of each part's noise
    reaches: Mapping[float, Floats]  # by the probability that R may exceed r: of each part c for what is left

    @classmethod
    def of(cls, table: ReleasedTable, spread: Spread) -> "OwnNoise":
        """Return what the noise of the table's parts tells."""
        noise = list(table.mechanisms.values())
        beyond = 1 - spread.interval
        reaches = {
            share * beyond: np.array([float(z.interval_around(0.0, exact(1 - (1 - share) * beyond))[1]) for z in noise])
            for share in SHARES
        }
        return cls(spread, np.array([each.variance(0.0) for each in noise]), reaches)

    def half_width(self, variance: Floats, part: Int32s | int) -> Floats:
        """Return half the interval's length for exact variances of cells of these parts: the least of all bounds."""
        of_noise = self.variance[part]
        share = np.divide(variance, of_noise, out=np.ones(np.shape(variance)), where=of_noise > variance)
        rest = np.where(share > 1 - ROUNDING, 0.0, variance * (1 - share))
        best: Floats = self.spread.half_width(variance)
        for beyond, reach in self.reaches.items():
            of_rest = self.spread.reach(rest, multiplier(beyond, self.spread.law)) if beyond else 0.0
            reached = np.where((rest > 0) & (beyond == 0), np.inf, share * reach[part] + of_rest)
            best = np.minimum(best, reached)
        return best


def drawn_of(estimates: Estimates, names: Sequence[str], draws: int) -> dict[str, Drawn]:
    """Return what drawn solutions show of the tables whose variances would else be bounds."""
    large = [name for name in names if not _nested(estimates, name) and _large(estimates, name)]
    return estimates.drawn(large, draws) if draws and large else {}


def _large(estimates: Estimates, name: str) -> bool:
    table = estimates.tables[name]
    return prod(table.widths) * estimates.size > WORK


def _nested(estimates: Estimates, name: str) -> bool:
    """Whether a table nests in the one chain of the weighted ones; one without weight need not."""
    table = estimates.tables[name]
    chain = (each for each in estimates.tables.values() if each.variance is not None)
    return estimates.exact and all(
        sums_between(table, each) is not None or sums_between(each, table) is not None for each in chain
    )


def variances_of(estimates: Estimates, name: str, drawn: Mapping[str, Drawn]) -> tuple[Floats, dict[str, Any]]:
    """Return the variances of a table's estimates, broadcastable to its cells on the base, and how they were found.

    They are exact where tables nest in one chain, and where there are so few cells that each is solved for. Else they
    are upper bounds, from fewer data than the estimate uses, or upper ends of what was drawn where these are less:
    `monte_carlo_error` is by what share such a standard error lies above the one that was seen, at most.
    """
    bounds, table = estimates.variances(name), estimates.tables[name]
    if _nested(estimates, name):
        return bounds, {"errors": EXACT}
    if name in drawn:
        seen = drawn[name]
        less = seen.upper < bounds
        shares = np.divide(seen.upper, seen.variance, out=np.ones(less.shape), where=less & (seen.variance > 0))
        error = float(f"{np.sqrt(shares.max(initial=1.0)) - 1:.3g}")
        return np.where(less, seen.upper, bounds), {"errors": DRAWN, "monte_carlo_error": error}
    if _large(estimates, name):
        return bounds, {"errors": BOUND}
    variances = np.zeros(table.widths)
    for cell in np.ndindex(table.widths):
        inside = ((positions == here).astype(np.float64) for positions, here in zip(table.positions, cell, strict=True))
        variances[cell] = estimates.contrast(tuple(inside)).variance
    return variances, {"errors": EXACT}
