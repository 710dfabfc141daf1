"""Losses of firms, brought together by the engine, against plain sums over exact fractions."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.accounting.references import Reference
from pipeline.diagnostics import records as kernel
from pipeline.microdata import source
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import located, policy_of
from tests.support import firms
from tests.support.diagnostics import diagnosed, in_files, read, rows
from tests.support.losses import economy, firm_losses, in_domain, whole, wrong
from tests.support.world import MEASURES
from udfs.mechanisms.catalogue import build
from udfs.records.influence import QueryLoss, UnitRows, unit_losses

TEXT = ["F1", "F10", "Ünïted Ħoldings", "Acme, Inc.", "f1", *(f"G{i}" for i in range(40))]
NUMBERS = [0, 7, -3, 2**62, *range(100, 140)]
QUERIES = [*firms.QUERIES, *firms.COARSE]


def microdata(seed: int, owners: list[Any], count: int = 300) -> pa.Table:
    return economy(seed, count, (*firms.NAICS, "999999"), (*firms.COUNTIES, "56045"), owners)


def world(folder: Path, table: pa.Table, **changes: Any) -> Path:
    path = firms.world(folder, **{"queries": QUERIES, **changes})
    in_files(folder / "microdata", table, 130)
    return path


def all_wrong(path: Path, out: Path, table: pa.Table, bad: Sequence[str | None] = ()) -> list[str]:
    """Return the firms whose losses differ from plain sums, and "count" where there are other firms.

    `bad`: the owners of bad records, which are not in the table.
    """
    plan = load_plan(path)
    found = {row["owner"]: row for row in rows(diagnosed(path, out, per_record=True) / "firms")}
    inside = [r for r in table.to_pylist() if in_domain(plan, {"naics": r["naics"], "county": r["county"]})]
    exact = firm_losses(plan, inside)
    names = [f"loss_{query.name}" for query in plan.queries]
    differ = [] if found.keys() == exact.keys() else ["count"]
    for owner, losses in exact.items():
        row = found.get(owner)
        kept, all_rows = (sum(str(r["firm_id"]) == owner for r in each) for each in (inside, table.to_pylist()))
        total = whole(losses, kept, all_rows - kept + list(bad).count(owner))
        if row is not None and wrong([*(row[name] for name in names), row["loss"]], [*losses, total]):
            differ.append(owner)
    return differ


@pytest.mark.parametrize(
    ("seed", "owners"), [(0, TEXT), (1, NUMBERS), (2, TEXT)], ids=["text", "numbers", "other text"]
)
def test_firms_lose_what_plain_sums_say(
    tmp_path: Path, seed: int, owners: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_RECORDS", 50)
    table = microdata(seed, owners)
    assert all_wrong(world(tmp_path, table), tmp_path / "out", table) == []


def test_losses_summed_record_by_record_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(query: QueryLoss, rows: UnitRows) -> Any:
        return unit_losses(query, replace(rows, cells=np.arange(len(rows.cells))))

    table = microdata(1, TEXT)
    path = world(tmp_path, table)
    monkeypatch.setattr(kernel, "unit_losses", one_by_one)
    assert all_wrong(path, tmp_path / "out", table)


def test_owners_taken_for_one_another_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernel.as_text
    monkeypatch.setattr(kernel, "as_text", lambda owners: pa.array([text[:2] for text in whole(owners).to_pylist()]))
    table = microdata(1, TEXT)
    assert all_wrong(world(tmp_path, table), tmp_path / "out", table)


def test_listed_cells_steps_and_dropped_records(tmp_path: Path) -> None:
    table = microdata(3, TEXT)
    owners, payroll = table.column("firm_id").to_pylist(), (table.column("payroll").to_numpy() / 4).tolist()
    owners[5], owners[9], payroll[11] = None, "  ", 0.1
    bad = {5, 9, 11}
    table = table.set_column(4, "payroll", pa.array(payroll)).set_column(5, "firm_id", pa.array(owners))
    quarter = MEASURES | {"payroll": {"column": "payroll", "type": "decimal", "step": 0.25}}
    pay = {"name": "pay", "sum": "payroll", "by": ["county"], "mechanism": {"kind": "laplace", "sigma": 7}}
    changes = {"dataset": {"bad_records": "drop", "measures": quarter}, "domain": {"cells": "domain/cells.csv"}}
    path = world(tmp_path, table, **changes, queries=[*firms.QUERIES[:2], pay])
    pairs = [pair for i, pair in enumerate(firms.CELLS) if i % 5]
    (tmp_path / "domain" / "cells.csv").write_text("naics,county\n" + "".join(f"{n},{c}\n" for n, c in pairs))
    good = table.take([i for i in range(len(table)) if i not in bad])
    assert all_wrong(path, tmp_path / "out", good, bad=[owners[11]]) == []
    assert read(tmp_path / "out")["records"]["dropped"] == 3


def test_a_firm_loses_no_less_than_the_accountant_says_of_its_known_cells(tmp_path: Path) -> None:
    table = microdata(4, TEXT, 120)
    path = world(tmp_path, table)
    plan = load_plan(path)
    policy = policy_of(plan)
    found = {row["owner"]: row["loss"] for row in rows(diagnosed(path, tmp_path / "out", per_record=True) / "firms")}
    for owner, loss in found.items():
        own = [r for r in table.to_pylist() if r["firm_id"] == owner and in_domain(plan, r)]
        exact = policy.loss_at(located(plan, Reference.of([reference(row) for row in own], listed=True)))
        left_out = sum(r["firm_id"] == owner for r in table.to_pylist()) - len(own)
        assert wrong([loss], [exact + Fraction(left_out**2, 20_000)]) == []


def reference(row: dict[str, Any]) -> dict[str, Any]:
    return {"naics6": row["naics"], "county": row["county"]} | {name: row[name] for name in ("employment", "payroll")}


def test_sums_of_a_firm_beyond_63_bits_are_exact() -> None:
    mechanism = build(firms.GAUSSIAN, Fraction(1))
    query = QueryLoss("q", 0, "x", mechanism.step, {}, (mechanism,))
    steps = np.array([2**63 - 1, 2**63 - 1, 1, 5])
    of = np.zeros(4, dtype=np.int64)
    influences, losses = unit_losses(query, UnitRows(2, np.array([1, 1, 1, 0]), of, of, steps))
    assert (
        wrong(losses.tolist(), [mechanism.loss_at(5 * mechanism.step), mechanism.loss_at((2**64 - 1) * mechanism.step)])
        == []
    )
    assert influences.tolist() == [5.0, 2.0**64]
