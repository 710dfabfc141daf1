"""Attack: firms of up to six rows in every placement that a small domain allows, against what their reference states.

Plans are random: every kind, several levels, filters, and parts with mechanisms of their own. The loss of a placement
is the sum over cells of the policy at the summed influences, by codes alone (tests/support/placements.py).
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.plan.model import Plan
from pipeline.plan.plan_losses import loss_found
from pipeline.plan.total_policy import located, losses_at, policy_of
from tests.support.cases import cases, sizes
from tests.support.firms import loaded
from tests.support.kinds import REGISTRY
from tests.support.placements import placements, true_losses

NAICS, COUNTIES = ("311111", "321113", "441110"), ("01001", "06037", "06075")
DOMAIN = [(naics, county) for naics in NAICS for county in COUNTIES]
BY = [["naics6", "county"], ["naics2", "state"], ["county"], ["state"], ["naics3"], ["nation"]]
WHERE: list[dict[str, list[str]]] = [{}, {}, {"naics2": ["31-33"]}, {"naics2": ["44-45"]}, {"state": ["06"]}]
KEYS: list[dict[str, str]] = [
    {},
    {},
    {"naics2": "31-33"},
    {"state": "06"},
    {"county": "01001"},
    {"naics6": "441110", "county": "06075"},
]
MOST_PLACEMENTS = 800
MOST_GAP = 2  # over 1.1 in 2 of 100 cases, of tables and parts that filters exclude from each other


def is_quoted(value: Any) -> bool:
    """Whether a number stands in quotes, which plans refuse."""
    return isinstance(value, str) and value[0].isdigit()


def a_mechanism(random: Random, count: bool) -> dict[str, Any]:
    kinds = [kind for kind in REGISTRY if count or not kind.startswith("groupwise")]
    kind = random.choice(kinds)
    plain = [given for given, _ in REGISTRY[kind].guarantee if not any(map(is_quoted, given.values()))]
    return {"kind": kind, **random.choice(plain)}


def a_query(random: Random, i: int) -> dict[str, Any]:
    count = random.random() < 0.4
    mechanism = a_mechanism(random, count)
    by, where = random.choice(BY), random.choice(WHERE)
    if by[0].startswith("naics") and "naics2" not in where and random.random() < 0.4:
        mechanism = {"by": "naics2", "parts": {"31-33": mechanism}, "others": a_mechanism(random, count)}
    what = {"count": "records"} if count else {"sum": "employment"}
    return {"name": f"q{i}", **what, "by": by, "where": where, "mechanism": mechanism}


def a_plan(random: Random, folder: Path) -> Plan:
    queries = [a_query(random, i) for i in range(random.randint(1, 4))]
    for query in queries:
        if not query["where"]:
            del query["where"]
    return loaded(folder, queries=queries, naics=NAICS, counties=COUNTIES, budget=[])


def a_firm(random: Random) -> Reference:
    """Up to six rows, of so few placements that all can be tried."""
    scale = 10 ** random.uniform(0, 4)
    while True:
        rows = [
            {"employment": int(random.uniform(0, scale)), **random.choice(KEYS)} for _ in range(random.randint(2, 6))
        ]
        if random.random() < 0.3:
            rows = [rows[0]] * len(rows)
        at = Reference.of(rows)
        allowed = [sum(1 for _ in placements(Reference((record,), True), DOMAIN)) for record in at.records]
        product = 1
        for number in allowed:
            product *= number
        if product <= MOST_PLACEMENTS:
            return at


def worst_of(plan: Plan, at: Reference) -> list[Fraction]:
    """Return the most that a placement loses in each query, and in the release."""
    true = [true_losses(plan, placed) for placed in placements(at, DOMAIN)]
    return [*(max(column) for column in zip(*true, strict=True)), max(map(sum, true))]


Stated = Callable[[Plan, Reference], Sequence[Fraction]]


def too_small(plan: Plan, at: Reference, worst: Sequence[Fraction], stated: Stated) -> str:
    """Return the first loss, of a query or of the release, that some placement exceeds; else nothing."""
    names = [*(query.name for query in plan.queries), "release"]
    for name, most, loss in zip(names, worst, stated(plan, at), strict=True):
        if most > loss:
            return f"{name} of {[q.described() for q in plan.queries]} at {at.label}: {float(most)} > {float(loss)}"
    return ""


def by_the_product(plan: Plan, at: Reference) -> list[Fraction]:
    each, total = losses_at(plan, policy_of(plan), at)
    return [*(loss.rho for _, loss in each), total.rho]


def each_alone(plan: Plan, at: Reference) -> list[Fraction]:
    """A broken bound: records lose together what they lose one by one."""
    alone = [by_the_product(plan, Reference((record,), True)) for record in at.records]
    return [sum(losses, Fraction(0)) for losses in zip(*alone, strict=True)]


def all_in_one_cell(plan: Plan, at: Reference) -> list[Fraction]:
    """Another: records lose what one of their summed size does."""
    total = sum((record.values["employment"] for record in at.records), Fraction(0))
    return by_the_product(plan, Reference.of([{"employment": total}]))


def gap(plan: Plan, at: Reference, policy: PolicySum, worst: Fraction) -> float:
    """Return how far the stated loss is above what was found; AssertionError where no placement loses that much."""
    *_, stated = by_the_product(plan, at)
    of_test = policy.query_loss_at(located(plan, at), policy.queries[-1].name)
    found = loss_found(plan, policy, at)
    assert found <= worst + of_test, at.label
    return float(stated) / found


@sizes(few=3, many=400)
def test_no_placement_of_a_firm_loses_more_than_its_reference_states(count: int, tmp_path: Path) -> None:
    for case, random in cases(count):
        plan = a_plan(random, tmp_path / case)
        for _ in range(3):
            at = a_firm(random)
            worst = worst_of(plan, at)
            assert not too_small(plan, at, worst, by_the_product), case
            assert gap(plan, at, policy_of(plan), worst[-1]) < MOST_GAP, case


def test_bounds_that_forget_placements_are_seen(tmp_path: Path) -> None:
    """The broken twins."""
    seen = [0, 0]
    for case, random in cases(8):
        plan, at = a_plan(random, tmp_path / case), a_firm(random)
        worst = worst_of(plan, at)
        seen[0] += bool(too_small(plan, at, worst, each_alone))
        seen[1] += bool(too_small(plan, at, worst, all_in_one_cell))
    assert all(seen)


def test_what_was_found_takes_no_step_that_sums_do_not_reach(tmp_path: Path) -> None:
    """0.1 + 0.2 in doubles is above 0.3, where this policy is four times as large."""
    pieces = {"kind": "unit_splitting", "threshold": 0.3, "rho": 1, "policy": "paper"}
    plan = loaded(
        tmp_path,
        queries=[{"name": "q", "sum": "employment", "by": ["nation"], "mechanism": pieces}],
        dataset={"measures": {"employment": {"column": "employment", "type": "decimal", "step": 0.1}}},
        budget=[],
    )
    at = Reference.of([{"employment": 0.1}, {"employment": 0.2}])
    assert 1 < loss_found(plan, policy_of(plan), at) <= by_the_product(plan, at)[-1] == 1 + Fraction(2**2, 20_000)


def test_what_was_found_is_no_more_than_a_group_loses(tmp_path: Path) -> None:
    """At 950.4 the table of this policy is that of its next knot, 1.0013 times what both records lose as a group."""
    stable = {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 20, "policy": "tight"}
    plan = loaded(
        tmp_path,
        queries=[{"name": "q", "sum": "employment", "by": ["county"], "mechanism": stable}],
        dataset={"measures": {"employment": {"column": "employment", "type": "decimal", "step": 0.1}}},
        counties=("01001", "06037"),
        budget=[],
    )
    at = Reference.of([{"employment": 950.3, "county": "01001"}, {"employment": 0.1}])
    *_, stated = by_the_product(plan, at)
    assert 0.999 * float(stated) < loss_found(plan, policy_of(plan), at) <= stated
