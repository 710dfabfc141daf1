"""A reader's search in a real browser: what is typed, filtered, ordered, addressed and downloaded, and a place."""

import csv
import gzip
import itertools
import json
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow.parquet as pq
import pytest

import prdp
from tests.support.devtools import Page
from tests.support.pages import (
    COUNTIES,
    INDUSTRIES,
    ROWS,
    SIDEWAYS,
    STATUS,
    WIDTHS,
    cells_of,
    choose,
    everything,
    number,
    published,
)
from tests.support.submit import released
from tests.support.world import records, write_world


def test_search_filters_order_and_pages_show_the_published_figures(site: Path, page: Page) -> None:
    expected = sorted(published(site, "establishments"), key=lambda row: -float(row["value"]))  # the opening order
    page.look()
    page.open(site / COUNTIES)
    first = page.run(ROWS)
    press = "[...document.querySelectorAll('.pager button')].at({}).click()"
    page.run(press.format(1))
    page.wait(f"{STATUS}.includes('51 to 80 of 80')")
    assert [number(row[2]) for row in page.run(ROWS)] == [float(row["value"]) for row in expected[50:]]
    page.run(press.format(0))
    page.wait(f"{STATUS}.includes('1 to 50 of 80')")
    assert page.run(ROWS) == first  # the script writes as the page itself does
    page.run("document.querySelectorAll('#cells th button')[2].click()")
    page.wait("document.querySelector('#cells [aria-sort=ascending]')")
    smallest = sorted(float(row["value"]) for row in expected)
    assert [number(row[2]) for row in page.run(ROWS)] == smallest[:50]
    page.run("document.querySelectorAll('#cells th button')[2].click()")
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 3")
    labels = page.run("[...document.querySelectorAll('#controls label')].map((label) => label.firstChild.textContent)")
    assert {"Search", "Sector (NAICS 2)", "State", "National industry (NAICS 6)", "County"} <= set(labels)
    choose(page, "State", "California")
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


QUERIES = {  # what people type, and the code or codes that are meant: the first hit has them
    "King County": "53033",
    "king county": "53033",
    "king": "53033",
    "king co": "53033",
    "King County, WA": "53033",
    "king county texas": "48269",
    "king washington": "53033",
    "kings": "36047",
    "kings ny": "36047",
    "kings california": "06031",
    "king and queen": "51097",
    "king george": "51099",
    "53033": "53033",
    "los angeles": "06037",
    "los ang": "06037",
    "los angeles county california": "06037",
    "new york": "36061",
    "cook": "17031",
    "cook county": "17031",
    "cook minn": "27031",
    "orleans": "22071",
    "saint louis": "29189",
    "st. louis city": "29510",
    "dona ana": "35013",
    "washington": "41067",
    "dc": "11001",
    "wa": "53033",
    "san fran": "06075",
    "restaurants": "722511",
    "full-service": "722511",
    "lawyers": "541110",
    "bank": "522110",
    "hospitals": "622110",
    "7225": "722511",
    "car dealers": "441110",
    "king wa restaurants": "53033 722511",
    "restaurants king wa": "53033 722511",
    "restaurants in king county": "53033 722511",
    "bakeries cook": "17031 311811",
    "lawyers new york county": "36061 541110",
    "maricopa grocery": "04013 445110",
    "aircraft washington": "41067 336411",
    "722511 06": "06037 722511",
}


def search(page: Page, text: str) -> list[str]:
    """Type a text into a table's search; return the codes of the first row."""
    page.run(
        f"{{const box = document.querySelector('[type=search]'); box.value = {json.dumps(text)}; "
        "document.querySelector('#cells tbody').replaceChildren(); box.dispatchEvent(new Event('input'));}"
    )
    page.wait("document.querySelector('#cells tbody tr')")
    codes: list[str] = page.run(
        "[...document.querySelectorAll('#cells tbody tr:first-child .code')].map((x) => x.textContent)"
    )
    return codes


