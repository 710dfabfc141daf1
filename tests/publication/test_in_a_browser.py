"""Public pages in a real browser: at both widths and in every mode, by keyboard, on paper, without scripts."""

import itertools
import re
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.base.plain import Table, rendered
from tests.support.devtools import MODES, Page
from tests.support.pages import COUNTIES, ROWS, SIDEWAYS, STATES, STATUS, WIDTHS, everything, number

PAPER = 739  # pixels between the margins of a Letter sheet


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_has_a_violation(site: Path, page: Page, width: int, mode: str) -> None:
    page.look(width, mode)
    places = "site/place.html"
    for path in ("../index.html", "site/index.html", COUNTIES, STATES, places, "report.html"):
        page.open(site / path, "#state=06" if path == places else "")
        if "tables" in path:
            everything(page)
        if path == places:
            page.wait(
                "document.querySelector('#place .rows') && !document.querySelector('#place [role=status]').textContent"
            )
        assert page.violations() == [], path
        assert page.run("document.documentElement.scrollWidth") <= width, path


def test_a_phone_shows_rows_whole_and_digests_folded_away(site: Path, country: Path, page: Page) -> None:
    pages = (site.parent / "index.html", site / COUNTIES, site / STATES, country / "site/tables/naics6_county.html")
    for path in pages:
        page.look(390)
        page.open(path)
        if path != pages[0]:
            everything(page)
            page.run("document.querySelectorAll('#cells th button')[2].click()")
            page.wait("document.querySelector('#cells [aria-sort=ascending]')")
            boxes = page.run(
                "[...document.querySelectorAll('#cells tbody tr')].slice(0, 5).map((row) => [...row.cells].slice(0, -1)"
                ".map((cell) => {const {left, right, top, bottom} = cell.getBoundingClientRect();"
                " return [left, right, top, bottom];}))"
            )
            for row in boxes:
                assert all(cell[0] >= 0 and cell[1] <= 390 for cell in row)
                assert all(above[3] <= below[2] + 0.5 for above, below in itertools.pairwise(row)), (
                    "one under the other"
                )
            words = page.run("getComputedStyle(document.querySelector('#cells td[data-of]'), '::after').content")
            assert page.run("JSON.parse(document.getElementById('facts').textContent).unit") in words
        assert page.run(SIDEWAYS) == [], path
        assert re.findall(r"[0-9a-f]{64}", page.run("document.body.innerText")) == []
        assert re.findall(r"[0-9a-f]{64}", page.run("document.body.textContent")) != []  # they are there, folded
    page.run(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: 'td {white-space:"
        " nowrap !important; display: table-cell !important}'}))"
    )
    assert page.run(SIDEWAYS) != []  # the twin


def test_the_checker_finds_what_is_wrong(tmp_path: Path, page: Page) -> None:
    """The twin: pale text, and a picture without words."""
    (tmp_path / "wrong.html").write_text("<p style='color:#999'>pale</p><img src='a.png'>")
    page.look()
    page.open(tmp_path / "wrong.html")
    assert {each.partition(":")[0] for each in page.violations()} >= {"color-contrast", "image-alt"}


def test_a_page_asks_for_nothing_from_elsewhere_and_is_small(site: Path, page: Page) -> None:
    page.look()
    for path in ("../index.html", COUNTIES, STATES):
        page.open(site / path)
        if "tables" in path:
            everything(page)
        assert {address for address in page.addresses() if not address.startswith(site.parent.as_uri())} == set()
        first = [site / path, site / "site/style.css", *([site / "site/site.js"] if "tables" in path else [])]
        assert sum(file.stat().st_size for file in first) < 200_000


def test_the_keyboard_alone_reaches_everything(site: Path, page: Page) -> None:
    page.look()
    page.open(site / COUNTIES)
    active = "document.activeElement.outerHTML.slice(0, 60)"
    met = []
    for _ in range(40):
        page.press("Tab")
        met.append(page.run(active))
        if 'type="search"' in met[-1]:
            break
    for letter in "722511":
        page.press(letter)
    page.wait(f"{STATUS}.endsWith('of 8')")
    heads = "document.activeElement.closest('th')?.cellIndex"
    for _ in range(20):
        page.press("Tab")
        if page.run(heads) == 2:
            break
    page.press("Enter")
    page.wait("document.querySelector('#cells [aria-sort=ascending]')?.cellIndex === 2")
    values = [number(row[2]) for row in page.run(ROWS)]
    assert values == sorted(values)
    assert len(values) == 8
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_pages_can_be_read_without_scripts(site: Path, page: Page) -> None:
    page.look()
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.events.clear()
        page.call("Page.navigate", url=(site / STATES).as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in page.events):
            with suppress(RuntimeError):  # while one page takes the place of another
                page.call("Page.getNavigationHistory")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        html = page.call("DOM.getOuterHTML", nodeId=root)["outerHTML"]
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert html.count("<tr>") > 20
    assert "The true total is between" in html
    assert "type=search" not in html


def test_nothing_is_cut_on_paper(site: Path, tmp_path: Path, page: Page) -> None:
    wide = (
        "[...document.querySelectorAll('table')].map((table) => table.getBoundingClientRect().right)"
        ".filter((x) => x > innerWidth + 1)"
    )
    losses = Table([f"employment {10**i}, payroll {10**i}" for i in range(12)], [["43.41"] * 12])
    text = rendered(
        "diagnostics.html",
        title="t",
        dataset="d",
        of="records",
        warnings=[],
        records=losses,
        sections=[],
        headings=[],
        compared="",
        overview=losses,
        accuracy=[],
        plan_digest="",
    )
    (tmp_path / "losses.html").write_text(text)
    page.look(PAPER, media="print")
    for path in (
        site.parent / "index.html",
        site / COUNTIES,
        site / STATES,
        site / "report.html",
        tmp_path / "losses.html",
    ):
        page.open(path)
        assert page.run(wide) == [], path
        assert page.run("getComputedStyle(document.querySelector('thead')).display") == "table-header-group"
        heads = page.run("[...document.querySelectorAll('th button')].map((each) => getComputedStyle(each).display)")
        assert set(heads) <= {"contents"}, path  # a button in a head is printed once, a text on every page
    page.look(PAPER)  # the twin: on the screen that table is too wide, and is scrolled
    assert page.run(wide) != []
