"""Accuracy against the truth: published values beside exact totals, by the size of the total, industry and size class.

Where nothing is published, the standard error that the mechanism has at each true total stands alone: no draw is made
for diagnostics, since at most one draw is ever seen (docs/architecture.md, rule 9).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from pipeline.base.errors import PrdpError, StateError
from pipeline.diagnostics.record_losses import BINS, SECTOR_LEVEL, Counts, Distributions, Key, bins_of
from pipeline.engines.writers import Block
from pipeline.plan.domain import Domain
from pipeline.plan.model import Query
from udfs.mechanisms.base import Mechanism
from udfs.noise.keystream import SecretKey
from udfs.numbers.arrays import LARGEST, Floats, Int64s, in_units

CLASSES = (0.0, *(10.0**n for n in range(13)))  # of a true total's magnitude: 0, below 1, below 10, …, and the rest
WITHIN = (0.01, 0.05, 0.1)
POINTS = 25  # totals a decade at which a transformation's variance is computed; between them it is interpolated
EXPECTED = ("cells", "nonzero", "expected_variance")
OBSERVED = ("error", "absolute_error", "squared_error", "relative_error", "truth", "covered", *map(str, WITHIN))
RELATIVE = "relative"  # a family of distributions, of relative errors
BY_TOTAL = "total"  # the name of the grouping by the size of the true total


@dataclass(frozen=True, eq=False)
class VarianceCurve:
    """A mechanism's variance at true totals ≥ 0 in the measure's unit, at some of them exactly."""

    totals: Floats
    variances: Floats

    @classmethod
    def of(cls, mechanism: Mechanism) -> "VarianceCurve":
        """Return the curve; one point where the variance is the same for all totals."""
        if mechanism.additive:
            return cls(np.zeros(1), np.array([mechanism.variance(0.0)]))
        least, most = float(mechanism.step), float(LARGEST * mechanism.step)
        decades = math.log10(most / least)
        totals = np.append(0.0, np.geomspace(least, most, int(decades * POINTS)))
        variances = np.array([mechanism.variance(float(total)) for total in totals])
        known = np.isfinite(variances)
        known[0] = True  # beyond the largest double the curve stays where it was; without any variance it is infinite
        return cls(totals[known], variances[known])

    def at(self, totals: Floats) -> Floats:
        """Return the variances at totals ≥ 0, interpolated."""
        if not np.isfinite(self.variances[0]):
            return np.full(len(totals), np.inf)
        with np.errstate(divide="ignore"):
            logs = np.log(self.variances)
        variances: Floats = np.exp(np.interp(self._scale(totals), self._scale(self.totals), logs))
        return variances

    def _scale(self, totals: Floats) -> Floats:
        first = self.totals[1] if len(self.totals) > 1 else 1.0
        scaled: Floats = np.log(totals + first)
        return scaled


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of a table's cells by the codes of one of its levels: by industry, or by classes of a measure.

    `of`: for each code of `level` the index of its group in `labels`, which are codes of the level `name`.
    """

    name: str
    level: str
    labels: tuple[str, ...]
    of: Mapping[str, int]

    def groups(self, block: Block) -> Int64s:
        """Return the group of each of the block's cells."""
        codes, indices = block.keys[self.level]
        groups: Int64s = np.array([self.of[code] for code in codes], dtype=np.int64)[indices]
        return groups


@dataclass(frozen=True, eq=False)
class Added:
    """What is added up over some cells, by group: of each figure a sum, and distributions of relative errors."""

    sums: dict[str, list[float]]
    relative: Mapping[Key, Counts]


@dataclass(frozen=True, eq=False, repr=False)
class AccuracyTask:
    """Compares the true totals of one file of a table with the file of the same name in `published` (None: none is)."""

    curves: tuple[VarianceCurve, ...]
    step: Any
    published: Path | None
    groupings: tuple[Grouping, ...]

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """The names of the groups, by grouping."""
        return {BY_TOTAL: class_labels()} | {each.name: each.labels for each in self.groupings}

    def __call__(self, block: Block) -> dict[str, Added]:
        """Return what is added up over the file's cells, by grouping."""
        truth = in_units(block.totals, self.step)
        variances = np.zeros(block.size)
        for part, curve in enumerate(self.curves):
            mine = np.ones(block.size, dtype=np.bool_) if block.part_of is None else block.part_of == part
            variances[mine] = curve.at(np.maximum(truth[mine], 0))
        figures = dict(zip(EXPECTED, (np.ones(block.size), (truth != 0).astype(np.float64), variances), strict=True))
        if self.published is not None:
            figures |= _observed(truth, self._file(block), self.step if block.integer else 1)
        groups = {BY_TOTAL: classes_of(truth)} | {each.name: each.groups(block) for each in self.groupings}
        return {name: _added(groups[name], len(labels), figures) for name, labels in self.labels.items()}

    def _file(self, block: Block) -> dict[str, Floats]:
        path = Path(str(self.published), block.path)
        try:
            table = pq.read_table(path, columns=["value", "lower", "upper"])
        except MemoryError:
            raise
        except Exception as error:
            raise StateError(f"{path} cannot be read ({type(error).__name__}); is the release complete?") from None
        if len(table) != block.size:
            raise StateError(f"{path} has other rows than the plan's public cells; it is no table of this plan")
        return {name: table.column(name).to_numpy().astype(np.float64) for name in table.column_names}


