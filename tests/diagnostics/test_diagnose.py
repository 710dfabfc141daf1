"""prdp diagnose: what it finds, where it may write, what it records, and that it tells nothing elsewhere."""

import json
import math
import os
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import MicrodataError, StateError
from pipeline.base.plain import QUANTILES
from pipeline.diagnostics.accuracy import VarianceCurve, class_labels
from pipeline.diagnostics.diagnostics_page import CLOSE, SPOKEN, diagnostics_page, lying_together
from pipeline.diagnostics.record_losses import SIZES, size_labels
from pipeline.microdata import source
from pipeline.plan.load import load_plan
from tests.support import firms, many_keys, parity, world
from tests.support.devtools import MODES, browser
from tests.support.diagnostics import QUERIES, diagnosed, in_files, microdata, read, rows
from tests.support.guarantee import named, three
from tests.support.logs import log_for
from tests.support.losses import in_domain, record_losses, whole, wrong
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, records, write_world
from udfs.mechanisms.base import Mechanism
from udfs.records.codes import roll_up


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world", microdata(), queries=QUERIES, max_left_out=0.99)


def test_files_of_single_records_hold_their_losses(plan: Path, tmp_path: Path) -> None:
    found = rows(diagnosed(plan, tmp_path / "out", per_record=True) / "records")
    loaded, table = load_plan(plan), microdata().to_pylist()
    assert [row["record"] for row in found] == [row["establishment_id"] for row in table]
    assert [(row["naics"], row["county"]) for row in found] == [(row["naics"], row["county"]) for row in table]
    exact = [record_losses(loaded, row) for row in table]
    for i, query in enumerate(loaded.queries):
        assert wrong([row[f"loss_{query.name}"] for row in found], [losses[i] for losses in exact]) == []
    assert wrong([row["loss"] for row in found], [whole(losses) for losses in exact]) == []
    assert [row["influence_all"] for row in found] == [
        row["employment"] if in_domain(loaded, row) else 0 for row in table
    ]


