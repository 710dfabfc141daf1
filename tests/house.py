"""The size and shape of the code, room by room, beside the budgets of docs/architecture.md: `python -m tests.house`.

A room is a folder directly in `pipeline` or `udfs`, or all of `prdp` or `jobs`. Code is what remains of a file's lines
without blanks, comments, docstrings and imports.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = ("udfs", "pipeline", "prdp", "jobs")
WINGS = ("pipeline.planning", "pipeline.publication", "pipeline.operations")  # what a release can do without
LONGEST = 416  # lines of a file
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements hold statements
TOTAL, CORE, TESTS = "all rooms", "without wings and estimates", "tests"


def room(module: str) -> str:
    """Return the room of a module."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in ("udfs", "pipeline") else parts[0]


def inside(
    tree: ast.AST, deep: bool = False, skip: Callable[[ast.AST], bool] = lambda part: False
) -> Iterator[ast.AST]:
    """Yield the statements in a tree, also those inside functions, but for what is to skip; `deep`: expressions too."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        statements = (each for name in BLOCKS for each in getattr(part, name, ()))
        for child in ast.iter_child_nodes(part) if deep else statements:
            if not skip(child):
                yield child
                waiting.append(child)


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports anywhere."""
    for node in inside(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def code_lines(text: str) -> int:
    """Return how many lines of a Python file are code."""
    tree = ast.parse(text)
    other: set[int] = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            other.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node, clean=False) is not None:
                other.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip():
            other.add(token.start[0])
    return len(text.splitlines()) - len(other)


@dataclass(frozen=True)
class House:
    """The figures of a tree: lines by room, arrows between rooms, and each module's own imports."""

    lines: Counter[str] = field(default_factory=Counter)
    files: Mapping[str, int] = field(default_factory=dict)
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)
    tests: int = 0

    @property
    def arrows(self) -> set[tuple[str, str]]:
        """The pairs of different rooms of which the first imports the second."""
        return {(room(a), room(b)) for a, names in self.imports.items() for b in names if room(a) != room(b)}

    @property
    def rooms(self) -> list[str]:
        """The rooms that hold more than their package's file."""
        return sorted({room(module) for module in self.files if module.count(".") or module not in FLOORS})

    @property
    def measured(self) -> dict[str, int]:
        """The figures that docs/architecture.md budgets: lines by room, of all, of the core and of the tests."""
        total = sum(self.lines.values())
        wings = sum(count for name, count in self.lines.items() if name in (*WINGS, "udfs.estimates"))
        rooms = {name: self.lines[name] for name in self.rooms}
        return rooms | {TOTAL: total, CORE: total - wings, TESTS: self.tests}

    def reached(self, module: str) -> set[str]:
        """Return the modules that importing everything `module` may import would reach."""
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            new = self.imports.get(waiting.pop(), frozenset()) - reached
            reached |= new
            waiting += new
        return reached

    def circle(self) -> list[str]:
        """Return a circle of modules that import each other, inside functions too; empty where there is none."""
        try:
            TopologicalSorter(self.imports).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []


def modules(root: Path) -> dict[str, Path]:
    """Return the files of the tree at `root`, by the dotted names of their modules."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for floor in FLOORS
        for path in sorted((root / floor).rglob("*.py"))
    }


def house(root: Path) -> House:
    """Measure the tree at `root`."""
    paths = modules(root)
    lines, files, imports = Counter[str](), {}, {}
    for module, path in paths.items():
        text = path.read_text(encoding="utf-8")
        files[module] = text.count("\n")
        lines[room(module)] += files[module]
        names = {_module(name, paths) for name in imported(ast.parse(text))} - {"", module}
        imports[module] = frozenset(names)
    tests = sum(path.read_text(encoding="utf-8").count("\n") for path in (root / "tests").rglob("*.py"))
    return House(lines, files, imports, tests)


def _module(name: str, known: Mapping[str, Path]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def budgets(page: str) -> dict[str, int]:
    """Return the table of budgets of docs/architecture.md: lines by the name in a row's first cell."""
    rows = re.findall(r"^\| `?([\w. ]+?)`? \| +([\d,]+) \|", page, re.MULTILINE)
    return {name: int(lines.replace(",", "")) for name, lines in rows}


def over_budget(measured: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return a line for each room without a budget or over it, and for each budget without a room."""
    return [
        f"{name}: {measured.get(name, 0):,} lines, {allowed.get(name, 0):,} allowed"
        for name in sorted({*measured, *allowed})
        if name not in measured or measured[name] > allowed.get(name, 0)
    ]


def main() -> int:
    """Print the figures and what is over its budget; return 1 where something is."""
    tree = house(ROOT)
    code = sum(code_lines(path.read_text(encoding="utf-8")) for path in modules(ROOT).values())
    allowed = budgets((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    print(
        f"{len(tree.files)} files, {sum(tree.lines.values()):,} lines ({code:,} of code), "
        f"{tree.measured[CORE]:,} without the wings; tests {tree.tests:,}; {len(tree.rooms)} rooms, "
        f"{len(tree.arrows)} arrows"
    )
    over = over_budget(tree.measured, allowed)
    print(*over, sep="\n", end="\n" if over else "")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
