"""Attack: what totals and losses of a union are, against those of its parts, through the engine.

The totals of a union are the sums of the totals. What a firm's rows change, all of them taken away, is their influence
in each cell: the policy at these changes, added up over cells, is the loss that `prdp diagnose` states of the firm.
Firms of one row are records.
"""

from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.engines.dask import DaskEngine
from pipeline.plan.load import load_plan
from tests.support import firms
from tests.support.cases import cases, sizes
from tests.support.diagnostics import diagnosed, rows
from tests.support.losses import economy, wrong
from tests.support.totals import totals_of

QUERIES = [query for query in firms.QUERIES if query["name"] != "parted"]


def microdata(random: Random) -> pa.Table:
    """Few records, some of codes that are in no cell, whose firms have from one to many."""
    owners = [f"F{i}" for i in range(random.choice([3, 8, 40]))]
    count = random.randint(6, 20)
    return economy(random.randrange(2**31), count, (*firms.NAICS, "999999"), (*firms.COUNTIES, "56045"), owners)


def changes(folder: Path, plan: Path, table: pa.Table, kept: list[bool]) -> dict[str, Any]:
    """Return by how much the totals of all records exceed those of the kept ones and of the others, each by itself."""
    totals = []
    for name, part in (("all", table), ("kept", table.filter(kept)), ("others", table.filter([not k for k in kept]))):
        place = folder / name
        place.mkdir(parents=True)
        pq.write_table(part, place / "part.parquet", row_group_size=3)
        totals.append(totals_of(plan, place, DaskEngine(workers=1), folder / "scratch"))
    whole, rest, others = totals
    assert all(((whole[name] - rest[name]) == others[name]).all() for name in whole)
    return {name: whole[name] - rest[name] for name in whole}


def wrong_firms(folder: Path, random: Random, forget: bool = False) -> list[str]:
    """Return firms whose loss is not that of what they change; `forget`: the broken twin, that forgets a record."""
    table = microdata(random)
    folder.mkdir()
    path = firms.world(folder, queries=random.sample(QUERIES, 3), microdata=table)
    plan = load_plan(path)
    stated = {row["owner"]: row for row in rows(diagnosed(path, folder / "diagnosed", per_record=True) / "firms")}
    found = []
    for owner in random.sample(sorted(stated), min(2, len(stated))):
        kept = [firm != owner for firm in table["firm_id"].to_pylist()]
        if forget:
            kept[kept.index(False)] = True
        if all(kept):
            found.append(owner)
            continue
        changed = changes(folder / owner, path, table, kept)
        by_query = ((query.parts[0].mechanism, changed[query.name].tolist()) for query in plan.queries)
        losses = [sum((m.loss_at(Fraction(abs(cell))) for cell in cells), Fraction(0)) for m, cells in by_query]
        if wrong([stated[owner][f"loss_{query.name}"] for query in plan.queries], losses):
            found.append(owner)
    return found


@sizes(few=1, many=100)
def test_totals_and_losses_add_up(count: int, tmp_path: Path) -> None:
    for case, random in cases(count):
        assert wrong_firms(tmp_path / case, random) == [], case


def test_a_firm_without_one_of_its_records_is_seen(tmp_path: Path) -> None:
    assert any(wrong_firms(tmp_path / case, random, forget=True) for case, random in cases(2))
