"""Estimates of released tables that add up: which tables enter with which weights, group by group, and sums of cells.

It is made of what releases published and of public facts: post-processing, which costs no record anything. Why the
estimates are the best, and what holds of their errors: docs/mathematics.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.base.errors import PlanError, arg, hint, in_a_line
from pipeline.plan.domain.keys import Where
from pipeline.plan.load import load_plan
from pipeline.plan.structure import closing
from pipeline.publication.public_totals import (
    MAX_CELLS,
    Atoms,
    PublicTotals,
    measure_of,
    named_files,
    read_totals,
    spread_evenly,
)
from pipeline.publication.released_tables import Group, ReleasedTable, Releases, Spread, groups_of, require_tables
from pipeline.storage.location import Location
from udfs.estimates.cliques import TooLarge
from udfs.estimates.solve import Estimates
from udfs.estimates.solve import reconcile as solve
from udfs.estimates.tables import EstimateError, Observed
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact
from udfs.records.statistics import Statistic

UNIT = 0.001  # of the measure's unit: estimates are whole multiples of it, or of it times a power of ten
Files = Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose. `fixed` and `expected`: files by the measure that their totals are of."""

    plans: Sequence[Path] = ()
    fixed: Files = field(default_factory=dict)
    expected: Files = field(default_factory=dict)
    weights_from: Sequence[str] = ()
    leave_out: Sequence[str] = ()
    interval: float = 0.95
    draws: int = 0
    max_cells: int = MAX_CELLS

    def to_json(self) -> dict[str, Any]:
        """Return the options as a manifest holds them: no paths."""
        return {
            "fixed": sorted(self.fixed),
            "expected": sorted(self.expected),
            "weights_from": list(self.weights_from),
            "leave_out": list(self.leave_out),
            "interval": self.interval,
            "draws": self.draws,
        }


@dataclass(frozen=True, eq=False)
class Solved:
    """A group's estimates; `why`: of its tables that carry no weight, the reason in words.

    `expected`: variances are those at the expected totals, as right as these are.
    """

    group: Group
    atoms: Atoms
    estimates: Estimates
    tables: tuple[ReleasedTable, ...]
    why: Mapping[str, str]
    spread: Spread
    expected: bool


