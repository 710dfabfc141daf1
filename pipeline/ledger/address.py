"""Which PostgreSQL server an address names, how it may be reached, and how it is told without its password."""

import ipaddress
import os
from collections.abc import Iterable

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from pipeline.errors import PlanError

_VERIFIED = "verify-full"  # encrypted, and the server shown to be the one that is named
_SECONDS = "10"  # to connect


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
    url = url.update_query_dict({"connect_timeout": url.query.get("connect_timeout", _SECONDS)})
    if on_this_machine(_hosts(url)):
        return url
    mode = url.query.get("sslmode", _VERIFIED)
    if mode != _VERIFIED:
        raise unverified(shown(url))
    return url.update_query_dict({"sslmode": mode})  # said outright, it comes before PGSSLMODE


def unverified(name: str) -> PlanError:
    """The refusal of a connection beyond this machine whose server is not verified."""
    return PlanError(
        f"--ledger {name}: beyond this machine the server must be verified: sslmode=verify-full "
        "(with sslrootcert=FILE for a certificate authority of your own)"
    )


def on_this_machine(hosts: Iterable[str]) -> bool:
    """Whether all of `hosts` (names, addresses, folders of Unix sockets; "" is the default one) are this machine."""
    return all(not host or host[0] in "/@" or host == "localhost" or _loopback(host) for host in hosts)


def shown(url: URL) -> str:
    """Return the address as messages tell it: without password and options, but for the folder of a Unix socket."""
    sockets = [host for host in _several(url.query.get("host", ())) if host.startswith("/")]
    query = {"host": sockets[0]} if sockets else {}
    told = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return told.render_as_string(hide_password=True)


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
