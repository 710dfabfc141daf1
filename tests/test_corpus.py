"""Bad input of all kinds, case by case (tests/corpus): exit code, message, and no confidential value left behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import Case, cases, play


@pytest.mark.parametrize("data", cases("plans"))
def test_plans(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", cases("domains"))
def test_domains(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", cases("commands"))
def test_commands(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")
