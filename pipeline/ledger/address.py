"""Where a ledger lies: the address that a command names, and the database there."""

import re
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from pipeline.base.errors import PlanError, arg, require_package
from pipeline.ledger.database import Database, Fill
from pipeline.ledger.sqlite import open_file
from pipeline.storage.local import LocalPath

_SERVER = ("postgresql", "postgresql+psycopg")


def in_a_file(url: str | None) -> bool:
    """Return whether the ledger at `url` would be a file of the machine that opens it."""
    return url is None or "://" not in url or url.startswith("sqlite:")


def database_at(url: str | None, wait: float, make: bool, fill: Fill = bool) -> Database:
    """Return the ledger's database at `url`, of whatever version; with `make`, made and filled where it is absent."""
    if _scheme(url) in _SERVER:
        require_package("psycopg", "a ledger on PostgreSQL")  # loaded only where it is used
        from pipeline.ledger.postgres import open_server  # noqa: PLC0415

        return open_server(str(url), wait, make, fill)
    return open_file(LocalPath(_path(url).absolute()).resolve("the ledger").path, wait, make, fill)


def connection_files(url: str | None) -> Mapping[str, Path]:
    """Return the files that a connection to the ledger at `url` reads, by the names of its settings; connects not."""
    if _scheme(url) not in _SERVER:
        return {}
    require_package("psycopg", "a ledger on PostgreSQL")
    from pipeline.ledger import server as server_address  # noqa: PLC0415

    return server_address.connection_files(server_address.server_url(str(url)))


def own_file() -> Path:
    """Return where a user's own ledger lies, whether it is there or not; PlanError for a user without a home."""
    try:
        return platformdirs.user_state_path("prdp", appauthor=False) / "ledger.sqlite"
    except RuntimeError:
        raise PlanError(
            f"{arg('ledger')}: this user has no home for a ledger of its own: name one, or set HOME"
        ) from None


def _scheme(url: str | None) -> str | None:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url or "")
    return None if scheme is None else scheme.group(1)


def _path(url: str | None) -> Path:
    if url is None:
        return own_file()
    scheme = _scheme(url)
    if scheme is None and url:
        return Path(url)
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    # The address may hold a password: only its scheme is shown.
    kind = f"{scheme}://…" if scheme is not None else "an empty address"
    raise PlanError(
        f"{arg('ledger')}: {kind} is not supported: give a file as a path or as sqlite:///path, "
        "or a server as postgresql://user@host/database"
    )
