"""Boundaries of a site's map: those in effect for the codes of its domain, of conf/maps alone."""

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.plan.code_lists import CONF
from pipeline.publication.site.figures import Figures, Names, figure, shades

MAPS = {"county": "counties.json", "state": "states.json"}  # boundaries in conf/maps, by level


def map_script(level: str, codes: Collection[str]) -> str:
    """Return the script that calls prdp.map with the boundaries of a level, for a domain that has these codes there.

    Areas that were divided anew are drawn as the codes have them: the earlier ones where these alone are among them,
    else the later ones, which no earlier one then covers.
    """
    return _script(level, frozenset(codes))


@lru_cache(maxsize=4)
def _script(level: str, codes: frozenset[str]) -> str:
    boundaries: dict[str, Any] = json.loads(CONF.joinpath("maps", MAPS[level]).read_text(encoding="utf-8"))
    shapes = boundaries["shapes"]
    for group in boundaries.pop("older", ()):
        if group["shapes"].keys() & codes and not set(group["instead_of"]) & codes:
            shapes = {code: rings for code, rings in shapes.items() if code not in group["instead_of"]} | group[
                "shapes"
            ]
    return f"prdp.map({json.dumps(boundaries | {'shapes': shapes}, separators=(',', ':'))});\n"


# A plain grid of the states: one square each, about where it lies, for tables by state.

# FIPS code → postal letters, row and column.
STATES: Mapping[str, tuple[str, int, int]] = {
    "02": ("AK", 1, 1), "23": ("ME", 1, 12),
    "50": ("VT", 2, 11), "33": ("NH", 2, 12),
    "53": ("WA", 3, 2), "16": ("ID", 3, 3), "30": ("MT", 3, 4), "38": ("ND", 3, 5), "27": ("MN", 3, 6),
    "55": ("WI", 3, 7), "26": ("MI", 3, 8), "36": ("NY", 3, 10), "25": ("MA", 3, 11), "44": ("RI", 3, 12),
    "41": ("OR", 4, 2), "32": ("NV", 4, 3), "56": ("WY", 4, 4), "46": ("SD", 4, 5), "19": ("IA", 4, 6),
    "17": ("IL", 4, 7), "18": ("IN", 4, 8), "39": ("OH", 4, 9), "42": ("PA", 4, 10), "34": ("NJ", 4, 11),
    "09": ("CT", 4, 12),
    "06": ("CA", 5, 2), "49": ("UT", 5, 3), "08": ("CO", 5, 4), "31": ("NE", 5, 5), "29": ("MO", 5, 6),
    "21": ("KY", 5, 7), "54": ("WV", 5, 8), "51": ("VA", 5, 9), "24": ("MD", 5, 10), "10": ("DE", 5, 11),
    "04": ("AZ", 6, 3), "35": ("NM", 6, 4), "20": ("KS", 6, 5), "05": ("AR", 6, 6), "47": ("TN", 6, 7),
    "37": ("NC", 6, 8), "45": ("SC", 6, 9), "11": ("DC", 6, 10),
    "40": ("OK", 7, 5), "22": ("LA", 7, 6), "28": ("MS", 7, 7), "01": ("AL", 7, 8), "13": ("GA", 7, 9),
    "15": ("HI", 8, 1), "48": ("TX", 8, 5), "12": ("FL", 8, 10),
}  # fmt: skip


def state_grid(figures: Figures, names: Names, at: int) -> dict[str, Any] | None:
    """Return the squares of a table by state, for the other codes of the cell `at`; None where it has no states."""
    cells = figures.cells
    if "state" not in cells.by or not figures.complete:
        return None
    here = cells.positions_of(np.array([at]) if cells.listed is None else cells.listed[at : at + 1])
    which = cells.by.index("state")
    axis = cells.axes[which]
    number = {axis.codes[kept]: position for position, kept in enumerate(axis.kept.tolist())}
    found = {}
    for state in number.keys() & STATES.keys():
        (cell,) = cells.numbers([np.array([number[state]]) if i == which else each for i, each in enumerate(here)])
        if cell >= 0:
            found[state] = figures.columns["value"][cell].item()
    if len(found) < 2:
        return None
    shade = dict(zip(found, shades(list(found.values())), strict=True))
    others = [names[level].get(code, code) for level, code in figures.codes(at).items() if level != "state"]
    tiles = [
        {
            "letters": letters,
            "row": row,
            "column": column,
            "shade": f"q{shade[state]}" if state in found else "none",
            "text": f"{names['state'].get(state, state)}: {figure(found[state]) if state in found else 'no figure'}",
        }
        for state, (letters, row, column) in STATES.items()
    ]
    return {"of": " · ".join(others), "tiles": tiles}
