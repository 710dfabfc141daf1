"""Which cells of a table of sums may not be published under the rules of cell suppression, and how wide they must stay.

Source: Hundepool and others, Statistical Disclosure Control (Wiley 2012), chapter 4; Cox, JASA 75 (1980). The rules
look at firms, whose establishments in a cell count together, with contributions x₁ ≥ x₂ ≥ … ≥ 0 that add up to X.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from udfs.numbers.arrays import Floats, Int64s, Mask


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that hold; a cell is primary where any of them says so. None: without that rule.

    A rule asks that no reader can tell the total X as near as ±U (`protection`), by which what remains unknown would be
    safe:

        p % rule:       X − x₁ − x₂ < p/100·x₁               U = p/100·x₁ − (X − x₁ − x₂)
        (n, k) rule:    x₁ + … + x_n > k/100·X               U = 100/k·(x₁ + … + x_n) − X
        threshold t:    fewer than t firms                   U = width/100·X, which is stated: the rule names none

    Below 0 there is nothing to hide, so that downwards min(U, X) is asked. ValueError unless 0 < p, 0 < k < 100, n ≥ 1,
    t ≥ 2 and 0 < width ≤ 100.
    """

    p: float | None = 10.0
    n: int = 2
    k: float | None = 85.0
    threshold: int | None = 3
    width: float = 10.0

    def __post_init__(self) -> None:
        if self.p is not None and not 0 < self.p <= 100:
            raise ValueError("p: must be above 0 and at most 100")
        if not self.n >= 1:
            raise ValueError("n: must be at least 1")
        if self.k is not None and not 0 < self.k < 100:
            raise ValueError("k: must be above 0 and below 100")
        if self.threshold is not None and not self.threshold >= 2:
            raise ValueError("threshold: must be at least 2")
        if not 0 < self.width <= 100:
            raise ValueError("width: must be above 0 and at most 100")

    @classmethod
    def named(cls, numbers: Mapping[str, float]) -> "Rules":
        """Return the rules that are named, and no others; raises ValueError on a name or a number that is none."""
        unknown = [name for name in numbers if name not in vars(cls())]
        if unknown:
            raise ValueError(f"unknown rule {unknown[0]}; known: {', '.join(vars(cls()))}")
        if ("n" in numbers) != ("k" in numbers):
            raise ValueError("n and k: give both or none")
        if any(numbers.get(name, 1) % 1 for name in ("n", "threshold")):
            raise ValueError("n and threshold: must be whole numbers")
        if not numbers.keys() & {"p", "k", "threshold"}:
            raise ValueError("name at least one rule: p, n and k, or threshold")
        held: dict[str, Any] = {"p": None, "k": None, "threshold": None, **numbers}
        return cls(**held | {"n": int(numbers.get("n", 1))})

    def to_json(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Contributions:
    """Of every cell: its total, its number of firms, and the `largest` contributions, a column each, 0 where none."""

    total: Floats
    firms: Int64s
    largest: Floats

    @classmethod
    def of(cls, cells: Int64s, firms: Int64s, values: Floats, size: int, n: int) -> "Contributions":
        """Return those of `size` cells from records ≥ 0 in cells 0 … size − 1; the n largest of each, at least two."""
        order = np.lexsort((firms, cells))
        cells, firms, values = cells[order], firms[order], values[order]
        starts = np.flatnonzero(np.append(True, (np.diff(cells) != 0) | (np.diff(firms) != 0))[: len(cells)])
        sums, of_cell = (np.add.reduceat(values, starts), cells[starts]) if len(starts) else (values, cells)
        order = np.lexsort((-sums, of_cell))
        sums, of_cell = sums[order], of_cell[order]
        count = np.bincount(of_cell, minlength=size)
        rank = np.arange(len(of_cell)) - np.repeat(np.cumsum(count) - count, count)
        largest = np.zeros((size, max(n, 2)))
        kept = rank < largest.shape[1]
        largest[of_cell[kept], rank[kept]] = sums[kept]
        return cls(np.bincount(of_cell, weights=sums, minlength=size).astype(np.float64), count, largest)


def by_rule(rules: Rules, of: Contributions) -> dict[str, Floats]:
    """Return the protection U of every cell by the name of the rule: above 0 where it is primary, at least 1 there."""
    first, remainder = of.largest[:, 0], of.total - of.largest[:, 0] - of.largest[:, 1]
    dominant = of.largest[:, : rules.n].sum(axis=1)
    stated: dict[str, tuple[Mask, Floats]] = {}
    if rules.p is not None:
        needed = rules.p / 100 * first - remainder
        stated["p_percent"] = needed > 0, needed
    if rules.k is not None:
        needed = 100 / rules.k * dominant - of.total
        stated["dominance"] = needed > 0, needed
    if rules.threshold is not None:
        stated["threshold"] = (of.firms > 0) & (of.firms < rules.threshold), rules.width / 100 * of.total
    return {name: np.where(primary, np.maximum(needed, 1.0), 0.0) for name, (primary, needed) in stated.items()}
