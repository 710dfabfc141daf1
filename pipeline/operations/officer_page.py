"""The officers' page of a ledger: what is spent and left, what waits for a decision, what is stuck, and who did what.

It is confidential, a file apart from all releases: it names where drafts lie. It holds no record's value and no count
of records.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.references import Limit
from pipeline.base.errors import StateError, arg
from pipeline.base.plain import Table, rendered, with_ledger
from pipeline.ledger.admission import Account, UnderLimit, accounts
from pipeline.ledger.datasets import REFUSALS, Budget, budget_step, raising, registering
from pipeline.ledger.entries import BUDGETED, CLOSED, REOPENED, REQUIRED, Entry, Required
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.history import History, approval_lines, histories
from pipeline.ledger.store import Ledger
from pipeline.publication.site.site_files import staged_page
from pipeline.release.attempts import attempt_of, release_folders, require_outside, root_of_name
from pipeline.storage.local import LocalPath
from udfs.numbers.exact import as_json, bound_text, down_text

MARK = "CONFIDENTIAL"
HEADINGS = (
    ("waiting", "Waiting for a decision"),
    ("stuck", "What is stuck, and what to do"),
    ("spent", "Spent and left"),
    ("releases", "Releases"),
    ("acts", "History of acts"),
)
HELD_LONG = timedelta(days=7)  # a held release that waits longer is told among what is stuck
MOST_BARS = 20  # of one limit: earlier releases share a bar
MOST_ACTS = 500  # the latest; prdp ledger admin export has all

GENERATOR = b'content="prdp ledger page"'  # of the pages that a new one may replace
NO_RUN = "If no run of it is under way: "
WHAT_TO_DO = {
    "reserved": f"Nothing is drawn. {NO_RUN}run prdp release with its plan again, or give its charge back: "
    "prdp ledger abort {release}",
    "drawn": f"A draw is recorded. {NO_RUN}prdp release with its plan publishes a complete draw, and destroys another "
    "and draws anew; or end it, which keeps the charge: prdp ledger abort {release}",
    "destroyed": f"Its draw was destroyed. {NO_RUN}prdp release with its plan draws anew; or end it, which keeps the "
    "charge: prdp ledger abort {release}",
    "approved": "It is approved, and not yet published. Finish it: prdp ledger approve {release}, or prdp release with "
    "its plan",
    "published": "It is published, but its files may not be complete at {out}. Finish it: prdp release with its plan",
    "held": "It waits for a decision: prdp ledger approve {release}, or prdp ledger reject {release} --reason TEXT",
}


def officer_page(
    address: str, entries: Sequence[Entry], staged: Callable[[ReleaseState], tuple[str, str | None]], now: datetime
) -> str:
    """Return the page of the ledger at `address` with all its `entries`, made at `now`.

    `staged` says where the page of a held release lies: as text, and as a link where a browser can follow one.
    """
    releases = histories(entries)
    budgets: dict[str, Budget] = {}
    for entry in (each for each in entries if each.event == BUDGETED):
        budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
    kept = accounts(budgets, [history.state for history in releases.values()])
    refused = Counter(entry.dataset for entry in entries if entry.refuses)
    held = [history for history in releases.values() if history.state.status == "held" and not history.state.approved]
    stuck = [*_closed(entries), *_stuck(releases.values(), now), *_refused(kept, refused)]
    return rendered(
        "officer.html",
        mark=MARK,
        figures=True,
        title="The ledger, for disclosure officers",
        headings=HEADINGS,
        address=address,
        entries=f"{len(entries):,}",
        approve=with_ledger("prdp ledger approve", address),
        reject=with_ledger("prdp ledger reject", address),
        head=entries[-1].hash if entries else "none",
        made=f"{now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        held=[_held(history, kept, staged(history.state)) for history in held],
        stuck=Table(
            ("what", "state", "since", "what to do"),
            [(*row[:3], with_ledger(row[3], address)) for row in stuck],
            words=[3],
        ),
        spent=[_spent(account, refused) for account in kept],
        releases=_releases(releases.values()),
        acts=_acts(entries),
        most=f"{MOST_ACTS:,}",
        cut=len(entries) > MOST_ACTS,
    )


def _held(history: History, kept: Sequence[Account], staged: tuple[str, str | None]) -> dict[str, Any]:
    """Return what an officer needs to know of a held release: where its page is, and what it adds to what is spent."""
    state = history.state
    since = next(time for time, event, _ in reversed(history.acts) if event == "held")  # an approval may have followed
    rows = []
    for account, under in ((each, under) for each in kept for under in each.limits):
        for loss in (loss for each, loss in under.spent if each.release == state.release):
            others = under.total - loss
            cells = (bound_text(others), bound_text(loss), _limit(under.limit), down_text(under.left))
            rows.append((f"{account.kind} {account.name}, at {under.limit.at.label}", *cells))
    header = ("limit of", "all others spent", "this one", "limit", "left after it")
    return {
        "release": state.release,
        "dataset": state.dataset,
        "since": since[:16].replace("T", " "),
        "out": state.out,
        "page": staged[0],
        "link": staged[1],
        "approvals": approval_lines(state),
        "adds": Table(header, rows, range(1, len(header))) if rows else None,
    }


def _closed(entries: Sequence[Entry]) -> Iterator[Sequence[str]]:
    last = next((entry for entry in reversed(entries) if entry.event in (CLOSED, REOPENED)), None)
    if last is not None and last.event == CLOSED:
        advice = (
            "Nothing is reserved, drawn or published. "
            "See that it knows all that was published: prdp ledger admin reopen"
        )
        yield "the ledger", "closed", last.time[:10], advice


def _stuck(releases: Iterable[History], now: datetime) -> Iterator[Sequence[str]]:
    for history in releases:
        state, (time, _, _) = history.state, history.acts[-1]
        kind: str = state.status
        if kind == "drawn" and state.attempt is None:
            kind = "destroyed"
        if kind == "held" and state.approved:
            kind = "approved"
        waits = now - datetime.fromisoformat(time)
        if kind in WHAT_TO_DO and (kind != "held" or waits > HELD_LONG):
            text = f"held for {waits.days} days" if kind == "held" else kind
            advice = WHAT_TO_DO[kind].format(release=state.release, out=state.out)
            yield f"release {state.release}", text, time[:10], advice


def _refused(kept: Sequence[Account], refused: Mapping[str, int]) -> Iterator[Sequence[str]]:
    for account in kept:
        counted, allowed = refused.get(account.name, 0), account.budget.refusals if account.budget else REFUSALS
        if counted >= allowed:
            act = (raising if account.budget else registering)(account.name)
            advice = f"State a larger number as refusals: {act}"
            yield f"{account.kind} {account.name}", f"{counted} of {allowed} refusals because of records", "–", advice


def _spent(account: Account, refused: Mapping[str, int]) -> dict[str, Any]:
    budget = account.budget
    facts = [] if budget is None else [f"unit {budget.unit}"]
    facts += [f"of family {budget.family}"] if budget and budget.family else []
    facts += ["synthetic microdata"] if budget and budget.synthetic else []
    facts += ["not registered: the limits of its plans bind"] if budget is None else []
    allowed = budget.refusals if budget else REFUSALS
    facts.append(f"{refused.get(account.name, 0)} of {allowed} refusals because of records")
    over_family = account.family.limits if account.family else ()
    for under in over_family:
        spent = f"{bound_text(under.total)} of {_limit(under.limit)} spent, {down_text(under.left)} left"
        facts.append(f"over its family at {under.limit.at.label}: {spent}")
    if budget and budget.reason:
        facts.append(f"limits replaced: {budget.reason}")
    return {
        "heading": f"{account.kind.capitalize()} {account.name}",
        "facts": "; ".join(facts),
        "limits": [_limit_bars(each) for each in account.limits],
        "unbounded": not (account.limits or over_family),
    }


def _limit_bars(under: UnderLimit) -> dict[str, Any]:
    """Return the releases under a limit as bars, each from what was spent before it, and what is left."""
    shown = [(f"{state.release}, {state.status}", loss, state.status in PUBLIC) for state, loss in under.spent]
    if len(shown) > MOST_BARS:
        cut = len(shown) - MOST_BARS + 1
        earlier = sum((loss for _, loss, _ in shown[:cut]), Fraction(0))
        shown = [(f"{cut} earlier releases", earlier, True), *shown[cut:]]
    width = max(under.limit.rho, under.total) or Fraction(1)
    bars, before = [], Fraction(0)
    for label, loss, public in shown:
        bars.append(_bar(label, before / width, loss / width, bound_text(loss), "share" if public else "range"))
        before += loss
    left = max(under.left, Fraction(0))
    bars.append(_bar("left", before / width, left / width, down_text(under.left), "free"))
    return {
        "at": under.limit.at.label,
        "spent": bound_text(under.total),
        "limit": _limit(under.limit),
        "left": down_text(under.left),
        "bars": bars,
    }


def _bar(label: str, start: Fraction, share: Fraction, figure: str, look: str) -> dict[str, Any]:
    place = f"left:{float(100 * start):.2f}%;width:{float(100 * share):.2f}%"
    return {"label": label, "place": place, "figure": figure, "look": look}


def _limit(limit: Limit) -> str:
    return str(as_json(limit.rho))


def _releases(releases: Iterable[History]) -> Table:
    rows = [
        (
            *(history.state.release, history.state.dataset, history.state.status),
            *(str(history.state.draws), str(history.state.charges), history.acts[-1][0][:10]),
            *(history.state.reservation["supersedes"] or "–", history.state.out),
        )
        for history in releases
    ]
    return Table(("release", "dataset", "state", "draws", "charged", "since", "supersedes", "output"), rows, [3, 4])


def _acts(entries: Sequence[Entry]) -> Table:
    rows = [
        (
            entry.time[:16].replace("T", " "),
            entry.facts["act"] if entry.event == BUDGETED else entry.event,
            entry.release or entry.dataset,
            entry.by or "–",
            _facts(entry),
        )
        for entry in reversed(entries[-MOST_ACTS:])
    ]
    return Table(("UTC", "act", "of", "by", "reason, or what"), rows, words=[4])


def _facts(entry: Entry) -> str:
    """Return what an act says beside its name; no count of records, noisy or not."""
    facts = entry.facts
    texts = [str(facts["reason"])] if facts.get("reason") else []
    if entry.event == BUDGETED:
        limits = (Limit.from_json(limit) for limit in facts["limits"])
        texts += ["; ".join(f"at most {as_json(limit.rho)} at {limit.label}" for limit in limits)]
    if entry.event == REQUIRED and (required := Required.of(facts)) is not None:
        texts.append(required.words)
    if entry.event == "tested":
        texts.append("passed" if facts["passed"] else "refused: too many records left out")
    if entry.event == "charged":
        texts.append(f"counts {facts['charges']} times")
    if entry.event == "drawn":
        texts.append(f"draw {facts['draw']}")
    if entry.event == "purged":
        texts.append(f"{len(facts['names'])} removed")
    if facts.get("exposed"):
        texts.append("others may have seen it")
    return "; ".join(texts)


def write_officer_page(ledger: Ledger, out: Path) -> Path:
    """Write the page to the file `out`, complete or not at all, with mode 0600; return its absolute path.

    An earlier page there is replaced, and nothing else. Raises StateError where another file lies there, it cannot be
    written, or releases are published or staged beside it.
    """
    path = Path(os.path.abspath(out))
    require_outside(path, release_folders(ledger))
    page = officer_page(ledger.address, ledger.entries(), lambda state: _staged(ledger, state), datetime.now(UTC))
    try:
        if os.path.lexists(path) and (path.is_symlink() or GENERATOR not in path.read_bytes()):
            raise StateError(f"{arg('out', out)}: is there already, and no page of a ledger: give a new file")
        LocalPath(path).write_durably(page.encode())
    except OSError as error:
        raise StateError(f"{arg('out', out)}: it cannot be written ({error.strerror}): give another file") from None
    return path


def _staged(ledger: Ledger, state: ReleaseState) -> tuple[str, str | None]:
    """Return where the page of a held release lies, and a link to it where it is a file that this user sees."""
    attempt = root_of_name(ledger, state.stagings[-1]) / state.release / attempt_of(state)
    page, local = staged_page(attempt), staged_page(attempt).as_path()
    if local is not None:
        with suppress(OSError):
            if local.is_file():
                return str(page), local.as_uri()
            return str(attempt / "report.html"), None  # an earlier build staged no site
    return str(page), None
