"""The page of diagnostics: what is drawn and told, and that everyone can read it."""

import re
from pathlib import Path
from typing import Any

from pipeline.diagnostics.diagnostics_page import CLOSE, SPOKEN, diagnostics_page, lying_together
from tests.support import many_keys
from tests.support.devtools import MODES, browser
from tests.support.diagnostics import diagnosed, read
from tests.support.submit import Place, submit
from tests.support.world import records, write_world
from udfs.records.codes import roll_up

CURVE = [(0.1, 0.25), (0.2, 0.5), (0.4, 1.0)]


def moved(factor: float, share: float = 0.0) -> list[tuple[float, float]]:
    return [(factor * loss, min(1.0, each + share)) for loss, each in CURVE]


def test_curves_that_lie_on_each_other_are_told_as_one() -> None:
    near, far = (CLOSE[0] ** power for power in (0.9, 1.1))
    curves = {"a": CURVE, "near": moved(near), "below": moved(1 / near), "higher": moved(1, 0.9 * CLOSE[1])}
    assert lying_together(curves) == [["a", "near", "below", "higher"]]
    for other in (moved(far), moved(1 / far), moved(1, 1.5 * CLOSE[1]), [(0.1, 0.25), (0.4, 1.0)]):
        assert lying_together({"a": CURVE, "other": other}) == [["a"], ["other"]]
    infinite = [*CURVE[:2], (None, 1.0)]
    assert lying_together({"a": CURVE, "b": infinite, "c": list(infinite)}) == [["a"], ["b", "c"]]


def compared(tmp_path: Path) -> dict[str, Any]:
    path = write_world(tmp_path / "world", records(400))
    place = Place(path, tmp_path)
    submit(place)
    return read(diagnosed(path, tmp_path / "diag", published=place.out / "small-release"))


def test_pictures_show_something_and_say_it_in_words(tmp_path: Path) -> None:
    made = compared(tmp_path)
    texts = re.findall(r'<img alt="([^"]+)"', diagnostics_page(made))
    total = made["losses"]["total"]["quantiles"]["0.5"]
    assert f"all together: half at most {total:.4g}"[:-1] in texts[0]
    assert texts[0].count(": half at most") == SPOKEN
    errors = [text for text in texts if text.startswith("Standard errors of ")]
    assert errors
    assert all("where totals are" in text for text in errors)
    for query, rows in made["accuracy"]["queries"].items():  # a class has nothing beside it
        made["accuracy"]["queries"][query] = [rows[0], rows[-1]]
    for losses in made["losses"]["by_size"].values():
        losses["curve"] = [[0.5, 1.0]]
    fewer = re.findall(r'<img alt="([^"]+)"', diagnostics_page(made))
    assert not [text for text in fewer if text.startswith("Standard errors of ") or "by size" in text]
    assert len(fewer) == len(texts) - len(errors) - 1


def test_errors_are_told_by_classes_of_a_measure(tmp_path: Path) -> None:
    noise = {"kind": "gaussian", "sigma": 3}
    query = {"name": "q", "count": "records", "by": ["size", "naics2"], "mechanism": noise}
    path = many_keys.write(tmp_path, ["naics", "size"], [query]).plan
    made = read(diagnosed(path, tmp_path / "out", microdata=many_keys.in_files(tmp_path, many_keys.microdata(50))))
    groups = made["accuracy"]["groups"]["q"]
    labels = {"size": many_keys.EDGES["size"][2], "naics2": {roll_up(code, "naics2") for code in many_keys.NAICS}}
    cells = len(labels["size"]) * len(labels["naics2"])
    for level, codes in labels.items():
        expected = dict.fromkeys(codes, cells // len(codes)) | {"all": cells}
        assert {row[level]: row["cells"] for row in groups[level]} == expected
        assert all(abs(row["expected_standard_error"] - 3) < 1e-6 for row in groups[level])
    assert ">industry (naics2)<" in diagnostics_page(made)


def test_the_page_has_no_violation_and_its_contents_lead_somewhere(tmp_path: Path) -> None:
    compared(tmp_path)
    with browser(tmp_path / "profile") as page:
        for width, mode in ((390, "dark"), *((1280, mode) for mode in MODES)):
            page.look(width, mode)
            page.open(tmp_path / "diag" / "report.html")
            page.run(
                "document.querySelectorAll('details').forEach((each) => { each.open = mode; })".replace(
                    "mode", str(mode != "dark").lower()
                )
            )
            assert page.violations() == []
            assert page.run("document.documentElement.scrollWidth") <= width
        lost = "[...document.querySelectorAll('nav a')].filter((each) => !document.querySelector(each.hash)).length"
        assert page.run(lost) == 0
        assert page.run("document.querySelectorAll('nav a').length") > 6
        page.look(739, media="print")
        page.open(tmp_path / "diag" / "report.html")  # closed sections are printed
        assert page.run("document.querySelector('details table').getBoundingClientRect().height") > 50
