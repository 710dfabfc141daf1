"""Row ids that stand twice: records by the rules of the plan, whatever the cut of the data, and no id told."""

import json
import re
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.diagnostics.diagnose import DOCUMENT, DiagnosticsJob, diagnose
from pipeline.engines.dask import DaskEngine
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.release.attempts import MARK
from pipeline.storage.paths import locate
from tests.support.duplicated import DIFFERS, MOST, SUMMED_UP, TWICE, Row, by_hand, made, table, write
from tests.support.leaks import found as leaked
from tests.support.leaks import told
from tests.support.parity import released
from tests.support.submit import Place, submit, submit_in_child
from tests.support.world import COUNTIES, NAICS, figures, records, write_world
from udfs.records import sums as combine

CANARY = "CANARY-777-1"


def world(folder: Path, kind: str, owned: bool = False, drop: bool = False, **changes: Any) -> Path:
    dataset: dict[str, Any] = {"duplicates": kind, "bad_records": "drop" if drop else "refuse"}
    reference = {"employment": 10, "payroll": 500}
    changes["budget"] = [{"at": [reference] if owned else reference, "rho": 10_000}]
    dataset |= {"unit": "firm_id"} if owned else {}
    return write_world(folder, changes.pop("microdata", None), queries=SUMMED_UP, dataset=dataset, **changes)


def plan_of(folder: Path, kind: str, owned: bool, drop: bool) -> Plan:
    return load_plan(world(folder, kind, owned, drop))


# -- against a plain loop

rows_drawn = st.lists(
    st.tuples(
        st.sampled_from(["1", "2", "02", "x", "X", " x", None, " "]),
        st.sampled_from([*NAICS[:2], NAICS[0], NAICS[0], NAICS[0], "31111", None]),
        st.sampled_from([COUNTIES[0], COUNTIES[0], COUNTIES[0], COUNTIES[1], "x"]),
        st.sampled_from([0, 1, 5, 7, 2**61, MOST, -1, None]),
        st.sampled_from([0, -3, 4, MOST, -MOST, None]),
        st.sampled_from(["A", "A", "A", "B", None, ""]),
    ),
    max_size=12,
)


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize(
    "how", [(k, o, d) for k in ("reject", "combine") for o in (False, True) for d in (False, True)]
)
@settings(max_examples=8)  # of each of sixteen ways
@given(rows=rows_drawn, data=st.data())
def test_records_are_those_of_a_plain_loop_however_rows_are_cut(
    how: tuple[str, bool, bool], form: str, rows: list[Row], data: Any
) -> None:
    kind, owned, drop = how
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = plan_of(folder / "world", kind, owned, drop)
        cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=3))
        order = data.draw(st.permutations(rows))
        if form == "csv":  # which has no way to tell an empty text from none
            rows = [tuple(None if value == "" else value for value in row) for row in rows]  # type: ignore[misc]
            order = [tuple(None if value == "" else value for value in row) for row in order]  # type: ignore[misc]
        assert made(write(folder / "microdata", order, cuts, form), plan, folder) == by_hand(rows, kind, owned, drop)


def test_ids_are_compared_as_text_whatever_their_type(tmp_path: Path) -> None:
    rows: list[Row] = [("7", NAICS[0], COUNTIES[0], 1, 10, "A"), ("07", NAICS[0], COUNTIES[0], 2, 20, "A")]
    (tmp_path / "microdata").mkdir()
    kinds = (pa.int32(), pa.uint64(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))
    for i, kind in enumerate(kinds):
        values = pa.array(["7"]).cast(pa.string()).dictionary_encode() if i == 4 else pa.array(["7"]).cast(kind)
        one = table(rows[:1]).set_column(0, "establishment_id", values)
        pq.write_table(one, tmp_path / "microdata" / f"{i}.parquet")
    pq.write_table(table(rows[1:]), tmp_path / "microdata" / "other.parquet")
    found = made(tmp_path / "microdata", plan_of(tmp_path / "world", "combine", False, False), tmp_path)
    assert found.records == [("07", NAICS[0], COUNTIES[0], 2, 20), ("7", NAICS[0], COUNTIES[0], 5, 50)]


def test_ids_that_are_not_utf8_do_not_become_one(tmp_path: Path) -> None:
    header, rest = b"establishment_id,naics,county,employment,payroll\n", f",{NAICS[0]},{COUNTIES[0]},1,1\n".encode()
    for name, ids in (("odd", (b"\xff", b"\xfe", b"3")), ("fine", ("é".encode(), b"e", b"3"))):
        folder = tmp_path / name
        (folder / "microdata").mkdir(parents=True)
        (folder / "microdata" / "a.csv").write_bytes(header + b"".join(each + rest for each in ids))
        found = made(folder / "microdata", plan_of(folder / "world", "combine", False, True), folder / "state")
        assert len(found.records) == (1 if name == "odd" else 3)
        assert bool(found.broken) == (name == "odd")


