"""Counts of owners, and codes that follow from all records of an owner, against every neighbour of small random worlds.

Brute force counts owners in plain Python, and knows Gaussian noise alone: two sets of microdata whose totals differ by
δ in a cell lose δ²/(2σ²) there, and the divergences of all cells add up.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.engines.totals import layout_of, totals_of
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import located, policy_of
from tests.support.world import MEASURES, write_world
from udfs.records.contract import as_text
from udfs.records.decoding import Decoder
from udfs.records.influence import QueryLoss, UnitRows, unit_losses
from udfs.records.statistics import CountOwners
from udfs.records.sums import by_owner, owners_known, sum_batches

NAICS, COUNTIES, ELSEWHERE = ("311111", "311811", "722511"), ("01001", "01003", "06037"), "999999"
EDGES = (0, 5, 20)
SIZES = ("0-4", "5-19", "20+")
DOMAIN = {
    "naics": "domain/naics.csv",
    "county": "domain/counties.csv",
    "size": {"of": "employment", "classes": list(EDGES), "per": "owner"},
    "main": {"of": "employment", "main": "naics3"},
}
LEVELS = [["naics6", "naics3"], ["county", "state"], ["size"], ["main"]]
FINEST = ["naics6", "county", "size", "main"]
CLOSE = 1 + 1e-9  # by which a bound in doubles may be rounded up
PLANS = pytest.mark.parametrize("plans", [50, pytest.param(2000, marks=pytest.mark.drill)])


class Row(NamedTuple):
    """An establishment."""

    owner: str
    naics: str
    county: str
    employment: int


Totals = list[dict[tuple[str, ...], int]]  # of each query by cell


def some_plan(folder: Path, random: Random, *, own: bool = True) -> Plan:
    """A plan with counts of owners and others; `own`: by codes of owners too, some of listed cells."""
    queries: list[dict[str, Any]] = []
    for number in range(random.randint(1, 3)):
        keys = random.sample(LEVELS if own else LEVELS[:2], random.randint(1, 2))
        statistic = random.choice(
            [{"count": "owners"}, {"count": "owners"}, {"count": "records"}, {"sum": "employment"}]
        )
        query = {"name": f"t{number}", **statistic, "by": [random.choice(levels) for levels in keys]}
        if random.random() < 0.3:
            query["where"] = random.choice(
                [{"state": ["01"]}, {"size": ["5-19", "20+"]} if own else {"naics3": ["311"]}]
            )
        noise = [{"kind": "gaussian", "sigma": random.randint(1, 9)} for _ in range(3)]
        mechanism: dict[str, Any] = noise[0]
        if "size" in query["by"] and "size" not in query.get("where", {}) and random.random() < 0.5:
            mechanism = {"by": "size", "parts": {"0-4": noise[0], "20+": noise[1]}, "others": noise[2]}
        queries.append(query | {"mechanism": mechanism})
    domain: dict[str, Any] = DOMAIN if own else {key: DOMAIN[key] for key in ("naics", "county")}
    if own and random.random() < 0.4:
        domain = {"cells": "domain/cells.csv"} | {key: DOMAIN[key] for key in ("size", "main")}
        some_cells(folder, random)
    changes = {"domain": domain, "queries": queries, "budget": [], "naics": NAICS, "counties": COUNTIES}
    measures = {"employment": MEASURES["employment"]}
    dataset = {"unit": "firm_id", "measures": measures, "bad_records": "drop"}
    return load_plan(write_world(folder, None, dataset=dataset, **changes))


def some_cells(folder: Path, random: Random) -> None:
    """Half of all cells, with each code among them, and each size in one county."""
    mains = sorted({code[:3] for code in NAICS})
    cells = {cell for cell in product(NAICS, COUNTIES, SIZES, mains) if random.random() < 0.5}
    for naics, county, size in zip(NAICS, COUNTIES, SIZES, strict=True):
        cells |= {(naics, place, size, main) for place in (county, COUNTIES[0]) for main in mains}
    (folder / "domain").mkdir(exist_ok=True)
    lines = [",".join(cell) + "\n" for cell in random.sample(sorted(cells), len(cells))]
    (folder / "domain" / "cells.csv").write_text("naics,county,size,main\n" + "".join(lines))


def some_rows(random: Random, owners: str = "ABC", most: int = 8) -> list[Row]:
    places = [(naics, county) for naics in (*NAICS, ELSEWHERE) for county in COUNTIES]
    return [
        Row(random.choice(owners), *random.choice(places), random.choice([0, 1, 2, 5, 10, 20]))
        for _ in range(random.randint(0, most))
    ]


def codes_of(rows: Sequence[Row]) -> dict[str, str]:
    """The codes of an owner, from all its rows: of its mains the one of most employment, of equal ones the smallest."""
    of_main: Counter[str] = Counter()
    for row in rows:
        if row.naics in NAICS:
            of_main[row.naics[:3]] += row.employment
    main = min(of_main, key=lambda code: (-of_main[code], code), default="")
    return {"size": SIZES[sum(edge <= sum(row.employment for row in rows) for edge in EDGES) - 1], "main": main}


def code_at(level: str, row: Row, own: Mapping[str, str]) -> str | None:
    if level in own:
        return own[level] or None
    if level in ("county", "state"):
        return row.county[: 5 if level == "county" else 2]
    return row.naics[: int(level[-1])] if row.naics in NAICS else None


@cache
def listed_cells(plan: Plan) -> set[tuple[str, ...]] | None:
    """The cells that a plan lists; None: it lists none."""
    if plan.domain.cells is None:
        return None
    of_keys = zip(plan.domain.cells, (each.codes for each in plan.domain.dimensions), strict=True)
    of_key = {
        each.key: [codes[i] for i in of] for each, (of, codes) in zip(plan.domain.dimensions, of_keys, strict=True)
    }
    return set(zip(*(of_key[key] for key in ("naics", "county", "size", "main")), strict=True))


def brute(plan: Plan, rows: Sequence[Row]) -> Totals:
    """The plan's totals, counted one by one."""
    of_owner = {owner: [row for row in rows if row.owner == owner] for owner in {row.owner for row in rows}}
    own = {owner: codes_of(mine) for owner, mine in of_owner.items()}
    all_keys = plan.domain.uses_all_keys  # then a code in no list leaves a record out of every query
    totals: Totals = []
    for query in plan.queries:
        owners: dict[tuple[str, ...], set[str]] = defaultdict(set)
        sums: Counter[tuple[str, ...]] = Counter()
        for row in rows:
            cell = [code_at(level, row, own[row.owner]) for level in query.by]
            met = all(code_at(level, row, own[row.owner]) in codes for level, codes in query.where.items())
            if None in cell or not met or (all_keys and not is_kept(plan, row, own[row.owner])):
                continue
            owners[tuple(map(str, cell))].add(row.owner)
            sums[tuple(map(str, cell))] += row.employment if query.statistic.measures else 1
        counted = {cell: len(names) for cell, names in owners.items()}
        totals.append(dict(sums) if query.statistic.adds_up else counted)
    return totals


