"""Boundaries of a site's map: those in effect for the codes of its domain, of conf/maps alone."""

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from pipeline.plan.vintages import CONF

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
