"""Reconciled tables made by the workers of engines: the files of one process, whoever repeats or dies."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import prdp
from jobs.cli import main
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.publication.reconciled import Options, Reconciliation
from pipeline.publication.reconciled_folder import Made, MakeGroup, make_reconciled, verify_reconciled
from pipeline.storage.paths import locate
from prdp import StateError
from tests.publication.test_reconcile import QUERIES, released
from tests.support.dask_cluster import local_cluster
from tests.support.spark import PYSPARKS_OWN, shared_engine
from udfs.estimates import solve

pytestmark = PYSPARKS_OWN


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("release"), QUERIES)


@pytest.fixture(scope="module")
def reconciliation(release: Path) -> Reconciliation:
    return Reconciliation([locate(release)], Options())


@pytest.fixture(scope="module")
def alone(reconciliation: Reconciliation, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, bytes]:
    home = tmp_path_factory.mktemp("alone") / "out"
    manifest = make_reconciled(reconciliation, home, csv=True)
    iterations = [group["iterations"] for group in manifest["groups"]]
    assert min(iterations) == 0 < max(iterations)  # tables that nest, and tables that cross
    assert len(iterations) > 2
    return files_of(home)


def files_of(home: Path) -> dict[Path, bytes]:
    return {path.relative_to(home): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=["threads", "dask cluster", "spark"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "dask cluster":
        with local_cluster() as address:
            yield DaskEngine(address)
    else:
        yield DaskEngine(workers=2) if request.param == "threads" else shared_engine()


def test_every_engine_makes_the_files_of_one_process(
    reconciliation: Reconciliation, alone: dict[Path, bytes], engine: Engine, tmp_path: Path
) -> None:
    make_reconciled(reconciliation, tmp_path / "out", csv=True, each=engine.each)
    assert files_of(tmp_path / "out") == alone


@dataclass(frozen=True)
class NothingEnumerated:
    """A task that takes finest common cells which are no table's for too many, in whatever process it runs."""

    task: MakeGroup

    def __call__(self, number: int) -> Made:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(solve, "ENUMERATED", 0)
            return self.task(number)


@pytest.mark.usefixtures("large")
def test_cells_that_are_not_enumerated_make_the_same_files_on_an_engine(
    release: Path, alone: dict[Path, bytes], engine: Engine, tmp_path: Path
) -> None:
    def there(task: MakeGroup, numbers: list[int], counted: str) -> list[Made]:
        return engine.each(NothingEnumerated(task), numbers, counted)

    one, two = (Reconciliation([locate(release)], Options()) for _ in range(2))  # with nothing kept of other tests
    manifest = make_reconciled(one, tmp_path / "one", csv=True)
    make_reconciled(two, tmp_path / "two", csv=True, each=there)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one") != alone
    assert verify_reconciled(locate(tmp_path / "one")).sums > 0
    assert max(group["residual"] for group in manifest["groups"]) <= 1e-4


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process, whose threads are workers too."""
    monkeypatch.setattr(solve, "ENUMERATED", 0)


class Unsteady:
    """Runs every task twice, the later ones first, and leaves what a worker leaves that dies in its task."""

    def __call__(self, task: Callable[[Any], Any], items: Sequence[Any], counted: str = "") -> list[Any]:
        assert isinstance(task, MakeGroup)
        left = task.home / ".unfinished-by-a-dead-worker" / "tables"
        left.mkdir(parents=True)
        (left / "half.parquet").write_bytes(b"PAR1")
        once = [task(item) for item in reversed(items)]
        assert [task(item) for item in items] == once[::-1]
        return once[::-1]


def test_tasks_that_run_again_and_workers_that_die_change_nothing(
    reconciliation: Reconciliation, alone: dict[Path, bytes], tmp_path: Path
) -> None:
    make_reconciled(reconciliation, tmp_path / "out", csv=True, each=Unsteady())
    assert files_of(tmp_path / "out") == alone


def test_a_worker_that_does_not_reach_the_folder_says_so(reconciliation: Reconciliation, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="a worker does not reach this folder: give one that all machines share"):
        MakeGroup(reconciliation, tmp_path / "elsewhere" / "hidden", None, csv=False)(0)


def test_the_command_and_the_function_take_an_engine(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reconcile", str(release), "--out", str(tmp_path / "one"), "--engine", "dask", "--workers", "1"]) == 0
    prdp.reconcile(release, tmp_path / "two", engine="dask", workers=1)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert main(["reconcile", str(release), "--sum", "naics2=72", "--of", "records", "--engine", "dask"]) == 2
    assert "engines make tables: give --out DIR" in capsys.readouterr().err
    with pytest.raises(prdp.PlanError, match="engines make tables: give out"):
        prdp.reconcile(release, engine="dask")