def task_for(query: Query, domain: Domain, published: Path | None) -> AccuracyTask:
    """Return the task for a query's table, whose published files lie in `published`."""
    curves = tuple(VarianceCurve.of(mechanism) for mechanism in query.mechanisms)
    return AccuracyTask(curves, query.parts[0].mechanism.step, published, _groupings(query, domain))


def _groupings(query: Query, domain: Domain) -> tuple[Grouping, ...]:
    """Return the groupings of a query's cells: by industry, and by each key that is classes of a measure."""
    groupings = []
    for level in query.by:
        dimension = domain.dimensions[domain.levels[level]]
        if SECTOR_LEVEL in dimension.levels or dimension.classes is not None:
            name = level if dimension.classes is not None else SECTOR_LEVEL
            groups = dimension.between(level, name)
            if groups is not None:
                of = dict(zip(dimension.level_codes(level), groups.tolist(), strict=True))
                groupings.append(Grouping(name, level, dimension.level_codes(name), of))
    return tuple(groupings)


def accuracy_json(task: AccuracyTask, files: Sequence[Mapping[str, Added]]) -> dict[str, list[dict[str, Any]]]:
    """Return the accuracy by class of the true total, and by the task's other groupings, as JSON.

    Of each grouping a row for each group that has cells, and the last for all; its code stands as `total` or by the
    grouping's name. Figures: `cells`; `expected_standard_error`, the root of the mean variance; and where a release is
    compared with the truth: `bias`, the mean error; `mean_absolute_error`; `standard_error`, the root of the mean
    squared error; `mean_total`; `coverage`, the share of intervals that hold the total; and of totals other than 0
    `mean_relative_error`, `median_relative_error` (high by less than one part in 64) and `within`, the shares whose
    error is at most 1, 5 and 10 %. null stands for infinity, and for what no cell has.
    """
    return {name: _rows(name, labels, [file[name] for file in files]) for name, labels in task.labels.items()}


def _rows(name: str, labels: Sequence[str], files: Sequence[Added]) -> list[dict[str, Any]]:
    sums = {
        name: [math.fsum(column) for column in zip(*(f.sums[name] for f in files), strict=True)]
        for name in files[0].sums
    }
    relative = Distributions.merged(file.relative for file in files)
    everywhere = Distributions.merged({(RELATIVE, 0): counts} for counts in relative.values())
    rows = [
        {name: label} | _row({n: s[i] for n, s in sums.items()}, relative.get((RELATIVE, i)))
        for i, label in enumerate(labels)
    ]
    rows.append({name: "all"} | _row({n: math.fsum(s) for n, s in sums.items()}, everywhere.get((RELATIVE, 0))))
    return [row for row in rows if row["cells"]]


def classes_of(truth: Floats) -> Int64s:
    """Return the class of each true total: its index in `class_labels`."""
    classes: Int64s = np.searchsorted(CLASSES[1:], np.abs(truth), "right") + (truth != 0)
    return classes


def class_labels() -> list[str]:
    """Return the names of the classes of totals; each ends where the next begins."""
    return ["0", "below 1", *(f"from {int(low):,}" for low in CLASSES[1:])]


def _row(sums: dict[str, float], relative: Counts | None) -> dict[str, Any]:
    cells, nonzero = sums["cells"], sums["nonzero"]
    row: dict[str, Any] = {"cells": int(cells)}
    if not cells:
        return row
    row["expected_standard_error"] = _finite(math.sqrt(sums["expected_variance"] / cells))
    if "error" not in sums:
        return row
    row["bias"] = _finite(sums["error"] / cells)
    row["mean_absolute_error"] = _finite(sums["absolute_error"] / cells)
    row["standard_error"] = _finite(math.sqrt(sums["squared_error"] / cells))
    row["mean_total"] = sums["truth"] / cells
    row["coverage"] = sums["covered"] / cells
    row["mean_relative_error"] = _finite(sums["relative_error"] / nonzero) if nonzero else None
    row["median_relative_error"] = relative.to_json()["quantiles"]["0.5"] if relative else None
    row["within"] = {str(share): sums[str(share)] / nonzero for share in WITHIN} if nonzero else None
    return row


