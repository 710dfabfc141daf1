"""The officers' page, and what is spent and left by the limits that there are."""

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import prdp
from jobs.cli import main
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import StateError
from pipeline.ledger.admission import accounts
from pipeline.ledger.datasets import Budget
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.operations.officer_page import HELD_LONG, MOST_BARS, officer_page
from tests.support.devtools import MODES, browser
from tests.support.ledgers import FACTS, UNIT, reservation, staged

NOW = datetime.now(UTC)
ANY = Reference.of({})


def of_dataset(name: str, draws: int, family: str | None = None) -> Budget:
    limits = [Limit(ANY, draws * UNIT)]
    return Budget(name=name, unit="record", limits=limits, facts=FACTS, source=f"/{name}", family=family)


def reserve(ledger: Ledger, release: str, dataset: str) -> None:
    ledger.reserve(reservation(release, dataset=dataset, source=f"/{dataset}"))


def shown(ledger: Ledger, later: timedelta = timedelta(0)) -> str:
    return officer_page(ledger.address, ledger.entries(), lambda state: (f"of {state.release}", None), NOW + later)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return create_ledger(str(tmp_path / "state" / "ledger.sqlite")).signed("ann")


def test_every_limit_says_what_is_spent_and_left(ledger: Ledger) -> None:
    """By hand: a release costs one unit; a family counts those of its datasets, a plan's limit its own dataset's."""
    ledger.register(Budget(name="kin", unit="record", limits=[Limit(ANY, 9 * UNIT)]))
    for name, draws in (("a", 3), ("b", 5)):
        ledger.register(of_dataset(name, draws, "kin"))
    for release, dataset in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c"), ("gone", "b")):
        reserve(ledger, release, dataset)
    ledger.abort("gone")  # before a draw: refunded
    kept = {each.name: each for each in accounts(ledger.budgets(), ledger.states())}
    found = {name: (under.total / UNIT, under.left / UNIT) for name, each in kept.items() for under in each.limits}
    assert found == {"kin": (3, 6), "a": (2, 1), "b": (1, 4), "c": (1, 99)}
    assert [(s.release, loss) for s, loss in kept["kin"].limits[0].spent] == [("a1", UNIT), ("a2", UNIT), ("b1", UNIT)]
    opened = prdp.open_ledger(ledger.path)
    for name in "ac":  # as at a reference that was asked for
        ((asked,), (told,)) = opened.spent({}, name), opened.spent(dataset=name)
        assert [told["limits"][0][key] for key in ("spent", "left")] == [asked["spent"], asked["left"]]


def test_the_lowest_limit_at_a_reference_is_told(ledger: Ledger) -> None:
    ledger.reserve(reservation("first", draws=7))
    ledger.reserve(reservation("second", draws=4))
    (account,) = accounts(ledger.budgets(), ledger.states())
    (under,) = account.limits
    assert (under.limit.rho, under.total, under.left) == (4 * UNIT, 2 * UNIT, 2 * UNIT)


def test_each_state_that_goes_no_further_comes_with_what_to_do(ledger: Ledger, tmp_path: Path) -> None:
    reserve(ledger, "begun", "d")
    for release in ("killed", "broken", "waits", "passed", "chosen", "done"):
        attempt = staged(ledger, release, tmp_path / "out")
        if release == "broken":
            ledger.destroyed(release, attempt, "incomplete", exposed=True)
        contents = "sha256:contents"
        if release in ("waits", "passed"):
            ledger.hold(release, attempt, contents)
        if release == "passed":
            ledger.approve(release, attempt)
        if release in ("chosen", "done"):
            ledger.publish(release, attempt, contents)
        if release == "done":
            ledger.settle(release, attempt)
    stuck = shown(ledger).split("<h2 id=stuck>")[1].split("<h2")[0]
    told = {
        "begun": "Nothing is drawn",
        "killed": "A draw is recorded",
        "broken": "Its draw was destroyed",
        "passed": "It is approved, and not yet published",
        "chosen": f"may not be complete at {tmp_path / 'out'}",
    }
    for release, words in told.items():
        (row,) = [row for row in stuck.split("<tr>") if f"<td>release {release}</td>" in row]
        assert words in row
    assert "release waits" not in stuck
    assert "release done" not in stuck
    assert "held for 8 days" in shown(ledger, HELD_LONG + timedelta(days=1, hours=1))


def test_a_closed_ledger_is_stuck_until_it_is_opened(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.close("restored")
    assert "<td>the ledger" in shown(ledger)
    ledger.reopen([])
    assert "<td>the ledger" not in shown(ledger)


def test_a_dataset_without_refusals_left_is_stuck(ledger: Ledger) -> None:
    ledger.register(Budget(**{**vars(of_dataset("d", 9)), "refusals": 1}))
    assert "refusals: prdp ledger raise" not in shown(ledger)
    reserve(ledger, "first", "d")
    ledger.refuse("first")
    assert f"refusals: prdp ledger raise --ledger {ledger.address} d --budget FILE" in shown(ledger)


def test_many_releases_share_a_bar_and_text_is_escaped(ledger: Ledger) -> None:
    for number in range(MOST_BARS + 2):
        ledger.signed("<b>ann</b>").reserve(reservation(f"r{number}"))
        ledger.draw(f"r{number}", "sha256:pin")
    page = shown(ledger)
    assert page.count("<li><span>") == MOST_BARS + 1
    assert "3 earlier releases" in page
    assert "<b>ann" not in page


def test_the_page_is_written_for_this_user_alone_and_never_over_another_file(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = staged(ledger, "held-one", tmp_path / "out")
    ledger.hold("held-one", attempt, "sha256:contents")
    site = ledger.staging_root / "held-one" / attempt / "site"
    site.mkdir()
    (site / "index.html").write_text("staged")
    call = ["ledger", "page", "--ledger", str(ledger.path), "--out"]
    out = tmp_path / "officers.html"
    for _ in range(2):  # an earlier page is replaced
        assert main([*call, str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"page": str(out), "confidential": True}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    page = out.read_text()
    assert f'<a href="{(site / "index.html").as_uri()}">' in page
    assert "held-one" in page
    assert "<td>ann</td>" in page
    assert "sha256:pin" not in page
    other = tmp_path / "plan.yaml"
    other.write_text("release: x")
    (tmp_path / "link").symlink_to(out)
    for path in (other, tmp_path / "link", tmp_path / "out" / "held-one" / "page.html", site / "page.html"):
        assert main([*call, str(path)]) == 5, path
    assert other.read_text() == "release: x"
    with pytest.raises(StateError, match="is there already"):
        prdp.open_ledger(ledger.path).page(other)


def test_the_page_has_no_violation_and_fits_a_phone(ledger: Ledger, tmp_path: Path) -> None:
    ledger.register(of_dataset("d", 9))
    for release in ("begun", "held-one"):
        reserve(ledger, release, "d")
    ledger.hold("held-one", ledger.draw("held-one", "sha256:pin"), "sha256:contents")
    path = tmp_path / "page.html"
    path.write_text(shown(ledger, 2 * HELD_LONG))
    with browser(tmp_path / "profile") as page:
        for width, mode in ((390, "dark"), *((1280, mode) for mode in MODES)):
            page.look(width, mode)
            page.open(path)
            assert page.violations() == []
            assert page.run("document.documentElement.scrollWidth") <= width
