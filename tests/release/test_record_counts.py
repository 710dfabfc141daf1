"""How many records a scan kept and left out: each record once, on every engine, also from prepared microdata."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.engines.spark import SparkEngine
from tests.support.counted import counted
from tests.support.prepare import prepared
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place
from tests.support.world import COUNTIES, NAICS, QUERIES, write_world
from udfs.records.sums import RecordCounts

pytestmark = PYSPARKS_OWN
HEADER = "establishment_id,firm_id,naics,county,employment,payroll"
FILTERED = [query for query in QUERIES if "where" in query]  # keeps two sectors of the domain
GOOD = f"{NAICS[2]},{COUNTIES[0]},5,60"
# The rows of each record, and of each whether it is kept where ids are trusted, rejected, combined.
RECORDS: Sequence[tuple[Sequence[str], tuple[int, int, int]]] = [
    ([f"A,1,{GOOD}"], (1, 1, 1)),
    ([f"B,1,{NAICS[0]},{COUNTIES[0]},5,60"], (1, 1, 1)),  # which the filter alone leaves out
    ([f"C,2,999999,{COUNTIES[0]},5,60"], (0, 0, 0)),
    ([f"D,2,{NAICS[2]},99999,5,60"], (0, 0, 0)),
    ([f"E,2,{NAICS[2]},{COUNTIES[0]},5,x"], (0, 0, 0)),
    ([f"F,2,{GOOD},7"], (0, 0, 0)),  # no record of the header's fields
    ([f",2,{GOOD}"], (1, 0, 0)),  # without an id
    ([f"G,2,{GOOD}", f"G,2,{GOOD}"], (2, 0, 1)),
    ([f"H,2,{GOOD}", f"H,2,{NAICS[0]},{COUNTIES[0]},5,60", f"H,2,{GOOD}"], (3, 0, 0)),
    ([f"I,2,{GOOD}", "I,2,x,y,z,"], (1, 0, 0)),
]
RULES = ("trust", "reject", "combine")


def place(folder: Path, duplicates: str, records: Sequence[Sequence[str]], **dataset: Any) -> Place:
    """A world whose microdata are the rows of these records, in two files."""
    dataset = {"duplicates": duplicates, "bad_records": "drop"} | dataset
    references = {"employment": 10, "payroll": 500}
    budget = [{"at": [references] if "unit" in dataset else references, "rho": 1000}]
    plan = write_world(folder, None, dataset=dataset, queries=FILTERED, budget=budget)
    rows = [row for record in records for row in record]
    (folder / "microdata").mkdir()
    for i in (0, 1):
        (folder / "microdata" / f"{i}.csv").write_text("\n".join([HEADER, *rows[i::2]]))
    return Place(plan, folder)


def expected(rule: int, records: Sequence[tuple[Sequence[str], tuple[int, int, int]]] = RECORDS) -> RecordCounts:
    kept = sum(each[1][rule] for each in records)
    return RecordCounts(kept, sum(len(each[0]) for each in records) - kept if rule == 0 else len(records) - kept)


@pytest.mark.parametrize("rule", range(3), ids=RULES)
def test_each_record_counts_once(tmp_path: Path, rule: int, spark: SparkEngine) -> None:
    world = place(tmp_path, RULES[rule], [rows for rows, _ in RECORDS])
    assert counted(world) == expected(rule)
    assert counted(world, engine=spark) == expected(rule)
    out = prepared(world, tmp_path / "microdata", tmp_path / "prepared")
    assert counted(world, out) == expected(rule)  # what was dropped then is counted now


@pytest.mark.parametrize("rule", range(3), ids=RULES)
def test_taking_away_a_record_changes_one_count_by_one(tmp_path: Path, rule: int) -> None:
    whole = counted(place(tmp_path / "whole", RULES[rule], [rows for rows, _ in RECORDS]))
    one_by_one = [((row,), (kept > i, 0, 0)) for rows, (kept, _, _) in RECORDS for i, row in enumerate(rows)]
    units = [rows for rows, _ in (one_by_one if rule == 0 else RECORDS)]
    for i in range(len(units)):
        less = counted(place(tmp_path / f"{i}", RULES[rule], [*units[:i], *units[i + 1 :]]))
        assert sorted((whole.kept - less.kept, whole.left_out - less.left_out)) == [0, 1]


@pytest.mark.parametrize("rule", range(3), ids=RULES)
def test_taking_away_an_owner_changes_the_counts_by_no_more_than_its_rows(tmp_path: Path, rule: int) -> None:
    records = [rows for rows, _ in RECORDS]
    mine = [[f"A,9,{GOOD}"], [f"C,9,{GOOD}", f"C,9,{GOOD}"], [f"G,9,x,{COUNTIES[0]},5,60"], [f"Z,9,{GOOD}"]]
    whole = counted(place(tmp_path / "with", RULES[rule], [*records, *mine], unit="firm_id"))
    less = counted(place(tmp_path / "without", RULES[rule], records, unit="firm_id"))
    change = (whole.kept - less.kept, whole.left_out - less.left_out)
    assert change == ((4, 1), (2, 2), (3, 1))[rule]  # of five rows; ids of others are no ids of mine


def test_no_record_at_all(tmp_path: Path, spark: SparkEngine) -> None:
    world = place(tmp_path / "none", "trust", [])
    assert counted(world).none
    assert counted(world, engine=spark).none
    assert not counted(place(tmp_path / "bad", "trust", [["x"]])).none


def test_counts_show_nothing_of_themselves() -> None:
    assert "4711" not in f"{RecordCounts(4711, 4711)!r} {RecordCounts(4711, 4711)}"
