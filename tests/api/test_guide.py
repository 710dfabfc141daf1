"""docs/python.md: its examples run, in order, in an empty folder; and so do those of the docstrings."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    names: dict[str, object] = {}
    blocks = list(FENCE.finditer(text))
    assert len(blocks) >= 7
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), "docs/python.md", "exec"), names)
    assert "column employment is double" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "prdp").glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_of_docstrings_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("prdp" if path.stem == "__init__" else f"prdp.{path.stem}")
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).failed == 0
