"""Releases whose unit is the firm: the same tables, another promise, and a contract of owners."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from pipeline.base.errors import MicrodataError, PlanError
from pipeline.ledger.history import spendings
from pipeline.ledger.reservation import charged
from tests.support.firms import owned, world
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, figures, records, tree, without_footer


def test_firms_change_the_promise_and_not_the_tables(tmp_path: Path) -> None:
    limits = [{"at": {"employment": 10}, "rho": 1000}]
    files = {}
    for unit in ("record", "firm_id"):
        folder = tmp_path / unit
        place = Place(world(folder, microdata=owned(), dataset={"unit": unit}, budget=limits), folder)
        files[unit] = tree(place.out / "small-release" / submit(place).attempt)
    assert figures(files["record"]) == figures(files["firm_id"])
    told = json.loads(files["firm_id"]["policy.json"])
    manifest = json.loads((tmp_path / "firm_id" / "out" / "small-release" / "release.json").read_text())
    assert manifest["guarantee"] == told["guarantee"]
    assert "A firm is all records with one value of the column firm_id." in told["guarantee"]["words"]
    assert told["unit"] == "firm_id"
    assert told["references"][0]["at"] == [{"employment": 10}]
    page = files["firm_id"]["report.html"].decode()
    assert "a firm is all records with one value of firm_id" in page
    assert "per-record" not in page + json.dumps(told).lower()
    assert (
        "firm is all records" not in files["record"]["policy.json"].decode() + files["record"]["report.html"].decode()
    )


def test_the_ledger_keeps_what_a_firm_is_found_to_lose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = [{"at": [{"employment": 10, "payroll": 0}, {"employment": 20, "payroll": 0}], "rho": 1000}]
    place = Place(world(tmp_path, microdata=owned(), budget=limits), tmp_path)
    submit(place)
    at = "employment=20,payroll=0;employment=10,payroll=0"  # in another order
    (spending,) = spendings(place.ledger(), at)
    (release,) = spending.to_json()["releases"]
    assert 0 < release["rho_found"] <= release["rho"] <= 1.1 * release["rho_found"]
    assert main(["ledger", "show", "--at", at, "--ledger", str(place.ledger_path)]) == 0
    assert "times the true one" in capsys.readouterr().out
    assert "rho_found" not in spendings(place.ledger(), "employment=9,payroll=0")[0].to_json()["releases"][0]
    (state,) = place.ledger().states()
    (bound,) = state.reservation["certified"]["bounds"]
    # An entry of an earlier version has no such key, and states the same loss.
    earlier = {key: value for key, value in bound.items() if key != "found"}
    certified = state.reservation["certified"] | {"bounds": [earlier]}
    now, then = (
        charged(s, 1) for s in (state, replace(state, reservation=state.reservation | {"certified": certified}))
    )
    assert now.loss_at(spending.at) == then.loss_at(spending.at)
    assert (now.attained_at(spending.at) > 0, then.attained_at(spending.at)) == (True, 0)


@pytest.mark.parametrize("owners", [["F1", None, "F2"], ["F1", "", "F2"], ["F1", " ", "F2"], [1, None, 2]])
@pytest.mark.parametrize("form", ["parquet", "dictionary", "csv"])
def test_a_record_without_an_owner_breaks_the_contract_by_itself(tmp_path: Path, owners: list[Any], form: str) -> None:
    table = records(3).append_column("firm_id", pa.array(owners))
    released = {}
    for name, rule, microdata in (
        ("refuse", "refuse", table),
        ("drop", "drop", table),
        ("good", "refuse", table.take([0, 2])),
    ):
        folder = tmp_path / name
        place = Place(world(folder, dataset={"bad_records": rule}, naics=NAICS, counties=COUNTIES), folder)
        (folder / "microdata").mkdir()
        if form == "csv":
            pa.csv.write_csv(microdata, folder / "microdata" / "a.csv")
        else:
            coded = pc.dictionary_encode(microdata["firm_id"]) if form == "dictionary" else microdata["firm_id"]
            pq.write_table(microdata.set_column(5, "firm_id", coded), folder / "microdata" / "a.parquet")
        if name == "refuse":
            with pytest.raises(MicrodataError, match="firm_id names no owner: it is empty"):
                submit(place)
            continue
        submit(place)
        files = {p.partition("/tables/")[2]: d for p, d in tree(place.out).items() if "/site/" not in p}
        released[name] = {path: without_footer(data) for path, data in files.items() if path}
        assert released[name]
    assert released["drop"] == released["good"]


def test_microdata_without_owners_are_refused(tmp_path: Path) -> None:
    no_names = owned().set_column(5, "firm_id", pa.array([0.5] * 500))
    for name, table, rule in (
        ("none", records(5), "it has no column firm_id"),
        ("odd", no_names, "firm_id is neither text nor whole"),
    ):
        with pytest.raises(PlanError, match=rule):
            submit(Place(world(tmp_path / name, microdata=table), tmp_path / name))
