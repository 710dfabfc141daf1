"""Influences and losses of records against exact fractions: never below, never above by one part in 10⁹."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.diagnostics.record_losses import BINS, LossSpec, bins_of, upper_ends
from pipeline.engines.totals import layout_of
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from tests.support import firms, parity
from tests.support.guarantee import CASES, named, three
from tests.support.losses import economy, met, wrong
from tests.support.losses import record_losses as exactly
from tests.support.world import COUNTIES, NAICS, write_world
from udfs.mechanisms.additive_kinds import UnitSplitting
from udfs.mechanisms.base import Mechanism
from udfs.records.decoding import Decoder
from udfs.records.influence import SMALL, QueryLoss, RecordLosses, UnitRows, record_losses, summed, unit_losses

NOWHERE_CODES = ("999999", "423110")  # well formed, and in no domain here


def table(seed: int, count: int = 400) -> pa.Table:
    return economy(seed, count, (*NAICS, *NOWHERE_CODES), (*COUNTIES, "56045"), ["F"])


def found_for(spec: LossSpec, microdata: pa.Table) -> RecordLosses:
    (batch,) = microdata.combine_chunks().to_batches()
    return record_losses(Decoder(spec.scan).records(batch), spec.queries, spec.scan)


def plan_of(folder: Path, name: str) -> Plan:
    if name == "every mechanism":
        return load_plan(write_world(folder, None, queries=parity.every_mechanism(), budget=parity.AMPLE))
    if name == "parts and filters":
        return load_plan(write_world(folder, None, queries=[*firms.QUERIES, *firms.COARSE]))
    return load_plan(parity.cells(folder))


def all_wrong(plan: Plan, spec: LossSpec, microdata: pa.Table) -> list[tuple[str, int]]:
    """Return the queries and records whose loss is wrong, "total" for the sum."""
    found = found_for(spec, microdata)
    rows = [exactly(plan, row) for row in microdata.to_pylist()]
    of_queries = {query.name: (found.losses[i], [row[i] for row in rows]) for i, query in enumerate(spec.queries)}
    of_queries["total"] = (summed(found.losses), [sum(row, Fraction(0)) for row in rows])
    return [(name, i) for name, (losses, exact) in of_queries.items() for i in wrong(losses.tolist(), exact)]


@pytest.mark.parametrize("name", ["every mechanism", "parts and filters", "cells"])
def test_losses_are_those_of_the_policies(tmp_path: Path, name: str) -> None:
    plan, microdata = plan_of(tmp_path, name), table(5)
    spec = LossSpec.of(plan, layout_of(plan))
    assert all_wrong(plan, spec, microdata) == []
    found = found_for(spec, microdata)
    for i, query in enumerate(plan.queries):
        one_by_one = [met(plan, query, row) for row in microdata.to_pylist()]
        steps = [0 if one is None else one.influence / query.parts[0].mechanism.step for one in one_by_one]
        assert found.influences[i].tolist() == steps
        inside = found.met[i]
        assert inside is None or inside.tolist() == [one is not None for one in one_by_one]


class TooSmall(QueryLoss):
    """Takes every influence beyond the table for the table's last."""

    def loss(self, steps: np.ndarray, parts: np.ndarray | None) -> np.ndarray:
        return super().loss(np.minimum(steps, SMALL - 1), parts)


class RoundedDown(QueryLoss):
    """Errs downward in the eleventh digit."""

    def loss(self, steps: np.ndarray, parts: np.ndarray | None) -> np.ndarray:
        return super().loss(steps, parts) * (1 - 1e-11)


@pytest.mark.parametrize("twin", [TooSmall, RoundedDown])
def test_broken_kernels_are_rejected(tmp_path: Path, twin: type[QueryLoss]) -> None:
    plan, microdata = plan_of(tmp_path, "every mechanism"), table(5)
    spec = LossSpec.of(plan, layout_of(plan))
    broken = tuple(twin(**{f: getattr(q, f) for f in QueryLoss.__dataclass_fields__}) for q in spec.queries)
    assert all_wrong(plan, replace(spec, queries=broken), microdata)