def is_kept(plan: Plan, row: Row, own: Mapping[str, str]) -> bool:
    """Whether a record is in any cell, where a code in no list leaves it out of all."""
    listed = listed_cells(plan)
    return row.naics in NAICS if listed is None else tuple(code_at(level, row, own) for level in FINEST) in listed


def all_kept(plan: Plan, rows: Sequence[Row]) -> bool:
    """Whether a firm's records, all of listed codes, are in the cells that a plan lists, if it does."""
    return plan.domain.cells is None or all(is_kept(plan, row, codes_of(rows)) for row in rows)


def summed(plan: Plan, rows: Sequence[Row], files: int = 1) -> Totals:
    """The plan's totals by the kernels that both engines run; owners are brought together in each of `files`."""
    layout = layout_of(plan)
    spec = layout.spec
    batches = []
    for first in range(files):
        mine = rows[first::files]
        names, codes = pa.array([row.owner for row in mine], pa.string()), [row[1:] for row in mine]
        naics, county, employment = zip(*codes, strict=True) if codes else ((), (), ())
        texts = [names, pa.array(naics, pa.string()), pa.array(county, pa.string()), pa.array(employment, pa.int64())]
        columns = dict(zip(("firm_id", "naics", "county", "employment"), texts, strict=True))
        batch = pa.record_batch(columns)
        more = by_owner(Decoder(spec).records(batch), as_text(names), spec)
        batches.append(pa.record_batch({**columns, **more}))
    known = owners_known(spec)
    arrays = totals_of(replace(layout, spec=known), sum_batches(batches, known))
    tables = []
    for table, values in zip(layout.tables, arrays, strict=True):
        keys = [[codes[i] for i in index] for codes, index in table.cells.keys(0, table.cells.size).values()]
        cells = zip(*keys, strict=True)
        tables.append({cell: int(value) for cell, value in zip(cells, values, strict=True) if value})
    return tables


