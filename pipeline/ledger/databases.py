"""Which database an address names: a file of this machine, or a PostgreSQL server."""

import re
from pathlib import Path

import platformdirs

from pipeline.errors import PlanError
from pipeline.ledger.database import Database
from pipeline.ledger.sqlite import open_file
from pipeline.storage import resolved

_SERVER = ("postgresql", "postgresql+psycopg")


def in_a_file(url: str | None) -> bool:
    """Whether the ledger at `url` would be a file of the machine that opens it."""
    return url is None or "://" not in url or url.startswith("sqlite:")


def database_at(url: str | None, wait: float) -> Database:
    """Return the ledger's database at `url`, of whatever version; takes and raises what `open_ledger` does."""
    if _scheme(url) in _SERVER:
        # Its driver is loaded for those alone who use it.
        from pipeline.ledger.postgres import open_server  # noqa: PLC0415

        return open_server(str(url), wait)
    return open_file(resolved(_path(url).absolute(), "the ledger"), wait)


def _scheme(url: str | None) -> str | None:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url or "")
    return None if scheme is None else scheme.group(1)


def _path(url: str | None) -> Path:
    if url is None:
        return platformdirs.user_state_path("prdp", appauthor=False) / "ledger.sqlite"
    scheme = _scheme(url)
    if scheme is None and url:
        return Path(url)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    # The address may hold a password: only its scheme is told.
    found = f"{scheme}://…" if scheme is not None else "an empty address"
    raise PlanError(
        f"--ledger: {found} is not supported: give a file as a path or as sqlite:///path, "
        "or a server as postgresql://user@host/database"
    )
