"""What a reference lost by year: of a dataset and its family, in text, CSV, JSON and pandas, never too small."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

import prdp
from jobs.cli import main
from pipeline.accounting.accountant import LeftOutTest, with_left_out_test
from pipeline.accounting.references import Limit, Reference
from pipeline.ledger import entries, spending
from pipeline.ledger.datasets import Budget
from pipeline.ledger.spending import DIGITS, Lost, lost, spendings
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledger_model import SHARE_OF_UNIT
from tests.support.ledgers import FACTS, UNIT, drawn_and_destroyed, policy, reservation
from udfs.numbers.exact import bound_text, down_text

ANY = Reference.of({})
SIGMA = 0.7  # costs 1²/(2σ²) = 50/49, which no decimal and no double is
LOSS = Fraction(50, 49)
CERTIFIED = Fraction("1.0204081632653064")  # as it is kept at the reference of a limit: the first double above
TEST = LeftOutTest(sigma=Fraction(1))
Clock = Callable[[int], None]


@pytest.fixture
def year(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the year in which the ledger's next acts are made and what is lost is looked at."""

    def turn(to: int) -> None:
        class Now(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime(to, 12, 31, 23, 59, 59, tzinfo=UTC)

        for module in (entries, spending):
            monkeypatch.setattr(module, "datetime", Now)

    return turn


def of_dataset(name: str, rho: Fraction, family: str | None = None) -> Budget:
    return Budget(name=name, unit="record", limits=[Limit(ANY, rho)], facts=FACTS, source=f"/{name}", family=family)


def reserve(ledger: Ledger, release: str, dataset: str, **changes: Any) -> None:
    ledger.reserve(reservation(release, dataset=dataset, source=f"/{dataset}", policy=policy(SIGMA), **changes))


@pytest.fixture
def kin(address: str, year: Clock) -> Ledger:
    """Two datasets of one family: east with a release in 2024 and two in 2026, west with one in 2026."""
    ledger = create_ledger(address).signed("ann")
    year(2024)
    ledger.register(Budget(name="kin", unit="record", limits=[Limit(ANY, Fraction(9))]))
    for name, rho in (("east", Fraction(5)), ("west", Fraction(8))):
        ledger.register(of_dataset(name, rho, "kin"))
    reserve(ledger, "east-a", "east")
    year(2026)
    for release, dataset in (("east-b", "east"), ("east-c", "east"), ("west-a", "west")):
        reserve(ledger, release, dataset)
    return ledger


def figures(lines: list[Lost]) -> list[tuple[str, int | None, int, Fraction, Fraction | None]]:
    return [(line.name, line.year, line.releases, line.spent, line.left) for line in lines]


def test_losses_are_told_by_dataset_family_and_year_and_each_limit_s_rest(kin: Ledger) -> None:
    """By hand: a release costs 50/49."""
    members = [
        ("east", 2024, 1, LOSS, None),
        ("east", 2026, 2, 2 * LOSS, None),
        ("east", None, 3, 3 * LOSS, None),
        ("west", 2026, 1, LOSS, None),
        ("west", None, 1, LOSS, None),
    ]
    of_kin = [
        ("kin", 2024, 1, LOSS, None),
        ("kin", 2026, 3, 3 * LOSS, None),
        ("kin", None, 4, 4 * LOSS, None),
        ("kin", None, 4, 4 * CERTIFIED, 9 - 4 * CERTIFIED),
    ]
    east, west = ("east", None, 3, 3 * CERTIFIED, 5 - 3 * CERTIFIED), ("west", None, 1, CERTIFIED, 8 - CERTIFIED)
    whole = figures(lost(spendings(kin, "payroll=45")))
    assert whole == [*members[:3], east, *members[3:], west, *of_kin]
    assert figures(lost(spendings(kin, "payroll=45", "kin"))) == [*members, *of_kin]  # its members' limits apart
    assert figures(lost(spendings(kin, "payroll=45", "west"))) == [*members[3:], west, *of_kin]


def test_this_year_is_told_where_nothing_was_lost_in_it(kin: Ledger, year: Clock) -> None:
    year(2027)
    (east,) = spendings(kin, "payroll=45", "east")
    assert {when: number for when, (number, _) in east.years.items()} == {2024: 1, 2026: 2, 2027: 0}
    assert east.to_json()["years"][-1] == {"year": 2027, "releases": 0, "spent": 0.0}


def test_a_charge_counts_in_the_year_that_reserved_it_and_a_refund_in_none(address: str, year: Clock) -> None:
    ledger = create_ledger(address)
    tested: dict[str, Any] = {"test": TEST, "policy": with_left_out_test(policy(), TEST)}
    year(2024)
    ledger.reserve(reservation("again", **tested))
    ledger.test("again", "sha256:pin", 10**6, 0)
    ledger.abort("again")  # the test of it stays charged by itself
    ledger.reserve(reservation("refunded"))
    ledger.abort("refunded")
    ledger.reserve(reservation("drawn"))
    year(2025)
    ledger.reserve(reservation("again", **tested))
    drawn_and_destroyed(ledger, "drawn", 4)  # the fourth draw charges all four, to the reservation
    year(2026)
    (mine,) = spendings(ledger, "payroll=1")
    share = SHARE_OF_UNIT * UNIT
    assert mine.years == {2024: (2, share + 4 * UNIT), 2025: (1, UNIT + share), 2026: (0, 0)}
    assert sum(loss for _, loss in mine.years.values()) == mine.total


def is_never_too_small(spent: list[str], left: str) -> bool:
    """Whether texts, read as decimals and as doubles, are no less than what was lost, no more than what is left."""
    told = [min(Fraction(text), Fraction(float(text))) for text in spent]
    bounds = zip(told, (LOSS, 2 * LOSS, 3 * LOSS, 3 * LOSS), strict=True)
    return all(text >= loss for text, loss in bounds) and max(Fraction(left), Fraction(float(left))) <= 5 - 3 * LOSS


def test_text_csv_json_and_pandas_say_the_same_and_nothing_too_small(
    kin: Ledger, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["ledger", "show", "east", "--at", "payroll=45", "--ledger", address]
    assert main([*call, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(rows[0]) == ["kind", "name", "family", "year", "at", "releases", "spent", "limit", "left"]
    east = [row for row in rows if row["name"] == "east"]
    assert [(row["year"], row["family"], row["at"]) for row in east[:3]] == [
        (when, "kin", "payroll=45") for when in ("2024", "2026", "all")
    ]
    assert is_never_too_small([row["spent"] for row in east], east[3]["left"])
    assert main([*call, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    spent = [*(row["spent"] for row in told["years"]), told["spent"], told["limits"][0]["spent"]]
    assert is_never_too_small([str(Decimal(double)) for double in spent], str(Decimal(told["limits"][0]["left"])))
    assert [row["year"] for row in told["family"]["years"]] == [2024, 2026]
    frame = prdp.open_ledger(address).spent("payroll=45", "east").by_year
    assert frame["year"].tolist() == [row["year"] for row in rows]
    for column in ("spent", "left"):
        assert frame[column].dropna().tolist() == [float(row[column]) for row in rows if row[column]]
    assert main(call) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    texts = ["1.02041", "2.04082", "3.06123"]
    for when, releases, text in zip(("2024", "2026", "all"), "123", texts, strict=True):
        assert ["dataset", "east", when, releases, text] in lines
    assert ["3.06123", "5", "1.93877"] in [line[-3:] for line in lines]


def test_figures_that_are_rounded_to_the_nearest_are_seen() -> None:
    losses, left = [LOSS, 2 * LOSS, 3 * LOSS, 3 * LOSS], 5 - 3 * LOSS
    good = [bound_text(loss, DIGITS) for loss in losses]
    assert is_never_too_small(good, down_text(left, DIGITS))
    assert not is_never_too_small([f"{float(loss):.6g}" for loss in losses], down_text(left, DIGITS))
    assert not is_never_too_small(good, bound_text(left, DIGITS))


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--csv"], 2, "--csv: it goes with --at, and without --json"),
        (["--at", "payroll=1", "--csv", "--json"], 2, "--csv: it goes with --at, and without --json"),
        (["--at", "pay=1", "--csv"], 5, "--at pay: unknown measure of the dataset; nearest known: payroll"),
        (["--at", "payroll=many"], 2, "--at"),
        (["eats", "--at", "payroll=1"], 5, "east"),
    ],
)
def test_a_wrong_call_is_refused(
    kin: Ledger, words: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "show", *words, "--ledger", str(kin.path or kin.address)]) == code
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out == ""
