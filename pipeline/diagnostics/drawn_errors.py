"""Drawn errors: values of the plan's own mechanisms beside exact totals, over several draws, by the size of the total.

The values are those that a release stages, block by block (`Block.values`); only the keys are a trial's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from pipeline.diagnostics.accuracy import WITHIN, class_labels, classes_of
from pipeline.diagnostics.distributions import BINS, bins_of
from pipeline.engines.writers import Block
from udfs.noise.keystream import SecretKey
from udfs.numbers.arrays import Floats, Int64s, in_units

MEANS: Final = ("bias", "mean_absolute_error", "mean_relative_error")
QUANTILES: Final = {"median": Fraction(1, 2), "ninety": Fraction(9, 10)}
KINDS: Final = ("absolute", "relative")
CLASSES: Final = len(class_labels())


@dataclass(frozen=True, eq=False)
class Bins:
    """Errors ≥ 0 of all classes in bins: each bin's number, how many lie in it, and their sum."""

    numbers: Int64s
    counts: Int64s
    sums: Floats

    @classmethod
    def of(cls, classes: Int64s, errors: Floats) -> "Bins":
        """Return the bins of some errors; an infinite one counts as the largest double."""
        numbers, at = np.unique(classes * BINS + bins_of(errors), return_inverse=True)
        held = np.minimum(errors, np.finfo(np.float64).max / max(len(errors), 1))
        return cls(numbers, np.bincount(at, minlength=len(numbers)), _sums(at, held, len(numbers)))

    @classmethod
    def merged(cls, parts: Sequence["Bins"]) -> "Bins":
        """Return the bins of several parts."""
        numbers, at = np.unique(np.concatenate([part.numbers for part in parts]), return_inverse=True)
        counts, sums = (np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "sums"))
        added = np.zeros(len(numbers), dtype=np.int64)
        np.add.at(added, at, counts)
        return cls(numbers, added, _sums(at, sums, len(numbers)))

    def quantile(self, chosen: Int64s, share: Fraction) -> float | None:
        """Return a quantile of the errors of some classes: the mean of the bin in which it lies.

        Within one part in 64 of the true one; exact for whole numbers below 128. None without errors.
        """
        mine = np.isin(self.numbers // BINS, chosen)
        bins, at = np.unique(self.numbers[mine] % BINS, return_inverse=True)
        if not len(bins):
            return None
        counts, sums = (np.bincount(at, values[mine], len(bins)) for values in (self.counts, self.sums))
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
        cells = np.bincount(classes, minlength=CLASSES)
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
            np.zeros(CLASSES, dtype=np.int64),
            {name: _sums(classes, values, CLASSES) for name, values in figures.items()},
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
    groups = [(label, np.array([i])) for i, label in enumerate(labels)] + [("all", np.arange(CLASSES))]
    return [
        {"total": label, "cells": int(drawn.cells[chosen].sum())}
        | _row(drawn, draws, chosen, variance=variance)
        | {"expected_standard_error": expected.get(label)}
        for label, chosen in groups
        if drawn.cells[chosen].any()
    ]


def _row(drawn: Drawn, draws: int, chosen: Int64s, *, variance: bool) -> dict[str, Any]:
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
    """Return a mean and its standard error, the terms being independent."""
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


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
