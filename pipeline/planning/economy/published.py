"""County Business Patterns as published by state and industry: the figures, their tree, and what is withheld today."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.planning.economy.susb import Ints, read_rows

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
    """Return all codes of NAICS 2007 from all industries down to six digits, and the positions of their parents."""
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