def lost(plan: Plan, one: Sequence[Row], other: Sequence[Row]) -> Fraction:
    """What the tables tell of which of two sets of microdata they were made: exactly, with continuous noise."""
    total = Fraction(0)
    for query, here, there in zip(plan.queries, brute(plan, one), brute(plan, other), strict=True):
        for cell in {*here, *there}:
            (part,) = (
                each for each in query.parts if query.split is None or cell[query.by.index("size")] in each.codes
            )
            sigma = Fraction(part.mechanism.describe()["sigma"])
            total += Fraction(here.get(cell, 0) - there.get(cell, 0)) ** 2 / (2 * sigma**2)
    return total


def stated(plan: Plan, policy: PolicySum, rows: Sequence[Row], *, named: bool = True) -> float:
    """What the release says that an owner with these rows loses by its tables; `named`: in their own cells."""
    own = codes_of(rows) if len(plan.domain.dimensions) > 2 else {}
    if named and not all_kept(plan, rows):
        rows, own = [row for row in rows if is_kept(plan, row, own)], {"main": own["main"]}  # its size is not of these
    if not rows:
        return 0.0
    records = [
        {"employment": Fraction(row.employment)}
        | ({"naics6": row.naics, "county": row.county, **{k: v for k, v in own.items() if v}} if named else {})
        for row in rows
    ]
    test = Fraction(len(rows) ** 2, 20_000)  # of records left out
    return float(policy.loss_at(located(plan, Reference.of(records))) - test)