def test_search_gives_what_people_mean_first(country: Path, page: Page) -> None:
    page.look()
    page.open(country / "site/tables/naics6_county.html")
    found = {text: search(page, text) for text in QUERIES}
    wrong = {text: codes for text, codes in found.items() if not set(QUERIES[text].split()) <= set(codes)}
    assert wrong == {}
    assert len(QUERIES) > 30
    page.run("document.querySelectorAll('#cells th button')[1].click()")  # the twin: by the code of the county
    page.wait("document.querySelector('#cells [aria-sort]')?.cellIndex === 1")
    assert search(page, "king county") != found["king county"]


def test_filters_narrow_each_other(country: Path, page: Page) -> None:
    page.look(390)
    page.open(country / "site/tables/naics6_county.html")
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 3")
    listed = (
        "[...[...document.querySelectorAll('#controls label')].find((each) => each.firstChild.textContent === '{}')"
        ".querySelectorAll('option')].map((each) => each.text)"
    )
    assert len(page.run(listed.format("County"))) == 1 + 3144
    choose(page, "State", "Washington (53)")
    counties = page.run(listed.format("County"))
    assert len(counties) == 1 + 39
    assert all(each.endswith(")") and "(53" in each for each in counties[1:])
    choose(page, "County", "King County")
    assert page.run(listed.format("State")) == ["All", "Washington (53)"]
    assert page.run(STATUS) == "Cells 1 to 10 of 10"
    choose(page, "County", "All")
    assert len(page.run(listed.format("State"))) == 1 + 51


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_has_an_address_and_its_rows_a_file(country: Path, page: Page, tmp_path: Path, width: int) -> None:
    page.look(width)
    table = country / "site/tables/naics6_county.html"
    page.open(table)
    everything(page)
    choose(page, "State", "Washington (53)")
    choose(page, "Shown", "relative errors")
    page.run("document.querySelectorAll('#cells th button')[3].click()")
    page.wait("location.hash.includes('order=-lower')")
    page.run("[...document.querySelectorAll('.pager button')][1].click()")
    page.wait(f"{STATUS}.includes('51 to 100 of 390')")
    before, fragment = page.run(ROWS), page.run("location.hash")
    assert "state=53" in fragment
    assert "map=errors" in fragment
    assert page.run("document.querySelector('#cite').textContent.endsWith(location.href)")
    page.open(country / "site/index.html")  # the same address, opened anew
    page.open(table, fragment)
    page.wait(f"{STATUS}.includes('51 to 100 of 390')")
    assert page.run(ROWS) == before
    assert "Relative errors" in page.run("document.querySelector('#map svg').getAttribute('aria-label')")
    assert page.run("location.hash") == fragment
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run("[...document.querySelectorAll('button')].find((each) => each.textContent.startsWith('Download')).click()")
    file = tmp_path / "naics6_county-rows.csv"
    while not file.is_file():
        page.run("new Promise((done) => setTimeout(done, 50))")
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    there = [row for row in cells_of(country, "naics6_county") if row["county"].startswith("53")]
    assert sorted((row["naics6"], row["county"], int(row["value"]), int(row["lower"])) for row in rows) == sorted(
        (row["naics6"], row["county"], row["value"], row["lower"]) for row in there
    )
    assert {row["unit"] for row in rows} == {"records"}
    assert {row["coverage"] for row in rows} == {"95 %"}
    assert {row["county_name"] for row in rows if row["county"] == "53033"} == {"King County, WA"}
    page.open(table)  # the twin: without it the table opens as it does
    assert page.run(ROWS) != before


