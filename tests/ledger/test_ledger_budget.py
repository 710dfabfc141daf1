"""Budgets of registered datasets and families: who may change them, what they bind, and that sums are exact."""

import pickle
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accounting.accountant import Charged, LimitExceeded, check, first_exceeded
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference, ReferenceRecord
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import BudgetRefused, PlanError, StateError
from pipeline.ledger.admission import accounts
from pipeline.ledger.datasets import Budget
from pipeline.ledger.reservation import certified_of, charged
from pipeline.ledger.spending import spendings
from pipeline.ledger.store import Ledger
from tests.support.ledgers import FACTS, UNIT, drawn_and_destroyed, entries, policy, reservation
from udfs.mechanisms.catalogue import build
from udfs.numbers.exact import exact
from udfs.records.statistics import Count, Sum


def nowhere(values: dict[str, Fraction]) -> Reference:
    """A reference whose cell is in no query."""
    return Reference((ReferenceRecord(FrozenMap.of(values), query_sets=(frozenset(),)),))


def limits(draws: object) -> list[Limit]:
    return [Limit(Reference.of({}), Fraction(draws) * UNIT, "any record")]


def budget(draws: object, name: str = "d", **changes: object) -> Budget:
    given = {"name": name, "unit": "record", "limits": limits(draws), "facts": FACTS, "source": f"/micro/{name}"}
    return Budget(**(given | changes))


def family(draws: object, name: str = "f", unit: str = "record") -> Budget:
    return Budget(name=name, unit=unit, limits=limits(draws))


def wanted(release: str, dataset: str = "d", draws: int = 100, **changes: object) -> object:
    return reservation(release, draws, dataset=dataset, source=f"/micro/{dataset}", **changes)


# A dataset's budget


def test_a_refusal_crosses_processes_with_what_it_carries(ledger: Ledger) -> None:
    with pytest.raises(LimitExceeded) as refused:
        ledger.reserve(wanted("a", draws=0))
    crossed = pickle.loads(pickle.dumps(refused.value))
    assert (str(crossed), crossed.exceeded, crossed.exit_code) == (str(refused.value), refused.value.exceeded, 3)


def test_the_datasets_limit_binds_every_plan_and_a_plans_own_on_top(ledger: Ledger) -> None:
    ledger.register(budget(3))
    ledger.reserve(wanted("a"))
    with pytest.raises(
        BudgetRefused, match=r"at any record \(the plan's own budget\): requested rho 2, spent 2 by a 2, limit 2;"
    ):
        ledger.reserve(wanted("b", draws=1))
    ledger.reserve(wanted("b", draws=2))
    ledger.reserve(wanted("c"))  # the limit of plan b was b's own: the dataset's record rules
    with pytest.raises(BudgetRefused, match=r"the limit of dataset d.*spent 6 by a 2, b 2, c 2, limit 6"):
        ledger.reserve(wanted("e"))
    ledger.verify()


def test_a_budget_is_raised_by_an_explicit_act_with_a_reason_alone(ledger: Ledger) -> None:
    with pytest.raises(StateError, match="is not registered"):
        ledger.raise_limits(budget(3), "why")
    ledger.register(budget(1))
    ledger.reserve(wanted("a"))
    with pytest.raises(BudgetRefused):
        ledger.reserve(wanted("b"))
    with pytest.raises(StateError, match="registered already"):
        ledger.register(budget(9))
    with pytest.raises(PlanError, match="a reason of 1 to 1,000 characters"):
        ledger.raise_limits(budget(9), "")
    ledger.signed("chief").raise_limits(budget(2), "second table agreed on")
    ledger.reserve(wanted("b"))
    last = entries(ledger)[2]
    assert (last.event, last.dataset, last.release) == ("budgeted", "d", "")
    assert (last.facts["reason"], last.facts["operator"]) == ("second table agreed on", "chief")
    assert ledger.budgets()["d"].reason == "second table agreed on"
    assert [state.release for state in ledger.states()] == ["a", "b"]
    ledger.verify()


