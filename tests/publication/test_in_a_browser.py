"""Public pages in a real browser: at both widths and in every mode, by keyboard, on paper, without scripts."""

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.html import Table, rendered
from tests.support.devtools import MODES, Page, browser
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

COUNTIES, STATES = "site/tables/establishments.html", "site/tables/payroll_state.html"
WIDTHS = (390, 1280)
PAPER = 739  # pixels between the margins of a Letter sheet
ROWS = (
    "[...document.querySelectorAll('#cells tbody tr')]"
    ".map((row) => [...row.cells].slice(0, -1).map((cell) => cell.innerText.trim()))"
)
STATUS = "document.querySelector('#controls [role=status]').textContent"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    place = Place(write_world(folder, records(2000), contact="statistics@example.org"), folder / "run")
    outcome = submit(place, csv=True)
    return Path(place.out) / outcome.release / outcome.attempt


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def everything(page: Page) -> None:
    """Open what a table's page opens when it is asked to: filters and the map."""
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 1")
    page.run("document.querySelector('#map button')?.click()")
    page.wait("document.querySelector('#map svg path.q4')")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_has_a_violation(site: Path, page: Page, width: int, mode: str) -> None:
    page.look(width, mode)
    for path in ("../index.html", "site/index.html", COUNTIES, STATES, "report.html"):
        page.open(site / path)
        if "tables" in path:
            everything(page)
        assert page.violations() == [], path
        assert page.run("document.documentElement.scrollWidth") <= width, path


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


def published(site: Path, query: str) -> list[dict[str, Any]]:
    with (site / "tables" / f"{query}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def test_search_filters_order_and_pages_show_the_published_figures(site: Path, page: Page) -> None:
    expected = published(site, "establishments")
    page.look()
    page.open(site / COUNTIES)
    first = page.run(ROWS)
    press = "[...document.querySelectorAll('.pager button')].at({}).click()"
    page.run(press.format(-1))
    page.wait(f"{STATUS}.includes('51 to 80 of 80')")
    assert [number(row[2]) for row in page.run(ROWS)] == [float(row["value"]) for row in expected[50:]]
    page.run(press.format(0))
    page.wait(f"{STATUS}.includes('1 to 50 of 80')")
    assert page.run(ROWS) == first  # the script writes as the page itself does
    page.run("document.querySelectorAll('#cells th button')[2].click()")
    page.wait("document.querySelector('#cells [aria-sort=descending]')")
    largest = sorted((float(row["value"]) for row in expected), reverse=True)
    assert [number(row[2]) for row in page.run(ROWS)] == largest[:50]
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 3")
    labels = page.run("[...document.querySelectorAll('#controls label')].map((label) => label.firstChild.textContent)")
    assert {"Search", "Sector (NAICS 2)", "State", "National industry (NAICS 6)", "County"} <= set(labels)
    page.run(
        "{const list = [...document.querySelectorAll('#controls label')].find((each) => "
        "each.firstChild.textContent === 'State').querySelector('select'); list.value = "
        "[...list.options].find((each) => each.text.includes('California')).value; "
        "list.dispatchEvent(new Event('change'));}"
    )
    page.wait(f"{STATUS}.endsWith('of 20')")
    there = [float(row["value"]) for row in expected if row["county"].startswith("06")]
    assert [number(row[2]) for row in page.run(ROWS)] == sorted(there, reverse=True)
    page.run(
        "{const box = document.querySelector('[type=search]'); box.value = '722511';"
        + " box.dispatchEvent(new Event('input'));}"
    )
    page.wait(f"{STATUS}.endsWith('of 2')")
    here = [float(row["value"]) for row in expected if row["county"][:2] == "06" and row["naics6"] == "722511"]
    assert [number(row[2]) for row in page.run(ROWS)] == sorted(here, reverse=True)


def test_the_map_shades_the_published_figures(site: Path, page: Page) -> None:
    page.look()
    page.open(site / STATES)
    everything(page)
    told = set(
        page.run("[...document.querySelectorAll('#map path:not(.none) title')].map((title) => title.textContent)")
    )
    here = page.run("JSON.parse(document.getElementById('facts').textContent).at.naics3")
    rows = [row for row in published(site, "payroll_state") if row["naics3"] == here]
    assert len(told) == len(rows) == 6
    for row in rows:
        value = f"{float(row['value']):,.1f}".replace("-", "−")
        assert any(f": {value} (" in text for text in told), (value, told)
    box = [float(x) for x in page.run("document.querySelector('#map svg').getAttribute('viewBox')").split()]
    assert box == [0, 0, 975, 610]  # from Alaska to New York; a part of the country would be shown alone
    page.run(
        "{const list = document.querySelector('#map select'); list.value = '1';"
        + " list.dispatchEvent(new Event('change'));}"
    )
    assert "Relative errors" in page.run("document.querySelector('#map svg').getAttribute('aria-label')")


def test_cells_without_boundaries_stand_beside_the_map(tmp_path: Path, page: Page) -> None:
    """999 is everywhere in its state; Connecticut has regions or counties, and here both, of which one has a place."""
    counties = ("01001", "01999", "09001", "09110")
    query = {"name": "jobs", "sum": "employment", "by": ["county"], "mechanism": {"kind": "gaussian", "sigma": 9}}
    table = records(50).set_column(2, "county", [["01001"] * 50])
    place = Place(write_world(tmp_path, table, counties=counties, queries=[query]), tmp_path / "run")
    outcome = submit(place, csv=True)
    site = Path(place.out) / outcome.release / outcome.attempt
    page.look()
    page.open(site / "site/tables/jobs.html")
    page.run("document.querySelector('#map button')?.click()")
    page.wait("document.querySelectorAll('#map details li').length === 2")
    beside = page.run("[...document.querySelectorAll('#map details li')].map((line) => line.textContent)")
    rows = {row["county"]: number(row["value"]) for row in published(site, "jobs")}
    assert [number(line.split(": ")[1].split()[0]) for line in beside] == [rows["01999"], rows["09001"]]
    assert page.run("document.querySelectorAll('#map path:not(.none)').length") == 2
    assert page.run(STATUS) == "Cells 1 to 4 of 4"
    assert float(page.run("document.querySelector('#map svg').getAttribute('viewBox')").split()[2]) < 400


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
    page.wait("document.querySelector('#cells [aria-sort=descending]')?.cellIndex === 2")
    values = [number(row[2]) for row in page.run(ROWS)]
    assert values == sorted(values, reverse=True)
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
