"""What tests of several files share: a PostgreSQL server, and a ledger's address on either database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a ledger that is not there yet; all else that it needs lies in the test's own folder."""
    if request.param == "sqlite":
        return str(tmp_path / "state" / "ledger.sqlite")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = request.getfixturevalue("postgres")
    return server.url(server.database())
