"""The address of a ledger's server: who is connected to, by which files, and how it is shown."""

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pipeline.base.errors import PlanError, PrdpError, StateError, arg
from pipeline.ledger.database import BUSY, REFUSED

CONNECT_SECONDS = 10
_VERIFIED = "verify-full"  # encrypted, and the server shown to be the one that is named
_FILES = {  # libpq's option for each file that it reads → where it looks without one, in the user's home
    "sslrootcert": ".postgresql/root.crt",
    "sslcert": ".postgresql/postgresql.crt",
    "sslkey": ".postgresql/postgresql.key",
    "passfile": ".pgpass",
}


Address = Mapping[str, str]  # libpq's settings of a connection, by name


def server_url(text: str) -> Address:
    """Return the address of a server, ready to connect with psycopg.

    Beyond this machine only a connection whose server is verified is made (sslmode=verify-full, which is also the
    default there): who stands in between could read the ledger, or answer as one in which nothing was spent. Raises
    PlanError, which names neither the password nor the options.
    """
    _, _, rest = text.partition("://")
    try:
        stated = conninfo_to_dict(f"postgresql://{rest}")
        named = {name: str(value) for name, value in stated.items() if value is not None}
        options = parse_qs(rest.partition("?")[2], keep_blank_values=True)
    except (psycopg.ProgrammingError, ValueError):
        named, options = {}, {}
    if not named or not all(port.isdecimal() or not port for port in named.get("port", "").split(",")):
        raise PlanError(
            f"{arg('ledger')}: the address is not of the form postgresql://user@host:port/database, with libpq's "
            "options alone"
        )
    if "dbname" not in named:
        raise PlanError(f"{arg('ledger', shown(named))}: name the database: postgresql://user@host:port/database")
    if "password" in options:
        raise PlanError(
            f"{arg('ledger', shown(named))}: give the password by PGPASSWORD or a passfile, not as an option"
        )
    address = {"connect_timeout": str(CONNECT_SECONDS), **named}
    if on_this_machine(_hosts(address)):
        return address
    mode = address.setdefault("sslmode", _VERIFIED)  # stated here, it comes before PGSSLMODE
    if mode != _VERIFIED:
        raise unverified(shown(address))
    return address


def unverified(name: str) -> PlanError:
    """Return the error of a connection beyond this machine whose server is not verified."""
    return PlanError(
        f"{arg('ledger', name)}: beyond this machine the server must be verified: sslmode=verify-full "
        "(with sslrootcert=FILE for a certificate authority of your own)"
    )


def connection_files(address: Address) -> dict[str, Path]:
    """Return the files that a connection to `address` reads, by libpq's names: certificates, key and password file.

    Those that the address or the environment names, there or not; else those of libpq's own places that are there.
    """
    paths = {}
    for name, usual in _FILES.items():
        named = address.get(name) or os.environ.get(f"PG{name.upper()}")
        path = Path(named) if named else Path(os.path.expanduser("~"), usual)
        if named != "system" and (named or os.path.exists(path)):
            paths[name] = path
    return paths


def on_this_machine(hosts: Iterable[str]) -> bool:
    """Return whether `hosts` (names, addresses, folders of Unix sockets; "": the default) are all this machine."""
    return all(not host or host[0] in "/@" or host == "localhost" or _loopback(host) for host in hosts)


def shown(address: Address) -> str:
    """Return the address for messages: without password and options, but for the folder of a Unix socket."""
    hosts = [quote(host, safe="/:") for host in address.get("host", "").split(",")]
    ports = [f":{port}" if port else "" for port in address.get("port", "").split(",")]
    sockets = [host for host in hosts if host.startswith("/")]
    beyond = [f"[{host}]" if ":" in host else "" if host.startswith("/") else host for host in hosts]
    places = ",".join(map("".join, zip(beyond, ports * (len(hosts) if len(ports) == 1 else 1), strict=False)))
    user = f"{quote(address['user'], safe='')}@" if "user" in address else ""
    folder = f"?host={quote(sockets[0], safe='')}" if sockets else ""
    return f"postgresql://{user}{places}/{quote(address.get('dbname', ''), safe='')}{folder}"


def _hosts(address: Address) -> list[str]:
    named = [address.get("host", ""), address.get("hostaddr", "")]
    if not any(named):
        named.append(os.environ.get("PGHOST", ""))
    named.append(os.environ.get("PGHOSTADDR", ""))
    return [host for text in named for host in text.split(",")]  # as libpq does: several between commas


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# What goes wrong with a ledger's server, in plain words: no statement, parameter or password is told.

LOST = "cannot be reached any more: run again once the server answers, and it goes on from what was committed"
_UNREACHED = "cannot be opened: "
# A server refused, for a reason that stays; not because it is starting or stopping.
_ANSWERED = re.compile("FATAL: (?! the database system is)|password|certificate|SSL(?! SYSCALL| error: unexpected eof)")
_FULL = re.compile("FATAL: +(sorry, too many clients|remaining connection slots)")
_DENIED = (
    "does not let this user do that: use a user with the role it takes (prdp_release to release, prdp_officer to "
    "approve, prdp_reader to read, prdp_owner to make or migrate)"
)
_READ_ONLY = "is read-only: give the address of the server that takes writes"
_ABSENT = "is no prdp ledger: check the address, or restore it from a backup"

# Plain words, without statements, parameters and passwords, by SQLSTATE, or by its class: its first two characters.
_PLAIN: Mapping[str, str] = {
    "08": LOST,
    "57": LOST,
    "57014": "stopped the step, which took too long: see the server's statement_timeout",
    "25P03": "ended the step, which paused for too long: run again",
    "25P04": "ended the step, which took too long: run again",
    "55P03": BUSY,
    "40": BUSY,
    "25006": _READ_ONLY,
    "23": REFUSED,
    "42501": _DENIED,
    "42P01": _ABSENT,
    "3F": _ABSENT,
    "53100": "cannot be written, the server's disk is full: make room and try again",
    "53": "has no room for another connection or step: try again later",
    "58": "cannot be read or written: the server's disk is faulty or full: see its log",
    "XX": "is damaged: see the server's log, and restore it from a backup",
}


@contextmanager
def plain_errors(name: str) -> Iterator[None]:
    """Turn the database's errors inside the block into one plain line about the ledger `name`.

    It is a StateError, or a PrdpError where there is no server that answers: that is no state of the ledger.
    """
    try:
        yield
    except psycopg.Error as error:
        words = _in_words(error)
        raise (PrdpError if words == LOST or _away(words) else StateError)(f"the ledger {name} {words}") from None


def passing(error: psycopg.OperationalError) -> bool:
    """Return whether a connection failed for a reason that passes: no server answers, it starts, or it is full."""
    words = _in_words(error)
    return _away(words) or _FULL.search(words) is not None


def _away(words: str) -> bool:
    return words.startswith(f"{_UNREACHED}connection ") and not _ANSWERED.search(words)


def _in_words(error: psycopg.Error) -> str:
    if (state := error.sqlstate) is not None:
        known = _PLAIN.get(state, _PLAIN.get(state[:2]))
        return known or f"cannot be used: the server's error is {state}: see its log"
    # libpq's own words on a connection that could not be made name host, port and user, and never a password.
    reason = next(iter(str(error).splitlines()), "")
    if reason.startswith("connection "):
        return f"{_UNREACHED}{reason}"
    return LOST if isinstance(error, psycopg.OperationalError) else "cannot be opened: check the address's options"
