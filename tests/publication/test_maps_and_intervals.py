"""Maps and intervals in a real browser: shades for what is known alone, hatching and words for the rest."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.devtools import Page
from tests.support.pages import STATES, STATUS, WIDTHS, cells_of, everything, number, published
from tests.support.submit import released
from tests.support.world import records, write_world


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


def test_cells_without_boundaries_stand_beside_the_map(tmp_path: Path, page: Page) -> None:
    """999 is everywhere in its state; Connecticut has regions or counties, and here both, of which one has a place."""
    counties = ("01001", "01999", "09001", "09110")
    query = {"name": "jobs", "sum": "employment", "by": ["county"], "mechanism": {"kind": "gaussian", "sigma": 9}}
    table = records(50).set_column(2, "county", [["01001"] * 50])
    site = released(write_world(tmp_path, table, counties=counties, queries=[query]), tmp_path / "run", csv=True)
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