def test_a_whole_table_is_there_as_csv(country: Path) -> None:
    page = (country / "site/tables/naics6_county.html").read_text()
    assert '<a href="naics6_county.csv.gz">' in page
    with gzip.open(country / "site/tables/naics6_county.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = cells_of(country, "naics6_county")
    assert [(row["naics6"], row["county"], int(row["value"])) for row in rows] == [
        (row["naics6"], row["county"], row["value"]) for row in expected
    ]
    assert list(rows[0]) == list(expected[0])


def asked(page: Page, text: str) -> list[str]:
    """Type a text into a start page's question; return the codes of the first hit."""
    page.run(
        f"{{const box = document.querySelector('#ask input'); box.value = {json.dumps(text)}; "
        "document.querySelector('.hits').replaceChildren(); box.dispatchEvent(new Event('input'));}"
    )
    page.wait("document.querySelector('.hits a')")
    address = page.run("document.querySelector('.hits a').href")
    return [code for _, code in parse_qsl(urlsplit(address).fragment)]


def test_the_start_page_gives_what_people_mean_first(country: Path, page: Page) -> None:
    page.look()
    page.open(country.parent / "index.html")
    found = {text: asked(page, text) for text in QUERIES}
    coarser = {"new york": "36", "washington": "53", "wa": "53", "dc": "11", "hospitals": "622", "bank": "13011"}
    wrong = {text: codes for text, codes in found.items() if codes != coarser.get(text, QUERIES[text]).split()}
    assert wrong == {}


MADE = "document.querySelector('#place .rows') && document.querySelector('#place [role=status]').textContent === ''"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_place_has_a_page_beside_its_parent(country: Path, page: Page, width: int) -> None:
    page.look(width)
    page.open(country.parent / "index.html")
    assert asked(page, "king county") == ["53033"]
    assert (
        page.run("document.querySelector('.hits a').href") == (country / "site/place.html").as_uri() + "#county=53033"
    )
    page.open(country / "site/place.html", "#county=53033")
    page.wait(MADE)
    assert page.run("document.querySelector('h1').textContent") == "King County, WA"
    assert page.run("location.hash") == "#county=53033"
    text = page.run("document.querySelector('#place').textContent").replace(",", "")
    (here,) = (row for row in cells_of(country, "county") if row["county"] == "53033")
    (state,) = (row for row in cells_of(country, "state") if row["state"] == "53")
    assert f"{here['value']}{here['lower']} to {here['upper']}" in text
    assert f"{state['value']} ({state['lower']} to {state['upper']})" in text
    largest = sorted(
        (row for row in cells_of(country, "naics6_county") if row["county"] == "53033"), key=lambda row: -row["value"]
    )
    first = "#place .rows td:first-child a"
    industries = page.run(f"[...document.querySelectorAll('{first}')].map((each) => each.textContent)")
    assert industries == [INDUSTRIES[row["naics6"]][0] for row in largest]
    assert page.run("document.documentElement.scrollWidth") <= width
    assert width > 390 or page.run(SIDEWAYS) == []
    assert page.violations() == []
    assert {each for each in page.addresses() if not each.startswith(country.parent.as_uri())} == set()
    page.run(f"document.querySelector('{first}').click()")  # the industry there
    page.wait("document.querySelector('h1').textContent.startsWith('King County, WA · ')")
    page.open(country / "site/place.html", "#naics6=722511")  # an industry: its largest places
    page.wait(MADE)
    assert page.run("document.querySelector('#place .rows td:first-child').textContent") == "Los Angeles County, CA"


MINE = "document.querySelector('#place input[type=checkbox]')"
FIRST = "document.querySelector('#cells tbody tr').innerText"


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_open_with_the_reader_s_place_where_there_is_one(country: Path, page: Page, width: int) -> None:
    page.look(width)
    table = country / "site/tables/county.html"
    page.open(table)
    before = page.run(ROWS)
    assert before == sorted(before, key=lambda row: -number(row[1]))  # without a place: the largest come first
    page.open(country / "site/place.html", "#county=53053")
    page.wait(MADE)
    page.run(f"{MINE}.click()")
    page.open(table)
    page.wait(f"document.querySelector('#home button') && {FIRST}.includes('53053')")
    assert page.run("document.querySelector('#home').textContent").startswith("Pierce County, WA comes first.")
    after = page.run(ROWS)
    assert all(", WA" in row[0] for row in after[1:39])  # then the other counties of its state
    assert [row[0] for row in after[39:]] == [row[0] for row in before if ", WA" not in row[0]][: 50 - 39]
    assert all(number(one[1]) >= number(other[1]) for one, other in itertools.pairwise(after[1:39]))
    assert {each for each in page.addresses() if not each.startswith(country.parent.as_uri())} == set()
    assert page.run("location.hash") == ""  # what is kept is not in the address, which people pass on
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.violations() == []
    page.open(country / "site/tables/naics3_state.html")  # its state comes first in a table of states
    page.wait("document.querySelector('#home button')")
    assert "Washington" in page.run(FIRST)
    page.open(table, "#order=-value")  # an address that chooses goes before it
    page.wait(f"{STATUS}.startsWith('Cells 1')")
    assert page.run(ROWS) == before
    page.open(table)
    page.wait("document.querySelector('#home button')")
    page.run("document.querySelector('#home button').click()")
    page.wait("!document.querySelector('#home')")
    assert page.run(ROWS) == before
    page.open(table)  # the twin: nothing is kept
    assert page.run("document.querySelector('#home')") is None
    assert page.run(ROWS) == before


def test_the_front_page_leads_to_whole_tables_and_says_their_size(site: Path, country: Path) -> None:
    for folder in (site, country):
        front, tables = (folder.parent / "index.html").read_text(), list((folder / "site/tables").glob("*.html"))
        links = re.findall(r'<a href="([^"]+)">All of it as CSV</a> \(([\d,]+) bytes\)', front)
        assert len(links) == len(tables)
        for href, size in links:
            assert (folder.parent / href).stat().st_size == number(size)
    assert {href.endswith(".csv.gz") for href, _ in links} == {True}  # without --csv: the site's own
    with pytest.raises(AssertionError):  # the twin: the page before publication tells no sizes
        assert "All of it as CSV" in (country / "site/index.html").read_text()


def test_reconciled_tables_say_what_their_rows_come_to(tmp_path: Path, page: Page) -> None:
    queries = [
        {"name": name, "count": "records", "by": by, "mechanism": {"kind": "gaussian", "sigma": 5}}
        for name, by in (("by_county", ["naics6", "county"]), ("by_state", ["state"]))
    ]
    release = released(write_world(tmp_path, records(2000), queries=queries), tmp_path / "run").parent
    prdp.reconcile(release, tmp_path / "reconciled")
    prdp.site(release, tmp_path / "site", reconciled=tmp_path / "reconciled")
    rows = {
        name: pq.read_table(tmp_path / f"reconciled/tables/{name}.parquet").to_pylist()
        for name in ("by_county", "by_state")
    }
    total = sum(row["display"] for row in rows["by_state"])
    assert total == sum(row["display"] for row in rows["by_county"])
    page.look(390)
    together = "document.querySelector('#together')?.textContent"
    for name, cells in rows.items():
        page.open(tmp_path / f"site/site/tables/{name}.html")
        assert page.run(together) == f"All {len(cells)} cells together: {total:,} records."
    page.open(tmp_path / "site/site/tables/by_county.html", "#state=06")
    page.wait(f"{STATUS}.endsWith('of 20')")
    part = sum(row["display"] for row in rows["by_county"] if row["county"].startswith("06"))
    assert page.run(together) == f"These 20 cells together: {part:,} records."
    assert {row["display"] for row in rows["by_state"] if row["state"] == "06"} == {part}
    assert page.violations() == []
    page.open(tmp_path / "site/published/tables/by_county.html")  # the twin: published figures do not add up
    assert page.run("document.querySelector('#together')") is None
