"""What a command loads: importing libraries is most of the time that a short command takes."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.world import BUDGET, QUERIES, records, write_world

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import sys; from jobs.cli import main; code = main(sys.argv[1:]); "
    "print(code, *{name.partition('.')[0] for name in sys.modules}, *sys.modules, file=sys.stderr)"
)
ARROW = """
import sys
from jobs.commands.releasing import do_without_pandas
do_without_pandas()
import numpy as np, pyarrow as pa
table = pa.table({"a": pa.array(np.arange(3)), "b": pa.array(["x", None, "z"])})
assert table["a"].to_numpy().tolist() == [0, 1, 2]
assert "pandas" not in sys.modules
assert table.to_pandas()["b"].isna().tolist() == [False, True, False]
import pandas as pd
assert pa.array(pd.array([1, None], dtype="Int64")).null_count == 1
before = sys.meta_path[:]
do_without_pandas()
assert sys.meta_path == before
"""
CLUSTERS = {"airflow", "distributed", "duckdb", "polars", "psycopg", "pyspark", "sqlalchemy"}
CLUSTERS |= {"dask.dataframe", "dask.array"}
TABLES = {"dask", "pandas", "scipy", "jinja2", "pyarrow.dataset"}
PLANS = {"pydantic", "yaml", "numpy", "mpmath"}
SIGNING = "pipeline.publication.signing"
NOT_LOADED = {
    "verify": CLUSTERS | TABLES | PLANS | {"pyarrow", "cryptography"},
    "ledger show": CLUSTERS | TABLES | {"pyarrow", "pydantic", "mpmath"},
    "explain": CLUSTERS | TABLES | {"pyarrow"},
    "ledger check": CLUSTERS | TABLES,
    "release": CLUSTERS | {"pandas", "scipy", "numpy.random", "pipeline.planning.explanation", SIGNING},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, its microdata, a ledger and a release."""
    folder = tmp_path_factory.mktemp("start")
    tight = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20, "policy": "tight"}
    queries = [*QUERIES, {"name": "employment_state", "sum": "employment", "by": ["state"], "mechanism": tight}]
    plan = write_world(folder, records(200), queries=queries, budget=[{**BUDGET[0], "rho": 1000}])
    second = yaml.safe_load(plan.read_text()) | {"release": "second"}
    (folder / "second.yaml").write_text(yaml.safe_dump(second))
    (folder / "state").mkdir(mode=0o700)
    assert loaded(folder, "ledger", "create", "state/ledger")
    return folder


def loaded(folder: Path, *call: str) -> set[str]:
    """Return what a new interpreter has loaded once the command is done."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *call],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(modules)


def test_commands_load_what_they_need_alone(world: Path) -> None:
    ledger, published = ("--ledger", "state/ledger"), "out/small-release"
    calls = {
        "release": ("release", "plan.yaml", "--out", "out", *ledger),
        "verify": ("verify", published),
        "explain": ("explain", "plan.yaml"),
        "ledger show": ("ledger", "show", *ledger),
        "ledger check": ("ledger", "check", "second.yaml", "--out", "out", *ledger),
    }
    found = {name: loaded(world, *call) for name, call in calls.items()}
    assert {name: found[name] & NOT_LOADED[name] for name in calls} == {name: set() for name in calls}
    assert {"pydantic", "mpmath"} <= found["ledger check"]  # it sees what is loaded
    assert {"dask", "pyarrow.parquet", "jinja2"} <= found["release"]


def test_frames_are_had_afterwards() -> None:
    subprocess.run([sys.executable, "-c", ARROW], check=True)


def test_arrow_loads_pandas_otherwise() -> None:
    """The reason for all this; once Arrow is better, `do_without_pandas` can go."""
    program = "import sys, pyarrow as pa\npa.array([0])\nassert 'pandas' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


OWN_PROCESS = """
import atexit, os, sys, threading
import jobs.cli
end = os._exit
os._exit = lambda code: (print("at once", flush=True), end(code))
def called(words, log):
    atexit.register(print, "at exit")
    if "thread" in words:
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
    if "spark" in words:
        sys.modules["pyspark"] = None
    print("words", end="; ")
    return 3
jobs.cli._called = called
sys.exit(jobs.cli.main())
"""
ALLOCATOR = """
import ctypes
import jobs.cli
jobs.cli._called, jobs.cli._end = (lambda words, log: 0), (lambda code: None)
jobs.cli.main()
import pyarrow
class Info(ctypes.Structure):
    _fields_ = [("first", ctypes.c_size_t * 3), ("hblks", ctypes.c_size_t), ("rest", ctypes.c_size_t * 6)]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
mapped = libc.mallinfo2().hblks
libc.malloc(ctypes.c_size_t(31 << 20))
print(pyarrow.default_memory_pool().backend_name, "mapped" if libc.mallinfo2().hblks > mapped else "kept")
"""
CALL = "import jobs.cli, sys; sys.exit(jobs.cli.main())"


def in_own_process(program: str, *words: str, out: str | None = None, **environment: str) -> tuple[int, str]:
    """Return the exit code and output of a program whose arguments are those of a command; `out`: where both go."""
    own = ("MALLOC_", "GLIBC_", "ARROW_", "PYDANTIC_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    with open(out or os.devnull, "w") as taken:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            env=kept | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=taken if out else subprocess.PIPE,
            stderr=taken if out else None,
            text=True,
            check=False,
        )
    return done.returncode, done.stdout


def test_a_command_s_process_ends_at_once_where_nothing_else_runs_in_it() -> None:
    assert in_own_process(OWN_PROCESS) == (3, "words; at exit\nat once\n")
    assert in_own_process(OWN_PROCESS, "thread") == (3, "words; thread\nat exit\n")
    assert in_own_process(OWN_PROCESS, "spark") == (3, "words; at exit\n")
    assert in_own_process(f"import sys; sys.setprofile(lambda *_: None){OWN_PROCESS}") == (3, "words; at exit\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
def test_no_call_whose_output_is_lost_ends_with_exit_code_0() -> None:
    assert in_own_process(CALL, "--help")[0] == 0
    assert in_own_process(CALL, "--help", out="/dev/full")[0] != 0
    lost = "import jobs.cli, os, sys; jobs.cli._called = lambda *_: sys.stderr.write('lost') and 0"
    assert in_own_process(f"{lost}; os.dup2(os.open('/dev/full', os.O_WRONLY), 2); {CALL}")[0] != 0
    assert in_own_process(f"import os, sys; os.close(1); sys.stdout = None; {CALL}", "explain", "no.yaml")[0] == 2


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="of glibc 2.33 and later")
def test_freed_memory_is_used_again_unless_the_installation_has_settings_of_its_own() -> None:
    assert in_own_process(ALLOCATOR) == (0, "system kept\n")
    for settings in ({"MALLOC_ARENA_MAX": "8"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=8"}):
        code, told = in_own_process(ALLOCATOR, **settings)
        assert (code, told.split()[1], told.startswith("system")) == (0, "mapped", False)


def test_no_other_package_has_a_say_in_plans(world: Path, tmp_path: Path) -> None:
    entry = tmp_path / "other-1.dist-info"
    entry.mkdir()
    (entry / "entry_points.txt").write_text("[pydantic]\nother = other_plugin:plugin\n")
    (tmp_path / "other_plugin.py").write_text("raise SystemExit('loaded')")
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    assert in_own_process(CALL, "explain", str(world / "plan.yaml"), **path)[0] == 0
    assert in_own_process("import pipeline.plan.plan_schema", **path)[0] == 1  # where nobody says otherwise
