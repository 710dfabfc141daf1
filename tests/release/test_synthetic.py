"""Synthetic microdata carry a mark: they are released under no dataset of other microdata, nor the other way round."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.microdata_rules import REHEARSE
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.microdata import source
from pipeline.microdata.source import identity_of
from pipeline.release.input_records import frame_of
from pipeline.release.pinned import identity
from pipeline.storage.paths import SYNTHETIC, locate
from tests.support.ledgers import ledger_file, reservation
from tests.support.world import budget_file, records, write_world


def marked(folder: Path) -> bool | None:
    return identity_of(source.find(locate(folder))).synthetic


def mark(folder: Path) -> None:
    """Write the small world's microdata again, with the mark."""
    file = folder / "microdata" / "part-0.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata(SYNTHETIC), file)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return ledger_file(tmp_path / "state" / "ledger.sqlite")


def test_generated_microdata_and_what_is_prepared_of_them_are_marked(tmp_path: Path, address: str) -> None:
    plan = prdp.generate(40, tmp_path / "data", seed=1)
    assert marked(tmp_path / "data" / "microdata") is True
    call = ["prepare", str(tmp_path / "data" / "microdata"), "--plan", str(plan), "--out", str(tmp_path / "prepared")]
    assert main([*call, "--ledger", address]) == 0
    assert marked(tmp_path / "prepared") is True
    table = pq.read_table(tmp_path / "data" / "microdata")
    assert identity(frame_of(table)).synthetic is True
    assert identity(frame_of(table.replace_schema_metadata(None))).synthetic is None
    assert identity(frame_of(table.to_pandas())).synthetic is None


def test_what_is_prepared_of_other_microdata_is_not_marked(tmp_path: Path, address: str) -> None:
    plan = write_world(tmp_path, records(30))
    call = ["prepare", str(tmp_path / "microdata"), "--plan", str(plan), "--out", str(tmp_path / "prepared")]
    assert main([*call, "--ledger", address]) == 0
    assert marked(tmp_path / "prepared") is False


def test_a_registered_dataset_takes_no_synthetic_microdata(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_world(tmp_path, records(30))
    assert main(["ledger", "init", "small-world", "--budget", str(budget_file(tmp_path)), "--ledger", address]) == 0
    mark(tmp_path)
    for call in (["release", str(plan)], ["ledger", "check", str(plan)]):
        assert main([*call, "--ledger", address]) == 5
        assert REHEARSE in capsys.readouterr().err
    assert create_ledger(address).states() == []


def test_a_dataset_registered_as_synthetic_takes_marked_microdata_alone(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_world(tmp_path, records(30))
    file = tmp_path / "microdata" / "part-0.parquet"
    unmarked = file.read_bytes()
    mark(tmp_path)
    init = ["ledger", "init", "small-world", "--ledger", address, "--budget"]
    assert main([*init, str(budget_file(tmp_path))]) == 5  # it does not say so
    assert REHEARSE in capsys.readouterr().err
    assert main([*init, str(budget_file(tmp_path, synthetic=True))]) == 0
    assert "unit record, synthetic" in capsys.readouterr().out
    file.write_bytes(unmarked)
    assert main(["release", str(plan), "--ledger", address]) == 5
    assert "is registered as synthetic" in capsys.readouterr().err
    mark(tmp_path)
    assert main(["release", str(plan), "--ledger", address]) == 0
    other = budget_file(tmp_path, synthetic=False)
    assert main(["ledger", "raise", "small-world", "--budget", str(other), "--reason", "x", "--ledger", address]) == 5
    create_ledger(address).verify()


@pytest.mark.parametrize("first", [True, False])
def test_charged_releases_of_one_kind_refuse_the_other(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str], first: bool
) -> None:
    plan = write_world(tmp_path, records(30))
    file = tmp_path / "microdata" / "part-0.parquet"
    unmarked = file.read_bytes()
    if first:
        mark(tmp_path)
    assert main(["release", str(plan), "--ledger", address]) == 0
    changed = yaml.safe_load(plan.read_text()) | {"release": "second"}
    plan.write_text(yaml.safe_dump(changed))
    if first:
        file.write_bytes(unmarked)
    else:
        mark(tmp_path)
    assert main(["release", str(plan), "--ledger", address]) == 5
    assert ("the two do not mix" if first else REHEARSE) in capsys.readouterr().err


@pytest.fixture
def ledger(address: str) -> Ledger:
    return create_ledger(address)


def test_only_what_is_known_refuses(ledger: Ledger) -> None:
    ledger.reserve(reservation("old"))  # older entries say nothing, nor do tables and most DataFrames
    ledger.reserve(reservation("trial", synthetic=True))
    with pytest.raises(StateError, match="release trial was of microdata with the mark"):
        ledger.reserve(reservation("real", synthetic=False))
    ledger.reserve(reservation("table"))
    ledger.abort("trial")  # refunded: nothing is charged
    ledger.reserve(reservation("real", synthetic=False))
    with pytest.raises(StateError, match="those of release real do not"):
        ledger.reserve(reservation("trial", synthetic=True))


def test_a_mark_excuses_no_charge(ledger: Ledger) -> None:
    ledger.reserve(reservation("trial", synthetic=True))
    state = ledger.state("trial")
    assert state is not None
    assert state.charges == 1


def test_marked_and_other_files_do_not_mix(tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = write_world(tmp_path, records(30))
    table = pq.read_table(tmp_path / "microdata").replace_schema_metadata(SYNTHETIC)
    pq.write_table(table.slice(0, 5), tmp_path / "microdata" / "part-1.parquet")
    assert main(["release", str(plan), "--ledger", address]) == 5
    assert "keep synthetic and other microdata apart" in capsys.readouterr().err


def test_a_copied_mark_opens_no_microdata_to_a_study(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A schema that is copied from a synthetic file carries the mark along: the ledger's fingerprints decide."""
    plan = write_world(tmp_path / "world", records(60))
    mark(tmp_path / "world")
    shutil.copytree(tmp_path / "world", tmp_path / "copy")
    study = ["evaluate", "--firm", "establishment_id", "--suppression"]
    copied = [*study, str(tmp_path / "copy" / "plan.yaml"), "--ledger", address, "--out"]
    assert main([*copied, str(tmp_path / "before")]) == 0  # the twin: nobody knows them
    assert main(["release", str(plan), "--ledger", address]) == 0
    capsys.readouterr()
    assert main([*copied, str(tmp_path / "after")]) == 5
    assert "a file of them is one of dataset small-world in the ledger" in capsys.readouterr().err
    assert not (tmp_path / "after").exists()
    budget = budget_file(tmp_path / "world", synthetic=True)
    assert main(["ledger", "init", "small-world", "--budget", str(budget), "--ledger", address]) == 0
    here = [*study, str(plan), "--ledger", address, "--out", str(tmp_path / "here")]
    assert main(here) == 5
    assert "the microdata of dataset small-world lie there" in capsys.readouterr().err


def test_the_first_release_of_marked_microdata_warns(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = "warning: dataset small-world: its microdata carry the mark of prdp generate"
    plan = write_world(tmp_path, records(30))
    mark(tmp_path)
    said = []
    for release in ("first", "second"):
        plan = write_world(tmp_path, None, release=release)
        assert main(["release", str(plan), "--ledger", address, "--quiet"]) == 0
        said.append(warning in capsys.readouterr().err)
    assert said == [True, False]
    other = write_world(tmp_path / "other", records(30, first=500), dataset={"name": "unmarked"}, release="third")
    assert main(["release", str(other), "--ledger", address]) == 0
    assert "mark of prdp generate" not in capsys.readouterr().err
