"""The officers' page, and what is spent and left by the limits that there are."""

import html
import json
import re
import shlex
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prdp
from jobs.cli import main, parse
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import StateError
from pipeline.ledger import entries
from pipeline.ledger.admission import accounts
from pipeline.ledger.datasets import Budget
from pipeline.ledger.entries import Diagnosed
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.operations.officer_page import HELD_LONG, MOST_BARS, officer_page
from tests.support.devtools import MODES, browser
from tests.support.ledgers import FACTS, UNIT, policy, reservation, staged
from tests.support.world import records, write_world

NOW = datetime.now(UTC)
ANY = Reference.of({})


def of_dataset(name: str, draws: int, family: str | None = None) -> Budget:
    limits = [Limit(ANY, draws * UNIT)]
    return Budget(name=name, unit="record", limits=limits, facts=FACTS, source=f"/{name}", family=family)


def reserve(ledger: Ledger, release: str, dataset: str) -> None:
    ledger.reserve(reservation(release, dataset=dataset, source=f"/{dataset}"))


def shown(ledger: Ledger, later: timedelta = timedelta(0)) -> str:
    return officer_page(ledger, lambda state: (f"of {state.release}", None), NOW + later)


def commands(page: str) -> list[str]:
    """The commands on a page, as a reader copies them."""
    blocks = re.findall(r"<pre tabindex=0>(.*?)</pre>", page, re.DOTALL)
    return [line for block in blocks for line in html.unescape(block).splitlines() if line]


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
    stuck = shown(ledger).split("<h2 id=stuck>")[1].split("<h2")[0].split("<h3>")
    told = {
        "begun": "Nothing is drawn",
        "killed": "A draw is recorded",
        "broken": "Its draw was destroyed",
        "passed": "It is approved, and not yet published",
        "chosen": "may not be complete at its output",
    }
    for release, words in told.items():
        (block,) = [block for block in stuck if block.startswith(f"release {release}</h3>")]
        assert words in block
        acts = commands(block)
        assert acts
        assert all(f"--ledger {ledger.address}" in act for act in acts)
        assert all(release in act or "PLAN --out" in act for act in acts)
    assert {"release waits</h3>", "release done</h3>"} & {block.splitlines()[0] for block in stuck} == set()
    assert "held for 8 days" in shown(ledger, HELD_LONG + timedelta(days=1, hours=1))


