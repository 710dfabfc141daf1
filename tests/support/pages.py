"""What is read of public pages in a browser, and what it is compared with: the published tables."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.devtools import Page

COUNTIES, STATES = "site/tables/establishments.html", "site/tables/payroll_state.html"
WIDTHS = (390, 1280)
ROWS = (
    "[...document.querySelectorAll('#cells tbody tr')]"
    ".map((row) => [...row.cells].slice(0, -1).map((cell) => cell.innerText.trim()))"
)
STATUS = "document.querySelector('#controls [role=status]').textContent"
SIDEWAYS = (
    "[...document.querySelectorAll('body *')].filter((each) => each.checkVisibility() && each.tagName !== 'PRE' && "
    "!each.closest('.sr') && (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX !== "
    "'visible' || each.getBoundingClientRect().right > innerWidth)).map((each) => each.outerHTML.slice(0, 200))"
)
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


def everything(page: Page) -> None:
    """Open what a table's page opens when it is asked to: filters and the map."""
    page.run("document.querySelector('#controls button').click()")
    page.wait("document.querySelectorAll('#controls select').length > 1")
    page.run("document.querySelector('#map button')?.click()")
    page.wait("document.querySelector('#map .legend li')")


def published(site: Path, query: str) -> list[dict[str, Any]]:
    with (site / "tables" / f"{query}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def cells_of(site: Path, query: str) -> list[dict[str, Any]]:
    (part,) = (site / "tables" / query).glob("*.parquet")
    rows: list[dict[str, Any]] = pq.read_table(part).to_pylist()
    return rows


def choose(page: Page, label: str, text: str) -> None:
    """Choose the option with a text from the list with a label."""
    page.run(
        f"{{const list = [...document.querySelectorAll('label')].find((each) => each.firstChild.textContent === "
        f"{json.dumps(label)}).querySelector('select'); list.value = [...list.options].find((each) => "
        f"each.text.includes({json.dumps(text)})).value; list.dispatchEvent(new Event('change'));}}"
    )
