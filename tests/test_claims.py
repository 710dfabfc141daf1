"""docs/claims.md names for each claim tests that exist."""

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_LINES = 120


def known_tests() -> set[str]:
    """Return the names of all tests, as `file.py::test_name`."""
    return {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def mistakes(page: str, known: Iterable[str]) -> list[str]:
    """Return the claims without a test, and the tests named that are not among those known."""
    claims = [line for line in page.splitlines() if line.startswith("- ")]
    named = {line: re.findall(r"`(\w+\.py::\w+)`", line) for line in claims}
    gone = {name for names in named.values() for name in names} - set(known)
    return [*(line for line, names in named.items() if not names), *sorted(gone)]


def test_every_claim_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert mistakes(page, known_tests()) == []
    assert page.count("\n") < MOST_LINES
    assert {rule for rule in range(1, 11) if f"\n- {rule}: " in page} == set(range(1, 11))


def test_a_claim_whose_test_is_gone_or_missing_is_noticed() -> None:
    page = "Text.\n\n- held: `test_a.py::test_b`\n- gone: `test_a.py::test_c`\n- bare: nothing\n"
    assert mistakes(page, {"test_a.py::test_b"}) == ["- bare: nothing", "test_a.py::test_c"]