class Reconciliation(Releases):
    """Verified releases of one dataset, to be reconciled group by group; each is solved when it is asked for.

    Raises PlanError also where options name what is not there.
    """

    def __init__(self, folders: Sequence[Location], options: Options) -> None:
        self.options = options
        super().__init__(folders, [load_plan(path) for path in options.plans])
        for named, option in ((options.weights_from, arg("weights_from")), (options.leave_out, arg("leave_out"))):
            require_tables(named, self.tables, option)
        if not 0 < options.interval < 1:
            raise PlanError(f"{arg('interval', options.interval)}: a number above 0 and below 1 is needed")
        if not options.draws >= 0:
            raise PlanError(f"{arg('draws', options.draws)}: a whole number of at least 0 is needed")
        self.groups = tuple(groups_of([*self.tables.values(), *self.derived.values()]))
        self._last: Solved | None = None
        self._fixed, self._expected = self._fixed_totals(), self._expected_totals()  # mistakes in files come first
        self._require_weights()

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers: not the estimates of the last group."""
        return vars(self) | {"_last": None}

    @cached_property
    def statistics(self) -> Mapping[str, Statistic]:
        """What tables total, by measure, where cells add up to others."""
        return {measure_of(group.statistic): group.statistic for group in self.groups if group.statistic.adds_up}

    def _fixed_totals(self) -> list[tuple[Statistic, PublicTotals]]:
        fixed = []
        for statistic, path in named_files(self.options.fixed, self.statistics, arg("fixed")).items():
            step = float(self._step(statistic))
            totals = read_totals(path, statistic, self.structure.domain, self._step(statistic))
            known = totals.values[~np.isnan(totals.values)]
            if not np.allclose(np.rint(known / step) * step, known, rtol=1e-12, atol=0):
                raise PlanError(
                    f"{path}: a total is no multiple of the measure's step, {step:g}: no records add up to it"
                )
            if all((group.statistic, group.keys) != (statistic, totals.keys) for group in self.groups):
                raise PlanError(
                    f"{path}: no table totals {statistic.label} of the same records, those with a listed code in "
                    f"{', '.join(sorted(totals.keys)) or 'any key'}: nothing can be held to these totals"
                )
            fixed.append((statistic, totals))
        return fixed

    def _expected_totals(self) -> Mapping[Statistic, PublicTotals]:
        """Expected totals by what they are of: those of files, and of noisy tables that do not enter the estimate."""
        domain = self.structure.domain
        files = named_files(self.options.expected, self.statistics, arg("expected"))
        expected = {each: read_totals(path, each, domain, self._step(each)) for each, path in files.items()}
        for name in self.options.weights_from:
            table = self.tables[name]
            if table.statistic in expected:
                raise PlanError(
                    f"{arg('weights_from', name)}: {table.statistic.label} has expected totals already: give one"
                )
            expected[table.statistic] = PublicTotals(name, table.facts.keys(domain), table.cells, table.values())
        return expected

    def _step(self, statistic: Statistic) -> Fraction:
        return Fraction(1) if statistic.measure is None else exact(self._measures[statistic.measure]["step"])

    @property
    def _measures(self) -> Mapping[str, Any]:
        return {name: facts for each in self.structures.values() for name, facts in each.measures.items()}

    @cached_property
    def _alone(self) -> frozenset[str]:
        """The tables that have nothing to be reconciled with."""
        fixed = {(statistic, totals.keys) for statistic, totals in self._fixed}
        lonely = (
            group for group in self.groups if len(group.tables) == 1 and (group.statistic, group.keys) not in fixed
        )
        return frozenset(group.tables[0].name for group in lonely)

    def _require_weights(self) -> None:
        """Raise PlanError that names the tables whose variance nobody knows before their totals."""
        lacking = [
            each.name
            for each in self.tables.values()
            if each.cells.size
            and not each.additive
            and self._why(each) is None
            and each.statistic not in self._expected
        ]
        if lacking:
            raise PlanError(
                f"the noise of {', '.join(lacking)} is larger where the total is, so that weights need totals from "
                f"elsewhere: give {arg('expected')} MEASURE=FILE (public totals), {arg('weights_from')} TABLE (a noisy "
                f"table, which is then left out of the estimates), or {arg('leave_out')} TABLE; weights from the table "
                "itself would bias it"
            )

    def _why(self, table: ReleasedTable) -> str | None:
        """Return why a table carries no weight, in words; None where it does."""
        if table.name in self.options.leave_out:
            return "left out by the call"
        if table.name in self.options.weights_from:
            return "weights are made from it"
        if not table.additive and table.name in self._alone and table.statistic not in self._expected:
            return "no other table totals the same, and its variance depends on the total"
        return table.unweighted

    def solved(self, group: Group) -> Solved:
        """Return a group's estimates; PlanError where its base is too large, or fixed totals contradict each other."""
        last = self._last  # of a group: tasks of an engine solve others meanwhile
        if last is not None and last.group is group:
            return last
        last = self._last = None  # its memory is needed
        why = {each.name: reason for each in group.tables if (reason := self._why(each)) is not None}
        weighted = self._weighted(group)
        tables = tuple(each for each in group.tables if each in weighted or group.refined(each, weighted))
        fixed = [
            totals for statistic, totals in self._fixed if (statistic, totals.keys) == (group.statistic, group.keys)
        ]
        cells = {each.name: each.cells for each in tables} | {each.name: each.cells for each in fixed}
        atoms = Atoms.of(self.structure.domain, cells)
        observed = [
            Observed(
                each.name,
                atoms.positions(each.cells),
                atoms.widths(each.cells),
                atoms.placed(each.cells, each.values()) if each in weighted else None,
                self._variance(each, atoms) if each in weighted else None,
            )
            for each in tables
        ]
        for totals in fixed:
            known = atoms.placed(totals.cells, totals.values)
            noise = np.where(np.isnan(known), np.inf, 0.0)
            place = atoms.positions(totals.cells), atoms.widths(totals.cells)
            observed.append(Observed(totals.name, *place, np.nan_to_num(known), noise))
        try:
            estimates = solve(observed, unit=UNIT, most=self.options.max_cells)
        except TooLarge as error:
            raise PlanError(
                f"{group.label}: {error}; their finest common cells are {atoms.in_words}, more than "
                f"{arg('max_cells')} {self.options.max_cells:,}: allow more, or give fewer tables"
            ) from None
        except EstimateError as error:
            raise PlanError(f"{group.label}: {error}") from None
        spread = Spread.of(weighted, self.options.interval)
        expected = not all(each.additive for each in weighted)
        self._last = solved = Solved(group, atoms, estimates, tables, why, spread, expected)
        return solved

    def _variance(self, table: ReleasedTable, atoms: Atoms) -> Floats:
        if table.additive:
            expected = None
        else:
            totals = self._expected[table.statistic]
            values = np.maximum(np.nan_to_num(totals.values), 0.0)
            expected = spread_evenly(self.structure.domain, values, totals.cells, table.cells)
        return (
            atoms.placed(table.cells, table.variance(expected))
            if table.cells.listed is None
            else table.variance(expected)
        )

    def _weighted(self, group: Group) -> list[ReleasedTable]:
        return [each for each in group.tables if self._why(each) is None]

    def not_reconciled(self) -> Iterator[tuple[str, str]]:
        """Yield the tables that get no estimates, and why."""
        for group in self.groups:
            weighted = self._weighted(group)
            for each in group.tables:
                if each not in weighted and not group.refined(each, weighted):
                    finer = ", and no weighted table has its cells or finer ones" if len(group.tables) > 1 else ""
                    yield each.name, f"{self._why(each)}{finer}"
        every = (*self.tables.values(), *self.derived.values())
        yield from ((each.name, "it has no cells") for each in every if not each.cells.size)

    def apart(self) -> dict[str, str]:
        """Return, by what is totalled, why its tables do not meet and what makes them, in words; nothing where they do.

        They leave other records out, those without a listed code in keys that only some of them use.
        """
        keys_of: dict[str, list[frozenset[str]]] = {}
        for group in (each for each in self.groups if each.statistic.adds_up):
            keys_of.setdefault(measure_of(group.statistic), []).append(group.keys)
        return {
            name: f"{len(keys)} groups of tables, which leave other records out, do not meet: "
            + closing(self.structure.domain, frozenset.union(*keys) - frozenset.intersection(*keys))
            for name, keys in keys_of.items()
            if len(keys) > 1
        }

    def weighted_groups(self) -> list[int]:
        """Return the numbers of the groups that have a table with weights; PlanError where none has."""
        able = [number for number, group in enumerate(self.groups) if self._weighted(group)]
        if not able:
            raise PlanError(
                "no table can be weighted: " + "; ".join(f"{name}: {why}" for name, why in self.not_reconciled())
            )
        return able

    def group_of(self, where: Where, of: str | None) -> Group:
        """Return the group whose records a sum is of: with a listed code in the filter's keys, and in as few others.

        Raises PlanError where the measure is not said or unknown, a level or code is, or no group tells the cells.
        """
        domain = self.structure.domain
        filtered = [domain.dimension(level) for level in where]
        for level, codes in where.items():
            for code in codes:
                domain.require_code(level, code)
        if of is None and len(self.statistics) != 1:
            raise PlanError(
                f"{arg('of')} is needed: tables total {', '.join(self.statistics) or 'nothing that adds up'}"
            )
        measure = of or next(iter(self.statistics))
        if measure not in self.statistics:
            raise PlanError(
                f"{arg('of', in_a_line(measure))}: no table is of it{hint(measure, list(self.statistics), 'measure')}"
            )
        needed, told_by = {each.key for each in filtered if not each.everyone}, {each.key for each in filtered}
        telling = [
            group
            for group in self.groups
            if measure_of(group.statistic) == measure and needed <= group.keys and told_by <= group.told_apart
        ]
        able = [group for group in telling if self._weighted(group)]
        if telling and not able:
            why = "; ".join(f"{each.name}: {self._why(each)}" for group in telling for each in group.tables)
            raise PlanError(f"no table of {measure} that tells these cells can be weighted: {why}")
        if not able:
            why = "".join(f": {text}" for name, text in self.apart().items() if name == measure)
            raise PlanError(f"no tables of {measure} tell {', '.join(sorted(told_by))} apart together{why}")
        return min(able, key=lambda group: len(group.keys))


def parse_where(text: str) -> dict[str, tuple[str, ...]]:
    """Return the filter that a text such as "naics2=31-33, state in 06,48" tells; PlanError where it tells none."""
    where: dict[str, list[str]] = {}
    level, what = None, arg("where", f'"{in_a_line(text)}"', flag="sum")
    for word in (each.strip() for each in text.split(",") if text.strip()):
        name, sign, codes = word.partition("=")
        if not sign:
            name, sign, codes = word.partition(" in ")
        if sign:
            level = name.strip()
            if level in where:
                raise PlanError(f"{what}: {in_a_line(level)} stands twice: write level in code,code")
            where[level] = [codes.strip()]
        elif level is None or not word:
            raise PlanError(f"{what}: write level=code, or level in code,code, separated by commas")
        else:
            where[level].append(word)
    return {level: tuple(codes) for level, codes in where.items()}
