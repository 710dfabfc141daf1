"""prdp diagnose on every engine: the same bytes, also of the files of single records and firms."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.microdata import source
from tests.support import firms, parity
from tests.support.dask_cluster import local_cluster
from tests.support.diagnostics import diagnosed, in_files
from tests.support.losses import economy
from tests.support.spark import PYSPARKS_OWN, shared_engine
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, tree, write_world

pytestmark = PYSPARKS_OWN


@pytest.fixture(scope="module", params=["dask cluster", "spark"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "spark":
        yield shared_engine()
    else:
        with local_cluster() as address:
            yield DaskEngine(address)


def owned(folder: Path, **changes: object) -> Path:
    table = economy(2, 500, (*NAICS, "999999"), COUNTIES, [f"F{i}" for i in range(60)])
    path = firms.world(
        folder, microdata=None, **{"queries": [*firms.QUERIES, *firms.COARSE], "max_left_out": 0.99, **changes}
    )
    in_files(folder / "microdata", table, 90)
    return path


def test_bytes_are_those_of_threads(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK_RECORDS", 120)
    path = owned(tmp_path / "world")
    place = Place(path, tmp_path)
    submit(place)
    settings = {"per_record": True, "published": place.out / "small-release"}
    here = tree(diagnosed(path, tmp_path / "threads", **settings))
    there = tree(diagnosed(path, tmp_path / "there", engine, **settings))
    assert here == there
    assert {name.split("/")[0] for name in here} == {"diagnostics.json", "report.html", "records", "firms"}
    assert sum(name.startswith("records") for name in here) > 1


def test_every_mechanism_and_a_table_of_several_files(engine: Engine, tmp_path: Path) -> None:
    for name in ("full", "wide"):
        path = parity.PLANS[name](tmp_path / name)
        documents = [diagnosed(path, tmp_path / f"{name} {i}", e) for i, e in enumerate((None, engine))]
        first, second = ((out / "diagnostics.json").read_bytes() for out in documents)
        assert first == second


def test_broken_contracts_are_told_alike(engine: Engine, tmp_path: Path) -> None:
    table = economy(2, 50, NAICS, COUNTIES, ["F", None])
    path = firms.world(tmp_path / "world", microdata=table)
    with pytest.raises(MicrodataError, match="firm_id names no owner"):
        diagnosed(path, tmp_path / "out", engine, per_record=True)
    assert not (tmp_path / "out").exists()
    without = write_world(tmp_path / "other", table.drop_columns(["establishment_id"]))
    with pytest.raises(PlanError, match="it has no column establishment_id"):
        diagnosed(without, tmp_path / "out", engine, per_record=True)
