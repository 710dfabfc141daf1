"""Bad input of all kinds, case by case (tests/corpus): exit code, message, and no confidential value left behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import (
    Case,
    cases,
    in_process,
    odd_records,
    play,
    problems,
    released,
    tables,
    with_record,
)


@pytest.mark.parametrize("data", cases("plans"))
def test_plans(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", cases("domains"))
def test_domains(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", cases("files"))
def test_files(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", cases("commands"))
def test_commands(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize(("data", "form", "bad"), odd_records())
def test_records(data: dict[str, Any], form: str, bad: str, tmp_path: Path) -> None:
    world = tmp_path / "world"
    case = with_record(world, data, form, bad)
    assert problems(case, in_process(case.run, world), world) == []
    if case.exit == 0:
        counted = frozenset(data["as"].items()) if "as" in data else None
        assert released(world) == tables(counted)