def test_what_is_left_out_of_a_firm_depends_on_that_firm_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours differ by one firm: all records of the others must be the same in both."""
    random = np.random.default_rng(5)
    rows: list[Row] = [
        (str(random.integers(60)), NAICS[0], COUNTIES[random.integers(2)], 1, i, "ABC"[random.integers(3)])
        for i in range(150)
    ]
    numbered = combine._numbered
    for i, kind in enumerate(("reject", "combine")):
        plan = plan_of(tmp_path / f"world-{i}", kind, True, True)

        def others(without: str, name: str, plan: Plan = plan) -> list[Any]:
            kept = [row for row in rows if row[5] != without]
            found = made(write(tmp_path / name, kept, []), plan, tmp_path / f"state-{name}")
            return [record for record in found.records if record[-1] != "A"]

        assert len(others("", f"all-{i}")) > 10
        assert others("", f"with-{i}") == others("A", f"without-{i}")
        with monkeypatch.context() as broken:  # the broken twin: ids compared across firms
            broken.setattr(combine, "_numbered", lambda ids, within: numbered(ids, None))
            assert others("", f"twin-{i}") != others("A", f"twin-without-{i}")


# -- releases


def doubled(count: int = 1500) -> pa.Table:
    """Records of which a third have a second row, some a third one; one count and one sum could be told apart."""
    table = records(count)
    again = pa.concat_tables([table, table.slice(0, count // 3), table.slice(0, count // 9)])
    return again.take(np.random.default_rng(2).permutation(len(again)))


def test_combined_rows_are_released_as_a_group_by_of_pandas_would_be(tmp_path: Path) -> None:
    rows = doubled()
    keys = ["establishment_id", "naics", "county"]
    grouped = pa.Table.from_pandas(rows.to_pandas().groupby(keys, as_index=False).sum(), preserve_index=False)
    assert len(grouped) == 1500
    by_ids = tables(world(tmp_path / "a", "combine", microdata=rows), tmp_path / "a")
    assert by_ids == tables(world(tmp_path / "b", "trust", microdata=grouped), tmp_path / "b")
    trusted = tables(world(tmp_path / "c", "trust", microdata=rows), tmp_path / "c")  # the broken twin
    assert [name for name in trusted if trusted[name] != by_ids[name]] == ["tables/all/part-00000.parquet"]
    assert tables(world(tmp_path / "d", "reject", microdata=grouped), tmp_path / "d") == by_ids


def test_rejected_ids_are_left_out_with_all_their_rows(tmp_path: Path) -> None:
    rows = doubled().to_pandas()
    once = rows[~rows["establishment_id"].duplicated(keep=False)]
    alone = pa.Table.from_pandas(once, preserve_index=False)
    dropped = tables(world(tmp_path / "a", "reject", drop=True, microdata=pa.Table.from_pandas(rows)), tmp_path / "a")
    assert dropped == tables(world(tmp_path / "b", "trust", microdata=alone), tmp_path / "b")
    first = pa.Table.from_pandas(rows.drop_duplicates("establishment_id"), preserve_index=False)
    assert dropped != tables(world(tmp_path / "c", "trust", microdata=first), tmp_path / "c")  # the broken twin


def tables(plan: Path, folder: Path) -> dict[str, bytes]:
    return figures(released(plan, folder, None))


def test_the_id_column_must_be_there_and_is_read_where_ids_are_not_trusted(tmp_path: Path) -> None:
    nameless = records(50).drop_columns(["establishment_id"])
    for name, duplicates in (("a", "trust"), ("b", "reject")):
        place = Place(world(tmp_path / name, duplicates, microdata=nameless), tmp_path / name)
        with pytest.raises(PlanError, match="it has no column establishment_id"):
            submit(place)
        assert place.ledger().states() == []
    dated = nameless.append_column("establishment_id", pa.array(range(50), pa.date32()))
    submit(Place(world(tmp_path / "c", "trust", microdata=dated), tmp_path / "c"))
    with pytest.raises(PlanError, match="neither text nor whole numbers, as records and owners are named"):
        submit(Place(world(tmp_path / "d", "combine", microdata=dated), tmp_path / "d"))


BAD: list[Row] = [
    (CANARY, NAICS[0], COUNTIES[0], 1, MOST, "A"),
    (CANARY, NAICS[1], COUNTIES[1], 1, MOST, "A"),
    (None, NAICS[1], COUNTIES[1], -5, None, "A"),
    ("2", NAICS[1], "x", 1, 1, "A"),
]


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]])
def test_every_broken_rule_is_told_and_no_id(tmp_path: Path, cuts: Sequence[int]) -> None:
    of_rows = {
        "county holds a code that is empty or malformed",
        "employment is below zero, which a mechanism or class of the plan does not allow",
        "establishment_id names no record: it is empty (null or blank), or not UTF-8",
        "payroll is empty (null)",
    }
    of_records = {
        "reject": {f"establishment_id {TWICE}"},
        "combine": {
            f"naics {DIFFERS}",
            f"county {DIFFERS}",
            "payroll adds up to more than 63 bits over the rows of one id",
        },
    }
    for kind, rules in of_records.items():
        plan = world(tmp_path / kind, kind)
        write(tmp_path / kind / "microdata", BAD, cuts)
        with pytest.raises(MicrodataError) as raised:
            submit(Place(plan, tmp_path / kind))
        told_of = re.fullmatch(
            r"dataset small-world: the microdata break the contract: (.*); correct .*", str(raised.value)
        )
        assert told_of is not None
        assert sorted(told_of.group(1).split("; ")) == sorted(of_rows | rules)
        assert not leaked(told(raised.value), [CANARY])
        state = Place(plan, tmp_path / kind).ledger().state("small-release")
        assert state is not None
        assert state.refunded


def test_no_id_is_in_anything_that_a_run_leaves(tmp_path: Path) -> None:
    rows = [(CANARY, *row[1:]) if i % 3 == 0 else row for i, row in enumerate(numbered(30))]
    plan = world(tmp_path / "world", "combine", drop=True)
    write(tmp_path / "world" / "microdata", rows, [10])
    submit(Place(plan, tmp_path / "run"))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def numbered(count: int) -> list[Row]:
    return [(f"N{i}", NAICS[i % 3], COUNTIES[0], i, 2 * i, "A") for i in range(count)]


def test_a_run_killed_midway_leaves_nothing_that_can_be_read(tmp_path: Path) -> None:
    plan = world(tmp_path / "world", "combine")
    write(tmp_path / "world" / "microdata", [(CANARY, *row[1:]) for row in numbered(30)[::3]], [3])
    seen = set()
    for die_at in range(20, 60, 4):
        place = Place(plan, tmp_path / str(die_at))
        code, _ = submit_in_child(place, die_at)
        assert code == -signal.SIGKILL
        files = [path for path in place.folder.rglob("*") if path.is_file()]
        seen |= {path.parent.name.split("-")[0] for path in files}
        assert not [path for path in files if CANARY.encode() in path.read_bytes() or b"ARROW" in path.read_bytes()]
        if die_at % 20 == 0:
            submit(place)
            assert [path.name for path in (place.folder / "state" / "staging").rglob("*")] == [MARK]
    assert {"rows", "records"} <= seen  # it was killed with both there


# -- diagnostics


@pytest.mark.parametrize("owned", [False, True])
def test_diagnostics_see_the_records_that_are_released(tmp_path: Path, owned: bool) -> None:
    rows = doubled(300)
    owners = pa.array([f"F{int(name[1:]) % 7}" for name in rows.column("establishment_id").to_pylist()])
    rows = rows.append_column("firm_id", owners)
    keys = ["establishment_id", "naics", "county", "firm_id"]
    grouped = rows.to_pandas().groupby(keys, as_index=False).sum()
    found = {}
    given = {"combine": rows, "trust": pa.Table.from_pandas(grouped, preserve_index=False)}
    for kind, microdata in given.items():
        folder = tmp_path / kind
        place = Place(world(folder, kind, owned, microdata=microdata), folder)
        plan = load_plan(place.plan)
        job = DiagnosticsJob(
            plan=plan,
            microdata=locate(folder / "microdata"),
            out=folder / "confidential",
            ledger=place.ledger(),
            engine=DaskEngine(workers=2),
            per_record=True,
        )
        out = diagnose(job)
        document = json.loads((out / DOCUMENT).read_text())
        table = pd.concat(pd.read_parquet(path) for path in sorted((out / "records").glob("*.parquet")))
        found[kind] = (
            {key: value for key, value in document.items() if "digest" not in key},
            table.sort_values("record").reset_index(drop=True).to_dict("list"),
        )
        assert not (out / ".scratch").exists()
    assert found["combine"] == found["trust"]
    assert len(found["combine"][1]["record"]) == 300