def _observed(truth: Floats, file: dict[str, Floats], step: Any) -> dict[str, Floats]:
    value, lower, upper = (file[name] * float(step) for name in ("value", "lower", "upper"))
    error = value - truth
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(truth != 0, np.abs(error / truth), 0.0)
        figures = (error, np.abs(error), error**2, relative, truth, (lower <= truth) & (truth <= upper))
        within = (((relative <= share) & (truth != 0)) for share in WITHIN)
        return dict(zip(OBSERVED, (*figures, *within), strict=True))


def _added(groups: Int64s, number: int, figures: Mapping[str, Floats]) -> Added:
    sums = {name: np.bincount(groups, weights=each, minlength=number).tolist() for name, each in figures.items()}
    relative = Distributions()
    if "relative_error" in figures:
        known = figures["nonzero"] > 0
        relative.count_groups(RELATIVE, groups[known], figures["relative_error"][known])
    return Added(sums, relative.counts())


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def published_tables(folder: Path, attempt: str, queries: Iterable[str]) -> dict[str, Path]:
    """Return the folder of each query's published table; raises PrdpError where one is not there."""
    tables = {query: folder / attempt / "tables" / query for query in queries}
    for query, files in tables.items():
        if not files.is_dir():
            raise PrdpError(f"{folder}: the release has no table {query}")
    return tables


# Drawn errors: values of the plan's own mechanisms beside exact totals, over several draws, by the size of the total.
#
# The values are those that a release stages, block by block (`Block.values`); only the keys are a trial's.

MEANS: Final = ("bias", "mean_absolute_error", "mean_relative_error")
QUANTILES: Final = {"median": Fraction(1, 2), "ninety": Fraction(9, 10)}
KINDS: Final = ("absolute", "relative")
DRAWN_CLASSES: Final = len(class_labels())


