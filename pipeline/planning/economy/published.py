"""County Business Patterns as published by state and industry: the figures, their tree, and what is withheld today."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PlanError, PrdpError
from pipeline.planning.economy import Floats, Ints, read_rows

Bools = NDArray[np.bool_]

CONF: Final = Path(__file__).resolve().parents[3] / "conf"
FIGURES: Final = {f"cbp-{year}": CONF / "economy" / f"cbp_{year}.parquet" for year in (2010, 2011)}
INDUSTRIES: Final = (CONF / "codes" / "naics_2007.csv", CONF / "codes" / "naics_unclassified.csv")

NATION: Final = "00"  # all industries together
SECTORS: Final = {"32": "31", "33": "31", "45": "44", "49": "48"}  # as the figures name 31-33, 44-45 and 48-49
LEVELS: Final = (2, 3, 4, 5, 6)  # digits
UNBOUNDED: Final = 1 << 40  # beyond every figure
RANGES: Final = {  # people, both ends included, by the flag that stands in place of a withheld figure
    "A": (0, 19),
    "B": (20, 99),
    "C": (100, 249),
    "E": (250, 499),
    "F": (500, 999),
    "G": (1_000, 2_499),
    "H": (2_500, 4_999),
    "I": (5_000, 9_999),
    "J": (10_000, 24_999),
    "K": (25_000, 49_999),
    "L": (50_000, 99_999),
    "M": (100_000, UNBOUNDED),
}
WITHHELD: Final = ("D", "S")  # to keep a secret; for poor quality


@dataclass(frozen=True)
class Bounds:
    """What is known of a measure, code by state: `least` = `most` where it is published, both ends included."""

    least: Ints
    most: Ints


@dataclass(frozen=True)
class Published:
    """Figures of n codes (parents before children, siblings side by side) by s states; arrays are n × s.

    The file leaves out a code that is its parent's only child, which has its parent's figures here, and eleven
    others, which have what the parent's listed children leave: `listed` is False for both.
    """

    codes: tuple[str, ...]
    states: tuple[str, ...]
    parent: Ints  # position of each code's parent; -1 of all industries
    listed: Bools
    establishments: Ints
    employment: Bounds  # people in mid-March
    payroll: Bounds  # of the year, in $1,000
    flag: NDArray[np.str_]  # of employment: G, H (noise below 2 %, 5 %), D, S; "" where the file has no such cell

    def level(self, digits: int) -> slice:
        """Return where the codes of so many digits stand."""
        length = [len(code) for code in self.codes[1:]]
        return slice(1 + length.index(digits), len(self.codes) - length[::-1].index(digits))

    def families(self) -> Iterator[tuple[Ints, slice, Ints]]:
        """Yield from coarse to fine the parents of a level, their children, and where each parent's children begin."""
        for digits in LEVELS:
            children = self.level(digits)
            parents, starts = np.unique(self.parent[children], return_index=True)
            yield parents, children, starts


def published(name: str) -> Published:
    """Return the figures called `name`; raises PlanError where it is no key of FIGURES."""
    if name not in FIGURES:
        raise PlanError(f"there are no figures {name}; known: {', '.join(FIGURES)}")
    table = pq.read_table(FIGURES[name])
    codes, parent = _tree()
    rows = {code: n for n, code in enumerate(codes)}
    states = tuple(sorted(pc.unique(table["state"]).to_pylist()))
    cells = (
        np.array([rows[code] for code in table["naics"].to_pylist()]),
        np.searchsorted(states, table["state"].to_pylist()),
    )

    def grid(values: Any, kind: Any = np.int64) -> NDArray[Any]:
        figures = np.zeros((len(codes), len(states)), dtype=kind)
        figures[cells] = values
        return figures

    ranges = np.array([RANGES.get(size, (0, 0)) for size in table["size"].to_pylist()])
    known = pc.is_valid(table["employment"]).to_numpy()
    employment = pc.fill_null(table["employment"], 0).to_numpy()
    payroll = [pc.fill_null(table["payroll"].cast("int64"), unknown).to_numpy() for unknown in (0, UNBOUNDED)]
    figures = Published(
        codes,
        states,
        parent,
        np.isin(np.arange(len(codes)), cells[0]),
        grid(table["establishments"].to_numpy()),
        Bounds(*(grid(np.where(known, employment, ranges[:, end])) for end in (0, 1))),
        Bounds(*map(grid, payroll)),
        grid(table["employment_flag"].to_pylist(), "<U1"),
    )
    _fill(figures)
    return figures


