"""The house of docs/architecture.md: what its wings cannot see, and how large its rooms may be."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.house import FLOORS, LONGEST, ROOT, House, budgets, house, over_budget, room

MOST_ARROWS, MOST_ROOMS, MOST_FILES = 118, 22, 240
MOST_IN_A_FOLDER = 4_000  # lines
MOST_PAGES, MOST_WORDS = 30, 60_000  # of docs/; a word has a letter or a digit
VAGUE = {"found", "told", "given", "whole"}  # names that mean something else in each file; `at` where it is a variable
SEES_RECORDS = ("pipeline.microdata", "pipeline.diagnostics", "pipeline.release")
SEES_SUMS = ("pipeline.engines.dask", "pipeline.engines.spark", "pipeline.engines.tasks", "pipeline.engines.totals")


@pytest.fixture(scope="module")
def here() -> House:
    return house(ROOT)


def seen(tree: House, wing: str, hidden: tuple[str, ...], *, far: bool) -> list[str]:
    """Return what modules of a wing import of what is hidden from it; `far`: also through others."""
    return [
        f"{module} imports {name}"
        for module in tree.imports
        if room(module) == wing
        for name in sorted(tree.reached(module) if far else tree.imports[module])
        if name.startswith(hidden)
    ]


def planning_sees(tree: House) -> list[str]:
    """Planning cannot see a record: what it knows is public or synthetic, and what it asks of a ledger is passed in."""
    return seen(tree, "pipeline.planning", ("pipeline.ledger",), far=True) + seen(
        tree, "pipeline.planning", SEES_RECORDS, far=False
    )


def publication_sees(tree: House) -> list[str]:
    """Publication cannot see what is not published: by no path does it reach a ledger, microdata or sums of records."""
    return seen(
        tree, "pipeline.publication", (*SEES_RECORDS, *SEES_SUMS, "pipeline.ledger", "udfs.records.sums"), far=True
    )


BROKEN: Mapping[str, tuple[dict[str, str], str]] = {
    "planning reads a ledger": (
        {"pipeline/planning/a.py": "from pipeline.ledger import store"},
        "pipeline.ledger.store",
    ),
    "planning reads microdata late": (
        {"pipeline/planning/x/a.py": "def f():\n    from pipeline.microdata.source import read"},
        "pipeline.microdata.source",
    ),
    "publication reaches a ledger": (
        {
            "pipeline/publication/a.py": "import pipeline.plan.b",
            "pipeline/plan/b.py": "def f():\n    import pipeline.ledger.store",
        },
        "pipeline.ledger.store",
    ),
    "publication adds up": ({"pipeline/publication/a.py": "import udfs.records.sums"}, "udfs.records.sums"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wing_that_sees_too_much_is_noticed(tmp_path: Path, name: str) -> None:
    files, seen_name = BROKEN[name]
    hidden = {"pipeline/ledger/store.py": "", "pipeline/microdata/source.py": "", "udfs/records/sums.py": ""}
    for path, text in (hidden | files).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    tree = house(tmp_path)
    assert any(seen_name in line for line in planning_sees(tree) + publication_sees(tree))


def test_publication_cannot_see_what_is_not_published(here: House) -> None:
    assert publication_sees(here) == []


def test_planning_cannot_see_a_record(here: House) -> None:
    assert planning_sees(here) == []


def test_rooms_keep_their_budgets_and_the_house_its_shape(here: House) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert over_budget(here.measured, budgets(page)) == []
    assert len(here.rooms) <= MOST_ROOMS
    assert len(here.arrows) <= MOST_ARROWS
    assert len(here.files) <= MOST_FILES
    assert {name: lines for name, lines in here.files.items() if lines > LONGEST} == {}
    packages, folders = {name.rpartition(".")[0] for name in here.files}, Counter[str]()
    for name, lines in here.files.items():
        folders[name if name in packages else name.rpartition(".")[0]] += lines
    assert max(folders.values()) <= MOST_IN_A_FOLDER


def test_the_pages_can_be_read_by_one_person() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    words = sum(any(letter.isalnum() for letter in word) for page in pages for word in page.split())
    assert len(pages) <= MOST_PAGES
    assert words <= MOST_WORDS


def test_a_run_of_a_release_crosses_few_files(here: House) -> None:
    assert len(here.imports["pipeline.release.steps"]) + 1 <= 15  # itself too


def test_modules_of_the_public_interface_import_each_other_in_no_circle(here: House) -> None:
    own = {module: names for module, names in here.imports.items() if module.startswith("prdp")}
    assert House(imports=own).circle() == []


def test_a_room_over_its_budget_is_noticed() -> None:
    allowed = budgets("| room | lines |\n| --- | ---: |\n| `prdp` | 1,000 |\n| all rooms | 5 |\n")
    assert allowed == {"prdp": 1000, "all rooms": 5}
    assert over_budget({"prdp": 1001, "jobs": 1}, allowed) == [
        "all rooms: 0 lines, 5 allowed",
        "jobs: 1 lines, 0 allowed",
        "prdp: 1,001 lines, 1,000 allowed",
    ]


def vague(text: str) -> Iterator[str]:
    """Yield the bound names of a file that say nothing of what they hold."""
    tree = ast.parse(text)
    fields: set[int] = set()
    for node in ast.walk(tree):  # a class before what is in it
        name, banned = "", VAGUE
        if isinstance(node, ast.ClassDef):
            fields |= {id(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name, banned = node.id, VAGUE | {"at"}
        if name.lstrip("_") in banned:
            yield name


def test_names_say_what_they_hold() -> None:
    names = {
        module: sorted(set(vague(path.read_text(encoding="utf-8"))))
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
        for module in [str(path.relative_to(ROOT))]
    }
    assert {module: bound for module, bound in names.items() if bound} == {}


def test_vague_names_are_noticed() -> None:
    text = "def found(told):\n    class A:\n        at: int\n    for at in told:\n        whole = given = at\n"
    assert sorted(vague(text)) == ["at", "found", "given", "told", "whole"]
    assert list(vague("class A:\n    at: int\ndef f(at):\n    return at")) == []