def test_a_dataset_may_be_registered_late_where_what_was_released_fits_it(ledger: Ledger) -> None:
    ledger.reserve(wanted("a", draws=2))
    with pytest.raises(BudgetRefused, match="spent already"):
        ledger.register(budget(Fraction(1, 2)))
    with pytest.raises(StateError, match=r"unit is record in the ledger, but firm in the budget's file"):
        ledger.register(budget(9, facts=FACTS | {"unit": "firm"}))
    ledger.register(budget(9))
    ledger.reserve(wanted("b"))
    with pytest.raises(BudgetRefused, match="a limit of release a"):  # promised before, and not lifted in passing
        ledger.reserve(wanted("c"))
    ledger.raise_limits(budget(9), "the limit of plan a was a trial's")
    ledger.reserve(wanted("c"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset_facts": FACTS | {"unit": "firm_id"}}, "unit is record in the ledger, but firm_id in the plan"),
        ({"source": "/elsewhere"}, "its source is /micro/d in the ledger, but /elsewhere here"),
    ],
)
def test_a_plan_that_disagrees_with_the_record_is_refused(
    ledger: Ledger, changes: dict[str, object], told: str
) -> None:
    ledger.register(budget(9))
    with pytest.raises(StateError, match=told):
        ledger.reserve(replace(wanted("a"), **changes))
    ledger.reserve(wanted("a"))
    with pytest.raises(StateError, match=told):  # and also where it goes on with what was reserved
        ledger.reserve(replace(wanted("a"), **changes))


def test_the_microdata_of_a_registered_dataset_have_no_other_name(ledger: Ledger) -> None:
    ledger.register(budget(1))
    with pytest.raises(StateError, match="its microdata /micro/d are those of the registered dataset d"):
        ledger.reserve(replace(wanted("a", "alias"), source="/micro/d"))
    with pytest.raises(StateError, match="are those of dataset d"):
        ledger.register(budget(9, "alias", source="/micro/d"))


@pytest.mark.parametrize("part", ["/micro/d/part-0.parquet", "/micro"])
def test_nor_has_a_part_of_them_or_what_they_are_a_part_of(ledger: Ledger, part: str) -> None:
    ledger.register(budget(1))
    with pytest.raises(StateError, match="are those of the registered dataset d, /micro/d: name that one"):
        ledger.reserve(replace(wanted("a", "alias"), source=part))
    with pytest.raises(StateError, match="are those of dataset d"):
        ledger.register(budget(9, "alias", source=part))
    ledger.reserve(wanted("a", "d-2"))  # a like name is another place


@pytest.mark.parametrize("part", ["/micro/d", "/micro/d/part-0.parquet"])
def test_what_microdata_lost_under_another_name_is_not_forgotten_when_they_are_registered(
    ledger: Ledger, part: str
) -> None:
    ledger.reserve(replace(wanted("a", "alias"), source=part))
    with pytest.raises(StateError, match=f"were released as dataset alias by a, from {part}: register them under"):
        ledger.register(budget(1))
    ledger.abort("a")
    ledger.register(budget(1))  # nothing was drawn: nothing is lost


def test_a_site_may_require_registration(ledger: Ledger) -> None:
    with pytest.raises(StateError, match="not registered, which this site requires"):
        ledger.reserve(wanted("a"), registered_only=True)
    assert ledger.head()[0] == 0
    ledger.reserve(wanted("a"))
    with pytest.raises(StateError, match="not registered"):  # nor is it gone on with
        ledger.reserve(wanted("a"), registered_only=True)
    ledger.register(budget(9))
    ledger.reserve(wanted("a"), registered_only=True)


def test_a_limit_must_name_what_a_release_uses(ledger: Ledger) -> None:
    mechanism = build({"kind": "gaussian", "sigma": 1, "policy": "paper"}, Fraction(1, 10))
    summed = PolicySum((QueryPolicy("q", Sum("payroll"), mechanism),), (frozenset({0}),))
    ledger.register(budget(9))
    with pytest.raises(PlanError, match="does not name payroll"):
        ledger.reserve(wanted("a", policy=summed, limits=()))


# Families


def test_only_datasets_of_one_unit_and_like_measures_make_a_family(ledger: Ledger) -> None:
    with pytest.raises(StateError, match="family f is not registered"):
        ledger.register(budget(1, family="f"))
    ledger.register(family(3, unit="firm"))
    ledger.register(family(3, "g"))
    with pytest.raises(StateError, match="its unit is record, but firm in family f"):
        ledger.register(budget(1, family="f"))
    ledger.register(budget(1, family="g"))
    other = {"unit": "record", "measures": {"payroll": {"type": "decimal", "step": 1}}}
    with pytest.raises(StateError, match="measure payroll has another type or step in dataset d"):
        ledger.register(budget(1, "e", facts=other, family="g"))
    with pytest.raises(StateError, match="is the name of a family"):
        ledger.reserve(wanted("a", "g"))
    ledger.reserve(wanted("a", "taken"))
    with pytest.raises(StateError, match="has the name of a dataset"):
        ledger.register(family(3, "taken"))
    for changed in (budget(1), budget(1, family="g", source="/moved"), family(1, "d")):
        with pytest.raises(StateError, match="only limits are stated anew"):
            ledger.raise_limits(changed, "why")


