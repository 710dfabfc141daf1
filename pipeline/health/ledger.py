"""A ledger's health: what waits too long, what was drawn more than once, and what runs out; for cron and probes."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from pipeline.health.findings import LEAST_FREE, Finding, certificates, disks, good, mend, unseen
from pipeline.ledger.store import Ledger
from pipeline.ledger.summary import Row
from pipeline.release.attempts import names_of_roots, root_of_name
from pipeline.report.officer import HELD_LONG, WHAT_TO_DO
from pipeline.storage.location import Location
from pipeline.storage.uri import locate

LONGEST = timedelta(hours=1)  # from the last step of a release that no officer has to decide on
RECENT = timedelta(days=7)  # after a release has ended it is no longer told that it was drawn more than once


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
    late = [*_waiting(ledger, rows, now, longest, longest_held)]
    again = [*_drawn_again(rows, now)]
    roots, out = places(ledger, rows)
    return [
        _opened(ledger),
        *(late or [good("releases", "none waits for too long")]),
        *(again or [good("draws", "none was drawn or charged more than once, of releases under way or of late")]),
        *certificates(ledger.connection_files(), now, ledger.served_certificate()),
        *disks_of(ledger, roots, out, least_free),
    ]


def places(ledger: Ledger, rows: Sequence[Row]) -> tuple[list[Location], Location | None]:
    """Return the roots at which a ledger's open releases are staged, its own first, and the last release's output."""
    states = [ledger.state(row.release) for row in rows if _kind(row) in WHAT_TO_DO]
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
    fix = "see that it knows all that was published: prdp ledger reopen"
    return mend("ledger", f"{ledger.address} is closed since {closed.time[:10]}", fix)


def _waiting(
    ledger: Ledger, rows: Sequence[Row], now: datetime, longest: timedelta, longest_held: timedelta
) -> Iterator[Finding]:
    for row in rows:
        kind = _kind(row)
        waits = now - datetime.fromisoformat(row.time)
        if kind in WHAT_TO_DO and waits > (longest_held if kind == "held" else longest):
            state = ledger.state(row.release)
            fix = WHAT_TO_DO[kind].format(release=row.release, out=state.out if state else "")
            hours = waits / timedelta(hours=1)
            told = f"{hours:,.1f} hours" if hours < 48 else f"{waits.days:,} days"
            yield mend("releases", f"{row.release} is {kind} for {told}", fix)


def _drawn_again(rows: Sequence[Row], now: datetime) -> Iterator[Finding]:
    for row in rows:
        fresh = _kind(row) in WHAT_TO_DO or now - datetime.fromisoformat(row.time) <= RECENT
        if fresh and (row.draws > 1 or row.charges > 1):
            fix = f"find out what ends its runs, or who could see its staging: prdp ledger show {row.release}"
            yield mend("draws", f"{row.release}: draws {row.draws}, charges {row.charges}", fix)


def _kind(row: Row) -> str:
    return "approved" if row.status == "held" and row.approved else str(row.status)
