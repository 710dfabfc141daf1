"""A ledger's health: what waits too long, what was drawn more than once, and what runs out; for cron and probes.

`prdp doctor` shares its findings, certificates and disks. Nothing here reads microdata or staged tables; findings name
files, folders, releases and settings alone.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates

from pipeline.base.errors import arg
from pipeline.ledger.store import Ledger
from pipeline.ledger.summaries import Row
from pipeline.operations.officer_page import HELD_LONG, WHAT_TO_DO, kind_of, remedy
from pipeline.operations.telemetry import Gauge, Unsent, gauges_of_ledger, write_metrics
from pipeline.release.attempts import names_of_roots, root_of_name
from pipeline.storage.location import Location
from pipeline.storage.paths import locate

GOOD, MEND, UNSEEN = "good", "mend", "not looked at"
LEAST_FREE = 1.0  # GB that each disk should have
SOON = timedelta(days=14)  # a certificate that ends earlier is to be replaced
LONGEST = timedelta(hours=1)  # from the last step of a release that no officer has to decide on
MOST_NAMED = 20  # releases under way; prdp ledger show lists all
RECENT = timedelta(days=7)  # after a release has ended it is no longer told that it was drawn more than once
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
    checks = [_of_certificates(name, path, now) for name, path in named.items()]
    if served is not None:
        checks.append(
            _dated("the one of the ledger's server", load_der_x509_certificate(served).not_valid_after_utc, now)
        )
    return checks or [unseen("certificates", "no setting of the ledger's connection or of Dask names one")]


def _of_certificates(name: str, path: Path, now: datetime) -> Finding:
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
    text = f"{what} {'ended' if end <= now else 'ends'} on {end:%Y-%m-%d}"
    return mend("certificates", text, "make a new one, and put it in its place")


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
        text = f"{free:,.1f} GB are free for {', '.join(whats)} (the disk of {there})"
        short = mend("disk", text, f"make room: fewer than {least:g} GB; staging: prdp ledger admin staging purge")
        yield short if free < least else good("disk", text)


def health(
    ledger: Ledger,
    now: datetime,
    longest: timedelta = LONGEST,
    longest_held: timedelta = HELD_LONG,
    least_free: float = LEAST_FREE,
) -> list[Finding]:
    """Return what is well with a ledger at the time `now`, and what must be mended.

    To be mended: a release that was reserved, drawn, approved or published, and went no further for `longest`; one
    held for `longest_held`; one drawn or charged more than once, until RECENT after its end; a closed ledger; a
    certificate of the ledger's server or connection that has ended or soon does; a disk of ledger, staging or output
    with less than `least_free` GB.
    """
    rows = [row for _, row in ledger.overview()[0]]
    roots, out = places(ledger, rows)
    return [
        _opened(ledger),
        *under_way(ledger, rows, now, longest, longest_held),
        *certificates(ledger.connection_files(), now, ledger.served_certificate()),
        *disks_of(ledger, roots, out, least_free),
    ]


def under_way(
    ledger: Ledger, rows: Sequence[Row], now: datetime, longest: timedelta, longest_held: timedelta
) -> list[Finding]:
    """Return which releases are under way, wait for too long, and were drawn or charged more than once."""
    going = [_for_how_long(row, now) for row in rows if kind_of(row) in WHAT_TO_DO]
    more = f" and {len(going) - MOST_NAMED:,} more" if len(going) > MOST_NAMED else ""
    named = f"under way: {', '.join(going[:MOST_NAMED])}{more}" if going else "none is under way"
    late = [*_waiting(ledger, rows, now, longest, longest_held)] or [good("releases", "none waits for too long")]
    late.insert(0, good("releases", named))
    once = "none was drawn or charged more than once, of releases under way or of late"
    return late + ([*_drawn_again(rows, now)] or [good("draws", once)])


def places(ledger: Ledger, rows: Sequence[Row]) -> tuple[list[Location], Location | None]:
    """Return the roots at which a ledger's open releases are staged, its own first, and the last release's output."""
    states = [ledger.state(row.release) for row in rows if kind_of(row) in WHAT_TO_DO]
    names = {None: None} | {name: None for state in states if state for name in names_of_roots(state)}
    last = ledger.state(max(rows, key=lambda row: row.since).release) if rows else None
    return [root_of_name(ledger, name) for name in names], locate(last.out) if last else None


def disks_of(ledger: Ledger | None, roots: Sequence[Location], out: Location | None, least: float) -> Iterator[Finding]:
    """Yield a finding for each disk of this machine that holds a ledger's file, its staging or an output."""
    named: list[tuple[str, Path | None]] = [] if ledger is None else [("the ledger", ledger.path)]
    named += [("staging", root.as_path()) for root in roots]
    named += [("the output", out.as_path())] if out is not None else []
    yield from disks([(what, path) for what, path in named if path is not None], least)
    for what, path in named:
        if path is None:
            yield unseen("disk", f"{what} is not on this machine")


def _opened(ledger: Ledger) -> Finding:
    closed = ledger.closed()
    if closed is None:
        return good("ledger", f"{ledger.address} is open")
    fix = "see that it knows all that was published: prdp ledger admin reopen"
    return mend("ledger", f"{ledger.address} is closed since {closed.time[:10]}", fix)


def _waiting(
    ledger: Ledger, rows: Sequence[Row], now: datetime, longest: timedelta, longest_held: timedelta
) -> Iterator[Finding]:
    for row in rows:
        kind = kind_of(row)
        waits = now - datetime.fromisoformat(row.time)
        if kind in WHAT_TO_DO and waits > (longest_held if kind == "held" else longest):
            state = ledger.state(row.release)
            why, acts = remedy(kind, state) if state else ("", [])
            yield mend("releases", _for_how_long(row, now), f"{why}: {', or '.join(acts)}")


def _for_how_long(row: Row, now: datetime) -> str:
    waits = now - datetime.fromisoformat(row.time)
    hours = waits / timedelta(hours=1)
    return f"{row.release} is {kind_of(row)} for {f'{hours:,.1f} hours' if hours < 48 else f'{waits.days:,} days'}"


def _drawn_again(rows: Sequence[Row], now: datetime) -> Iterator[Finding]:
    for row in rows:
        fresh = kind_of(row) in WHAT_TO_DO or now - datetime.fromisoformat(row.time) <= RECENT
        if fresh and (row.draws > 1 or row.charges > 1):
            fix = f"find out what ends its runs, or who could see its staging: prdp ledger show {row.release}"
            yield mend("draws", f"{row.release}: draws {row.draws}, charges {row.charges}", fix)


def write_health(place: str, ledger: Ledger, findings: Iterable[Finding]) -> list[Finding]:
    """Write the metrics of a ledger and of its health at a checked place; return a finding where they cannot be."""
    try:
        counts = Counter[str]()
        for finding in findings:
            counts[finding.check] += finding.state == MEND
        what = "Findings of prdp doctor on the ledger to mend."
        gauges = [Gauge("health_findings", what, number, {"check": check}) for check, number in counts.items()]
        write_metrics(place, "health", gauges)
        write_metrics(place, "ledger", gauges_of_ledger(ledger))
    except Unsent as error:
        return [
            mend("metrics", str(error), f"correct {arg('metrics')}, or metrics in the site's file (docs/monitoring.md)")
        ]
    return []
