"""Small plans of several keys and classes, and beside them the same in plain Python: cells, losses, firms, changes."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from pipeline.base.errors import PlanError
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from tests.support.plans import FRESH

NAICS = ("311111", "722511")
SECTOR = {"311111": "31-33", "722511": "72"}
FORMS = {"C": "firm", "S": "firm", "P": ""}  # a code of the list → its group: P is in none
TEST = Fraction(1, 20_000)  # what the test of records left out costs a record; a firm's n records lose n² of it
OUT = "elsewhere"  # a code in no list
MOST = 8  # of a measure that a reference leaves out: beyond the last class

Record = Mapping[str, Any]  # naics, form, employment, payroll
Cell = tuple[str, ...]


@dataclass(frozen=True)
class Classes:
    """Classes of a measure of whole numbers, by their lowest values."""

    of: str
    lowest: tuple[int, ...]

    def code(self, value: int) -> str:
        """The code of the class of a value, found by looking at every class."""
        for low, beyond in zip(self.lowest, (*self.lowest[1:], None), strict=True):
            if low <= value and (beyond is None or value < beyond):
                return f"{low}+" if beyond is None else f"{low}" if beyond == low + 1 else f"{low}-{beyond - 1}"
        raise AssertionError(value)

    @property
    def codes(self) -> list[str]:
        """All codes."""
        return [self.code(low) for low in self.lowest]


@dataclass(frozen=True)
class Asked:
    """A query: what it sums (None: it counts), its cells, and the σ of each part's Gaussian noise."""

    measure: str | None
    by: tuple[str, ...]
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    split: str | None = None
    sigmas: Mapping[str, int] = field(default_factory=lambda: {"others": 1})

    def data(self, name: str) -> dict[str, Any]:
        """The query as a plan writes it."""
        noise = {code: {"kind": "gaussian", "sigma": s, "policy": "paper"} for code, s in self.sigmas.items()}
        others = noise.pop("others", None)
        parts = {"by": self.split, "parts": noise} | ({} if others is None else {"others": others})
        statistic = {"count": "records"} if self.measure is None else {"sum": self.measure}
        where = {level: list(codes) for level, codes in self.where.items()}
        return statistic | {
            "name": name,
            "by": list(self.by),
            "where": where,
            "mechanism": parts if self.split else others,
        }


@dataclass(frozen=True)
class World:
    """Queries over the keys naics, form and classes of measures; records as mappings.

    `listed`: the cells, where they are listed, each the codes of naics, form and the classes.
    """

    classes: Mapping[str, Classes]
    asked: tuple[Asked, ...]
    listed: frozenset[Cell] | None = None

    def kept(self, record: Record) -> bool:
        """Whether no code of a record is in no list, or, where cells are listed, it lies in one."""
        codes = [self.code(record, level) for level in ("naics6", "form", *self.classes)]
        return None not in codes if self.listed is None else tuple(map(str, codes)) in self.listed

    def code(self, record: Record, level: str) -> str | None:
        """A record's code at a level; None where it has none."""
        if level in self.classes:
            return self.classes[level].code(record[self.classes[level].of])
        if level in ("form", "group"):
            form = record["form"]
            return None if form not in FORMS else form if level == "form" else FORMS[form] or None
        naics = record["naics"]
        return None if naics not in NAICS else SECTOR[naics] if level == "naics2" else naics

    def cell(self, query: Asked, record: Record) -> Cell | None:
        """The one cell of a query that holds a record."""
        codes = [self.code(record, level) for level in query.by]
        meets = all(self.code(record, level) in kept for level, kept in query.where.items())
        meets &= self.listed is None or self.kept(record)
        return tuple(map(str, codes)) if meets and None not in codes else None

    def sigma(self, query: Asked, record: Record) -> int:
        """The scale of the noise in a record's cell."""
        code = self.code(record, query.split) if query.split else "others"
        return query.sigmas.get(str(code), query.sigmas.get("others", 0))

    def loss(self, firm: Sequence[Record]) -> Fraction:
        """What records lose together: the loss of Gaussian noise at what they add to each cell, over all cells."""
        total = TEST * len(firm) ** 2
        for query in self.asked:
            added: dict[tuple[Cell, int], int] = defaultdict(int)
            for record in firm:
                if (cell := self.cell(query, record)) is not None:
                    added[cell, self.sigma(query, record)] += 1 if query.measure is None else record[query.measure]
            total += sum(Fraction(x * x, 2 * sigma**2) for (_, sigma), x in added.items())
        return total

    def places(self, values: Mapping[str, int], at: Mapping[str, str] | None = None) -> Iterator[Record]:
        """All records with these values: in every place, also outside the lists; `at`: with these codes."""
        for naics, form in product((*NAICS, OUT), (*FORMS, OUT)):
            record = {"naics": naics, "form": form, **values}
            if all(self.code(record, level) == code for level, code in (at or {}).items()):
                yield record

    def plan(self, folder: Path, **changes: Any) -> Plan:
        """The plan, loaded from a fresh folder."""
        place = folder / str(next(FRESH))
        place.mkdir()
        (place / "naics.csv").write_text("code\n" + "\n".join(NAICS) + "\n")
        (place / "forms.csv").write_text("code,group\n" + "".join(f"{c},{g}\n" for c, g in FORMS.items()))
        classes = {key: {"of": each.of, "classes": list(each.lowest)} for key, each in self.classes.items()}
        lists = {"naics": "naics.csv", "form": {"list": "forms.csv", "levels": ["group"]}}
        if self.listed is not None:
            rows = [("naics", "form", *self.classes), *sorted(self.listed)]
            (place / "cells.csv").write_text("".join(",".join(row) + "\n" for row in rows))
            lists = {"cells": "cells.csv"}
        data = {
            "release": "r",
            "dataset": {
                "name": "d",
                "path": "microdata",
                "record": "id",
                "keys": {"naics": "naics", "form": "form"},
                "measures": {name: {"column": name, "type": "integer"} for name in ("employment", "payroll")},
                **changes.pop("dataset", {}),
            },
            "domain": lists | classes,
            "queries": [query.data(f"q{i}") for i, query in enumerate(self.asked)],
            "budget": [{"at": {"employment": 1, "payroll": 1}, "rho": 10**9}],
            **changes,
        }
        (place / "plan.yaml").write_text(json.dumps(data))
        try:
            return load_plan(place / "plan.yaml")
        except PlanError as error:  # a filter or a part that no listed cell meets
            assume(self.listed is None or not any(rule in str(error) for rule in ("no cell of", "must be left out")))
            raise