def _tree() -> tuple[tuple[str, ...], Ints]:
    leaves = [row["code"] for path in INDUSTRIES for row in read_rows(path)]
    codes = [NATION]
    for digits in LEVELS:
        codes += sorted({_ancestor(code, digits) for code in leaves})
    rows = {code: n for n, code in enumerate(codes)}
    above = [rows[NATION if len(code) == 2 else _ancestor(code, len(code) - 1)] for code in codes[1:]]
    return tuple(codes), np.array([-1, *above])


def _ancestor(code: str, digits: int) -> str:
    return SECTORS.get(code[:2], code[:2]) if digits == 2 else code[:digits]


def _fill(figures: Published) -> None:
    """Give figures to the codes that the file leaves out; the last of several that it leaves out takes all."""
    bounds = (figures.employment.least, figures.employment.most, figures.payroll.least, figures.payroll.most)
    for code in np.flatnonzero(~figures.listed):
        parent = figures.parent[code]
        siblings = np.flatnonzero(figures.parent == parent)
        if len(siblings) == 1:
            for values in (figures.establishments, figures.flag, *bounds):
                values[code] = values[parent]
        elif code == siblings[~figures.listed[siblings]][-1]:
            others = siblings[siblings != code]
            figures.establishments[code] = figures.establishments[parent] - figures.establishments[others].sum(axis=0)
            some = figures.establishments[code] > 0
            figures.employment.most[code] = figures.payroll.most[code] = np.where(some, UNBOUNDED, 0)


def withheld_today(name: str) -> dict[str, Any]:
    """Return how much of the figures `name` is withheld, by level: as listed, and with codes left out filled in.

    Cells are those with establishments; a cell is withheld where its employment is (flag D or S). `cells_share` is of
    the level's cells, `establishments_share` of the establishments in them. `not_listed`: the eleven codes that are
    no parent's only child and have no figures of their own.
    """
    figures = published(name)
    some, flagged = figures.establishments > 0, figures.flag != ""
    withheld = np.isin(figures.flag, WITHHELD)

    def counted(cells: Bools) -> dict[str, Any]:
        shown, hidden = (figures.establishments[mask].sum() for mask in (cells, cells & withheld))
        return {
            "cells": int(cells.sum()),
            "flags": {flag: int((figures.flag[cells] == flag).sum()) for flag in "GHDS"},
            "withheld": int((cells & withheld).sum()),
            "cells_share": float((cells & withheld).sum() / cells.sum()),
            "establishments": int(shown),
            "establishments_withheld": int(hidden),
            "establishments_share": float(hidden / shown),
        }

    levels = []
    for digits in LEVELS:
        of_level = np.zeros_like(some)
        of_level[figures.level(digits)] = True
        cells = of_level & some & flagged
        levels.append(
            {
                "level": f"naics{digits}",
                "listed": counted(cells & figures.listed[:, None]),
                "filled_in": counted(cells),
                "codes_listed": int(figures.listed[figures.level(digits)].sum()),
                "codes": len(figures.codes[figures.level(digits)]),
            }
        )
    rest = some & ~flagged
    total = int(figures.establishments[0].sum())
    not_listed = {"cells": int(rest.sum()), "establishments": int(figures.establishments[rest].sum())}
    return {"like": name, "establishments": total, "levels": levels, "not_listed": not_listed}


# Whole figures for every industry and state: what is published is kept, and what is withheld is filled in between.
#
# What may lie below a code is a range of whole numbers: the sum of its children's ranges, cut by its own. So going from
# fine to coarse says exactly what each figure may be, and going back, children always find figures that add up.

HALVINGS = 100  # of the interval of exponents below, which brings its ends together
WIDEST = 60.0  # a withheld figure is within a factor e⁶⁰ of what is expected of it