@dataclass(frozen=True, eq=False)
class Bins:
    """Errors ≥ 0 of all classes in bins: each bin's number, how many lie in it, and their sum."""

    numbers: Int64s
    counts: Int64s
    sums: Floats

    @classmethod
    def of(cls, classes: Int64s, errors: Floats) -> "Bins":
        """Return the bins of some errors; an infinite one counts as the largest double."""
        numbers, position = np.unique(classes * BINS + bins_of(errors), return_inverse=True)
        held = np.minimum(errors, np.finfo(np.float64).max / max(len(errors), 1))
        return cls(numbers, np.bincount(position, minlength=len(numbers)), _sums(position, held, len(numbers)))

    @classmethod
    def merged(cls, parts: Sequence["Bins"]) -> "Bins":
        """Return the bins of several parts."""
        numbers, position = np.unique(np.concatenate([part.numbers for part in parts]), return_inverse=True)
        counts, sums = (np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "sums"))
        added = np.zeros(len(numbers), dtype=np.int64)
        np.add.at(added, position, counts)
        return cls(numbers, added, _sums(position, sums, len(numbers)))

    def quantile(self, chosen: Int64s, share: Fraction) -> float | None:
        """Return a quantile of the errors of some classes: the mean of the bin in which it lies.

        Within one part in 64 of the true one; exact for whole numbers below 128. None without errors.
        """
        mine = np.isin(self.numbers // BINS, chosen)
        bins, position = np.unique(self.numbers[mine] % BINS, return_inverse=True)
        if not len(bins):
            return None
        counts, sums = (np.bincount(position, values[mine], len(bins)) for values in (self.counts, self.sums))
        cumulative = np.cumsum(counts)
        needed = -(-int(cumulative[-1]) * share.numerator // share.denominator)
        i = np.searchsorted(cumulative, needed)
        return float(sums[i] / counts[i])


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn of a table, by class of the true total: cells, sums over cells and draws, and errors in bins."""

    cells: Int64s
    sums: Mapping[str, Floats]
    bins: Mapping[str, Bins]

    @classmethod
    def merged(cls, parts: Sequence["Drawn"]) -> "Drawn":
        """Return what was drawn of several blocks or with several keys of other cells."""
        return cls(
            np.sum([part.cells for part in parts], axis=0),
            {name: np.sum([part.sums[name] for part in parts], axis=0) for name in parts[0].sums},
            {kind: Bins.merged([part.bins[kind] for part in parts]) for kind in KINDS},
        )


@dataclass(frozen=True, eq=False, repr=False)
class DrawTask:
    """Releases a block's cells once under each of a trial's keys, which no release uses, and sums up the errors."""

    keys: tuple[SecretKey, ...]
    step: Fraction

    def __call__(self, block: Block) -> Drawn:
        """Return what was drawn of the block."""
        truth = in_units(block.totals, self.step)
        classes = classes_of(truth)
        cells = np.bincount(classes, minlength=DRAWN_CLASSES)
        drawn = [self._once(block, truth, classes, key) for key in self.keys]
        merged = Drawn.merged(drawn)
        return Drawn(cells, merged.sums, merged.bins)

    def _once(self, block: Block, truth: Floats, classes: Int64s, key: SecretKey) -> Drawn:
        released, unit = block.values(key), float(self.step if block.integer else 1)
        value, lower, upper = (getattr(released, name) * unit for name in ("value", "lower", "upper"))
        error, known = value - truth, truth != 0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            absolute = np.abs(error)
            relative = np.where(known, absolute / np.abs(truth), 0.0)
            of_means = dict(zip(MEANS, (error, absolute, relative), strict=True))
            figures = of_means | {f"{name} squared": values**2 for name, values in of_means.items()}
        figures |= {"coverage": (lower <= truth) & (truth <= upper), "negative": value < 0}
        figures |= {str(share): (relative <= share) & known for share in WITHIN}
        return Drawn(
            np.zeros(DRAWN_CLASSES, dtype=np.int64),
            {name: _sums(classes, values, DRAWN_CLASSES) for name, values in figures.items()},
            {"absolute": Bins.of(classes, absolute), "relative": Bins.of(classes[known], relative[known])},
        )


def drawn_json(
    drawn: Drawn, draws: int, expected: Mapping[str, float | None], *, variance: bool
) -> list[dict[str, Any]]:
    """Return the drawn errors by class of the true total, and last of all cells, as JSON.

    Of a class: `cells`; `bias`, the mean error; `mean_`, `median_` and `ninety_absolute_error`, the latter two
    quantiles over cells and draws; the same three relative errors of totals other than 0; `within`, the shares of those
    whose error is at most 1, 5 and 10 %; `coverage`, the share of intervals that hold the total; `negative`, the share
    of values below 0; `expected_standard_error` by the noise itself. `standard_error` is what was drawn, the root of
    the mean squared error. Names with `_mc`: the standard error that the figure has because draws are finitely many;
    null of means where the noise has no `variance`. null stands for infinity too.
    """
    labels = class_labels()
    groups = [(label, np.array([i])) for i, label in enumerate(labels)] + [("all", np.arange(DRAWN_CLASSES))]
    return [
        {"total": label, "cells": int(drawn.cells[chosen].sum())}
        | _drawn_row(drawn, draws, chosen, variance=variance)
        | {"expected_standard_error": expected.get(label)}
        for label, chosen in groups
        if drawn.cells[chosen].any()
    ]


def _drawn_row(drawn: Drawn, draws: int, chosen: Int64s, *, variance: bool) -> dict[str, Any]:
    sums = {name: float(values[chosen].sum()) for name, values in drawn.sums.items()}
    count = int(drawn.cells[chosen].sum()) * draws
    nonzero = int(drawn.cells[chosen[chosen > 0]].sum()) * draws
    row: dict[str, Any] = {"standard_error": _finite(math.sqrt(sums["bias squared"] / count))}
    for name in MEANS:
        of = nonzero if name == "mean_relative_error" else count
        row[name], error = _mean(sums[name], sums[f"{name} squared"], of)
        row[f"{name}_mc"] = error if variance else None
    for kind in KINDS:
        for name, share in QUANTILES.items():
            row[f"{name}_{kind}_error"] = drawn.bins[kind].quantile(chosen, share)
    for name in ("coverage", "negative"):
        row[name], row[f"{name}_mc"] = _share(sums[name], count)
    row["within"] = {str(share): _share(sums[str(share)], nonzero)[0] for share in WITHIN} if nonzero else None
    return row


def _mean(total: float, squares: float, count: int) -> tuple[float | None, float | None]:
    if not count:
        return None, None
    mean = total / count
    if count < 2 or not math.isfinite(squares):
        return _finite(mean), None
    return _finite(mean), math.sqrt(max(squares / count - mean**2, 0.0) / (count - 1))


def _share(total: float, count: int) -> tuple[float, float]:
    share = total / count
    # of n trials without a hit, or without a miss, the share may still be 1/n
    return share, math.sqrt(max(share * (1 - share), 1 / count * (1 - 1 / count)) / count)


def _sums(numbers: Int64s, values: Any, size: int) -> Floats:
    sums: Floats = np.bincount(numbers, values, size).astype(np.float64)
    return sums