Worlds = Callable[..., Iterator[tuple[Plan, PolicySum, Random]]]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Yields plans, each made once, with their policies and a source of rows; `own`: with codes of owners."""
    folder = tmp_path_factory.mktemp("owners")

    @cache
    def world(seed: int, own: bool) -> tuple[Plan, PolicySum]:
        plan = some_plan(folder, Random(seed), own=own)
        return plan, policy_of(plan)

    def some(plans: int, *, own: bool = True) -> Iterator[tuple[Plan, PolicySum, Random]]:
        return ((*world(seed, own), Random(-seed - 1)) for seed in range(plans))

    return some


@PLANS
def test_both_engines_kernels_count_each_owner_once_a_cell(worlds: Worlds, plans: int) -> None:
    broken = 0
    for plan, _, random in worlds(plans):
        good = some_rows(random, most=14)
        bad = [row._replace(employment=-1) for row in some_rows(random, most=2)]  # below 0: no class holds it
        rows = random.sample([*good, *bad], len(good) + len(bad))
        assert [{c: n for c, n in each.items() if n} for each in brute(plan, good)] == summed(plan, rows), rows
        broken += summed(plan, rows, files=2) != summed(plan, rows)  # the broken twin: owners of each file alone
    assert broken > plans / 4


@PLANS
def test_an_owner_that_comes_or_goes_loses_what_is_stated_and_no_less(worlds: Worlds, plans: int) -> None:
    for plan, policy, random in worlds(plans):
        rows = [row for row in some_rows(random) if row.naics in NAICS]
        for owner in {row.owner for row in rows}:
            mine, others = ([row for row in rows if (row.owner == owner) is own] for own in (True, False))
            actual = float(lost(plan, rows, others))
            assert actual <= stated(plan, policy, mine) * CLOSE
            if all_kept(plan, mine):  # exactly so much:
                assert stated(plan, policy, mine) <= actual * CLOSE + 1e-12
            anywhere = stated(plan, policy, mine, named=False) * CLOSE
            assert actual <= anywhere
            fewer = [
                each._replace(employment=random.randint(0, each.employment)) for each in mine[random.randint(0, 1) :]
            ]
            assert float(lost(plan, [*others, *fewer], others)) <= anywhere  # of an owner that is no larger


@PLANS
def test_no_owner_with_records_elsewhere_loses_more(worlds: Worlds, plans: int) -> None:
    for plan, policy, random in worlds(plans // 5):
        sizes = [random.choice([1, 4, 10]) for _ in range(2)]
        places = list(product((*NAICS, ELSEWHERE), COUNTIES))
        worst = max(
            lost(plan, [Row("A", *place, size) for place, size in zip(at, sizes, strict=True)], [])
            for at in product(places, repeat=len(sizes))
        )
        bound = stated(plan, policy, [Row("A", *places[0], size) for size in sizes], named=False)
        assert float(worst) <= bound * CLOSE


def test_the_attack_sees_losses_counted_for_one_cell_alone(worlds: Worlds) -> None:
    """The broken twin: what an owner loses whose records are all where the first one is."""
    seen = 0
    for plan, policy, random in worlds(50, own=False):
        rows = [row for row in some_rows(random, owners="A") if row.naics in NAICS]
        if rows and all(query.statistic == CountOwners() for query in plan.queries):
            together = [row._replace(naics=rows[0].naics, county=rows[0].county) for row in rows]
            seen += lost(plan, rows, []) > stated(plan, policy, together) * CLOSE
    assert seen > 3


@PLANS
def test_a_row_that_comes_goes_or_changes(worlds: Worlds, plans: int) -> None:
    """Without codes of owners it loses what it would alone; with them its firm may move: the bound is that of firms."""
    moved = 0
    for own in (False, True):
        for plan, policy, random in worlds(plans // 2, own=own):
            rows = [row for row in some_rows(random) if row.naics in NAICS]
            for i, row in enumerate(rows[:4]):
                changed = Row(row.owner, random.choice(NAICS), random.choice(COUNTIES), random.choice([0, 4, 20]))
                without = rows[:i] + rows[i + 1 :]
                for new, rest in ((None, without), (changed, [*without, changed])):
                    actual = float(lost(plan, rows, rest))
                    alone = [sqrt(stated(plan, policy, [each])) if each else 0.0 for each in (row, new)]
                    firms = [
                        sqrt(stated(plan, policy, [each for each in data if each.owner == row.owner]))
                        for data in (rows, rest)
                    ]
                    assert actual <= sum(firms) ** 2 * CLOSE
                    if own:
                        moved += actual > sum(alone) ** 2 * CLOSE  # the broken twin: the bound of the row alone
                    else:
                        assert actual <= sum(alone) ** 2 * CLOSE
    assert moved > 3


def test_influences_of_firms_are_what_brute_force_finds(worlds: Worlds) -> None:
    """Diagnostics state of each firm 1 a cell, however many records it has there."""

    ((plan, _, _),) = worlds(1, own=False)
    mechanism = plan.queries[0].mechanisms[0]
    query = QueryLoss("firms", 0, "(records)", Fraction(1), {}, (mechanism,), most=1)
    units, cells = np.array([0, 0, 0, 1, 1, 2]), np.array([3, 3, 4, 3, 3, 0])
    rows = UnitRows(3, units, cells, np.zeros(6, dtype=np.int64), np.ones(6, dtype=np.int64))
    influences, losses = unit_losses(query, rows)
    assert influences.tolist() == [2, 1, 1]
    one = float(mechanism.loss_at(Fraction(1)))
    assert losses == pytest.approx([2 * one, one, one], rel=1e-9)
    assert unit_losses(replace(query, most=None), rows)[1][1] == pytest.approx(4 * one, rel=1e-9)  # its twin