def test_a_dataset_that_has_spent_too_much_joins_no_family(ledger: Ledger) -> None:
    ledger.register(family(1))
    for release in ("a", "b"):
        ledger.reserve(wanted(release))
    with pytest.raises(BudgetRefused, match=r"family f\): rho 4 is spent already by a 2, b 2"):
        ledger.register(budget(9, family="f"))


# Sums


def splitting(rho: object) -> PolicySum:
    mechanism = build({"kind": "unit_splitting", "threshold": 1, "rho": rho, "policy": "paper"}, Fraction(1))
    return PolicySum((QueryPolicy("q", Count(), mechanism),), (frozenset({0}),))


def float_check(limit: float, spent: list[float], requested: float) -> bool:
    """The broken twin: sums of doubles, one after the other (Python's own `sum` corrects them since 3.12)."""
    return reduce(add, [*spent, requested]) <= limit


def test_a_hundred_releases_of_a_hundredth_fit_one_and_never_more(ledger: Ledger) -> None:
    ledger.register(budget(Fraction(1, 2)))  # a limit of 1
    for i in range(100):
        ledger.reserve(wanted(f"r{i}", policy=splitting(0.01), limits=()))
        ledger.draw(f"r{i}", "sha256:pin")
    with pytest.raises(BudgetRefused, match=r"requested rho 1e-30, spent 1 by .* and 90 others, limit 1"):
        ledger.reserve(wanted("tiny", policy=splitting(1e-30), limits=()))
    # Doubles refuse the last one that fits, and let ten tenths and more pass a limit of one.
    assert not float_check(1, [0.01] * 99, 0.01)
    assert float_check(1, [0.1] * 10, 1e-17)
    tenth = [Charged(f"r{i}", splitting(0.1), 1) for i in range(10)]
    with pytest.raises(BudgetRefused):
        check([Limit(Reference.of({}), Fraction(1), "one")], tenth, Charged("more", splitting(1e-17), 1))


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=20))
def test_sums_are_exact_for_any_decimals(losses: list[float]) -> None:
    *spent, last = [Charged(f"r{i}", splitting(rho), 1) for i, rho in enumerate(losses)]
    total = sum(map(exact, losses), Fraction(0))
    assert first_exceeded([Limit(Reference.of({}), total, "all")], spent, last) is None
    assert first_exceeded([Limit(Reference.of({}), total - Fraction(1, 10**40), "all")], spent, last) is not None


# What is stored


def test_a_stored_bound_is_never_lowered_by_a_later_evaluation(ledger: Ledger) -> None:
    state = ledger.reserve(wanted("a", draws=5))
    stored = state.reservation["certified"]
    assert stored["version"] == 1
    assert [bound["rho"] for bound in stored["bounds"]] == [2]
    assert stored["bounds"][0]["queries"] == {"q": 2}
    # A later version that evaluates the policy as less is held to what was certified; one that finds more, to that.
    for rho, counted in ((7, 7), (1, 2)):
        later = state.reservation | {"certified": stored | {"bounds": [stored["bounds"][0] | {"rho": rho}]}}
        release = charged(replace(state, reservation=later), 3)
        assert release.loss_at(limits(1)[0].at) == 3 * counted
        # So it is where more of its draws are charged, else they would exceed the limit as soon as they were spent.
        assert release.loss_at(limits(1)[0].at.anywhere()) == 3 * counted
        assert release.loss_at(nowhere({})) == 0  # it is certified for the worst cell, which this one is not
    assert charged(replace(state, reservation={"policy": policy().to_json()}), 1).loss_at(limits(1)[0].at) == 2
    with pytest.raises(StateError, match="a later version of prdp"):
        certified_of("a", stored | {"version": 2})


def test_a_loss_beyond_the_doubles_is_no_certified_bound(ledger: Ledger) -> None:
    mechanism = build({"kind": "gaussian", "sigma": 1, "policy": "paper"}, Fraction(1))
    summed = PolicySum((QueryPolicy("q", Sum("payroll"), mechanism),), (frozenset({0}), frozenset()))
    # In its own place the giant is in no query; anywhere else it would lose more than can be told.
    giant = Limit(nowhere({"payroll": Fraction(10**200)}), Fraction(1), "a giant")
    state = ledger.reserve(wanted("a", policy=summed, limits=[giant]))
    assert state.reservation["certified"]["bounds"] == []


