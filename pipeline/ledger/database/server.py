"""The address of a ledger's server: who is connected to, by which files, and how it is shown."""

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
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
# Who logs in, host and port, database, options.
_FORM = re.compile(r"((?P<login>[^@/?\x00-\x20]*)@)?[^@/?\x00-\x20]*(/[^@?\x00-\x20]*)?(\?(?P<options>[^\x00-\x1f]*))?")


def server_url(text: str) -> Address:
    """Return the address of a server, ready to connect with psycopg.

    Beyond this machine only a connection whose server is verified is made (sslmode=verify-full, which is also the
    default there): who stands in between could read the ledger, or answer as one in which nothing was spent. A service
    may name any server, so that one takes the same. Raises PlanError, which names neither the password nor the options.
    """
    named, options = _parts(text)
    if not named.get("dbname"):
        raise PlanError(f"{arg('ledger', shown(named))}: name the database: postgresql://user@host:port/database")
    if "password" in options:
        raise PlanError(
            f"{arg('ledger', shown(named))}: give the password by PGPASSWORD or a passfile, not as an option"
        )
    address = {**named, "connect_timeout": named.get("connect_timeout") or str(CONNECT_SECONDS)}
    if on_this_machine(_hosts(address)) and not (named.get("service") or os.environ.get("PGSERVICE")):
        return address
    mode = address.setdefault("sslmode", _VERIFIED)  # stated here, it comes before PGSSLMODE and a service's
    if mode != _VERIFIED:
        raise PlanError(
            f"{arg('ledger', shown(address))}: beyond this machine the server must be verified: sslmode=verify-full "
            "(with sslrootcert=FILE for a certificate authority of your own)"
        )
    return address


def _parts(text: str) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return what libpq reads in an address, and its options by name; PlanError where a sign could be meant otherwise.

    libpq takes more, but may end a password at another sign than its writer, and show the rest as a host.
    """
    _, _, rest = text.partition("://")
    with suppress(psycopg.ProgrammingError, ValueError):
        stated = conninfo_to_dict(f"postgresql://{rest}")
        named = {name: str(value) for name, value in stated.items() if value is not None}
        ports = named.get("port", "").split(",")
        if (parts := _FORM.fullmatch(rest)) and all(re.fullmatch("[0-9]*", port) for port in ports):
            options = parse_qs(parts["options"] or "", keep_blank_values=True)
            if parts["login"] or "password" not in named or "password" in options:
                return named, options
    raise PlanError(
        f"{arg('ledger')}: the address is not of the form postgresql://user@host:port/database with libpq's options; "
        "the signs @ / ? % and blanks in it are percent-encoded"
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
    """Return the address for messages, which leads to the same place: without password and all other options."""
    hosts, ports = address.get("host", "").split(","), address.get("port", "").split(",")
    options = {name: address[name] for name in ("hostaddr", "service") if name in address}
    if all(re.fullmatch(r"[\w.-]*", host) or _loopback(host) is not None for host in hosts):
        beyond = [f"[{quote(host, safe=':')}]" if ":" in host else host for host in hosts]
        each = ports * len(hosts) if len(ports) == 1 else ports
        places = ",".join(f"{host}:{port}" if port else host for host, port in zip(beyond, each, strict=False))
    else:
        options, places = {name: address[name] for name in ("host", "port") if name in address} | options, ""
    user = f"{quote(address['user'], safe='')}@" if "user" in address else ""
    stated = "&".join(f"{name}={quote(value, safe=',')}" for name, value in options.items())
    return f"postgresql://{user}{places}/{quote(address.get('dbname', ''), safe='')}{stated and '?'}{stated}"


def _hosts(address: Address) -> list[str]:
    named = [address.get("host", ""), address.get("hostaddr", "")]
    if not any(named):
        named.append(os.environ.get("PGHOST", ""))
    named.append(os.environ.get("PGHOSTADDR", ""))
    return [host for text in named for host in text.split(",")]  # as libpq does: several between commas


def _loopback(host: str) -> bool | None:
    """Return whether an address of the network is this machine's own; None of what is none."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return None


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
