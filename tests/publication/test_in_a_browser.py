"""Public pages in a real browser: at both widths and in every mode, by keyboard, on paper, without scripts."""

import csv
import gzip
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pyarrow.parquet as pq
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


LARGE = {"53033": 60, "06037": 90, "36061": 50, "17031": 50, "48201": 45, "41067": 9, "36047": 30, "22071": 12}
LARGE |= {"29510": 14, "29189": 25, "25025": 20, "11001": 16, "35013": 6, "06075": 18, "04013": 40, "53053": 12}
DOMAIN = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "vintage": {"naics": 2022, "county": 2022}}
INDUSTRIES = {  # names, and how many
    "236115": ("New Single-Family Housing Construction", 2),
    "311811": ("Retail Bakeries", 1),
    "336411": ("Aircraft Manufacturing", 1),
    "441110": ("New Car Dealers", 2),
    "445110": ("Supermarkets and Other Grocery Retailers", 3),
    "522110": ("Commercial Banking", 2),
    "541110": ("Offices of Lawyers", 3),
    "622110": ("General Medical and Surgical Hospitals", 1),
    "722511": ("Full-Service Restaurants", 8),
    "722513": ("Limited-Service Restaurants", 4),
}


@pytest.fixture(scope="module")
def country(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of all counties, under their names, in some industries; large ones are large."""
    folder = tmp_path_factory.mktemp("country")
    random, conf = np.random.default_rng(5), Path(__file__).parents[2] / "conf"
    with (conf / "codes/counties_2022.csv").open(newline="") as file:
        names = {row["code"]: row["name"] for row in csv.DictReader(file)}
    size = np.array([LARGE.get(code, 0.15) for code in names])
    microdata = records(20_000)
    county = random.choice(list(names), len(microdata), p=size / size.sum())
    weight = np.array([many for _, many in INDUSTRIES.values()])
    naics = random.choice(list(INDUSTRIES), len(microdata), p=weight / weight.sum())
    for column, codes in ((1, naics), (2, county)):
        microdata = microdata.set_column(column, microdata.schema.names[column], [codes])
    noise = {"kind": "gaussian", "sigma": 2}
    levels = (["naics6", "county"], ["naics3", "state"], ["county"], ["state"], ["naics2"])
    queries = [{"name": "_".join(by), "count": "records", "by": by, "mechanism": noise} for by in levels]
    jobs = {"kind": "gaussian", "sigma": 400}
    queries.append({"name": "jobs", "sum": "employment", "by": ["county"], "mechanism": jobs})
    plan = write_world(
        folder, microdata, queries=queries, title="Business counts", domain=DOMAIN, naics=tuple(INDUSTRIES)
    )
    shutil.copy(conf / "codes/counties_2022.csv", folder / "domain/counties.csv")
    with (folder / "domain/naics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("code", "name"), *((code, name) for code, (name, _) in INDUSTRIES.items())])
    outcome = submit(Place(plan, folder / "run"))
    return Path(Place(plan, folder / "run").out) / outcome.release / outcome.attempt


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def everything(page: Page) -> None:
    """Open what a table's page opens when it is asked to: filters and the map."""
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 1")
    page.run("document.querySelector('#map button')?.click()")
    page.wait("document.querySelector('#map .legend li')")


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


SIDEWAYS = (
    "[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && each.tagName !== 'PRE' && "
    "!each.closest('.sr') && (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX !== "
    "'visible' || each.getBoundingClientRect().right > innerWidth)).map((each) => each.outerHTML.slice(0, 200))"
)


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


def published(site: Path, query: str) -> list[dict[str, Any]]:
    with (site / "tables" / f"{query}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


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
    choose = (
        "{{const list = [...document.querySelectorAll('#controls label')].find((each) => "
        "each.firstChild.textContent === '{}').querySelector('select'); list.value = "
        "[...list.options].find((each) => each.text.includes('{}')).value; list.dispatchEvent(new Event('change'));}}"
    )
    assert len(page.run(listed.format("County"))) == 1 + 3144
    page.run(choose.format("State", "Washington (53)"))
    counties = page.run(listed.format("County"))
    assert len(counties) == 1 + 39
    assert all(each.endswith(")") and "(53" in each for each in counties[1:])
    page.run(choose.format("County", "King County"))
    assert page.run(listed.format("State")) == ["All", "Washington (53)"]
    assert page.run(STATUS) == "Cells 1 to 10 of 10"
    page.run(choose.format("County", "All"))
    assert len(page.run(listed.format("State"))) == 1 + 51


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


def cells_of(site: Path, query: str) -> list[dict[str, Any]]:
    (part,) = (site / "tables" / query).glob("*.parquet")
    rows: list[dict[str, Any]] = pq.read_table(part).to_pylist()
    return rows


@pytest.mark.parametrize("width", WIDTHS)
def test_the_map_shades_what_is_known_alone(country: Path, page: Page, width: int) -> None:
    page.look(width)
    page.open(country / "site/tables/naics6_county.html")
    everything(page)
    rows = cells_of(country, "naics6_county")
    known: dict[str, list[bool]] = {}
    for row in rows:
        known.setdefault(row["naics6"], []).append(row["lower"] > 0)
    here = page.run("JSON.parse(document.getElementById('facts').textContent).at.naics6")
    share = {code: sum(each) / len(each) for code, each in known.items()}
    assert share[here] == max(share.values())
    assert share[here] > min(share.values())
    hatched = "document.querySelectorAll('#map svg path.noise').length"
    assert page.run(hatched) == known[here].count(False) > 2000
    assert f"not told from 0: {known[here].count(False):,}" in page.run(
        "document.querySelector('#map .legend').textContent"
    )
    assert "less than the noise: read as none to" in page.run("document.querySelector('#map path.noise').textContent")
    shaded = page.run(
        "[...document.querySelectorAll('#map svg path')].filter((each) => /^q/.test(each.className.baseVal))"
        ".map((each) => [each.className.baseVal, each.textContent])"
    )
    assert len(shaded) == known[here].count(True)
    ends: dict[str, list[tuple[float, float]]] = {}
    for shade, text in shaded:  # "King County, WA: 153 (148 to 158)"
        low, high = text.rpartition("(")[2].rstrip(")").split(" to ")
        ends.setdefault(shade, []).append((number(low), number(high)))
    assert len(ends) > 1
    middles = [np.median(ends[shade], axis=0) for shade in sorted(ends)]
    assert all(one[1] < other[0] for one, other in itertools.pairwise(middles))
    page.run(
        "{const list = document.querySelector('#map select'); list.value = '1'; "
        "list.dispatchEvent(new Event('change'));}"
    )
    assert page.run(hatched) == 0  # the twin: the map of errors shades all cells


def read_as(row: dict[str, Any]) -> str:
    """What a row's interval reads as, of a total that cannot be negative."""
    if row["lower"] > 0:
        return ""
    end = f"{row['upper']:,}".replace("-", "−")
    return f"less than the noise: read as none to {end}" if row["upper"] > 0 else "less than the noise: read as none"


@pytest.mark.parametrize("width", WIDTHS)
def test_intervals_below_zero_are_read_in_words(country: Path, page: Page, width: int) -> None:
    page.look(width)
    page.open(country / "site/tables/county.html")
    page.run("document.querySelectorAll('#cells th button')[1].click()")  # the smallest come first
    page.wait("document.querySelector('#cells [aria-sort=ascending]')")
    words = page.run("[...document.querySelectorAll('#cells tbody td:nth-child(3)')].map((x) => x.innerText.trim())")
    lowest = sorted(cells_of(country, "county"), key=lambda row: row["value"])[:50]
    for text, row in zip(words, lowest, strict=True):
        raw = f"{row['lower']:,} to {row['upper']:,}".replace("-", "−")
        assert text.split() == f"{raw} {read_as(row)}".split()
    assert {read_as(row)[-4:] == "none" for row in lowest} == {True, False}
    page.open(country / "site/tables/jobs.html")  # the twin: nothing keeps a sum of employment from being negative
    page.run("document.querySelectorAll('#cells th button')[1].click()")
    page.wait("document.querySelector('#cells [aria-sort=ascending]')")
    assert "less than" not in page.run("document.querySelector('#cells').textContent")


def choose(page: Page, label: str, text: str) -> None:
    """Choose the option with a text from the list with a label."""
    page.run(
        f"{{const list = [...document.querySelectorAll('label')].find((each) => each.firstChild.textContent === "
        f"{json.dumps(label)}).querySelector('select'); list.value = [...list.options].find((each) => "
        f"each.text.includes({json.dumps(text)})).value; list.dispatchEvent(new Event('change'));}}"
    )


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
