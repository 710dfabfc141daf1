"""No message and no page helps anybody round the accountant, by a name or a ledger in which nothing is spent.

All texts of the sources are read but docstrings and comments, f-strings joined with {} for what they fill in.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("jobs", "prdp", "pipeline", "udfs")
FRESH = r"(?:another|other|a new|new|a fresh|a different|a second)"
BUDGETED = r"(?:dataset|ledger|release)"
WAYS_ROUND = re.compile(
    rf"\b(?:choose|name|use|give|take|pick|try|make|begin|create|register) {FRESH} (?:{BUDGETED}|name)\b"
    rf"|\b(?:go|goes|put|move) (?:in)?to (?:{FRESH} {BUDGETED}|a {BUDGETED} of)"
    rf"|\banother {BUDGETED} name\b|\b{FRESH} name for the (?:{BUDGETED}|records|microdata)"
)
OLD = (  # of version 0c8cda2
    "bad_records is drop in the ledger, but refuse in the plan: change the plan, or name another dataset",
    "its source is a in the ledger, but b here: use that, or name another dataset",
    "was withdrawn and stays charged: choose another name",
    "go back to that, or choose another release name",
    "finish with the version that reserved, or abort and choose another release name",
    "synthetic: true: trials go to a ledger of their own (prdp ledger create FILE)",
    "is not there: correct the address, or make a new ledger with prdp ledger create",
)


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each text of a module with its line, as it would be told, but for docstrings."""
    tree = ast.parse(source)
    bodies = (node.body[0] for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and node.body)
    skipped = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def ways_round(text: str) -> list[str]:
    return WAYS_ROUND.findall(" ".join(text.split()))


@pytest.mark.parametrize("told", OLD)
def test_what_was_once_told_is_caught(told: str) -> None:
    half = len(told) // 2
    module = f'"""Docs: name another dataset."""\nx = 1\nraise E(f"{{x}}: {told[:half]}"\n    "{told[half:]}")\n'
    assert [line for line, text in texts_of(module) if ways_round(text)] == [3]


def test_no_message_advises_a_way_round_the_accountant() -> None:
    files = [file for room in SOURCES for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 200
    texts = [(file, *text) for file in files for text in texts_of(file.read_text())]
    assert [(str(file.relative_to(ROOT)), line, text) for file, line, text in texts if ways_round(text)] == []


def test_no_page_advises_a_way_round_the_accountant() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert [(page.name, told) for page in pages for told in ways_round(page.read_text())] == []