@dataclass(frozen=True)
class Allocated:
    """Figures of every code and state; a code's children add up to it in each measure and state."""

    employment: Ints
    payroll: Ints


def allocated(figures: Published) -> Allocated:
    """Return whole figures within all bounds; each code's children add up to it.

    A withheld employment is expected to be the payroll over the industry's pay an employee, or, where payroll is
    withheld too, the establishments times the industry's employees an establishment, both over the states where they
    are published; a withheld payroll, the employment times that pay. Siblings depart from it by one common factor.

    Raises PrdpError where the bounds contradict each other.
    """
    establishments = figures.establishments
    staffed = _mean(figures, figures.employment, Bounds(establishments, establishments))
    pay = _mean(figures, figures.payroll, figures.employment)
    paid = figures.payroll.least == figures.payroll.most
    expected = np.where(paid, figures.payroll.least / pay, establishments * staffed)
    employment = _top_down(figures, figures.employment, expected)
    years = np.maximum(employment, establishments / 2)  # with nobody in March, half a year's work each
    return Allocated(employment, _top_down(figures, figures.payroll, years * pay))


def _mean(figures: Published, measure: Bounds, per: Bounds) -> Floats:
    """Return an industry's ratio of two measures over the states that publish both; its parent's where none does."""
    both = (measure.least == measure.most) & (per.least == per.most)
    over, under = (np.where(both, values.least, 0).sum(axis=1) for values in (measure, per))
    ratio = np.zeros(len(over))
    for code, parent in enumerate(figures.parent):
        ratio[code] = over[code] / under[code] if over[code] > 0 and under[code] > 0 else ratio[parent]
    return ratio[:, None]


def _top_down(figures: Published, bounds: Bounds, expected: Floats) -> Ints:
    least, most = bounds.least.copy(), bounds.most.copy()
    families = list(figures.families())
    for parents, children, starts in reversed(families):
        least[parents] = np.maximum(least[parents], np.add.reduceat(least[children], starts))
        most[parents] = np.minimum(most[parents], np.add.reduceat(most[children], starts))
    wrong = np.argwhere(least > most)
    if len(wrong):
        code, state = wrong[-1]  # the finest
        raise PrdpError(
            f"published figures contradict each other: {figures.codes[code]} in state {figures.states[state]}"
        )
    values = least.copy()
    values[0] = np.clip(np.rint(expected[0]), least[0], most[0])
    for parents, children, starts in families:
        values[children] = divided(values[parents], expected[children], least[children], most[children], starts)
    return values


def divided(totals: Ints, expected: Floats, least: Ints, most: Ints, starts: Ints) -> Ints:
    """Return whole numbers in [least, most] that add up to `totals`, near a common multiple of what is `expected`.

    Args:
        totals: family × state; each between the sums of its children's bounds.
        expected: child × state, all positive where `most` is; siblings lie side by side.
        least: child × state.
        most: child × state.
        starts: the position of each family's first child.
    """
    sizes = np.diff(starts, append=len(expected))

    def at(exponent: Floats) -> Floats:
        multiples: Floats = np.clip(expected * np.exp(np.repeat(exponent, sizes, axis=0)), least, most)
        return multiples

    low, high = np.full(totals.shape, -WIDEST), np.full(totals.shape, WIDEST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = np.add.reduceat(at(middle), starts) < totals
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    near = at(high)
    values = np.clip(np.floor(near), least, most).astype(np.int64)
    # the units that are left go one each to the children that lost most by rounding
    rest = totals - np.add.reduceat(values, starts)
    lost = np.where(values < most, near - values, -1.0)
    family = np.broadcast_to(np.repeat(np.arange(len(starts)), sizes)[:, None], lost.shape)
    order = np.lexsort((-lost, family), axis=0)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(order))[:, None] - np.repeat(starts, sizes)[:, None], axis=0)
    values += (rank < np.repeat(rest, sizes, axis=0)) & (values < most)
    if (np.add.reduceat(values, starts) != totals).any():
        raise PrdpError("withheld figures cannot be divided so that they add up")
    return values
