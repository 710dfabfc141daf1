"""What a check found, and the checks that a ledger's health and `prdp doctor` share: certificates and disks.

Nothing here reads microdata or staged tables; a finding names files, folders, releases and settings alone.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates

GOOD, MEND, UNSEEN = "good", "mend", "not looked at"
LEAST_FREE = 1.0  # GB that each disk should have
SOON = timedelta(days=14)  # a certificate that ends earlier is to be replaced
AUTHORITIES = ("sslrootcert", "ca-file")  # may hold many: one that is still valid is enough


@dataclass(frozen=True)
class Finding:
    """What one check found: `state` is GOOD, MEND (then `fix` says how) or UNSEEN (then `what` says why)."""

    check: str
    state: str
    what: str
    fix: str | None = None


def good(check: str, what: str) -> Finding:
    """Return the finding that nothing is to be mended."""
    return Finding(check, GOOD, what)


def mend(check: str, what: str, fix: str) -> Finding:
    """Return the finding that something must be mended."""
    return Finding(check, MEND, what, fix)


def unseen(check: str, why: str) -> Finding:
    """Return the finding that a check had nothing to look at."""
    return Finding(check, UNSEEN, why)


def as_document(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return findings as JSON: `well` is whether nothing must be mended."""
    rows = [asdict(finding) for finding in findings]
    return {"well": all(row["state"] != MEND for row in rows), "findings": rows}


def certificates(files: Mapping[str, Path], now: datetime, served: bytes | None = None) -> list[Finding]:
    """Return a finding for each certificate among `files`, by the name of the setting that names it.

    And for the one, in DER, that the ledger's server has `served`.
    """
    named = {name: path for name, path in files.items() if not name.endswith(("key", "passfile"))}
    found = [_of_file(name, path, now) for name, path in named.items()]
    if served is not None:
        found.append(
            _dated("the one of the ledger's server", load_der_x509_certificate(served).not_valid_after_utc, now)
        )
    return found or [unseen("certificates", "no setting of the ledger's connection or of Dask names one")]


def _of_file(name: str, path: Path, now: datetime) -> Finding:
    try:
        ends = [each.not_valid_after_utc for each in load_pem_x509_certificates(path.read_bytes())]
    except OSError as error:
        return mend("certificates", f"{name} {path} cannot be read: {error.strerror}", f"correct {name}, or its mode")
    except ValueError:
        return mend("certificates", f"{name} {path} holds no certificate in PEM", f"correct {name}")
    return _dated(f"{name} {path}", (max if name.endswith(AUTHORITIES) else min)(ends), now)


def _dated(what: str, end: datetime, now: datetime) -> Finding:
    if end - now >= SOON:
        return good("certificates", f"{what} is valid until {end:%Y-%m-%d}")
    told = f"{what} {'ended' if end <= now else 'ends'} on {end:%Y-%m-%d}"
    return mend("certificates", told, "make a new one, and put it in its place")


def disks(places: Iterable[tuple[str, Path]], least: float) -> Iterator[Finding]:
    """Yield a finding for each disk that holds `places`, (what lies there, where): are `least` GB free?

    Of a folder that is not there yet the nearest one above it counts.
    """
    held: dict[int, tuple[Path, list[str]]] = {}
    for what, path in places:
        there = next(each for each in (path, *path.parents) if os.path.exists(each))
        named = held.setdefault(there.stat().st_dev, (there, []))[1]
        named += [what] if what not in named else []
    for there, whats in held.values():
        free = shutil.disk_usage(there).free / 1e9
        told = f"{free:,.1f} GB are free for {', '.join(whats)} (the disk of {there})"
        short = mend("disk", told, f"make room: fewer than {least:g} GB; staging: prdp ledger staging purge")
        yield short if free < least else good("disk", told)
