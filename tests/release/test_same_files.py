"""Files of a registered dataset are known under every name that leads to them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import pipeline.release.request
from jobs.cli import main
from pipeline.microdata.source import Identity
from pipeline.release import pinned as same_files
from tests.support.ledgers import ledger_file
from tests.support.world import budget_file, records, write_world

LINKS: dict[str, Callable[[Path, Path], object]] = {"symbolic": os.symlink, "hard": os.link}


@pytest.fixture
def ledger(tmp_path: Path) -> list[str]:
    write_world(tmp_path, records(30))
    address = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
    assert main(["ledger", "init", "small-world", "--budget", str(budget_file(tmp_path)), *address]) == 0
    return address


def another(tmp_path: Path, place: Callable[[Path, Path], object]) -> Path:
    plan = write_world(tmp_path / "other", None, dataset={"name": "other"})
    (tmp_path / "other" / "microdata").mkdir()
    place(tmp_path / "microdata" / "part-0.parquet", tmp_path / "other" / "microdata" / "linked.parquet")
    return plan


@pytest.mark.parametrize("kind", LINKS)
def test_links_to_a_registered_datasets_files_are_refused_under_another_name(
    kind: str, tmp_path: Path, ledger: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = another(tmp_path, LINKS[kind])
    budget = budget_file(tmp_path / "other", dataset={"name": "other"})
    calls = (
        ["release", str(plan)],
        ["ledger", "check", str(plan)],
        ["ledger", "init", "other", "--budget", str(budget)],
    )
    for call in calls:
        assert main([*call, *ledger]) == 5
        assert "are files of dataset small-world" in capsys.readouterr().err
    assert main(["ledger", "show", "--dataset", "other", *ledger]) == 5  # nothing was reserved


def test_other_files_are_none_of_them(tmp_path: Path, ledger: list[str]) -> None:
    write_world(tmp_path / "more", records(30, seed=2))
    made = tmp_path / "more" / "microdata" / "part-0.parquet"
    plan = another(tmp_path, lambda file, at: shutil.copy(made, at))
    assert main(["release", str(plan), *ledger]) == 0


def test_who_compares_names_alone_releases_them(
    tmp_path: Path, ledger: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin."""
    monkeypatch.setattr(same_files, "_files", lambda microdata: {(0, hash(str(microdata)))})
    monkeypatch.setattr(pipeline.release.request, "identity", lambda microdata: Identity())  # nor contents
    assert main(["release", str(another(tmp_path, LINKS["hard"])), *ledger]) == 0
