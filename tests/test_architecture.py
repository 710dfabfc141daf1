"""The rules of docs/architecture.md on imports, on all modules of this tree and on small trees that break them."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house import inside
from tests.support.world import write_world

ROOT = Path(__file__).parents[1]
FLOORS = ("udfs", "pipeline", "prdp", "jobs")  # from the lowest up
ROOMS = {  # of each floor, from the lowest up
    "udfs": "numbers noise losses mechanisms records estimates",
    "pipeline": "base storage accounting plan ledger microdata engines publication planning release diagnostics "
    "operations",
}
ORDER = [f"{floor}.{room}" for floor, rooms in ROOMS.items() for room in rooms.split()]
OF_UDFS = frozenset({"numpy", "scipy", "pandas", "pyarrow", "mpmath", "cryptography"})
HOMES = {  # an engine's library → where alone it may be imported
    "dask": ("pipeline.engines.dask",),
    "distributed": ("pipeline.engines.dask",),
    "pyspark": ("pipeline.engines.spark", "jobs.spark"),
    "py4j": ("pipeline.engines.spark",),
    "airflow": ("jobs.dags.",),
}


@dataclass(frozen=True)
class Module:
    """One source file: what it imports anywhere, and what it imports when it is itself imported."""

    name: str
    text: bytes

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @cached_property
    def by_name(self) -> bool:
        """Whether it may import by a call, so that its expressions are looked at too."""
        return b"import_module" in self.text or b"__import__" in self.text

    @cached_property
    def imports(self) -> set[str]:
        return {name for part in inside(self.tree, self.by_name) for name in named_by(part)}

    @cached_property
    def at_import(self) -> set[str]:
        return {name for part in inside(self.tree, self.by_name, not_run_at_import) for name in named_by(part)}


def named_by(part: ast.AST) -> Iterator[str]:
    """Yield what one statement or call imports: names of modules, or of what a module holds."""
    match part:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = "." * level + (module or "")
            yield base
            yield from (f"{base}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def not_run_at_import(part: ast.AST) -> bool:
    """Whether a part is a function, or what only type checkers read."""
    function = isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    return function or (isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test))


def modules(root: Path) -> dict[str, Module]:
    found = {}
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*.py")):
            steps = path.relative_to(root).with_suffix("").parts
            name = ".".join(steps[:-1] if steps[-1] == "__init__" else steps)
            found[name] = Module(name, path.read_bytes())
    return found


def violations(root: Path) -> list[str]:
    """Return the broken rules of the tree at `root`, one line each."""
    tree = modules(root)
    found = [line for module in tree.values() for line in _layers(module)] + list(_rooms(tree))
    try:
        TopologicalSorter({name: _edges(module, tree) for name, module in tree.items()}).prepare()
    except CycleError as error:
        found.append("a circle of imports: " + " → ".join(error.args[1]))
    return found


def room(name: str) -> str:
    """The room of a module: a folder or file directly in `udfs` or `pipeline`, or all of `prdp` or of `jobs`."""
    return ".".join(name.split(".")[:2]) if name.partition(".")[0] in ROOMS else name.partition(".")[0]


def _rooms(tree: Mapping[str, Module]) -> Iterator[str]:
    """Yield the imports between rooms that lead upward, also those inside functions, and the rooms without a rank."""
    for module in tree.values():
        own = room(module.name)
        if own not in ORDER:
            if own not in FLOORS:
                yield f"{module.name} lies in a room that docs/architecture.md does not name"
            continue
        for name in sorted(module.imports):
            other = room(name)
            if other in ORDER and ORDER.index(other) > ORDER.index(own):
                yield f"{module.name} imports {name}, a higher room"


def _layers(module: Module) -> Iterator[str]:
    floor = FLOORS.index(module.name.partition(".")[0])
    for name in sorted(module.imports):
        top = name.partition(".")[0]
        if name.startswith("."):
            yield f"{module.name} imports {name} by a relative name"
        elif top in FLOORS[floor + 1 :]:
            yield f"{module.name} imports {name}, upward"
        elif floor == 0 and top not in (*FLOORS, *OF_UDFS) and top not in sys.stdlib_module_names:
            yield f"{module.name} imports {name}, which udfs may not"
        elif not module.name.startswith(HOMES.get(top, "")):
            yield f"{module.name} imports {name}, away from its engine"


def _edges(module: Module, tree: Mapping[str, Module]) -> set[str]:
    """Return the modules of the tree that run before `module` does: those it imports, and the packages around them."""
    edges = {name for name in module.at_import if name in tree}
    around = {name.rsplit(".", depth)[0] for name in edges for depth in range(1, name.count(".") + 1)}
    return edges | {package for package in around & set(tree) if not f"{module.name}.".startswith(f"{package}.")}


def loaded(folder: Path, program: str, banned: Iterable[str], *arguments: str) -> list[str]:
    """Return which of `banned` a new interpreter in `folder` has loaded after `program`."""
    ask = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", ask, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    tops = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    return sorted(tops & set(banned))


EXPLAIN = "import jobs.cli, jobs.commands.before_release"
RUN_EXPLAIN = "import sys, jobs.cli\nassert jobs.cli.main(['explain', sys.argv[1], '--json']) == 0"
OPEN_A_FILE = "import sys; from pipeline.ledger.store import create_ledger; create_ledger(sys.argv[1] + '/state/l')"
NOT_IN_EXPLAIN = ("airflow", "dask", "distributed", "pyspark", "pandas", "pyarrow", "sqlalchemy", "psycopg")
NOT_IN_COMMAND = (*NOT_IN_EXPLAIN, "numpy", "scipy", "pydantic", "yaml", "mpmath", "cryptography")


def test_the_rules_hold_here() -> None:
    tree = modules(ROOT)
    assert {"udfs.records.sums", "pipeline.engines.dask", "jobs.cli", "pipeline.plan"} <= set(tree)
    assert "pipeline.base.canonical" in _edges(tree["pipeline.plan.domain"], tree)  # `from pipeline import canonical`
    assert violations(ROOT) == []


def test_no_script_hides_a_module_of_python() -> None:
    """A script runs with its own folder first on the path: a file called `statistics` there stands for Python's."""
    folders = ("jobs", "benchmarks", "tests/support", "tests/faults")
    names = {path.stem for folder in folders for path in (ROOT / folder).glob("*.py")}
    assert names.isdisjoint(sys.stdlib_module_names)


