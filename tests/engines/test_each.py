"""`each`, and `grouped` on top of it, on all engines: results in order, our own errors as they are, others by kind."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark import cloudpickle

from pipeline.base.errors import MicrodataError
from pipeline.base.log import Log
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine, Segment, TaskFailed, grouped
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support import tasks
from tests.support.dask_cluster import local_cluster
from tests.support.spark import PYSPARKS_OWN, shared_engine
from tests.support.terminal import Told
from udfs.records.contract import ContractBroken

pytestmark = PYSPARKS_OWN


@pytest.fixture(scope="module", params=["threads", "dask cluster", "spark"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "threads":
        yield DaskEngine(workers=2)
    elif request.param == "dask cluster":
        with local_cluster() as address:
            yield DaskEngine(address)
    else:
        cloudpickle.register_pickle_by_value(tasks)
        yield shared_engine()
        cloudpickle.unregister_pickle_by_value(tasks)


def test_results_come_in_the_order_of_the_items(engine: Engine) -> None:
    items = [5, 3, 200, 0, 3, *range(40)]
    assert engine.each(tasks.squared, items) == [(n**2, bytes(n)) for n in items]


def test_no_items_have_no_results(engine: Engine) -> None:
    assert engine.each(tasks.squared, []) == []


def test_how_many_are_done_is_told_where_they_are_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(tmp_path)
    monkeypatch.setattr("pipeline.base.log.PATIENCE", 0.0)
    monkeypatch.setattr("pipeline.base.log.TICK", 0.02)
    monkeypatch.setattr(engine, "log", Log(told))
    engine.each(partial(tasks.until_told, tmp_path / "reading"), range(8), "reading")
    engine.each(tasks.squared, range(3))
    assert told.counts == {("reading", "8")}


def test_errors_of_our_own_come_as_they_are(engine: Engine) -> None:
    with pytest.raises(ContractBroken) as broken:
        engine.each(tasks.against_the_contract, [1])
    assert (broken.value.column, broken.value.rule) == ("employment", "is empty (null)")
    with pytest.raises(MicrodataError, match="microdata x: unreadable"):
        engine.each(tasks.unreadable, [1, 2])


@pytest.mark.parametrize(
    ("task", "kind"), [(tasks.talkative, "ValueError"), (tasks.missing, "No such file or directory")]
)
def test_other_errors_are_told_by_kind_alone(engine: Engine, task: object, kind: str) -> None:
    with pytest.raises(TaskFailed, match=kind) as failed:
        engine.each(task, [1])  # type: ignore[arg-type]
    assert tasks.CANARY not in "".join(map(str, (failed.value, failed.value.__cause__, failed.value.__context__)))


def test_rows_of_a_bucket_come_together_in_the_order_of_items(engine: Engine, tmp_path: Path) -> None:
    items = [1234567, 33, 40, 9]
    found = grouped(engine.each, tasks.digits_of, items, tasks.gathered, Staging(locate(tmp_path), "r", "one"))
    expected = {b: [f"{n}:{d}" for n in items for d in str(n) if int(d) % 3 == b] for b in range(3)}
    assert found == sorted(expected.items())
    assert grouped(engine.each, tasks.digits_of, [], tasks.gathered, Staging(locate(tmp_path), "r", "two")) == []


def test_grouped_rows_lie_on_disk_sealed(engine: Engine, tmp_path: Path) -> None:
    scratch = Staging(locate(tmp_path), "r", "one")
    grouped(engine.each, tasks.digits_of, [1234567, 33], tasks.gathered, scratch)
    files = list(Path(scratch.path).iterdir())
    assert len(files) == 5  # one a part of an item
    assert all(path.stat().st_mode & 0o077 == 0 for path in (*files, Path(scratch.path)))
    assert not any(b"1234567:" in path.read_bytes() or b"text" in path.read_bytes() for path in files)


def test_how_much_lies_there_shows_in_no_repr() -> None:
    assert "7351" not in repr((3, [Segment(3, "0-0", 0, 7351)]))


def test_an_error_of_a_merge_shows_no_owner(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="ValueError") as failed:
        grouped(engine.each, tasks.digits_of, [5], tasks.lost, Staging(locate(tmp_path), "r", "one"))
    assert tasks.CANARY not in "".join(map(str, (failed.value, failed.value.__cause__, failed.value.__context__)))
