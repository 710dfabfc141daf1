import hashlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from math import exp, expm1, log, sinh
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from pipeline.base.errors import PlanError, StateError
from pipeline.planning.economy import generate as module
from pipeline.planning.economy.generate import DOMAIN, MOST_RECORDS, Generated, _write_public, generate
from tests.support.heavy import Polylog
from tests.support.patience import PATIENCE
from tests.support.tight import largest
from udfs.records.codes import is_code

RECORDS = 400_000
SCHEMA = pa.schema(
    [
        ("establishment_id", pa.string()),
        ("firm_id", pa.string()),
        ("naics", pa.string()),
        ("county", pa.string()),
        ("employment", pa.int64()),
        ("payroll", pa.int64()),
    ]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return generate(RECORDS, 7, tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def records(made: Generated) -> pd.DataFrame:
    table: pd.DataFrame = pq.read_table(made.microdata).to_pandas()
    return table


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def codes(path: Path) -> list[str]:
    return pd.read_csv(path, dtype=str)["code"].tolist()


def test_same_seed_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("two", 2), ("again", 2), ("five", 5)):
        generate(30_000, 3, tmp_path / name, threads=threads)
    first = digests(tmp_path / "one")
    assert len(first) == 4 + 2 + 1
    assert first == digests(tmp_path / "two") == digests(tmp_path / "again") == digests(tmp_path / "five")


def test_no_two_files_of_any_seeds_are_alike(tmp_path: Path) -> None:
    # 2³² is (0, 1) in 32-bit words: joined carelessly with the file's number it would repeat a file of seed 0
    seeds = (0, 1, 2**32, 2**200)
    parts = [generate(4_000, seed, tmp_path / str(seed)).microdata for seed in seeds]
    draws = [pq.read_table(path).column("payroll").to_pylist() for part in parts for path in part.iterdir()]
    assert len({tuple(draw) for draw in draws}) == 4 * len(seeds)


def test_layout_and_types(made: Generated) -> None:
    assert sorted(path.name for path in made.plan.parent.iterdir()) == ["domain", "microdata", "plan.yaml"]
    parts = sorted(made.microdata.iterdir())
    assert [part.name for part in parts] == [f"part-{i:05d}.parquet" for i in range(made.files)]
    assert made.files == 4
    assert sum(pq.read_metadata(part).num_rows for part in parts) == made.records == RECORDS
    for part in parts:
        assert pq.read_schema(part).equals(SCHEMA)
        group = pq.read_metadata(part).row_group(0)
        dictionary = {group.column(i).path_in_schema: group.column(i).has_dictionary_page for i in range(6)}
        assert dictionary["naics"]
        assert dictionary["county"]
        assert not dictionary["establishment_id"]
        assert not dictionary["firm_id"]


def test_records_meet_the_contract(made: Generated, records: pd.DataFrame) -> None:
    assert records["establishment_id"].is_unique
    assert records["establishment_id"].str.fullmatch(r"E\d{9}").all()
    assert records["firm_id"].str.fullmatch(r"F\d{9}").all()
    assert set(records["naics"]) <= set(codes(made.naics))
    assert set(records["county"]) <= set(codes(made.counties))
    assert (records["employment"] >= 0).all()
    assert (records["payroll"] >= 0).all()
    # random cell order: neighbours in a file share a county no more often than strangers
    shares = records["county"].value_counts(normalize=True)
    alike = (records["county"].to_numpy()[1:] == records["county"].to_numpy()[:-1]).mean()
    assert abs(alike - (shares**2).sum()) < 0.002


def test_tiny_data_sets(tmp_path: Path) -> None:
    for size, files in ((0, 1), (1, 1), (3, 3), (4, 4), (5, 4)):
        made = generate(size, 0, tmp_path / str(size))
        table = pq.read_table(made.microdata)
        assert (table.num_rows, made.files, len(list(made.microdata.iterdir()))) == (size, files, files)
        assert table.schema.equals(SCHEMA)
        assert sorted(table.column("establishment_id").to_pylist()) == [f"E{i + 1:09d}" for i in range(size)]


@pytest.mark.parametrize("left", ["microdata/old.parquet", "domain/naics.csv", "plan.yaml", "notes.txt", ".git/HEAD"])
def test_only_a_new_or_empty_folder_is_written(tmp_path: Path, left: str) -> None:
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).touch()
    with pytest.raises(StateError, match="exists and is no empty folder") as refusal:
        prdp.generate(10, tmp_path)
    assert refusal.value.exit_code == 5
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(left).name]
    with pytest.raises(StateError, match="no empty folder"):
        generate(10, 0, tmp_path / left)  # a file in place of a folder


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen once, while a run writes its files."""
    first = iter([happens])

    def write(folder: Path, *more: Any) -> None:
        next(first, lambda: None)()
        _write_public(folder, *more)

    monkeypatch.setattr("pipeline.planning.economy.generate._write_public", write)


def test_two_runs_at_once_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = generate(1_000, 2, tmp_path / "alone")
    meanwhile(monkeypatch, lambda: generate(1_000, 2, tmp_path / "out"))
    with pytest.raises(StateError, match="no empty folder"):
        generate(1_000, 1, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(alone.plan.parent)


def test_what_comes_between_is_not_mixed_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stray() -> None:
        (tmp_path / "microdata").mkdir()
        (tmp_path / "microdata" / "stray.parquet").touch()

    meanwhile(monkeypatch, stray)
    with pytest.raises(StateError, match="no empty folder"):
        generate(1_000, 1, tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["microdata", "stray.parquet"]


def test_batches_of_very_many_records_share_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_A_BATCH", 100)
    apart = generate(1_000, 3, tmp_path / "apart")
    monkeypatch.setattr(module, "MOST_FILES", 4)
    shared = generate(1_000, 3, tmp_path / "shared")
    assert (apart.files, shared.files) == (10, 4)
    sizes = [pq.read_metadata(path).num_rows for path in sorted(shared.microdata.iterdir())]
    assert sizes == [300, 300, 300, 100]
    assert pq.read_table(shared.microdata).equals(pq.read_table(apart.microdata))


@pytest.mark.parametrize(("records", "seed"), [(-1, 0), (MOST_RECORDS + 1, 0), (10, -1)])
def test_wrong_numbers_are_refused(tmp_path: Path, records: int, seed: int) -> None:
    with pytest.raises(PlanError, match="is needed"):
        generate(records, seed, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_killed_run_is_not_mistaken_for_a_data_set(tmp_path: Path) -> None:
    call = "import sys, pathlib; from pipeline.planning.economy.generate import generate; "
    call += "generate(20_000_000, 0, pathlib.Path(sys.argv[1]))"
    process = subprocess.Popen([sys.executable, "-c", call, str(tmp_path)])
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob(".unfinished-*/microdata/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".unfinished-")]
    generate(10, 0, tmp_path)
    assert pq.read_table(tmp_path / "microdata").num_rows == 10


def test_code_lists() -> None:
    naics, counties = (codes(path) for path in DOMAIN.values())
    assert (len(naics), len(counties)) == (925, 3144)
    for listed, level in ((naics, "naics6"), (counties, "county")):
        assert listed == sorted(set(listed))
        assert all(is_code(code, level) for code in listed)
    left_out = ("111", "112", "482", "491", "525110", "525120", "525190", "525920", "541120", "814", "92")
    assert not [code for code in naics if code.startswith(left_out)]
    assert len({code[:2] for code in counties}) == 51
    assert [code for code in counties if code.startswith("09")] == [f"091{i}0" for i in range(1, 10)]
    for path in DOMAIN.values():
        assert b"\r" not in path.read_bytes()


def loss(mechanism: dict[str, object], influence: int) -> float:
    """The loss of docs/mathematics.md, sections 3 and 4 and of docs/tight.md, in floating point and written anew."""
    p, d, a, sigma = (float(str(mechanism.get(name, 0))) for name in ("p", "d", "a", "sigma"))
    kind = mechanism["kind"]
    if kind == "gaussian":
        return influence**2 / (2 * sigma**2)
    if kind == "log":
        assert mechanism["noise"] == "laplace"
        pure = (log(1 + influence / a) + 1e-6) / sigma
        return pure - 1 + exp(-pure)
    assert mechanism["policy"] == "tight"
    if kind == "laplace":
        return influence / sigma + expm1(-influence / sigma) / sigma / sinh(1 / sigma)
    assert kind == "exponential_polylog"
    return largest(Polylog(*map(Fraction, (p, d, a, sigma))), influence)


def test_plan_fits_its_budget_with_a_little_room(made: Generated) -> None:
    plan = yaml.safe_load(made.plan.read_text(encoding="utf-8"))
    for limit in plan["budget"]:
        spent = sum(loss(q["mechanism"], limit["at"].get(q.get("sum"), 1)) for q in plan["queries"])
        assert 0.9 * limit["rho"] < spent < limit["rho"]
    for path in (plan["dataset"]["path"], plan["domain"]["naics"], plan["domain"]["county"]):
        assert (made.plan.parent / path).exists()