def test_every_act_names_who_did_it(ledger: Ledger) -> None:
    ledger.signed("ann").register(budget(9))
    ledger.signed("bob").reserve(wanted("a"))
    attempt = ledger.signed("cy").draw("a", "sha256:pin")
    ledger.hold("a", attempt, "sha256:contents")
    ledger.signed("dee").approve("a", attempt)
    assert [entry.facts.get("operator") for entry in entries(ledger)] == ["ann", "bob", "cy", None, "dee"]
    ledger.verify()


def test_an_unfinished_release_goes_on_with_its_own_microdata(ledger: Ledger) -> None:
    ledger.reserve(reservation("r", source="/micro/d"))
    assert ledger.reserve(reservation("r", source="/micro/d")).status == "reserved"
    with pytest.raises(StateError, match="for the microdata /micro/d, not /elsewhere"):
        ledger.reserve(reservation("r", source="/elsewhere"))
    ledger.abort("r")
    assert ledger.reserve(reservation("r", source="/elsewhere")).status == "reserved"


# A family that a plan names


def of_family(release: str, dataset: str, family: str | None = "f", **changes: object) -> object:
    named = {} if family is None else {"family": family}
    return wanted(release, dataset, plan={"release": release, "dataset": {"name": dataset, **named}}, **changes)


def test_a_plan_makes_its_dataset_one_of_a_family(ledger: Ledger) -> None:
    with pytest.raises(StateError, match="its family f is not registered"):
        ledger.reserve(of_family("a", "cbp-1"))
    ledger.register(family(3))
    copied = {"fingerprints": ["the same file"]}
    for number in (1, 2, 3):
        ledger.reserve(of_family(f"r{number}", f"cbp-{number}", **copied))
    with pytest.raises(BudgetRefused, match=r"the limit of family f.*spent 6 by r1 2, r2 2, r3 2, limit 6"):
        ledger.reserve(of_family("r4", "cbp-4", **copied))
    with pytest.raises(StateError, match="a copy of one of dataset cbp-1"):  # the twin: in no family
        ledger.reserve(of_family("r4", "cbp-4", None, **copied))
    with pytest.raises(BudgetRefused, match=r"family f\): rho 6 is spent already"):
        ledger.raise_limits(family(2), "tighter")
    spent = {account.name: account.limits[0].total for account in accounts(ledger.budgets(), ledger.states())}
    assert (spent["f"], ledger.budgets().keys()) == (3 * UNIT, {"f"})
    left = {each.dataset: each.left for each in spendings(ledger, "payroll=1")}
    assert set(left.values()) == {Fraction(0)}
    ledger.verify()


def test_a_dataset_keeps_the_family_of_its_plans(ledger: Ledger) -> None:
    for name in ("f", "g"):
        ledger.register(family(9, name))
    ledger.reserve(of_family("a", "d"))
    for other in (None, "g"):
        with pytest.raises(StateError, match=f"its family is f in the ledger, but {other or 'none'} in the plan"):
            ledger.reserve(of_family("b", "d", other))
        with pytest.raises(StateError, match="its releases are of family f: register it as one of that"):
            ledger.register(budget(9, family=other))
    with pytest.raises(StateError, match="has a release, a"):
        ledger.correct(family(1))
    drawn_and_destroyed(ledger, "a", 3)
    ledger.register(budget(9, family="f"))
    ledger.reserve(of_family("c", "d", None))  # registered: the ledger knows its family
    with pytest.raises(StateError, match="its family is f in the ledger, but g in the plan"):
        ledger.reserve(of_family("d", "d", "g"))


def test_a_refunded_release_joins_no_family(ledger: Ledger) -> None:
    ledger.register(family(9))
    ledger.reserve(of_family("a", "d"))
    ledger.abort("a")
    ledger.reserve(of_family("a", "d", None))


def test_only_like_datasets_join_by_their_plans(ledger: Ledger) -> None:
    ledger.register(family(9, unit="firm"))
    with pytest.raises(StateError, match="its unit is record, but firm in family f"):
        ledger.reserve(of_family("a", "d"))
    ledger.register(family(9, "g"))
    ledger.reserve(of_family("a", "d", "g"))
    other = {"unit": "record", "measures": {"payroll": {"type": "decimal", "step": 1}}}
    with pytest.raises(StateError, match="measure payroll has another type or step in dataset d of family g"):
        ledger.reserve(of_family("b", "e", "g", dataset_facts=other))
