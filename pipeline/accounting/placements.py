"""The most that the records of a firm lose, over all ways in which they may lie in cells: a certified bound.

Let a policy P rise, P(0) = 0, and let records of influences x_j ≥ 0 lie in disjoint cells. They lose Σ_c P(S_c), S_c
the sum of the influences in the cell c. Prices bound this wherever they lie: numbers f and y_j such that, for every set
A of records that one cell may hold, P(Σ_A x_j) is paid for by y_j of the records in it and by what f holds for the
cell. Then the loss is at most f + Σ_j y_j over the records that are in the query at all, and prices of several policies
add up record by record, each record at its worst query set (docs/mathematics.md, section 5). Three kinds of prices:

    shared     f = 0,              y_j = x_j · sup P(S)/S           over the sums S that a cell of j can have
    rationed   f = K·μ,            y_j = x_j · sup (P(S) − μ)⁺/S    K cells at most, any μ ≥ 0
    on top     f = Σ_c P(S_c),     y_j = x_j · sup (P(S_c + s) − P(S_c))/s   S_c of records in known cells, s on top

Shared prices are attained by records alone where P/S falls and by all in one cell where it rises. All numbers err
upward. Losses are arrays (points, m), so that ρ (m = 1) and the Rényi divergences at m orders are bounded alike.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, isqrt, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.references import QuerySet
from udfs.numbers.exact import up_float

Floats = NDArray[np.float64]
Units = NDArray[Any]  # whole numbers, of 64 bits or, where these are too few, of any size
Prices = tuple[Floats, Floats]  # f, of shape (m,), and y of one record of each lot, of shape (lots, m)

ANYWHERE = -1  # the cell of a record that may be in several
EXACT = 2**53  # below it whole numbers are doubles
UP = 1 + 2.0**-40  # far above the error of a sum of doubles that is taken here
KNOWN_SUMS = 16  # different sums of known cells, on top of which others are priced
SHARES = 2.0 ** np.arange(-1.5, 2, 0.25)  # of T/K, the mean sum of K cells, where rationed prices are tangent


@dataclass(frozen=True)
class Fineness:
    """Where a policy is looked at: at all sums, where there are at most `sums`; else at sums that grow by `ratio`."""

    sums: int = 4096
    ratio: float = 1 + 2.0**-8


@dataclass(frozen=True, eq=False)
class Exposure:
    """What the records of a firm put into the cells of one policy, or of several with the same cells.

    Equal records are one lot: arrays have an entry for each lot.

    Attributes:
        policies: a record is in the cells of all of them or of none.
        by: what tells their cells apart; None: not known.
        influences: of each record of a lot, at least 0.
        times: how many records a lot has.
        cells: the number of the one cell in which each record can be, or ANYWHERE.
        sure: whether each record is in that cell at any rate.
        kinds: of each record the number of its codes.
        apart: pairs of kinds that share no cell, in both orders; of kinds in one cell each the cells say it.
        room: the number of cells in which the records can be; None: not known.
        unfiltered: the cells are all that the levels `by` have; False: not known.
        loss: of whole numbers above 0 and a unit, an array (numbers, m) of the losses at these multiples of it.
        fineness: where they are looked at.
    """

    policies: QuerySet
    by: tuple[str, ...] | None
    influences: Sequence[Fraction]
    times: NDArray[np.int64]
    cells: NDArray[np.int64]
    sure: NDArray[np.bool_]
    kinds: NDArray[np.int64]
    apart: frozenset[tuple[int, int]]
    room: int | None
    loss: Callable[[Units, Fraction], Floats]
    fineness: Fineness = Fineness()
    unfiltered: bool = False

    @cached_property
    def unit(self) -> Fraction:
        """The largest number of which all influences are multiples, and 1 of no influence."""
        below = lcm(*{x.denominator for x in self.influences})
        return Fraction(gcd(*(x.numerator * (below // x.denominator) for x in self.influences)), below) or Fraction(1)

    @cached_property
    def units(self) -> Units:
        """The influences in units."""
        over, under = self.unit.numerator, self.unit.denominator
        units = [x.numerator * under // (x.denominator * over) for x in self.influences]
        total = sum(map(int.__mul__, units, self.times.tolist()))
        return np.array(units, dtype=np.int64 if 4 * total < EXACT else object)

    @property
    def together(self) -> Units:
        """The influences of all records of each lot, in units."""
        return np.asarray(self.units * self.times)

    def at(self, sums: Units) -> Floats:
        """Return the losses at sums of at least one unit, each computed once."""
        distinct, which = np.unique(sums, return_inverse=True)
        return np.asarray(np.nan_to_num(self.loss(distinct, self.unit), nan=np.inf)[which])

    @cached_property
    def prices(self) -> list[Prices]:
        """Prices of every kind that the records allow."""
        if not any(self.units):
            m = self.loss(np.array([1]), self.unit).shape[1]
            return [(np.zeros(m), np.zeros((len(self.units), m)))]
        known, priced = self.cells != ANYWHERE, self.units > 0
        here = _sums(self.cells, self.together, known & self.sure)  # what is in a cell at any rate
        # a cell that holds the record has a sum in [low, high], and, unless it is low, at least the least one more
        low = np.array([here.get(cell, 0) for cell in self.cells.tolist()], dtype=self.units.dtype)
        low[~(known & self.sure)] += self.units[~(known & self.sure)]
        high = self._highest(known)
        prices = [self._shared(priced, low, high)]
        if self.room is not None and self.room < self.times[priced].sum():
            prices += self._rationed(priced, low, int(high.max()))
        if 0 < len(set(here.values())) <= KNOWN_SUMS and not (self.sure & known)[priced].all():
            prices.append(self._on_top(priced & ~(self.sure & known), here))
        return prices

    def _highest(self, known: NDArray[np.bool_]) -> Units:
        """Return the largest sum, in units, of a cell that holds each record: one known cell and what may be there."""
        of_cell = _sums(self.cells, self.together, known)
        of_kind = _sums(self.kinds, self.together, ~known)
        pairs = list(zip(self.kinds.tolist(), self.cells.tolist(), strict=True))
        cell_of = {(kind, cell) for kind, cell in pairs if cell != ANYWHERE}
        highest = {}
        for kind, cell in set(pairs):
            free = sum(units for other, units in of_kind.items() if (kind, other) not in self.apart)
            cells = {cell} if cell != ANYWHERE else {c for other, c in cell_of if (kind, other) not in self.apart}
            highest[kind, cell] = free + max((of_cell.get(c, 0) for c in cells), default=0)
        return np.array([highest[pair] for pair in pairs], dtype=self.units.dtype)

    def _shared(self, priced: NDArray[np.bool_], low: Units, high: Units) -> Prices:
        least = self.units[priced].min()
        starts, ends = low[priced], high[priced]
        if len(set(starts.tolist())) <= self.fineness.sums or (starts == ends).all():
            rates = self.at(starts) / _floats(starts)[:, None]
            starts = starts + least  # a sum above the lowest one is at least so much higher
        else:
            rates = np.zeros((len(starts), 1))
        further = (starts <= ends).astype(bool)
        if further.any():
            above = self.grid(int(starts[further].min()), int(ends.max())).largest(starts[further], ends[further])
            rates = np.broadcast_to(rates, (len(starts), above.shape[1])).copy()
            rates[further] = np.maximum(rates[further], above)
        return self.paid(priced, rates)

    def _rationed(self, priced: NDArray[np.bool_], low: Units, sums: int) -> list[Prices]:
        """Return prices for some μ: tangents of P at sums about the mean of K cells, and P of all in one cell."""
        assert self.room is not None
        most = self.at(np.array([sums]))[0]
        grid = self.grid(int(low[priced].min()), sums)
        total = int(self.together.sum())
        prices = [(self.room * most * UP, np.zeros((len(self.units), len(most))))]
        for mean in {min(sums, max(1, int(total * share / self.room))) for share in SHARES.tolist()}:
            near = max(mean + 1, int(mean * self.fineness.ratio))
            here, then = self.at(np.array([mean, near]))
            with np.errstate(invalid="ignore"):
                tangent = np.clip(np.nan_to_num(here - (then - here) * (mean / (near - mean))), 0, most)
            rates = grid.from_on(low[priced], tangent)
            fixed, each = self.paid(priced, rates)
            prices.append((fixed + self.room * tangent * UP, each))
        return prices

    def _on_top(self, priced: NDArray[np.bool_], here: dict[int, int]) -> Prices:
        sums = list(here.values())
        base = self.at(np.array(sums, dtype=self.units.dtype)).sum(axis=0)
        if not priced.any():
            return base * UP, self.paid(priced, np.zeros((0, len(base))))[1]
        low, rest = int(self.units[priced].min()), int(self.together[priced].sum())
        rates = np.zeros((int(np.count_nonzero(priced)), len(base)))
        for known in sorted({0, *sums}):
            grid = self.grid(low, rest, known)
            rates = np.maximum(rates, grid.from_on(self.units[priced], np.zeros(len(base))))
        fixed, each = self.paid(priced, rates)
        return fixed + base * UP, each

    def paid(self, priced: NDArray[np.bool_], rates: Floats) -> Prices:
        """Return what the priced lots pay at these rates, one each, by unit of influence; f = 0."""
        each = np.zeros((len(self.units), rates.shape[1]))
        each[priced] = _floats(self.units[priced])[:, None] * rates * UP
        return np.zeros(rates.shape[1]), each

    def grid(self, low: int, high: int, known: int = 0) -> "Grid":
        """Return the sums from `low` to `high`, and what a cell that holds `known` besides loses more with them."""
        if high - low < self.fineness.sums:
            starts = ends = np.array(range(low, high + 1), dtype=self.units.dtype)
        else:
            points = [low]
            while points[-1] < high:
                points.append(min(high, max(points[-1] + 1, int(points[-1] * self.fineness.ratio))))
            starts, ends = (np.array(side, dtype=self.units.dtype) for side in (points[:-1], points[1:]))
        losses = self.at(ends + known)
        if known:
            losses = np.nan_to_num(losses - self.at(np.array([known], dtype=self.units.dtype)), nan=np.inf)
        return Grid(starts, ends, losses)


@dataclass(frozen=True, eq=False)
class Grid:
    """Intervals of sums, from `starts` to `ends` in units, and the losses at their ends, which hold in all of each."""

    starts: Units
    ends: Units
    losses: Floats

    @property
    def rates(self) -> Floats:
        """Bounds of P(S)/S in each interval."""
        return np.asarray(self.losses / _floats(self.starts)[:, None])

    def largest(self, low: Units, high: Units) -> Floats:
        """Return bounds of sup P(S)/S over each [low, high] within the grid."""
        rates = self.rates
        first = np.searchsorted(self.ends, low)
        stop = np.searchsorted(self.starts, high, side="right")
        if (stop == len(rates)).all():
            return np.asarray(running(rates)[first])
        padded = np.concatenate([rates, np.zeros((1, rates.shape[1]))])
        return np.asarray(np.maximum.reduceat(padded, np.column_stack([first, stop]).ravel())[::2])

    def from_on(self, low: Units, less: Floats) -> Floats:
        """Return bounds of sup (P(S) − less)⁺/S over S ≥ `low`."""
        rates = np.maximum(self.losses - less, 0) / _floats(self.starts)[:, None]
        return np.asarray(running(rates)[np.searchsorted(self.ends, low)])


def running(rates: Floats) -> Floats:
    """Return the largest of all from each on."""
    return np.maximum.accumulate(rates[::-1])[::-1]


def multiples(numbers: Units, unit: Fraction) -> Floats:
    """Return the multiples of `unit` as doubles, rounded up where they are none."""
    exact = numbers.dtype != object and float(unit) == unit and int(numbers.max()) * unit.numerator < EXACT
    if exact:
        return np.asarray(numbers * float(unit))
    return np.array([up_float(number * unit) for number in numbers.tolist()])


def _sums(keys: NDArray[np.int64], units: Units, kept: NDArray[np.bool_]) -> dict[int, int]:
    """Return the sums of the kept records by key, of those that are above 0."""
    sums: dict[int, int] = {}
    for key, some in zip(keys[kept].tolist(), units[kept].tolist(), strict=True):
        if some:
            sums[key] = sums.get(key, 0) + some
    return sums


def _floats(numbers: Units) -> Floats:
    return numbers.astype(np.float64)


# The loss of several records together, from the losses of each: bounds for a firm, or for any group of records.
#
# Two databases that differ in J records are joined by J steps of one record each (docs/mathematics.md, section 5). For
# losses P_1 … P_J that bound every order:
#
#     simple:  D_α ≤ α·J·ΣP_j            (paper 1, its lemma on groups)
#     tight:   D_α ≤ α·(Σ√P_j)²          never more, by Cauchy and Schwarz
#     pure:    max divergence ≤ ΣP_j     (triangle inequality)
#
# Proof of the tight form, for two steps P → Q → R with losses x and y: Hölder's inequality gives, for all p, q > 1 with
# 1/p + 1/q = 1, D_α(P‖R) ≤ (α − 1/p)/(α − 1)·D_{pα}(P‖Q) + D_{q(α − 1/p)}(Q‖R). With D_β ≤ βx and D_β ≤ βy and
# s = (p − 1)α/(α − 1) the right side is α·((1 + s)x + (1 + 1/s)y), whose minimum over s > 0 is α·(√x + √y)². A step may
# itself be a bound for several records; by induction the roots add up. The proof uses orders far above α: it does not
# hold for losses that are bounds up to some order only, or up to an additive constant.

LONGEST = 1024  # bits of a denominator up to which a group's loss is kept exact
ROOT_BITS = 128  # a root is exact where it is rational, else above the true one by less than one part in 2¹²⁷


def simple(losses: Sequence[Fraction]) -> Fraction:
    """Return J·ΣP_j, exactly: what the group of records with these PRzCDP losses loses at most."""
    return len(losses) * sum(losses, Fraction(0))


def tight(losses: Iterable[Fraction]) -> Fraction:
    """Return an upper bound of (Σ√P_j)²: what the group of records with these PRzCDP losses ≥ 0 loses at most.

    It is exact for one loss, for equal ones, and where all products of two have rational roots, if these are not long.
    """
    group = Fraction(0)
    for one, times in Counter(losses).items():
        loss = one * times**2  # of equal ones: (n√P)²
        # (√x + √y)² = x + y + 2√(xy)
        root = root_above(group * loss)
        group = _short(group + loss + 2 * root) if root else group + loss
    return group


def pure(losses: Iterable[Fraction]) -> Fraction:
    """Return ΣP_j, exactly: what the group of records with these pure losses loses at most."""
    return sum(losses, Fraction(0))


def one_cell(
    policy: Callable[[Fraction], Fraction],
    together: Callable[[Iterable[Fraction]], Fraction],
    influences: Sequence[Fraction],
) -> Fraction:
    """Return what records of these influences on one cell of one query lose together under its `policy`.

    Their values add up before the mechanism sees them, so they lose what one record of their summed influence does:
    P(ΣΔ_j). Where that is more than `together` (`tight`, or `pure` for a pure policy) makes of their single losses, it
    is the latter.
    """
    summed = policy(sum(influences, Fraction(0)))
    return min(summed, together([policy(influence) for influence in influences])) if len(influences) > 1 else summed


def _short(x: Fraction) -> Fraction:
    """Return x ≥ 0, or, where its digits would slow all further steps, a bound above it by less than 1 in 2²⁵⁵."""
    if x.denominator.bit_length() <= LONGEST:
        return x
    m = max(0, 2 * ROOT_BITS + x.denominator.bit_length() - x.numerator.bit_length())
    return Fraction(-(-(x.numerator << m) // x.denominator), 1 << m)


def root_above(x: Fraction) -> Fraction:
    """Return an upper bound of √x, x ≥ 0: exact where it is rational, else within one part in 2¹²⁷."""
    if not x >= 0:
        raise ValueError("a root needs a number of at least 0")
    numerator, denominator = isqrt(x.numerator), isqrt(x.denominator)
    if numerator**2 == x.numerator and denominator**2 == x.denominator:
        return Fraction(numerator, denominator)
    # ⌈√⌈x·4^m⌉⌉/2^m, with m so large that the root has ROOT_BITS bits
    m = max(0, ROOT_BITS + (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1)
    scaled = -(-(x.numerator << 2 * m) // x.denominator)
    return Fraction(isqrt(scaled - 1) + 1, 1 << m)