def test_explain_and_the_command_itself_load_little(tmp_path: Path) -> None:
    assert loaded(ROOT, EXPLAIN, NOT_IN_EXPLAIN) == []
    assert loaded(ROOT, RUN_EXPLAIN, NOT_IN_EXPLAIN, str(write_world(tmp_path, None))) == []
    assert loaded(ROOT, "import jobs.cli", NOT_IN_COMMAND) == []
    assert loaded(ROOT, "import jobs.commands.releasing", ("dask", "distributed", "pyspark", "py4j")) == []
    assert loaded(ROOT, OPEN_A_FILE, ("psycopg", "dask", "distributed", "pyspark", "py4j"), str(tmp_path)) == []
    assert loaded(ROOT, "import pipeline.engines.dask", ("pyspark", "py4j")) == []
    assert loaded(ROOT, "import pipeline.engines.spark_tasks", ("dask", "distributed", "pyspark", "py4j")) == []


# -- trees that break the rules --------------------------------------------------------------------------------------


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


BROKEN = {
    "udfs imports pipeline": (
        {"udfs/noise/a.py": "import pipeline.plan.b"},
        "udfs.noise.a imports pipeline.plan.b, upward",
    ),
    "udfs imports jobs": ({"udfs/noise/a.py": "from jobs import cli"}, "udfs.noise.a imports jobs, upward"),
    "late": (
        {"udfs/noise/a.py": "def f():\n    from pipeline.plan import b"},
        "udfs.noise.a imports pipeline.plan, upward",
    ),
    "by name": (
        {"udfs/noise/a.py": "importlib.import_module('pipeline.plan.b')"},
        "udfs.noise.a imports pipeline.plan.b, upward",
    ),
    "udfs imports an engine": (
        {"udfs/noise/a.py": "import dask.array"},
        "udfs.noise.a imports dask.array, which udfs may not",
    ),
    "udfs imports more": (
        {"udfs/noise/a/b.py": "import sqlalchemy"},
        "udfs.noise.a.b imports sqlalchemy, which udfs may not",
    ),
    "pipeline imports jobs": ({"pipeline/plan/a.py": "import jobs.cli"}, "pipeline.plan.a imports jobs.cli, upward"),
    "dask elsewhere": ({"pipeline/release/steps.py": "import dask"}, "pipeline.release.steps imports dask, away"),
    "dask in a function": (
        {"jobs/a.py": "def f():\n    from distributed import Client"},
        "jobs.a imports distributed, away",
    ),
    "pyspark elsewhere": ({"pipeline/engines/dask.py": "import pyspark.sql"}, "imports pyspark.sql, away"),
    "dask in spark": ({"pipeline/engines/spark.py": "import dask.dataframe"}, "imports dask.dataframe, away"),
    "airflow elsewhere": ({"jobs/cli.py": "import airflow.sdk"}, "jobs.cli imports airflow.sdk, away"),
    "airflow in pipeline": ({"pipeline/plan/a.py": "from airflow import sdk"}, "pipeline.plan.a imports airflow, away"),
    "upward between rooms": (
        {"pipeline/plan/a.py": "def f():\n    from pipeline.release.steps import run"},
        "pipeline.plan.a imports pipeline.release.steps, a higher room",
    ),
    "upward between rooms of the udfs": ({"udfs/numbers/a.py": "import udfs.noise.b"}, "a higher room"),
    "a room without a rank": ({"pipeline/attic/a.py": ""}, "does not name"),
    "relative": ({"pipeline/plan/a.py": "from .b import c"}, "by a relative name"),
    "circle": (
        {"pipeline/plan/a.py": "import pipeline.plan.b", "pipeline/plan/b.py": "from pipeline.plan import a"},
        "a circle",
    ),
    "circle of three": (
        {
            "udfs/noise/a.py": "from udfs.noise.b import x",
            "udfs/noise/b.py": "import udfs.noise.c",
            "udfs/noise/c.py": "if 1:\n    import udfs.noise.a",
        },
        "a circle",
    ),
    "circle by a package": (
        {
            "pipeline/plan/p/__init__.py": "from pipeline.plan.a import x",
            "pipeline/plan/p/b.py": "",
            "pipeline/plan/a.py": "import pipeline.plan.p.b",
        },
        "a circle",
    ),
    "circle in a package": (
        {
            "pipeline/plan/p/__init__.py": "from pipeline.plan.p.b import x",
            "pipeline/plan/p/b.py": "from pipeline.plan.p import y",
        },
        "a circle",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_tree_that_breaks_a_rule_is_told(tmp_path: Path, name: str) -> None:
    files, words = BROKEN[name]
    found = violations(plant(tmp_path, files))
    assert any(words in line for line in found), found


def test_a_tree_that_keeps_the_rules_passes(tmp_path: Path) -> None:
    files = {
        "udfs/__init__.py": "",
        "udfs/noise/a.py": "import math, numpy as np\nfrom udfs.noise.b import x",
        "udfs/noise/b.py": "def f():\n    from udfs.noise.a import y",  # not when it is imported
        "pipeline/plan/p/__init__.py": "from pipeline.plan.p.b import x",
        "pipeline/plan/p/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pipeline.plan.p.c",
        "pipeline/plan/p/c.py": "from pipeline.plan.p.b import x\nimport udfs.noise.a",
        "pipeline/engines/dask.py": "import dask.dataframe\nfrom distributed import Client",
        "pipeline/engines/spark.py": "import pyspark.sql",
        "jobs/spark_release.py": "import pyspark\nimport pipeline.plan.p.c",
        "jobs/dags/a.py": "from airflow.sdk import DAG",
    }
    assert violations(plant(tmp_path, files)) == []


@pytest.mark.parametrize("library", ["pyarrow", "yaml"])
def test_a_command_that_loads_too_much_is_told(tmp_path: Path, library: str) -> None:
    files = {
        "jobs/__init__.py": "",
        "pipeline/__init__.py": "",
        "pipeline/plan/__init__.py": "",
        "jobs/cli.py": "import pipeline.plan.a",
        "jobs/commands/before_release.py": "",
        "pipeline/plan/a.py": f"import {library}",
    }
    plant(tmp_path, files)
    assert library in loaded(tmp_path, "import jobs.cli", NOT_IN_COMMAND)
    assert (loaded(tmp_path, EXPLAIN, NOT_IN_EXPLAIN) == []) == (library == "yaml")
