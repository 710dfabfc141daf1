"""Counts of owners, and codes that follow from all records of an owner, against every neighbour of small random worlds.

Brute force counts owners in plain Python, and knows Gaussian noise alone: two sets of microdata whose totals differ by
δ in a cell lose δ²/(2σ²) there, and the divergences of all cells add up.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations, combinations_with_replacement, product, zip_longest
from math import sqrt
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.base.canonical import FrozenMap
from pipeline.engines.totals import layout_of, totals_of
from pipeline.plan import total_policy
from pipeline.plan.domain import Domain
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan, Query
from pipeline.plan.total_policy import located, policy_of
from tests.support.world import MEASURES, write_world
from udfs.records.contract import as_text
from udfs.records.decoding import Decoder
from udfs.records.influence import QueryLoss, UnitRows, unit_losses
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
MANY = int(os.environ.get("PRDP_CASES", "2000"))
PLANS = pytest.mark.parametrize("plans", [20, pytest.param(MANY, marks=pytest.mark.drill, id="drill")])


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
        owners = {"count": "owners"}
        statistic = random.choice([owners, owners, {"count": "records"}, {"sum": "employment"}])
        query = {"name": f"t{number}", **statistic, "by": [random.choice(levels) for levels in keys]}
        if random.random() < 0.3:
            other = {"size": ["5-19", "20+"]} if own else {"naics3": ["311"]}
            query["where"] = random.choice([{"state": ["01"]}, other])
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
    """Half of all cells, or few, with each code among them, and each size in one county."""
    mains, share = sorted({code[:3] for code in NAICS}), random.choice([0.1, 0.5])
    cells = {cell for cell in product(NAICS, COUNTIES, SIZES, mains) if random.random() < share}
    for naics, county, size in zip(NAICS, COUNTIES, SIZES, strict=True):
        cells |= {(naics, place, size, naics[:3]) for place in (county, COUNTIES[0])}
    (folder / "domain").mkdir(exist_ok=True)
    lines = [",".join(cell) + "\n" for cell in random.sample(sorted(cells), len(cells))]
    (folder / "domain" / "cells.csv").write_text("naics,county,size,main\n" + "".join(lines))


def some_rows(random: Random, owners: str = "ABC", most: int = 8) -> list[Row]:
    places = [(naics, county) for naics in (*NAICS, ELSEWHERE) for county in COUNTIES]
    count, sizes = random.randint(0, most), [0, 1, 2, 5, 10, 20]
    return [Row(random.choice(owners), *random.choice(places), random.choice(sizes)) for _ in range(count)]


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


def listed_cells(plan: Plan) -> frozenset[tuple[str, ...]] | None:
    """The cells that a plan lists; None: it lists none."""
    return None if plan.domain.cells is None else _listed(plan.domain)


@cache
def _listed(domain: Domain) -> frozenset[tuple[str, ...]]:
    of_keys = zip(domain.dimensions, domain.cells or (), strict=True)
    codes = {each.key: [each.codes[i] for i in cells.tolist()] for each, cells in of_keys}
    return frozenset(zip(*(codes[key] for key in ("naics", "county", "size", "main")), strict=True))


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


def stated(
    plan: Plan, policy: PolicySum, rows: Sequence[Row], keys: Sequence[Mapping[str, str]] = (), *, below: bool = False
) -> float:
    """What the release says that an owner with these rows loses: with the codes `keys`, or wherever they are.

    `below`: with all owners that are no larger, as limits do.
    """
    named = zip_longest(rows, keys, fillvalue={})
    records = [{"employment": Fraction(row.employment), **codes} for row, codes in named]
    return float(policy.loss_at(located(plan, Reference.of(records), below=below)))


def places_of(plan: Plan, rows: Sequence[Row]) -> list[dict[str, str]] | None:
    """The codes of each row, its owner's among them; None where some row is in no cell, so that none can be named."""
    own = codes_of(rows)
    if not rows or not all(row.naics in NAICS and is_kept(plan, row, own) for row in rows):
        return None
    of_owner = own if "main" in plan.domain.keys else {}
    return [{"naics6": row.naics, "county": row.county, **of_owner} for row in rows]


# All owners with up to three rows of a few kinds, and all pairs of them that differ in one row. What other owners have
# matters to no difference of totals, so these are all neighbours of all such microdata.


class Pairs(NamedTuple):
    """Pairs of owners, by number, and the kind of the row that the one, or the other, has instead (−1: none)."""

    ones: NDArray[np.int64]
    others: NDArray[np.int64]
    rows: NDArray[np.int64]  # of shape (pairs, 2)


KINDS, MOST = 10, 3  # of rows, and rows of an owner
OWNERS = [each for count in range(MOST + 1) for each in combinations_with_replacement(range(KINDS), count)]


