"""Columns of a product's layouts: what is withheld, and figures made of several measures, with their intervals.

They are made of published values, errors and intervals alone; docs/mathematics.md, section 15, proves their coverage.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.publication.product.product_spec import DerivedSpec, WithholdSpec
from pipeline.publication.release_folder import coefficient
from udfs.estimates import intervals
from udfs.estimates.intervals import Law, Statistics, Totals, ratio
from udfs.numbers.arrays import Floats


class Figures(NamedTuple):
    """What a layout shows of some areas' cells, a row for each area.

    `shown`: whole numbers, decimals where it is derived; `flag`: of each the number of the flag; `lower`, `upper`: ends
    of its range.
    """

    shown: NDArray[Any]
    withheld: NDArray[np.bool_]
    flag: NDArray[np.int8]
    lower: Floats
    upper: Floats


def withheld(rule: WithholdSpec, values: NDArray[Any], errors: Floats, lower: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values a product's rule withholds, from published figures alone; never one without error."""
    unclear = (values < 0) | (coefficient(values, errors) >= float(rule.withhold_from))
    if rule.interval_holds_zero:
        unclear |= lower <= 0
    return unclear & ((errors > 0) | (values < 0))


def summed(cube: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return sums along axes; those of whole numbers are held at ±(2⁶³ − 1), where they would wrap."""
    sums: NDArray[Any] = cube.sum(axis=axes)
    largest = float(np.abs(cube).max(initial=0))
    if cube.dtype == np.int64 and largest * prod(cube.shape[axis] for axis in axes) >= 2.0**62:
        exact = cube.astype(object).sum(axis=axes)
        most = np.iinfo(np.int64).max
        sums = np.clip(exact, -most, most).astype(np.int64)
    return sums


@dataclass(frozen=True, eq=False)
class Part:
    """What is published of one measure in some rows.

    `table`: whose noise it has; parts of one have the same cells. `group`: of estimates, what they add up with: errors
    of one group are correlated. `law` None: intervals alone tell of the error. `step`: of the measure, times the cells
    that are added up in a row.
    """

    table: Hashable
    group: Hashable | None
    law: Law | None
    step: float
    interval: float
    figures: Statistics


def quotient_of(above: Sequence[Part], below: Sequence[Part]) -> Statistics:
    """Return the ratio of two sums of parts, whose interval holds it as often as the least of theirs.

    But where intervals alone tell of an error it is the range of all quotients, and misses at most as often as all of
    these together. Errors of parts of one group, of which nothing is known but their size, are taken at the worst.
    """
    parts = list({part.table: part for part in (*above, *below)}.values())
    n, d = _sum(above), _sum(below)
    if any(part.law is None for part in parts):
        return intervals.ratio_of_intervals(n, d)
    k = _reach(parts, sum((_shares(part) for part in parts), np.zeros(())))
    groups = [part.group for part in parts if part.group is not None]
    if len({*groups}) < len(groups):
        return _at_worst(n.value, d.value, _together(above), _together(below), k)
    both = {part.table for part in above} & {part.table for part in below}
    covariance = sum((part.figures.standard_error**2 for part in above if part.table in both), np.zeros(()))
    one, two = (Totals(each.value, each.standard_error**2) for each in (n, d))
    return ratio(one, two, k, covariance)


def share_of_rows(parts: Sequence[Part], shape: tuple[int, ...], axes: tuple[int, ...]) -> Statistics:
    """Return of each row the share of the sum of all rows along `axes`; rows are in an array of that shape.

    No part may have an error that intervals alone tell.
    """
    n = _sum(parts)

    def total(rows: Floats) -> Floats:
        summed: Floats = np.broadcast_to(rows.reshape(shape).sum(axis=axes, keepdims=True), shape).reshape(rows.shape)
        return summed

    k = _reach(parts, total(sum((_shares(part) for part in parts), np.zeros(n.value.shape))))
    if any(part.group is not None for part in parts):
        return _at_worst(n.value, total(n.value), _together(parts), total(_together(parts)), k)
    variance = n.standard_error**2
    return ratio(Totals(n.value, variance), Totals(total(n.value), total(variance)), k, variance)


def change_of_rows(after: Sequence[Part], before: Sequence[Part], *, relative: bool) -> Statistics:
    """Return the change since other releases, whose noise is independent; `relative`: as a share of what it was."""
    if relative:
        return quotient_of(after, before).less(1)
    a, b = _sum(after), _sum(before)
    parts = [*after, *before]
    if any(part.law is None for part in parts):
        return Statistics(a.value - b.value, np.full(a.value.shape, np.nan), a.lower - b.upper, a.upper - b.lower)
    k = _reach(parts, sum((_shares(part) for part in parts), np.zeros(())))
    one, two = (Totals(each.value, each.standard_error**2) for each in (a, b))
    return intervals.difference(one, two, k)


def _sum(parts: Sequence[Part]) -> Statistics:
    stated = [part.figures for part in parts]
    value, lower, upper = (np.sum([getattr(x, name) for x in stated], axis=0) for name in ("value", "lower", "upper"))
    return Statistics(value, np.sqrt(np.sum([x.standard_error**2 for x in stated], axis=0)), lower, upper)


def _together(parts: Sequence[Part]) -> Floats:
    """Return the standard error of the sum of parts, whatever their correlation."""
    errors: Floats = np.sum([part.figures.standard_error for part in parts], axis=0)
    return errors


def _at_worst(n: Floats, d: Floats, of_n: Floats, of_d: Floats, k: Floats) -> Statistics:
    """Return the ratio of two estimates whose errors are correlated, nobody knows how.

    sd(N − θD) ≤ sd(N) + |θ|·sd(D), which is Fieller's at the covariance −sd(N)·sd(D) for θ ≥ 0, and at its negative for
    θ < 0: the interval is the hull of both.
    """
    signs = (-of_n * of_d, of_n * of_d)
    one, two = (ratio(Totals(n, of_n**2), Totals(d, of_d**2), k, sign) for sign in signs)
    error = np.maximum(one.standard_error, two.standard_error)
    return Statistics(one.value, error, np.minimum(one.lower, two.lower), np.maximum(one.upper, two.upper))


def _shares(part: Part) -> Floats:
    """Return the square of the step over the standard error, which `half_step` adds up; 0 without an error."""
    error = part.figures.standard_error
    return np.divide(part.step, error, out=np.zeros(error.shape), where=error > 0) ** 2


def _reach(parts: Sequence[Part], squares: Floats) -> Floats:
    law = intervals.combined(part.law for part in parts if part.law is not None)
    reach: Floats = intervals.multiplier(1 - min(part.interval for part in parts), law) + np.sqrt(squares) / 2
    return reach


def derived_figures(
    spec: DerivedSpec, made: Statistics, parts: Sequence[Part], rule: WithholdSpec | None, limits: list[float]
) -> Figures:
    """Return what is shown of a derived figure: nothing without an interval, or where what it is made of is withheld.

    Its own error withholds it too, but not a change. Where there is no standard error a quarter of the range stands
    for it.
    """
    error = np.where(np.isnan(made.standard_error), (made.upper - made.lower) / 4, made.standard_error)
    letters = np.digitize(100 * error if spec.relative else coefficient(made.value, error), limits)
    hidden = ~np.isfinite(made.value) | np.isnan(made.lower)
    if rule is not None:
        for part in parts:
            hidden |= withheld(rule, part.figures.value, part.figures.standard_error, part.figures.lower)
        if not spec.change:
            hidden |= withheld(rule, made.value, error, made.lower)
    factor, tens = float(spec.times), 10.0**spec.decimals
    lower, upper = np.floor(made.lower * factor * tens) / tens, np.ceil(made.upper * factor * tens) / tens
    shown = np.round(made.value * factor, spec.decimals)
    return Figures(shown, hidden, np.where(hidden, len(limits) + 1, letters).astype(np.int8), lower, upper)
