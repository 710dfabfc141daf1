"""What records lose wherever they lie: the bound by prices against the largest loss over all partitions into cells."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.accounting import references
from pipeline.accounting.accountant import Certified, Charged, tightest
from pipeline.accounting.convert import ORDERS
from pipeline.accounting.firm_bounds import most_lost
from pipeline.accounting.placements import ANYWHERE, Exposure, Floats, multiples
from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference, ReferenceRecord
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.records.statistics import Sum

SPECS: dict[str, dict[str, Any]] = {  # P/Δ falls, rises, or first rises and then falls
    "gaussian": {"kind": "gaussian", "sigma": 3},
    "laplace": {"kind": "laplace", "sigma": 8},
    "log": {"kind": "log", "a": 1, "sigma": 2},
    "log far out": {"kind": "log", "a": 50, "sigma": 0.3},
    "log of laplace": {"kind": "log", "a": 5, "sigma": 0.3, "noise": "laplace"},
    "root": {"kind": "root", "k": 4, "a": 1, "sigma": 1},
    "square root": {"kind": "root", "k": 2, "a": 0, "sigma": 1},
    "generalized": {"kind": "generalized_gaussian", "p": 0.5, "sigma": 12},
    "polylog": {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": "2.718281828459045", "sigma": 20},
    "stable": {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 5},
    "groupwise": {"kind": "groupwise_log", "a": 1, "sigma": 2},
    "splitting": {"kind": "unit_splitting", "threshold": 10, "rho": 1},
    "steps": {"kind": "unit_splitting", "threshold": 10, "rho": 1, "policy": "paper"},
}
KINDS = {name: build(spec, Fraction(1)) for name, spec in SPECS.items()}
LARGEST = 1.1
LARGEST_OF_STEPS = 1.5  # of prices alone, where the policy rises by steps
ONE = frozenset({frozenset({0})})


def most_by_all_partitions(
    losses: Sequence[Callable[[Floats], Floats]], sizes: Sequence[Sequence[int]], room: int
) -> float:
    """Return the largest Σ over losses and cells, over all partitions of the records into at most `room` cells."""
    everybody = 1 << len(sizes[0])
    of_set = np.zeros(everybody)
    for loss, x in zip(losses, sizes, strict=True):
        sums = [sum(each for j, each in enumerate(x) if members >> j & 1) for members in range(everybody)]
        of_set += loss(np.array(sums, dtype=np.float64))
    best = of_set.copy()
    for _ in range(min(room, len(sizes[0])) - 1):
        before = best.copy()
        for members in range(1, everybody):
            first = members & -members
            part = rest = members ^ first
            while True:
                best[members] = max(best[members], of_set[part | first] + before[rest ^ part])
                if not part:
                    break
                part = (part - 1) & rest
    return float(best[-1])


def exposure(mechanism: Mechanism, sizes: Sequence[int], room: int | None = None, policy: int = 0) -> Exposure:
    return Exposure(
        policies=frozenset({policy}),
        by=("county",),
        influences=[Fraction(x) for x in sizes],
        times=np.ones(len(sizes), dtype=np.int64),
        cells=np.full(len(sizes), ANYWHERE),
        sure=np.ones(len(sizes), dtype=bool),
        kinds=np.zeros(len(sizes), dtype=np.int64),
        apart=frozenset(),
        room=room,
        loss=lambda numbers, unit: mechanism.loss(multiples(numbers, unit))[:, None],
    )


SIZES = st.one_of(
    st.lists(st.integers(1, 60), min_size=2, max_size=6),
    st.lists(st.integers(0, 12).map(lambda power: 2**power), min_size=2, max_size=6),
    st.tuples(st.integers(1, 5000), st.integers(2, 6)).map(lambda pair: [pair[0]] * pair[1]),
    st.lists(st.integers(1, 100_000), min_size=2, max_size=6),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, max_examples=15)
@given(sizes=SIZES, room=st.sampled_from([1, 2, 3, None]))
def test_the_bound_is_certified_and_nearly_attained(kind: str, sizes: list[int], room: int | None) -> None:
    (bound,) = most_lost([exposure(KINDS[kind], sizes, room)], [ONE] * len(sizes))
    true = most_by_all_partitions([KINDS[kind].loss], [sizes], room or len(sizes))
    assert true <= bound <= true * (LARGEST_OF_STEPS if kind == "steps" else LARGEST)


@pytest.mark.parametrize("kind", ["gaussian", "log", "polylog"])
def test_nine_records(kind: str) -> None:
    sizes = [1, 3, 4, 10, 10, 25, 60, 200, 900]
    (bound,) = most_lost([exposure(KINDS[kind], sizes)], [ONE] * 9)
    true = most_by_all_partitions([KINDS[kind].loss], [sizes], 9)
    assert true <= bound <= true * LARGEST


def by_search(loss: Callable[[Floats], Floats], sizes: Sequence[int], room: int) -> float:
    """Return what is lost in a partition from which no move of one record gains, the best of some starts."""
    x, found = np.array(sizes, dtype=np.float64), 0.0
    for cells in {1, 2, min(5, room), min(len(sizes), room)}:
        at = np.arange(len(sizes)) % min(cells, room)
        for _ in range(6):
            before = at.copy()
            for j in range(len(sizes)):
                others = np.bincount(np.delete(at, j), np.delete(x, j), minlength=min(room, len(sizes)))
                at[j] = int(np.argmax(loss(others + x[j]) - loss(others)))
            if (at == before).all():
                break
        found = max(found, float(loss(np.bincount(at, x)).sum()))
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(derandomize=True, max_examples=4)
@given(seed=st.integers(0, 10**6), records=st.integers(10, 30), room=st.sampled_from([2, 3000]))
def test_many_records_lose_nearly_what_is_stated(kind: str, seed: int, records: int, room: int) -> None:
    """Beyond all partitions: at most 1.1 times what a search finds, but of a policy that rises by steps."""
    sizes = [int(x) for x in np.ceil(np.random.default_rng(seed).lognormal(3, 1.5, records))]
    stated = float(policy(room, kind).loss_at(firm(*sizes)))
    found = by_search(KINDS[kind].loss, sizes, room)
    assert found * (1 - 1e-9) <= stated <= found * (LARGEST_OF_STEPS if kind == "steps" else LARGEST)


@settings(derandomize=True, max_examples=25)
@given(sizes=SIZES, kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3), scale=st.integers(1, 9))
def test_tables_of_the_same_cells_are_bounded_together(sizes: list[int], kinds: list[str], scale: int) -> None:
    mechanisms = [KINDS[kind] for kind in kinds]
    each = [[x * (scale if i else 1) for x in sizes] for i in range(len(kinds))]
    met = frozenset({frozenset(range(len(kinds)))})
    exposures = [exposure(m, x, None, i) for i, (m, x) in enumerate(zip(mechanisms, each, strict=True))]
    (bound,) = most_lost(exposures, [met] * len(sizes))
    true = most_by_all_partitions([m.loss for m in mechanisms], each, len(sizes))
    assert true <= bound <= true * (LARGEST_OF_STEPS if "steps" in kinds else LARGEST)


@pytest.mark.parametrize(
    ("broken", "kind", "sizes"),
    [
        (lambda loss, x: sum(loss(np.array([each]))[0] for each in x), "gaussian", [5.0, 5.0]),  # each alone
        (lambda loss, x: loss(np.array([sum(x)]))[0], "root", [50.0, 50.0]),  # all in one cell
        (lambda loss, x: max(sum(loss(np.array(x))), loss(np.array([sum(x)]))[0]), "log", [2.0] * 6),  # either
    ],
)
def test_bounds_that_look_at_some_placements_are_too_small(broken: Any, kind: str, sizes: list[float]) -> None:
    loss = KINDS[kind].loss
    assert broken(loss, sizes) < most_by_all_partitions([loss], [[int(x) for x in sizes]], len(sizes))


def test_tables_of_which_one_has_fewer_cells_may_have_records_in_others() -> None:
    """One table has a filter that leaves it one cell; the other one has more: what is not in the first may be there."""
    first, second = exposure(KINDS["root"], [10**6, 10**6], 1, 0), exposure(KINDS["root"], [10**6, 10**6], 3, 1)
    (bound,) = most_lost([first, second], [frozenset({frozenset({0, 1})})] * 2)
    one, both = KINDS["root"].loss(np.array([1e6, 2e6]))
    assert 2 * both < 3 * one <= bound
    (narrow,) = most_lost(
        [exposure(KINDS["root"], [10**6, 10**6], 1)], [ONE] * 2
    )  # the broken twin: the fewest cells of all
    assert narrow < 2 * one


# --- policies


def policy(number: int | None, *kinds: str) -> PolicySum:
    cells = None if number is None else Cells(("county",), number)
    queries = tuple(QueryPolicy(f"q{i}", Sum("x"), KINDS[kind], None, cells) for i, kind in enumerate(kinds))
    return PolicySum(queries, (frozenset(range(len(kinds))),))


def firm(*sizes: int) -> Reference:
    return Reference.of([{"x": size} for size in sizes])


def test_twenty_establishments_lose_what_they_lose_apart() -> None:
    many = policy(3000, "log")
    loss = float(many.loss_at(firm(*[10] * 20)))
    assert loss == pytest.approx(20 * math.log(11) ** 2 / 8, rel=1e-6)  # (Σ√P)² would be twenty times as much
    assert float(policy(1, "log").loss_at(firm(*[10] * 20))) == pytest.approx(math.log(201) ** 2 / 8, rel=1e-6)
    assert policy(None, "log").loss_at(firm(*[10] * 20)) == many.loss_at(firm(*[10] * 20))
    assert PolicySum.from_json(many.to_json(), many.cells_json()).queries[0].cells == Cells(("county",), 3000)


@pytest.mark.parametrize("kind", ["gaussian", "log", "laplace", "polylog"])
def test_the_curve_of_a_firm_bounds_every_partition_at_every_order(kind: str) -> None:
    sizes = [2, 3, 40]
    curve = policy(3000, kind).curve_at(firm(*sizes))
    apart = [[2], [3], [40]], [[2, 3], [40]], [[2, 40], [3]], [[2], [3, 40]], [[2, 3, 40]]
    curves = [sum(KINDS[kind].renyi_at(Fraction(sum(cell)), ORDERS) for cell in partition) for partition in apart]
    assert (np.maximum.reduce(curves) <= curve).all()
    assert (curve <= np.maximum.reduce(curves) * LARGEST).all()
    assert (curves[-1] > curve * 0.999).any() or (curves[0] > curve * 0.9).any()


def test_a_firm_is_known_in_any_order_of_its_records() -> None:
    given = firm(5, 7, 7)
    known = Certified(given, Fraction(999))
    charged = Charged("r", policy(None, "log"), 1, (known,))
    assert charged.loss_at(firm(7, 5, 7)) == 999 > charged.loss_at(firm(7, 5, 5))
    limits = [Limit(given, Fraction(3), "a"), Limit(firm(7, 7, 5), Fraction(2), "b"), Limit(firm(7, 5, 5), Fraction(4))]
    assert [limit.rho for limit in tightest(limits)] == [2, 4]


def test_a_long_list_covers_another_in_another_order() -> None:
    sizes = list(range(1, 1501))
    assert firm(*sizes).covers(firm(*reversed(sizes)))
    assert not firm(*sizes).covers(firm(*sizes[1:], 1501))


@pytest.mark.parametrize("kind", ["gaussian", "log", "polylog"])
def test_very_many_records_are_priced_as_few_lots_of_somewhat_larger_ones(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [37 * i + 11 for i in range(1, 5001)]
    in_one, many = policy(1, kind), policy(3000, kind)
    lots = firm(*sizes).lots
    assert len(lots) <= references.MOST_LOTS
    assert sum(times for *_, times in lots) == 5000
    exact = [KINDS[kind].loss_at(Fraction(sum(sizes)))]
    of_lots = [each.loss_at(firm(*sizes)) for each in (in_one, many)]
    assert exact[0] <= of_lots[0] <= exact[0] * Fraction(104, 100)
    with monkeypatch.context() as changed:  # the broken twin: rounded towards 0
        changed.setattr(references, "_coarser", lambda x, bits: x >> 8 << 8)
        assert in_one.loss_at(firm(*sizes)) < exact[0]
    monkeypatch.setattr(references, "MOST_LOTS", 10**6)
    assert float(many.loss_at(firm(*sizes)) / of_lots[1]) == pytest.approx(1, abs=0.04)


def test_lots_keep_signs_and_what_records_can_meet() -> None:
    values = {"x": Fraction(-1001, 7)}
    known, other = (ReferenceRecord(values, query_sets=(frozenset(),), cells=((0, cell),)) for cell in (4, 5))
    lots = Reference((known, other, known), True).lots
    assert [(record, times) for record, _, times in lots] == [(known, 2), (other, 1)]
    assert references._coarser(-1001, 8) == -1004
    assert references._coarser(1023, 8) == 1024


def test_thousands_of_records_take_no_long() -> None:
    many = policy(3000, "log", "gaussian").loss_at(firm(*range(1, 5001)))
    assert many >= (5000 * 5001 // 2) ** 2 / Fraction(18)


def factor_of_shape(loss: Callable[[Floats], Floats]) -> float:
    """Return how far shared prices may lie above the loss of some placement in one table of as many cells as rows.

    Let r(S) = P(S)/S, up to a factor 1 + β, rise up to S*, r* = r(S*), and fall from there. For any s in [S*/2, S*] put

        κ = min over B in [s, 2s], ℓ in [0, s] of max(P(B) + P(ℓ), P(B + ℓ)) / ((B + ℓ)·r*)
        λ = min over b ≥ S*, ℓ in [0, s]       of max(P(b) + P(ℓ), P(b + ℓ)) / (P(b) + ℓ·r*).

    A row below S* pays at most x·r*, one from S* on P(x). Bundle the rows below s one after another until each reaches
    s; ℓ < s is left over. With a bundle B it loses κ·(B + ℓ)·r* or more, every other bundle κ·B·r*, a row from S* on
    P(x); without a bundle a row b from S* on loses with ℓ at least λ·(P(b) + ℓ·r*). So (1 + β)/min(κ, λ) bounds it.
    """
    sums = np.unique(np.rint(np.geomspace(1, 2e6, 3000)))
    rates = loss(sums) / sums
    peak = int(np.argmax(rates))
    most, at = float(rates[peak]), float(sums[peak])
    rising = np.maximum.accumulate(rates[: peak + 1]) / rates[: peak + 1]
    falling = np.maximum.accumulate(rates[peak:][::-1])[::-1] / rates[peak:]
    above = float(max(rising.max(), falling.max()))
    if peak in (0, len(sums) - 1):  # it falls or rises
        return above

    def least(first: Floats, few: Floats, prices: Callable[[Floats, Floats], Floats]) -> float:
        one, other = (each.ravel() for each in np.meshgrid(first, few))
        attained = np.maximum(loss(one) + loss(other), loss(one + other))
        return float((attained / prices(one, other)).min())

    found = []
    for s in np.linspace(at / 2, at, 14):
        few = np.linspace(s / 1000, s, 60)
        kappa = least(np.linspace(s, 2 * s, 60), few, lambda b, rest: (b + rest) * most)
        found.append(min(kappa, least(np.geomspace(at, 1e6, 150), few, lambda b, rest: loss(b) + rest * most)))
    return above / max(found)


@pytest.mark.parametrize("kind", KINDS)
def test_prices_are_nearly_attained_by_the_shape_of_the_policy(kind: str) -> None:
    assert (factor_of_shape(KINDS[kind].loss) <= LARGEST) == (kind != "steps")


def test_a_peak_that_is_too_sharp_is_seen() -> None:
    assert factor_of_shape(lambda x: np.minimum(x, 100) * np.minimum(x / 100, 1) ** 8) > LARGEST