def test_a_kernel_that_forgets_a_filter_or_a_part_is_rejected(tmp_path: Path) -> None:
    plan, microdata = plan_of(tmp_path, "parts and filters"), table(5)
    spec = LossSpec.of(plan, layout_of(plan))
    for i in (1, 2):
        queries = list(spec.queries)
        of_industry = np.zeros_like(queries[i].part_of[0])
        queries[i] = replace(queries[i], part_of={**queries[i].part_of, 0: of_industry})
        assert all_wrong(plan, replace(spec, queries=tuple(queries)), microdata)


@pytest.mark.parametrize("mechanism", three(), ids=named)
def test_every_mechanism_at_small_and_giant_influences(mechanism: Mechanism) -> None:
    steps = np.array([0, 1, 2, 3, 10, 999, SMALL - 1, SMALL, SMALL + 1, 10**6, 10**9 + 7, 2**53 + 1, 2**62 + 1])
    query = QueryLoss("q", 0, "x", mechanism.step, {}, (mechanism,))
    assert wrong(query.loss(steps, None).tolist(), [mechanism.loss_at(int(s) * mechanism.step) for s in steps]) == []


@pytest.mark.parametrize("step", [Fraction(1), Fraction(1, 4), Fraction(1000), Fraction(123456789, 10**6)])
def test_a_policy_that_jumps_is_met_from_above_also_beyond_what_doubles_tell(step: Fraction) -> None:
    threshold = 2**40 * step
    mechanism = UnitSplitting(threshold=threshold, rho=Fraction(1, 10), policy="paper", step=step)
    query = QueryLoss("q", 0, "x", step, {}, (mechanism,))
    edges = [k * 2**40 + d for k in (1, 2**13, 2**14 + 1, 2**21 + 3) for d in (-1, 0, 1)]
    exact = [mechanism.loss_at(edge * step) for edge in edges]
    assert below(query.loss(np.array(edges), None), exact) == []
    thirds = np.array([[edge // 3, edge // 3, edge - 2 * (edge // 3)] for edge in edges]).ravel()
    nothing = np.zeros(len(thirds), int)
    rows = UnitRows(len(edges), np.arange(len(thirds)) // 3, nothing, nothing, thirds)
    assert below(unit_losses(query, rows)[1], exact) == []
    nearest = query.loss_of(np.array([float(edge * step) for edge in edges]), None)
    assert below(nearest, exact)  # the broken twin: influences as the nearest doubles


def below(losses: np.ndarray, exact: list[Fraction]) -> list[int]:
    return [i for i, (loss, bound) in enumerate(zip(losses.tolist(), exact, strict=True)) if Fraction(loss) < bound]


def test_many_parts_need_no_table() -> None:
    mechanisms = tuple(CASES[:20])
    query = QueryLoss("q", 0, "x", Fraction(1), {}, mechanisms)
    parts = np.arange(20)
    found = query.loss(np.full(20, 7), parts)
    assert found.tolist() == [float(m.loss(np.array([7.0]))[0]) for m in mechanisms]
    assert query.loss(np.zeros(20, int), parts).tolist() == [0.0] * 20


def test_bins_hold_their_losses_and_are_narrow() -> None:
    random = np.random.default_rng(2)
    losses = np.append(
        10.0 ** random.uniform(-40, 100, 10_000), [0.0, 1.0, np.nextafter(1.0, 0), 5e-324, 1e300, np.inf]
    )
    bins = bins_of(losses)
    ends = upper_ends(bins)
    assert (ends >= losses).all()
    inner = (bins > 1) & (bins < BINS - 1)
    assert (ends[inner] <= losses[inner] * (1 + 1 / 64)).all()
    assert (bins[:10_000] > 1).all()
    assert bins_of(np.array([0.0])).tolist() == [0]
    assert (np.diff(bins_of(np.sort(losses))) >= 0).all()
