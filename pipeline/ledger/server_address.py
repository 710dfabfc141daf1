"""The address of a ledger's server: who is connected to, by which files, and how it is shown."""

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from pipeline.errors import PlanError

CONNECT_SECONDS = 10
_VERIFIED = "verify-full"  # encrypted, and the server shown to be the one that is named
_FILES = {  # libpq's option for each file that it reads → where it looks without one, in the user's home
    "sslrootcert": ".postgresql/root.crt",
    "sslcert": ".postgresql/postgresql.crt",
    "sslkey": ".postgresql/postgresql.key",
    "passfile": ".pgpass",
}


def server_url(text: str) -> URL:
    """Return the address of a server, ready to connect with psycopg.

    Beyond this machine only a connection whose server is verified is made (sslmode=verify-full, which is also the
    default there): who stands in between could read the ledger, or answer as one in which nothing was spent. Raises
    PlanError, which names neither the password nor the options.
    """
    try:
        url = make_url(text).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise PlanError("--ledger: the address is not of the form postgresql://user@host:port/database") from None
    if not url.database:
        raise PlanError(f"--ledger {shown(url)}: name the database: postgresql://user@host:port/database")
    if "password" in url.query:
        raise PlanError(f"--ledger {shown(url)}: give the password by PGPASSWORD or a passfile, not as an option")
    url = url.update_query_dict({"connect_timeout": url.query.get("connect_timeout", str(CONNECT_SECONDS))})
    if on_this_machine(_hosts(url)):
        return url
    mode = url.query.get("sslmode", _VERIFIED)
    if mode != _VERIFIED:
        raise unverified(shown(url))
    return url.update_query_dict({"sslmode": mode})  # stated here, it comes before PGSSLMODE


def unverified(name: str) -> PlanError:
    """Return the error of a connection beyond this machine whose server is not verified."""
    return PlanError(
        f"--ledger {name}: beyond this machine the server must be verified: sslmode=verify-full "
        "(with sslrootcert=FILE for a certificate authority of your own)"
    )


def connection_files(url: URL) -> dict[str, Path]:
    """Return the files that a connection to `url` reads, by libpq's names: certificates, key and password file.

    Those that the address or the environment names, there or not; else those of libpq's own places that are there.
    """
    found = {}
    for name, usual in _FILES.items():
        named = next(iter(_several(url.query.get(name, ()))), None) or os.environ.get(f"PG{name.upper()}")
        path = Path(named) if named else Path(os.path.expanduser("~"), usual)
        if named != "system" and (named or os.path.exists(path)):
            found[name] = path
    return found


def on_this_machine(hosts: Iterable[str]) -> bool:
    """Return whether `hosts` (names, addresses, folders of Unix sockets; "": the default) are all this machine."""
    return all(not host or host[0] in "/@" or host == "localhost" or _loopback(host) for host in hosts)


def shown(url: URL) -> str:
    """Return the address for messages: without password and options, but for the folder of a Unix socket."""
    sockets = [host for host in _several(url.query.get("host", ())) if host.startswith("/")]
    query = {"host": sockets[0]} if sockets else {}
    public = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return public.render_as_string(hide_password=True)


def _hosts(url: URL) -> list[str]:
    named = [url.host or "", *_several(url.query.get("host", ())), *_several(url.query.get("hostaddr", ()))]
    if not any(named):
        named.append(os.environ.get("PGHOST", ""))
    named.append(os.environ.get("PGHOSTADDR", ""))
    # As libpq does: several between commas, as SQLAlchemy: each with its port.
    return [host for text in named for host in text.split(",")]


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