def no_larger(values: Mapping[str, int | None], most: int) -> Iterator[dict[str, int]]:
    """All whole values at or below the given ones, and up to `most` of a measure that is None."""
    ranges = [range((most if value is None else value) + 1) for value in values.values()]
    return (dict(zip(values, each, strict=True)) for each in product(*ranges))


def largest(losses: Iterable[Fraction]) -> Fraction:
    """The largest loss; 0 of none."""
    return max(losses, default=Fraction(0))


def smaller_firms(firm: Sequence[Mapping[str, int]]) -> Iterator[tuple[dict[str, int], ...]]:
    """All firms whose records can be matched with records of this one that are as large: some may have gone."""
    for records in product(*([None, *no_larger(values, MOST)] for values in firm)):
        if any(records):
            yield tuple(record for record in records if record)


def most_lost(world: World, firms: Iterable[Sequence[Mapping[str, int]]]) -> Fraction:
    """The most that any of the firms loses in any placement of its records."""
    memory: dict[Any, list[Any]] = {}

    def places(values: Mapping[str, int]) -> list[Any]:
        key = tuple(values.items())
        if key not in memory:
            cells = {}
            for record in world.places(values):
                met = tuple((world.cell(query, record), world.sigma(query, record)) for query in world.asked)
                cells[met] = record
            memory[key] = list(cells.values())
        return memory[key]

    return largest(world.loss(placed) for firm in firms for placed in product(*map(places, firm)))


CLASS_KEYS = st.sampled_from(
    [
        {"size": Classes("employment", (0, 3, 6))},
        {"size": Classes("employment", (0, 1, 4))},
        {"size": Classes("employment", (0, 3)), "band": Classes("employment", (0, 2, 5))},
        {"size": Classes("employment", (0, 3, 6)), "band": Classes("payroll", (0, 2))},
        {"size": Classes("employment", (0,))},
    ]
)


@st.composite
def worlds(draw: st.DrawFn, measures: Sequence[str | None] = (None, "employment", "payroll"), most: int = 4) -> World:
    """Worlds of a few queries, of which some have noise by part, and some a filter."""
    classes: dict[str, Classes] = draw(CLASS_KEYS)
    listed = None
    if draw(st.integers(0, 3)) == 0:
        values = [{"employment": one, "payroll": other} for one, other in product(range(9), range(5))]
        classed = {tuple(each.code(record[each.of]) for each in classes.values()) for record in values}
        cells = [(naics, form, *codes) for naics, form, codes in product(NAICS, FORMS, sorted(classed))]
        some = draw(st.lists(st.sampled_from(cells), min_size=1, unique=True))
        listed = frozenset([*some, *cells[:: len(cells) // 6]])  # with every code
    codes = {key: each.codes for key, each in classes.items()} | {"naics2": [*SECTOR.values()], "form": [*FORMS]}
    free = ["naics6", "naics2", "form"] + ["group"] * (listed is None)
    sigma = st.sampled_from([1, 2, 10, 50])
    asked = []
    for _ in range(draw(st.integers(1, most))):
        keys = draw(st.lists(st.sampled_from([*free, *classes]), min_size=1, unique=True))
        by = [level for level in keys if not (level == "naics2" and "naics6" in keys)]
        by = [level for level in by if not (level == "group" and "form" in by)]
        where = {
            level: draw(st.lists(st.sampled_from(codes[level]), min_size=1, unique=True))
            for level in draw(st.lists(st.sampled_from([*codes]), max_size=2, unique=True))
        }
        able = [level for level in by if level in codes]
        split = draw(st.sampled_from([None, *able]))
        sigmas = {"others": draw(sigma)}
        if split is not None:
            met = [code for code in codes[split] if code in where.get(split, codes[split])]
            some = draw(st.lists(st.sampled_from(met), min_size=1, unique=True))
            sigmas = {code: draw(sigma) for code in some} | ({"others": draw(sigma)} if len(some) < len(met) else {})
        asked.append(Asked(draw(st.sampled_from(measures)), tuple(by), where, split, sigmas))
    return World(classes, tuple(asked), listed)
