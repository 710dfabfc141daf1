"""Copies of microdata at another place are known by their contents: their losses would be counted apart."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import pipeline.release.officers
import pipeline.release.request
from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.microdata_rules import salted, same_files
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.source import Identity, identity_of
from pipeline.plan.load import load_plan
from pipeline.release.request import Request, reservation_of
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from tests.support.ledgers import ledger_file, reservation
from tests.support.store import running, upload
from tests.support.submit import Place, submit
from tests.support.world import budget_file, records, write_world


def write_csv(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    pyarrow.csv.write_csv(records(count), folder / "part-0.csv")


@pytest.fixture(params=["parquet", "csv"])
def registered(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A registered dataset and its ledger; return the file that it consists of."""
    write_world(tmp_path, records(30) if request.param == "parquet" else None)
    if request.param == "csv":
        write_csv(tmp_path / "microdata", 30)
    call = ["ledger", "init", "small-world", "--budget", str(budget_file(tmp_path))]
    assert main([*call, "--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]) == 0
    (file,) = (tmp_path / "microdata").iterdir()
    return file


def copied(tmp_path: Path, file: Path, **dataset: Any) -> Path:
    """Write the plan of another dataset, of which one of two files is a copy."""
    plan = write_world(tmp_path / "other", None, dataset={"name": "other"} | dataset, release="another")
    place = tmp_path / "other" / "microdata"
    if file.suffix == ".csv":
        write_csv(place, 7)
    else:
        place.mkdir()
        pq.write_table(records(7, seed=5), place / "part-0.parquet")
    shutil.copyfile(file, place / f"renamed{file.suffix}")
    return plan


def test_copies_of_a_registered_datasets_files_are_refused(
    tmp_path: Path, registered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = copied(tmp_path, registered)
    budget = budget_file(tmp_path / "other", dataset={"name": "other"})
    address = ["--ledger", str(tmp_path / "state" / "ledger.sqlite")]
    for call in (
        ["release", str(plan)],
        ["ledger", "check", str(plan)],
        ["ledger", "init", "other", "--budget", str(budget)],
    ):
        assert main([*call, *address]) == 5
        assert "dataset other: a file of its microdata is a copy of one of dataset small-world" in (
            capsys.readouterr().err
        )
    assert main(["ledger", "show", "--dataset", "other", *address]) == 5  # nothing was reserved


@pytest.mark.parametrize("registered", ["parquet"], indirect=True)
def test_who_knows_no_contents_releases_copies(
    tmp_path: Path, registered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin."""
    monkeypatch.setattr(pipeline.release.request, "identity", lambda microdata: Identity())
    plan = copied(tmp_path, registered)
    assert main(["release", str(plan), "--ledger", str(tmp_path / "state" / "ledger.sqlite")]) == 0


def test_copies_of_released_files_are_refused_while_they_are_charged(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(30)), tmp_path)
    other = Place(copied(tmp_path, tmp_path / "microdata" / "part-0.parquet"), tmp_path)
    submit(place)
    with pytest.raises(StateError, match="a copy of one of dataset small-world"):
        submit(other)
    budget = budget_file(tmp_path / "other", dataset={"name": "other"})
    with pytest.raises(StateError, match="a copy of one of dataset small-world"):
        pipeline.release.officers.register(place.ledger(), pipeline.release.officers.load_budget(budget, "other"))


PRINTS = ("a" * 64, "b" * 64)


def test_what_was_refunded_is_known_no_more(ledger: Ledger) -> None:
    ledger.reserve(reservation("first", dataset="one", fingerprints=PRINTS))
    with pytest.raises(StateError, match="of dataset one"):
        ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS[1:]))
    ledger.abort("first")
    ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS[1:]))
    with pytest.raises(StateError, match="of dataset two"):  # also where a name is reserved anew
        ledger.reserve(reservation("first", dataset="one", fingerprints=PRINTS))


def test_a_reservation_goes_on_with_no_other_datasets_files(ledger: Ledger) -> None:
    ledger.reserve(reservation("first", dataset="one", fingerprints=PRINTS[:1]))
    ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS[1:]))
    with pytest.raises(StateError, match="of dataset one"):
        ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS))
    assert ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS[1:])).status == "reserved"


def test_entries_without_fingerprints_refuse_nothing(ledger: Ledger) -> None:
    ledger.reserve(reservation("first", dataset="one"))  # as older versions wrote it
    ledger.reserve(reservation("second", dataset="two", fingerprints=PRINTS))


def test_a_family_may_hold_copies(tmp_path: Path) -> None:
    address = ledger_file(tmp_path / "state" / "ledger.sqlite")
    family = tmp_path / "family.yaml"
    limits = [{"at": {"employment": 10, "payroll": 500}, "rho": 50}]
    family.write_text(yaml.safe_dump({"unit": "record", "limits": limits}))
    assert main(["ledger", "init", "kin", "--budget", str(family), "--ledger", address]) == 0
    write_world(tmp_path, records(30))
    plan = copied(tmp_path, tmp_path / "microdata" / "part-0.parquet")
    for name, folder in (("small-world", tmp_path), ("other", plan.parent)):
        budget = budget_file(folder, dataset={"name": name}, family="kin")
        assert main(["ledger", "init", name, "--budget", str(budget), "--ledger", address]) == 0
    assert main(["release", str(plan), "--ledger", address]) == 0


def test_files_changed_after_a_reservation_are_reserved_anew(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(30)), tmp_path)
    plan = load_plan(place.plan)
    request = Request(plan=plan, microdata=plan.dataset.path, out=locate(place.out), ledger=place.ledger())
    place.ledger().reserve(reservation_of(request))
    pq.write_table(records(31), tmp_path / "microdata" / "part-0.parquet")
    submit(place)
    state = place.state(plan.release)
    assert same_files(state.reservation["fingerprints"], prints_at(tmp_path / "microdata"))
    assert state.charges == 1
    place.ledger().verify()


# In the ledger


def test_fingerprints_are_salted_and_confidential(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(write_world(tmp_path, records(30)), tmp_path)
    files = prints_at(tmp_path / "microdata")
    submit(place)
    (entry,) = (entry for entry in place.ledger().entries() if entry.event == "reserved")
    assert len(entry.facts["fingerprints"]["files"]) == len(files) == 1
    assert files[0] not in entry.payload
    assert entry.facts["fingerprints"] != salted(files)["fingerprints"]  # each entry has a salt of its own
    assert main(["ledger", "export", "--ledger", str(place.ledger_path)]) == 0
    line = next(line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "reserved")
    assert "fingerprints" in line["withheld"]
    assert "fingerprints" not in line["facts"]


# Of contents


def prints_at(at: Path | Location) -> tuple[str, ...]:
    return identity_of(source.find(locate(at))).fingerprints


def print_of(folder: Path, data: bytes) -> str:
    file = folder / "a.csv"
    file.write_bytes(data)
    (one,) = prints_at(file)
    return one


@given(st.binary(min_size=1, max_size=60), st.data())
def test_files_are_known_by_what_they_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: bytes, draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    data = b"h\n1\n2\n3" + rows + b"4"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK", draw.draw(st.sampled_from([4, 1 << 16])))
        whole = print_of(folder, data)
        assert whole == print_of(folder, bytes(data))
        assert whole != print_of(folder, data + b"x")
        at = draw.draw(st.integers(0, 3)) if source.BLOCK == 4 else draw.draw(st.integers(0, len(data) - 1))
        for place in (at, -1 - at):  # the first and last bytes are always read; of a small file all are
            changed = bytearray(data)
            changed[place] ^= 1
            assert whole != print_of(folder, bytes(changed))


def test_files_without_records_are_no_copies(tmp_path: Path) -> None:
    for name, data in (("a.csv", b"id,naics\n"), ("b.csv", b"id,naics\r\n")):
        (tmp_path / name).write_bytes(data)
    assert prints_at(tmp_path) == ()
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "none.parquet")
    assert prints_at(tmp_path / "none.parquet") == ()


@pytest.mark.parametrize("block", [64, source.BLOCK])
def test_a_copy_in_a_store_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(source, "BLOCK", block)
    write_world(tmp_path, records(300))
    with running() as store:
        there = upload(tmp_path / "microdata", store.bucket())
        assert prints_at(there) == prints_at(tmp_path / "microdata")