def test_records_in_other_cells_lose_what_their_influence_costs_there(tmp_path: Path) -> None:
    """The domain holds half of the codes; every query has cells for the rest, so each record loses in all of them."""
    plan = write_world(
        tmp_path,
        records(400),
        naics=NAICS[::2],
        counties=COUNTIES[::2],
        domain={"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["naics", "county"]},
        queries=[*world.QUERIES[:2], world.QUERIES[2] | {"where": {"naics2": ["other", "31-33"]}}],
    )
    loaded = load_plan(plan)
    count, employment, payroll = (query.parts[0].mechanism for query in loaded.queries)
    found = rows(diagnosed(plan, tmp_path / "out", per_record=True) / "records")
    expected = []
    for row in records(400).to_pylist():
        met = row["naics"] not in NAICS[::2] or row["naics"][:1] == "3"  # 311111 and 321113 are of 31-33
        expected.append(
            [
                count.loss_at(Fraction(1)),
                employment.loss_at(Fraction(row["employment"])),
                payroll.loss_at(Fraction(row["payroll"])) if met else Fraction(0),
            ]
        )
    for i, query in enumerate(loaded.queries):
        assert wrong([row[f"loss_{query.name}"] for row in found], [losses[i] for losses in expected]) == []


def close(stated: float, exact: float) -> bool:
    """Whether a quantile is at least the exact one, and above it by less than one part in 64."""
    return exact <= stated <= exact * (1 + 1 / 64) * (1 + 1e-8)


def test_distributions_are_those_of_the_records(plan: Path, tmp_path: Path) -> None:
    made = read(diagnosed(plan, tmp_path / "out"))
    loaded, table = load_plan(plan), microdata().to_pylist()
    inside = [row for row in table if in_domain(loaded, row)]
    losses = {id(row): float(whole(record_losses(loaded, row))) for row in inside}
    assert made["records"] == {"read": 600, "dropped": 0, "outside_domain": 600 - len(inside), "in_domain": len(inside)}
    classes = list(zip(SIZES, (*SIZES[1:], math.inf), strict=True))
    groups: dict[str, dict[str, list[Any]]] = {
        "by_size": {
            label: [row for row in inside if low <= row["employment"] < high]
            for label, (low, high) in zip(size_labels(), classes, strict=True)
        },
        "by_sector": {
            sector: [row for row in inside if roll_up(row["naics"], "naics2") == sector]
            for sector in sorted({roll_up(code, "naics2") for code in NAICS})
        },
    }
    every = {"total": (made["losses"]["total"], inside)}
    for kind, of_kind in groups.items():
        assert made["losses"][kind].keys() == {label for label, members in of_kind.items() if members}
        every |= {f"{kind} {label}": (made["losses"][kind][label], m) for label, m in of_kind.items() if m}
    for name, (stated, members) in every.items():
        exact = np.sort([losses[id(row)] for row in members])
        assert stated["count"] == len(exact), name
        assert stated["largest"] == pytest.approx(exact[-1], rel=1e-8)
        assert stated["largest"] >= exact[-1]
        for q in QUANTILES:
            assert close(stated["quantiles"][q], float(exact[math.ceil(float(q) * len(exact)) - 1])), (name, q)
        for loss, share in stated["curve"]:
            assert np.mean(exact <= loss * (1 + 1e-8)) >= share - 1e-12
        assert stated["curve"][-1][1] == 1


def test_a_query_counts_the_records_of_its_cells(plan: Path, tmp_path: Path) -> None:
    of_query = read(diagnosed(plan, tmp_path / "out"))["losses"]["by_query"]
    loaded = load_plan(plan)
    food = [
        row for row in microdata().to_pylist() if in_domain(loaded, row) and roll_up(row["naics"], "naics2") == "31-33"
    ]
    assert of_query["food"]["count"] == len(food)
    assert list(of_query) == [query.name for query in loaded.queries]


def as_csv(folder: Path, table: pa.Table) -> None:
    folder.mkdir(parents=True)
    pa.csv.write_csv(table.slice(0, 201), folder / "a.csv")
    pa.csv.write_csv(table.slice(201), folder / "b.csv")


CUTS: dict[str, Callable[[Path, pa.Table], object]] = {
    "many files": lambda folder, table: in_files(folder, table, 41),
    "backwards": lambda folder, table: in_files(folder, table.take(list(range(len(table)))[::-1]), 77),
    "csv": as_csv,
}


@pytest.mark.parametrize("owned", [False, True], ids=["records", "firms"])
def test_however_the_data_are_cut_the_bytes_are_the_same(
    tmp_path: Path, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_RECORDS", 60)
    made = {}
    for name, write in CUTS.items():
        changes = {"queries": QUERIES} if owned else {"queries": parity.every_mechanism(), "budget": parity.AMPLE}
        path = (firms.world if owned else write_world)(tmp_path / name, microdata=None, **changes)
        write(tmp_path / name / "microdata", microdata())
        made[name] = (diagnosed(path, tmp_path / name / "out") / "diagnostics.json").read_bytes()
    assert len(set(made.values())) == 1
    assert (json.loads(made["csv"])["firms"] is not None) == owned


def test_accuracy_is_that_of_the_published_tables(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", microdata())
    place = Place(path, tmp_path)
    published = submit(place)
    made = read(diagnosed(path, tmp_path / "diag", published=place.out / "small-release"))["accuracy"]
    assert made["compared_with"] == published.attempt
    loaded = load_plan(path)
    inside = [row for row in microdata().to_pylist() if in_domain(loaded, row)]
    for query, column in (("establishments", None), ("employment_sector_county", "employment")):
        table = pq.read_table(place.out / "small-release" / published.attempt / "tables" / query).to_pylist()
        levels = {"establishments": ("naics6", "county"), "employment_sector_county": ("naics2", "county")}[query]
        truth = [
            sum(
                1 if column is None else row[column]
                for row in inside
                if all(roll_up(row["naics" if "naics" in lv else "county"], lv) == cell[lv] for lv in levels)
            )
            for cell in table
        ]
        by_class = {row["total"]: row for row in made["queries"][query]}
        classes = [0 if not t else len(str(t)) for t in truth]
        labels = ["0", *class_labels()[2:]]
        for number, label in [*enumerate(labels), (None, "all")]:
            kept = [i for i, c in enumerate(classes) if number in (None, c)]
            assert (label in by_class) == bool(kept)
            if kept:
                require_row(by_class[label], [truth[i] for i in kept], [table[i] for i in kept])
        (level,) = made["groups"][query]
        by_sector = {row[level]: row for row in made["groups"][query][level]}
        sectors = [roll_up(cell[levels[0]], level) for cell in table]
        assert (level, by_sector.keys()) == ("naics2", {*sectors, "all"})
        for label, row in by_sector.items():
            kept = [i for i, sector in enumerate(sectors) if label in (sector, "all")]
            require_row(row, [truth[i] for i in kept], [table[i] for i in kept])


def require_row(row: dict[str, Any], truth: list[int], table: list[dict[str, Any]]) -> None:
    errors = [cell["value"] - t for cell, t in zip(table, truth, strict=True)]
    n = len(truth)
    assert row["cells"] == n
    assert row["bias"] == pytest.approx(sum(errors) / n)
    assert row["mean_absolute_error"] == pytest.approx(sum(map(abs, errors)) / n)
    assert row["standard_error"] == pytest.approx(math.sqrt(sum(e**2 for e in errors) / n))
    held = [cell["lower"] <= t <= cell["upper"] for cell, t in zip(table, truth, strict=True)]
    assert row["coverage"] == pytest.approx(sum(held) / n)
    known = [(abs(e), t) for e, t in zip(errors, truth, strict=True) if t]
    if not known:
        assert row["mean_relative_error"] is row["median_relative_error"] is row["within"] is None
        return
    median = sorted(e / t for e, t in known)[(len(known) - 1) // 2]
    assert median <= row["median_relative_error"] <= median * (1 + 1 / 64)
    assert row["mean_relative_error"] == pytest.approx(sum(e / t for e, t in known) / len(known))
    for share in ("0.01", "0.05", "0.1"):
        assert row["within"][share] == pytest.approx(sum(e <= float(share) * t for e, t in known) / len(known))


def test_without_a_release_the_mechanisms_errors_stand_alone(plan: Path, tmp_path: Path) -> None:
    made = read(diagnosed(plan, tmp_path / "out"))["accuracy"]
    assert made["compared_with"] is None
    for query in load_plan(plan).queries:
        for row in made["queries"][query.name]:
            assert row.keys() == {"total", "cells", "expected_standard_error"}
    (row, *_) = made["queries"]["count"]
    assert row["expected_standard_error"] == pytest.approx(4, rel=1e-9)


@pytest.mark.parametrize("mechanism", three(), ids=named)
def test_interpolated_variances_are_near_the_mechanisms(mechanism: Mechanism) -> None:
    curve = VarianceCurve.of(mechanism)
    totals = np.array([0, 1, 5, 37, 1234, 99_999, 3_141_592], dtype=np.float64) * float(mechanism.step)
    exact = [mechanism.variance(float(total)) for total in totals]
    assert curve.at(totals).tolist() == pytest.approx(exact, rel=5e-3)


def test_another_plans_release_is_refused(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", records(50))
    place = Place(path, tmp_path)
    submit(place)
    other = write_world(tmp_path / "world", None, interval=0.9)
    with pytest.raises(StateError, match="another plan"):
        diagnosed(other, tmp_path / "diag", published=place.out / "small-release")
    write_world(tmp_path / "world", None)
    part = next((place.out / "small-release").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StateError, match="differs from the manifest"):
        diagnosed(path, tmp_path / "diag", published=place.out / "small-release")
    assert not (tmp_path / "diag").exists()


def spoilt() -> pa.Table:
    table = microdata(200)
    codes, sizes = table.column("naics").to_pylist(), table.column("employment").to_pylist()
    codes[3], sizes[4], sizes[5] = "12", None, None
    return table.set_column(1, "naics", pa.array(codes)).set_column(3, "employment", pa.array(sizes))


def test_bad_records_are_refused_by_rule_or_dropped_and_counted(tmp_path: Path) -> None:
    refusing = write_world(tmp_path / "a", spoilt(), queries=QUERIES)
    with pytest.raises(MicrodataError, match=r"employment is empty .*; naics holds a code"):
        diagnosed(refusing, tmp_path / "out", per_record=True)
    assert not (tmp_path / "out").exists()
    dropping = write_world(tmp_path / "b", spoilt(), queries=QUERIES, dataset={"bad_records": "drop"})
    out = diagnosed(dropping, tmp_path / "out", per_record=True)
    assert read(out)["records"]["dropped"] == 3
    assert len(rows(out / "records")) == 197
    assert {"E3", "E4", "E5"}.isdisjoint(row["record"] for row in rows(out / "records"))


def test_data_that_change_meanwhile_are_refused(plan: Path, tmp_path: Path) -> None:
    def touch(stage: str) -> None:
        os.utime(plan.parent / "microdata" / "part-0.parquet", ns=(1, 1))

    with pytest.raises(MicrodataError, match="changed during the run"):
        diagnosed(plan, tmp_path / "out", log=log_for(touch))
    assert not (tmp_path / "out").exists()


def test_no_records_at_all(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", microdata(0), queries=QUERIES)
    made = read(diagnosed(path, tmp_path / "out", per_record=True))
    assert made["records"]["read"] == made["losses"]["total"]["count"] == 0
    owned = firms.world(tmp_path / "owned", microdata=microdata(0))
    assert read(diagnosed(owned, tmp_path / "owned-out", per_record=True))["firms"]["count"] == 0


# The page of diagnostics: what is drawn and told, and that everyone can read it.

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


def compared(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    path = write_world(tmp_path / "world", records(400))
    place = Place(path, tmp_path)
    submit(place)
    return read(diagnosed(path, tmp_path / "diag", published=place.out / "small-release", **settings))


def test_pictures_show_something_and_say_it_in_words(tmp_path: Path) -> None:
    made = compared(tmp_path)
    texts = re.findall(r'<img alt="([^"]+)"', diagnostics_page(made))
    total = made["losses"]["total"]["quantiles"]["0.5"]
    assert f"all together: half at most {total:.4g}"[:-1] in texts[0]
    assert texts[0].count(": half at most") == SPOKEN
    errors = [text for text in texts if text.startswith("Standard errors of ")]
    assert errors
    assert all("where totals are" in text for text in errors)
    for query, classes in made["accuracy"]["queries"].items():  # a class has nothing beside it
        made["accuracy"]["queries"][query] = [classes[0], classes[-1]]
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
    compared(tmp_path, pictures=True)
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
