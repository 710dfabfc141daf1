"""Each promise of a page is held: docs/claims.md names for it tests, faults, drills or benchmarks that exist.

A line is `- names: claim. holders`, its names being optional. A section of the pages below names its claims in a
comment, `<!-- held: name, name -->`, or says why it has none, `<!-- no promise: why -->`; so does each rule of the
guarantee.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.goals import GOALS
from tests.drills import parts
from tests.faults.table import FAULTS

ROOT = Path(__file__).parents[1]
MOST_LINES = 200
PROMISING = ("README", "guarantee", "security", "operations", "performance", "clusters", "airflow")
RULES = "guarantee"  # the page whose numbered rules are held one by one
HOLDER = re.compile(r"`(\w+\.py::\w+|(?:fault|drill|goal|bench): [^`]+)`")
NAMES = re.compile(r"- ([a-z0-9][a-z0-9-]*(?:, [a-z0-9-]+)*): ")
HELD = re.compile(r"<!-- held:\s+([a-z0-9-]+(?:,\s+[a-z0-9-]+)*)\s+-->")
FREE = re.compile(r"<!-- no promise: [^\n]+ -->")


def known_holders() -> set[str]:
    """Return the names of all tests, as `file.py::test_name`, faults, drills, goals and benchmarks."""
    tests = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    return tests.union(
        (f"fault: {fault.what}" for fault in FAULTS),
        (f"drill: {name}" for part in parts() for name in (part, part.rpartition("-")[0])),
        (f"goal: {goal.what}" for goal in GOALS),
        (f"bench: {path.stem}" for path in (ROOT / "benchmarks").glob("*.py")),
    )


def claims(page: str) -> list[str]:
    """Return the lines of claims."""
    return [line for line in page.splitlines() if line.startswith("- ")]


def mistakes(page: str, known: Iterable[str]) -> list[str]:
    """Return the claims without a holder, and the holders named that are not among those known."""
    named = {line: HOLDER.findall(line) for line in claims(page)}
    gone = {name for names in named.values() for name in names} - set(known)
    return [*(line for line, names in named.items() if not names), *sorted(gone)]


def names_of(page: str) -> set[str]:
    """Return the names of the claims that have one; numbers are rules of the architecture."""
    heads = (NAMES.match(line) for line in claims(page))
    return {name for head in heads if head for name in head[1].split(", ") if not name.isdigit()}


def pieces(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the sections of a page that say something, and the rules of the guarantee, with their texts."""
    text = re.sub(r"^```.*?^```$", "code", text, flags=re.MULTILINE | re.DOTALL)
    for section in re.split(r"^(?=#{1,4} )", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        if body.strip():
            yield f"{name}, {head.lstrip('# ')}", body.partition("\n\n")[0]
        if name == RULES:
            rules = re.findall(r"^\d+\. .*?(?=^\d+\. |\n\n|\Z)", body, re.MULTILINE | re.DOTALL)
            yield from ((f"{name}, rule {' '.join(rule.split())[:40]}", rule) for rule in rules)


def unheld(name: str, text: str, known: Iterable[str]) -> list[str]:
    """Return the sections and rules that name no claim, and the names that no claim has."""
    without = [place for place, piece in pieces(name, text) if not (HELD.search(piece) or FREE.search(piece))]
    return [*without, *sorted(held(text) - set(known))]


def held(text: str) -> set[str]:
    """Return the claims that a page names."""
    return {name for names in HELD.findall(text) for name in re.split(r",\s+", names)}


def pages() -> dict[str, str]:
    """Return the texts of the pages whose promises are held."""
    paths = (ROOT / "README.md" if name == "README" else ROOT / "docs" / f"{name}.md" for name in PROMISING)
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def test_every_claim_names_holders_that_exist() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert mistakes(page, known_holders()) == []
    assert page.count("\n") < MOST_LINES
    assert {rule for rule in range(1, 11) if re.search(rf"^- {rule}[:,]", page, re.MULTILINE)} == set(range(1, 11))


def test_every_promise_of_a_page_is_held() -> None:
    known = names_of((ROOT / "docs" / "claims.md").read_text(encoding="utf-8"))
    assert [line for name, text in pages().items() for line in unheld(name, text, known)] == []
    assert known - {name for text in pages().values() for name in held(text)} == set()


def test_a_claim_whose_holder_is_gone_or_missing_is_noticed() -> None:
    page = (
        "Text.\n\n- 1, a-b: held: `test_a.py::test_b`, `drill: noise`\n- gone: `test_a.py::test_c`, `fault: flood`,"
        " `goal: fast`, `bench: none`\n- bare: nothing\n"
    )
    gone = ["bench: none", "fault: flood", "goal: fast", "test_a.py::test_c"]
    assert mistakes(page, {"test_a.py::test_b", "drill: noise"}) == ["- bare: nothing", *gone]
    assert names_of(page) == {"a-b", "gone", "bare"}


def test_a_promise_without_a_holder_is_noticed() -> None:
    """The twin: a section without a comment, a rule without one, a name that no claim has; code is no section."""
    text = (
        "# A\n<!-- held: a -->\nText.\n\n"
        "1. One. <!-- held: a -->\n2. Two,\n   longer.\n3. Three. <!-- held:\n   a -->\n\n"
        "## B\n<!-- no promise: it only points -->\n\n```sh\n# no section\n```\n"
        "## C\n\n### D\nText. <!-- held: b -->\n## E\nText.\n"
    )
    assert unheld("guarantee", text, {"a"}) == ["guarantee, rule 2. Two, longer.", "guarantee, E", "b"]
    assert unheld("airflow", text, {"a", "b"}) == ["airflow, E"]