def test_a_closed_ledger_is_stuck_until_it_is_opened(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    ledger.close("restored")
    assert f"prdp ledger admin reopen --ledger {ledger.address}" in commands(shown(ledger))
    ledger.reopen([])
    assert "admin reopen" not in shown(ledger)


def test_a_dataset_without_refusals_left_is_stuck(ledger: Ledger) -> None:
    ledger.register(Budget(**{**vars(of_dataset("d", 9)), "refusals": 1}))
    assert "prdp ledger raise" not in shown(ledger)
    reserve(ledger, "first", "d")
    ledger.refuse("first")
    act = f"prdp ledger raise --ledger {ledger.address} d --budget FILE --reason TEXT"
    assert act in commands(shown(ledger))


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


def section(page: str, name: str) -> str:
    return page.split(f"<h2 id={name}>")[1].split("<h2", maxsplit=1)[0]


def rows_of(part: str) -> list[list[str]]:
    found = re.findall(r"<tr>(.*?)</tr>", part)
    return [[html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in found]


def test_the_page_answers_in_the_order_of_an_officer(ledger: Ledger) -> None:
    order = re.findall(r"<h2 id=(\w+)>", shown(ledger))
    assert order == ["waiting", "stuck", "spent", "left", "acts", "releases"]


def test_what_was_spent_is_told_by_record_firm_family_and_year(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: a release costs two; of eight years the last four are told, the others together."""
    firm = Limit(Reference.of([{"payroll": 3}] * 2), 40 * UNIT)
    ledger.register(Budget(name="kin", unit="record", limits=[Limit(ANY, 40 * UNIT)]))
    ledger.register(of_dataset("a", 30, "kin"))
    owners = Budget(name="f", unit="firm_id", limits=[firm], facts=FACTS | {"unit": "firm_id"}, source="/f")
    ledger.register(owners)
    for year in range(NOW.year - 7, NOW.year + 1):

        class Then(datetime):
            @classmethod
            def now(cls, tz: Any = None, year: int = year) -> Any:
                return datetime(year, 6, 1, tzinfo=UTC)

        monkeypatch.setattr(entries, "datetime", Then)
        reserve(ledger, f"a{year}", "a")
    ledger.reserve(reservation("f1", dataset="f", source="/f", dataset_facts=FACTS | {"unit": "firm_id"}, limits=[]))
    header, *rows = rows_of(section(shown(ledger), "spent"))
    assert header == ["of", "whom", "in all", *map(str, range(NOW.year, NOW.year - 4, -1)), "earlier"]
    by_year = ["16", "2", "2", "2", "2", "8"]
    assert rows[0] == ["family kin", "any record", *by_year]
    assert rows[1] == ["dataset a", "any record", *by_year]
    assert rows[2][:2] == ["dataset f", "2 together: payroll=3; payroll=3"]
    assert rows[2][2:] == ["8", "8", "0", "0", "0", "0"]  # two records in one cell: 2²/(2σ²)


def test_the_best_test_of_a_release_and_of_its_limit_are_told_apart(ledger: Ledger) -> None:
    """By Neyman and Pearson, of noise on whole numbers in proportion to exp(−k²/(2σ²)), which a record moves by one."""
    ledger.register(of_dataset("d", 9))
    ledger.reserve(reservation("r", source="/d", policy=policy(2)))
    ledger.hold("r", ledger.draw("r", "sha256:pin"), "sha256:contents")
    header, (*_, of_release, of_limit) = rows_of(section(shown(ledger), "waiting"))[:2]
    assert header[-2:] == ["best test of it alone", "of all within the limit"]
    absent = np.exp(-(np.arange(-60, 61) ** 2) / 8)
    size, power = (np.cumsum(each[::-1]) / absent.sum() for each in (absent, np.roll(absent, 1)))
    assert float(of_release) == pytest.approx(np.interp(0.05, size, power), abs=1e-4)
    assert of_limit == "> 0.9999"
    ledger.raise_limits(of_dataset("d", 8), "less is enough")
    assert rows_of(section(shown(ledger), "waiting"))[1][-1] == "not known: stated anew since"


def test_checks_are_counted_and_not_listed(ledger: Ledger) -> None:
    reserve(ledger, "r", "d")
    for event in ("checked",) * 30 + ("diagnosed",) * 2:
        facts = {"digest": "sha256:plan", "pin": "sha256:pin", "code": "sha256:code", "engine": "dask", "event": event}
        ledger.diagnosed(Diagnosed(dataset="d", release="r", **facts))
    acts = section(shown(ledger), "acts")
    assert ["d", "checks of the microdata", "30", f"{NOW:%Y-%m-%d}", "ann"] in rows_of(acts)
    assert ["d", "diagnostics", "2", f"{NOW:%Y-%m-%d}", "ann"] in rows_of(acts)
    listed = acts.split("the latest first")[1]
    assert ("checked" in listed, "diagnosed" in listed, "reserved" in listed) == (False, False, True)
    assert ["ann", "1 reserved", f"{NOW:%Y-%m-%d}"] in rows_of(acts)


def test_every_command_is_one_that_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In folders with spaces and quotes: each is parsed, names the ledger, and an approval that is pasted publishes."""
    place = tmp_path / "officer's own" / "l.sqlite"
    ledger = create_ledger(str(place)).signed("ann")
    plan = write_world(tmp_path / "a b", records(20), budget=[], release="held-one")
    assert main(["release", str(plan), "--hold", "--ledger", str(place)]) == 0
    reserve(ledger, "begun", "d")
    ledger.reserve(reservation("elsewhere", dataset="d", source="/d", out="/my out", staging="file:///a b"))
    ledger.register(Budget(**{**vars(of_dataset("e", 9)), "refusals": 1}))
    reserve(ledger, "refused", "e")
    ledger.refuse("refused")
    acts = commands(shown(ledger, 2 * HELD_LONG))
    assert len(acts) >= 8
    for act in acts:
        assert parse(shlex.split(act.replace("TEXT", "why"))[1:]).ledger == str(place), act
    resumed = [parse(shlex.split(act)[1:]) for act in acts if act.startswith("prdp release") and "/my out" in act]
    assert [(each.out, each.staging) for each in resumed] == [("/my out", "file:///a b")]
    rejecting = next(act for act in acts if act.startswith("prdp ledger reject"))
    assert main(shlex.split(rejecting)[1:]) == 2  # as it stands: TEXT is no reason
    assert "TEXT stands for a reason" in capsys.readouterr().err
    approving = next(act for act in acts if act.startswith("prdp ledger approve"))
    other = create_ledger(str(tmp_path / "other" / "l.sqlite"))
    assert main(shlex.split(approving.replace(shlex.quote(str(place)), str(other.path)))[1:]) == 5
    assert "release held-one: is not in the ledger" in capsys.readouterr().err
    assert main(shlex.split(approving)[1:]) == 0
    assert prdp.open_ledger(place)._store.state("held-one").status == "settled"


def test_no_value_of_a_record_and_no_count_of_records_is_on_the_page(tmp_path: Path) -> None:
    """A secret id, code and value stand in the microdata; a broken page that prints what was tested is noticed."""
    ledger = create_ledger(str(tmp_path / "state" / "l.sqlite"))
    secret = records(20).set_column(0, "establishment_id", [[f"SECRET-{i}" for i in range(20)]])
    plan = write_world(tmp_path, secret, budget=[])
    assert main(["release", str(plan), "--hold", "--ledger", str(ledger.path)]) == 0
    (tested,) = [entry.facts for entry in ledger.entries() if entry.event == "tested"]
    pins = [entry.facts["pin"] for entry in ledger.entries() if "pin" in entry.facts]

    def leaks(page: str) -> list[str]:
        counts = [f">{tested[name]}<" for name in ("kept", "left_out")]
        return [text for text in ("SECRET", *counts, *pins) if text in page]

    page = shown(ledger)
    assert leaks(page) == []
    assert leaks(f"{page}<td>{tested['kept']}</td>{pins[0]}") != []