@cache
def pairs() -> Pairs:
    number = {owner: i for i, owner in enumerate(OWNERS)}
    differing = [
        (number[tuple(sorted(base + one))], number[tuple(sorted(base + other))], (one or (-1,))[0], other[0])
        for base in OWNERS
        if len(base) < MOST
        for one, other in combinations([(), *((kind,) for kind in range(KINDS))], 2)
    ]
    ones, others, of_one, of_other = np.array(differing).T
    return Pairs(ones, others, np.column_stack([of_one, of_other]))


class Every(NamedTuple):
    """All owners under a plan: their rows, and what each adds to each total and count, in units of its noise √2·σ."""

    rows: list[list[Row]]
    shares: NDArray[np.float64]

    @property
    def losses(self) -> NDArray[np.float64]:
        """What each loses that comes or goes."""
        return np.asarray((self.shares**2).sum(axis=1))

    def no_larger(self, rows: Sequence[Row]) -> NDArray[np.bool_]:
        """Which owners have rows that can be matched with these, each no larger."""
        sizes = sorted((row.employment for row in rows), reverse=True)
        mine = (sorted((row.employment for row in each), reverse=True) for each in self.rows)
        return np.array([len(x) <= len(sizes) and all(map(int.__le__, x, sizes)) for x in mine])


def every_owner(plan: Plan, random: Random) -> Every:
    """All owners with rows in two industries and two counties, and outside the domain, of two sizes."""
    places = [*product(sorted(random.sample(NAICS, 2)), sorted(random.sample(COUNTIES, 2))), (ELSEWHERE, COUNTIES[0])]
    kinds = [Row("A", *place, size) for place in places for size in (4, 16)]
    rows = [[kinds[i] for i in owner] for owner in OWNERS]
    columns: dict[Any, int] = {}
    shares = np.zeros((len(rows), 200))
    for i, mine in enumerate(rows):
        kept = sum(is_kept(plan, row, codes_of(mine)) for row in mine)
        shares[i, :2] = np.array([kept, len(mine) - kept]) / (sqrt(2) * 100)  # the test of records left out
        for number, (query, cells) in enumerate(zip(plan.queries, brute(plan, mine), strict=True)):
            for cell, total in cells.items():
                column = columns.setdefault((number, cell), len(columns) + 2)
                shares[i, column] = total / (sqrt(2) * sigma_of(query, cell))
    return Every(rows, shares[:, : len(columns) + 2])


def sigma_of(query: Query, cell: Sequence[str]) -> int:
    (part,) = (each for each in query.parts if query.split is None or cell[query.by.index("size")] in each.codes)
    return int(part.mechanism.describe()["sigma"])


Worlds = Callable[..., Iterator[tuple[Plan, PolicySum, Random, Every]]]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Yields plans with their policies, a source of rows and all owners, made once; `own`: with codes of owners."""
    folder = tmp_path_factory.mktemp("owners")

    @lru_cache(maxsize=50)  # of all those of a drill they would fill the memory
    def world(seed: int, own: bool) -> tuple[Plan, PolicySum, Every]:
        plan = some_plan(folder, Random(seed), own=own)
        return plan, policy_of(plan), every_owner(plan, Random(-seed - 1))

    def some(plans: int, *, own: bool = True) -> Iterator[tuple[Plan, PolicySum, Random, Every]]:
        for seed in range(plans):
            plan, policy, every = world(seed, own)
            yield plan, policy, Random(-seed - 1), every

    return some


@PLANS
def test_both_engines_kernels_count_each_owner_once_a_cell(worlds: Worlds, plans: int) -> None:
    broken = 0
    for plan, _, random, _ in worlds(plans):
        good = some_rows(random, most=14)
        bad = [row._replace(employment=-1) for row in some_rows(random, most=2)]  # below 0: no class holds it
        rows = random.sample([*good, *bad], len(good) + len(bad))
        assert [{c: n for c, n in each.items() if n} for each in brute(plan, good)] == summed(plan, rows), rows
        broken += summed(plan, rows, files=2) != summed(plan, rows)  # the broken twin: owners of each file alone
    assert broken > plans / 4


@PLANS
def test_an_owner_that_comes_or_goes_loses_what_is_stated_and_no_less(worlds: Worlds, plans: int) -> None:
    apart = together = 0
    for plan, policy, random, every in worlds(plans):
        sampled = random.sample(range(len(OWNERS)), 12)
        for i, rows in enumerate(every.rows):
            keys = places_of(plan, rows) if len(rows) < MOST or i in sampled else None
            if keys is None:
                continue
            bound = stated(plan, policy, rows, keys)
            assert every.losses[i] <= bound * CLOSE
            assert bound <= every.losses[i] * CLOSE + 1e-12
            apart += every.losses[i] > sum(every.losses[OWNERS.index((kind,))] for kind in OWNERS[i]) * CLOSE
            one = every.losses[OWNERS.index(OWNERS[i][:1] * len(rows))]
            together += every.losses[i] > one * CLOSE  # broken twins: of each row alone, or all of them as the first
    assert min(apart, together) > plans


@PLANS
def test_what_is_stated_binds_all_owners_that_are_no_larger(
    worlds: Worlds, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever their rows are, outside the domain too; where a reference names a class, all lower ones; a main, its."""
    forgotten = unlisted = 0
    for plan, policy, _, every in worlds(plans):
        mains = np.array([codes_of(rows)["main"] for rows in every.rows])
        for sizes in (each for count in (1, 2, 3) for each in combinations_with_replacement((4, 16), count)):
            rows = [Row("A", "", "", size) for size in sizes]
            losses = np.where(every.no_larger(rows), every.losses, 0)
            assert losses.max() <= stated(plan, policy, rows) * CLOSE
            of_class = [{"size": codes_of(rows)["size"]}] * len(rows)
            if len(rows) < MOST and plan.domain.meets({"size": (of_class[0]["size"],)}):
                assert losses.max() <= stated(plan, policy, rows, of_class, below=True) * CLOSE
                forgotten += losses.max() > stated(plan, policy, rows, of_class) * CLOSE  # its twin: this class alone
            for main in {*mains.tolist()} - {""} if len(rows) < MOST else ():
                bound = stated(plan, policy, rows, [{"main": main}] * len(rows), below=True)
                assert losses[mains == main].max(initial=0) <= bound * CLOSE
            if plan.domain.cells is not None:
                with monkeypatch.context() as patched:
                    patched.setattr(total_policy, "classed", of_one_code)
                    unlisted += losses.max() > stated(plan, policy, rows) * CLOSE
    assert forgotten > plans / 10
    assert unlisted > plans / 50


