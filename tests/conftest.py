"""What tests share: a Spark session, a PostgreSQL server, and a ledger's address on either database."""

import csv
import gc
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from pipeline.engines.spark import SparkEngine
    from pipeline.ledger.store import Ledger
    from tests.support.store import Store

# No example fails because the machine is busy, and none by chance: `--hypothesis-profile random` searches anew, the
# drill tries as many examples as Hypothesis would, and every run the first of them.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("drill", settings.get_profile("random"), derandomize=True)
settings.register_profile("any load", settings.get_profile("drill"), max_examples=20)
settings.load_profile("any load")
gc.disable()  # until all is collected, of which nothing is ever garbage
# Ledgers and stores wait for the disk at each step, and no test cuts the power: in memory a release takes a third less
# processor time, and much less of any other.
if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
# As jobs.cli.main: in a process for each processor, threads of linear algebra wait for each other with all their time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Java runs each piece of Spark a few times: compiled lightly, and cleared by one thread, it takes a third less time.
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where no ledger is named, tests find one of their own, never the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # else each child compiles all modules anew
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def spark() -> "SparkEngine":
    """An engine on Spark with one session for all tests of this process."""
    from tests.support.spark import shared_engine

    return shared_engine()


@pytest.fixture
def ledger(tmp_path: Path) -> "Ledger":
    """A ledger in a file."""
    from pipeline.ledger.store import create_ledger

    return create_ledger(str(tmp_path / "state" / "ledger.sqlite"))


@pytest.fixture(scope="module")
def store() -> Iterator["Store"]:
    """An S3-compatible server on loopback, and its credentials in the environment."""
    from tests.support.store import running

    with running() as server:
        yield server


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let two processes run the tests that start Spark, one those of public pages, one what shares a fixture.

    What a module makes once, by a fixture or a cache, is made once only where one process runs all its tests. What runs
    on a file and on PostgreSQL runs on a file alone, but for what the store promises, in modules with EVERY_DATABASE.
    """
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        own = getattr(vars(item.module).get("PYSPARKS_OWN"), "mark", None)  # that of the tests which start Spark
        shares = keeps_a_cache(item.module) or any(
            made[-1].scope == "module" for made in item._fixtureinfo.name2fixturedefs.values()
        )
        if item.path.parent.name == "publication" and {"site", "country", "page"} & {*item.fixturenames}:
            item.add_marker(pytest.mark.xdist_group("public pages"))
        elif own and (shares or own in item.iter_markers()):
            group = "spark engines" if item.path.parent.name == "engines" else "spark"
            item.add_marker(pytest.mark.xdist_group(group))
        elif shares:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
        called = getattr(item, "callspec", None)
        if called and called.params.get("address") == "postgresql" and "EVERY_DATABASE" not in vars(item.module):
            item.add_marker(pytest.mark.drill)
    leave_products_to_the_drill([item for item in items if isinstance(item, pytest.Function)])


@pytest.hookimpl(tryfirst=True)  # before xdist tells what was collected
def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the groups count: pytest 9.2 no longer reads the name that pytest-xdist 3.8 gives a test of a group."""
    gc.freeze()
    gc.enable()
    for item in session.items:
        if grouped := vars(item).get("_nodeid"):
            item._id = type(item._id).parse(grouped)


@cache
def keeps_a_cache(module: ModuleType) -> bool:
    """Whether a function of the module itself has a cache."""
    return any(hasattr(each, "cache_info") and each.__module__ == module.__name__ for each in vars(module).values())


def leave_products_to_the_drill(items: Iterable[pytest.Function]) -> None:
    """Of a test under several `parametrize`, run every value of each always, and their other combinations in the drill.

    What belongs together stands in one `parametrize`, and always runs; so do all attacks, and a fixture's parameters.
    """
    tests: dict[tuple[object, ...], dict[tuple[object, ...], pytest.Function]] = defaultdict(dict)
    for item in items:
        axes = [re.findall(r"\w+", str(mark.args[0])) for mark in item.iter_markers("parametrize")]
        if len(axes) > 1 and item.path.parent.name != "attacks" and not item.get_closest_marker("drill"):
            values = {name: id(value) for name, value in item.callspec.params.items()}
            case = tuple(tuple(values.pop(name) for name in axis) for axis in axes)
            tests[item.function, *values.values()][case] = item
    for cases in tests.values():
        seen = [list(dict.fromkeys(axis)) for axis in zip(*cases, strict=True)]
        always = {tuple(axis[i % len(axis)] for axis in seen) for i in range(max(map(len, seen)))}
        for case in cases.keys() - always:
            cases[case].add_marker(pytest.mark.drill)


def pytest_runtest_setup() -> None:
    """Undo what frictionless sets for the whole process: how long a field of CSV may be."""
    csv.field_size_limit(131_072)


def pytest_sessionfinish() -> None:
    support = sys.modules.get("tests.support.spark")
    if support is not None:
        support.close_shared_engine()


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a ledger that is not there yet; all else that it needs lies in the test's own folder."""
    if request.param == "sqlite":
        return str(tmp_path / "state" / "ledger.sqlite")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = request.getfixturevalue("postgres")
    return server.url(server.database())
