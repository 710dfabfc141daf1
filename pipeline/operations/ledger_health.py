"""A ledger's health: what waits too long, was drawn twice or runs out; and whether what is published is its own.

`prdp doctor` shares its findings, certificates and disks. Nothing here reads microdata or staged tables; findings name
files, folders, releases and settings alone.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.x509 import load_der_x509_certificate, load_pem_x509_certificates

from pipeline.base.errors import StateError, arg, file_errors
from pipeline.ledger.entries import Entry
from pipeline.ledger.store import Ledger
from pipeline.ledger.summaries import Row
from pipeline.operations.officer_page import HELD_LONG, WHAT_TO_DO, kind_of, remedy
from pipeline.operations.telemetry import Gauge, Unsent, gauges_of_ledger, write_metrics
from pipeline.publication.manifest import NOTE, Manifest, published_head, read_note
from pipeline.release.attempts import names_of_roots, root_of_name
from pipeline.release.officers import known_state, out_of
from pipeline.release.publish import approvals_named, withdrawal_note
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST, AttemptContents

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


# Whether published files and manifests are those of the ledger: entries that were cut or changed are found so.


def require_in_chain(ledger: Ledger, folder: Location) -> str:
    """Return the release whose manifest and files in `folder` are those of its published entry.

    Of a withdrawn release the note is held against its entry. Raises StateError naming what differs: a head that no
    entry has shows that the ledger was cut or rewritten since, or is another one.
    """
    note = read_note(folder)
    if note is not None:
        return _require_note(ledger, folder, note)
    manifest = Manifest.verified(folder)
    release = str(manifest["release"])
    path = folder / MANIFEST
    entry = _entry(ledger, release, manifest["ledger_head"], "published", path)
    state = known_state(ledger, release)
    if (entry.attempt, state.digest) != (manifest["attempt"], manifest["plan_digest"]):
        raise StateError(f"{path}: its attempt or plan digest is not that of entry {entry.seq}: it was changed")
    if _contents(manifest) != entry.facts["contents"]:
        raise StateError(f"{path}: its files are not those that the ledger published at entry {entry.seq}")
    if manifest.get("approvals") != approvals_named(state).get("approvals"):
        raise StateError(f"{path}: its approvals are not those of the ledger: it was changed")
    if state.status == "withdrawn":
        raise StateError(f"{path}: the release was withdrawn on {state.withdrawn_on}: run prdp ledger withdraw again")
    return release


def published_folders(ledger: Ledger) -> Iterator[Location]:
    """Yield the folder of every release that is settled or withdrawn, where the ledger says it was published."""
    for state in ledger.states():
        if state.status in ("settled", "withdrawn"):
            yield out_of(state) / state.release


def require_no_others(ledger: Ledger) -> None:
    """Return if the chain has the head of every release's folder in the outputs that the ledger's releases name.

    Raises StateError with a line for each folder of which it has not: the ledger forgot what that cost, or another
    ledger published it.
    """
    outs = sorted({out_of(state) for state in ledger.states()}, key=str)
    with file_errors("an output of the ledger's releases cannot be looked at: "):
        folders = {folder: _head_in(folder) for out in outs for folder in (out / name for name in out.children())}
    heads = {entry.hash for entry in ledger.entries()} | {None}  # read last: releases go on
    lines = [
        f"{folder}: its head is in no entry: the ledger was cut or rewritten after that, or another one published it: "
        "restore the ledger from a backup, or move the folder to an output of that ledger's own"
        for folder, head in folders.items()
        if head not in heads
    ]
    if lines:
        raise StateError(*lines)


def _head_in(folder: Location) -> str | None:
    try:
        return published_head(folder)
    except StateError:
        return ""


def _require_note(ledger: Ledger, folder: Location, note: dict[str, Any]) -> str:
    release = str(note.get("release"))
    _entry(ledger, release, str(note.get("ledger_head")), "withdrawn", folder / NOTE)
    if note != withdrawal_note(known_state(ledger, release)):
        raise StateError(f"{folder / NOTE}: it differs from what the ledger says: it was changed")
    return release


def _entry(ledger: Ledger, release: str, head: str, event: str, at: Location) -> Entry:
    entry = next((entry for entry in ledger.entries(release) if entry.hash == head), None)
    if entry is None:
        raise StateError(
            f"{at}: the ledger has no entry with its head {head}: the ledger was cut or rewritten after that, or it is "
            "another one: restore it from a backup"
        )
    if entry.event != event:
        raise StateError(f"{at}: its head is that of entry {entry.seq}, which is {entry.event}, not {event}")
    return entry


def _contents(manifest: Manifest) -> str:
    files = {path: FileDigest(file["sha256"], file["bytes"]) for path, file in manifest.files.items()}
    tables = [{"query": table["query"], "rows": table["rows"]} for table in manifest["tables"]]
    return AttemptContents({"engine": manifest["engine"], "tables": tables}, files).digest


# Opening a ledger that was closed because it was restored or moved: only where it knows all that was published.

_ATTEMPT = re.compile(r"[0-9a-f]{16}")


def reopen(ledger: Ledger, outs: Iterable[Location]) -> list[str]:
    """Open the closed `ledger` again; return the releases whose heads were found in its chain.

    Guarantee: the chain is whole; it has the head of every manifest and note of withdrawal in the folders `outs` and in
    those where its own releases were published, and every attempt that is staged on this machine where its releases
    were. Raises StateError naming the first that it does not know: then the ledger forgot what it cost; and where a
    folder cannot be looked at, or holds nothing though its releases were published there.
    """
    ledger.verify()
    entries = ledger.entries()
    heads = {entry.hash for entry in entries}
    states = ledger.states()
    known = {locate(state.out, what="the ledger's output location") for state in states}
    named = list(outs)
    published = [state for state in states if state.status in ("settled", "withdrawn")]
    known_names: set[str] = set()
    for out in {*known, *named}:
        folders = [folder for folder in (out, *(out / name for name in _names(out))) if _knows(heads, folder)]
        if out in named and not folders and (published or not _names(out)):
            raise StateError(
                f"{arg('out', out)}: no release is there: name the folder that holds the folders of releases"
            )
        known_names |= {folder.name for folder in folders}
    for state in published:
        if state.release not in known_names:
            _require_something(locate(state.out, what="the ledger's output location"), state.release)
    drawn = {entry.attempt for entry in entries if entry.event == "drawn"}
    for root in {root_of_name(ledger, name) for state in states for name in names_of_roots(state)}:
        for attempt in _staged(root):
            if attempt.name not in drawn:
                raise StateError(
                    f"{attempt}: the ledger does not know this attempt: it has forgotten a draw: restore a newer copy; "
                    "it stays closed"
                )
    if not known_names and not named:
        raise StateError(f"no published release was found: name the folders that hold releases by {arg('out')}")
    ledger.reopen(sorted(known_names))
    return sorted(known_names)


def _require_something(out: Location, release: str) -> None:
    if not _names(out):
        raise StateError(
            f"{out}: nothing is there, though {release} was published there, so that later releases may be unseen: "
            f"mount it, or name by {arg('out')} where its folders of releases lie now; the ledger stays closed"
        )


def _names(folder: Location) -> list[str]:
    with file_errors(f"{folder}: cannot be looked at: ", "; the ledger stays closed"):
        return folder.children()


def _knows(heads: Collection[str], folder: Location) -> bool:
    """Return whether a release's folder names one of the heads, False for any other; StateError where it does not."""
    head = published_head(folder)
    if head is not None and head not in heads:
        raise StateError(
            f"{folder}: the ledger has no entry with the head {head} that is published there: it has forgotten "
            "what was lost since: restore a newer copy; it stays closed (or, where another ledger published that, "
            "move it to a folder of its own)"
        )
    return head is not None


def _staged(root: Location) -> Iterator[Location]:
    for release in _names(root):
        for name in _names(root / release):
            if _ATTEMPT.fullmatch(name):
                yield root / release / name