def of_one_code(plan: Plan, at: Reference, *, below: bool = False) -> Reference:
    """The broken twin: owners have any one code where noise and filters tell none apart, though listed cells do."""
    used = {level for query in plan.queries for level in (query.split, *query.where)}
    keys = {each.level: each.codes[0] for each in plan.domain.dimensions if each.of_owner and each.level not in used}
    records = (replace(record, keys=FrozenMap.of({**record.keys, **keys})) for record in at.records)
    return replace(at, records=tuple(records))


@PLANS
def test_a_row_that_comes_goes_or_changes(worlds: Worlds, plans: int) -> None:
    """Without codes of owners it loses what it would alone; with them its firm may move: the bound is that of firms."""
    moved = one_side = 0
    ones, others, rows = pairs()
    for own in (False, True):
        for plan, policy, _, every in worlds(plans if own else plans // 4, own=own):
            actual = ((every.shares[ones] - every.shares[others]) ** 2).sum(axis=1)
            kinds = [every.rows[OWNERS.index((kind,))] for kind in range(KINDS)]
            row = np.sqrt([stated(plan, policy, of, places_of(plan, of) or ()) for of in kinds] + [0.0])
            alone = row[rows]
            if own:
                moved += int((actual > alone.sum(axis=1) ** 2 * CLOSE).sum())  # the broken twin: of the row alone
                firm = np.sqrt(every.losses)  # what is stated, as is tested above
                assert (actual <= (firm[ones] + firm[others]) ** 2 * CLOSE).all()
            else:
                assert (actual <= alone.sum(axis=1) ** 2 * CLOSE).all()
                assert (actual[rows[:, 0] < 0] <= alone[rows[:, 0] < 0, 1] ** 2 * CLOSE).all()
            one_side += int((actual > alone.max(axis=1) ** 2 * CLOSE).sum())  # the broken twin: of one row of the two
    assert moved > plans
    assert one_side > plans


def test_influences_of_firms_are_what_brute_force_finds(worlds: Worlds) -> None:
    """Diagnostics state of each firm 1 a cell, however many records it has there."""

    ((plan, *_),) = worlds(1, own=False)
    mechanism = plan.queries[0].mechanisms[0]
    query = QueryLoss("firms", 0, "(records)", Fraction(1), {}, (mechanism,), most=1)
    units, cells = np.array([0, 0, 0, 1, 1, 2]), np.array([3, 3, 4, 3, 3, 0])
    rows = UnitRows(3, units, cells, np.zeros(6, dtype=np.int64), np.ones(6, dtype=np.int64))
    influences, losses = unit_losses(query, rows)
    assert influences.tolist() == [2, 1, 1]
    one = float(mechanism.loss_at(Fraction(1)))
    assert losses == pytest.approx([2 * one, one, one], rel=1e-9)
    assert unit_losses(replace(query, most=None), rows)[1][1] == pytest.approx(4 * one, rel=1e-9)  # its twin
