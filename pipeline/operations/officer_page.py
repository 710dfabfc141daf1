"""The officers' page of a ledger: what waits, what is stuck, what was spent on whom, what is left, who did what.

It is confidential, a file apart from all releases: it names where drafts lie. It holds no record's value and no count
of records.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from pipeline.accounting.accountant import total
from pipeline.accounting.convert import DELTA, interpretation
from pipeline.accounting.interpretation import Loss, interpret_at
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import StateError, arg, file_errors
from pipeline.base.plain import Table, rendered, with_ledger
from pipeline.ledger.admission import Account, UnderLimit
from pipeline.ledger.datasets import REFUSALS, raising, registering
from pipeline.ledger.entries import BUDGETED, CHECKED, DIAGNOSED, REQUIRED, Diagnosed, Entry, Required
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.reading import History, approval_lines, histories
from pipeline.ledger.reservation import charged
from pipeline.ledger.spending import charges_of, fixed_in_advance
from pipeline.ledger.store import Ledger
from pipeline.ledger.summaries import Row
from pipeline.release.attempts import attempt_of, release_folders, require_outside, root_of_name
from pipeline.storage.local import LocalPath
from udfs.numbers.exact import as_json, bound_text, down_text, up_float, up_probability

MARK = "CONFIDENTIAL"
HEADINGS = (
    ("waiting", "What waits for you"),
    ("stuck", "What is stuck"),
    ("spent", "What was spent on whom"),
    ("left", "What is left"),
    ("acts", "Who did what"),
    ("releases", "Releases"),
)
HELD_LONG = timedelta(days=7)  # of a held release that waits longer it is told for how long
BEST_TESTS = ("best test of it alone", "of all within the limit")
MOST_BARS = 20  # of one limit: earlier releases share a bar
MOST_YEARS = 4  # with a column of their own, this one among them
MOST_ACTS = 500  # the latest, of acts and of releases; prdp ledger admin export has all
CHECKS = {CHECKED: "checks of the microdata", DIAGNOSED: "diagnostics"}  # counted: a dataset may have thousands

GENERATOR = b'content="prdp ledger page"'  # of the pages that a new one may replace
NO_RUN = "If no run of it is under way"
RUN, ABORT = "prdp release PLAN --out {out}{staging}", "prdp ledger abort {release}"
APPROVE, REJECT = "prdp ledger approve {release}", "prdp ledger reject {release} --reason TEXT"
WHAT_TO_DO = {  # why, and commands of which one goes on
    "reserved": (f"Nothing is drawn. {NO_RUN}, run its plan again, or give its charge back", (RUN, ABORT)),
    "drawn": (
        f"A draw is recorded. {NO_RUN}, its plan's next run publishes a complete draw, and destroys another and draws "
        "anew; or end it, which keeps the charge",
        (RUN, ABORT),
    ),
    "destroyed": (
        f"Its draw was destroyed. {NO_RUN}, its plan's next run draws anew; or end it, which keeps the charge",
        (RUN, ABORT),
    ),
    "approved": ("It is approved, and not yet published. Finish it", (APPROVE, RUN)),
    "published": ("It is published, but its files may not be complete at its output. Finish it", (RUN,)),
    "held": ("It waits for a decision", (APPROVE, REJECT)),
}


class Stuck(NamedTuple):
    """What goes no further, since when and why, and the commands of which one goes on."""

    what: str
    state: str
    since: str
    why: str
    acts: Sequence[str]


def remedy(kind: str, state: ReleaseState) -> tuple[str, list[str]]:
    """Return why a release goes no further, and the commands of which one goes on, quoted for a shell."""
    why, acts = WHAT_TO_DO[kind]
    root = (state.stagings or (state.reservation.get("staging"),))[-1]
    staging = "" if root is None else f" --staging {quote(root)}"
    names = {"release": quote(state.release), "out": quote(state.out), "staging": staging}
    return why, [act.format(**names) for act in acts]


def kind_of(row: Row) -> str:
    """Return the state of a release; "approved" of one that is held no longer, "destroyed" of one without its draw."""
    if row.status == "held" and row.approved:
        return "approved"
    return "destroyed" if row.status == "drawn" and row.awaits_scan else str(row.status)


def officer_page(ledger: Ledger, staged: Callable[[ReleaseState], tuple[str, str | None]], now: datetime) -> str:
    """Return the page of a ledger, made at `now`.

    `staged` says where the page of a held release lies: as text, and as a link where a browser can follow one.
    """
    named, kept = ledger.overview()
    rows = [row for _, row in named]
    held = [row for row in rows if kind_of(row) == "held"]
    refused, closed, (entries, head) = ledger.refusals(), ledger.closed(), ledger.head()
    latest = ledger.latest(MOST_ACTS, but=(*CHECKS,))
    return rendered(
        "officer.html",
        mark=MARK,
        figures=True,
        title="The ledger, for disclosure officers",
        headings=HEADINGS,
        address=ledger.address,
        entries=f"{entries:,}",
        head=head if entries else "none",
        made=f"{now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
        held=[_held(histories(ledger.entries(row.release))[row.release], kept, staged, now) for row in held],
        stuck=[*_closed(closed), *_stuck(ledger, rows), *_refused(kept, refused)],
        spent=_spent(kept, now.year),
        left=[_left(account, refused) for account in kept],
        by_state=", ".join(f"{number:,} {kind}" for kind, number in Counter(map(kind_of, rows)).items()),
        releases=_releases(named),
        people=_people(latest),
        checks=_checks(ledger),
        acts=_acts(latest),
        named=lambda act: with_ledger(act, ledger.address),
        most=f"{MOST_ACTS:,}",
        cut=len(latest) == MOST_ACTS,
        cut_releases=len(rows) > MOST_ACTS,
    )


def _held(
    history: History, kept: Sequence[Account], staged: Callable[[ReleaseState], tuple[str, str | None]], now: datetime
) -> dict[str, Any]:
    """Return what an officer needs to know of a held release: where its page is, and what it adds to what is spent."""
    state = history.state
    since = next(time for time, event, _ in reversed(history.acts) if event == "held")  # an approval may have followed
    rows = []
    for account, under in ((each, under) for each in kept for under in each.limits):
        for loss in (loss for each, loss in under.spent if each.release == state.release):
            others = bound_text(under.total - loss)
            figures = (others, bound_text(loss), _limit(under.limit), down_text(under.left))
            tests = (_best_test(state, under.limit.at, loss), _best_test_within(account, under))
            rows.append((f"{account.kind} {account.name}, at {under.limit.at.label}", *figures, *tests))
    header = ("limit of", "all others spent", "this one", "limit", "left after it", *BEST_TESTS)
    waits = now - datetime.fromisoformat(since)
    page, link = staged(state)
    return {
        "release": state.release,
        "dataset": state.dataset,
        "since": since[:16].replace("T", " "),
        "long": f", held for {waits.days} days" if waits > HELD_LONG else "",
        "out": state.out,
        "page": page,
        "link": link,
        "approvals": approval_lines(state),
        "adds": Table(header, rows, range(1, len(header))) if rows else None,
        "acts": remedy("held", state)[1],
    }


def _best_test(state: ReleaseState, at: Reference, loss: Fraction) -> str:
    """Return how well the best test of this release alone, whatever else was released, detects the reference."""
    anywhere, one = at.anywhere(), charged(state, state.charges)
    if state.charges == 1 and not one.tests:
        means = interpret_at(one.policy, anywhere, Loss(loss, one.pure_loss_at(anywhere)), DELTA)
    else:  # several draws may have been seen
        means = interpretation(None, up_float(loss), None, DELTA)
    return up_probability(means["power"])


def _best_test_within(account: Account, under: UnderLimit) -> str:
    """Return how well the best test of all releases together does, by the lowest limit that was fixed in advance."""
    fixed = fixed_in_advance(account.budget, [state for state, _ in under.spent])
    bounds = [limit for limit in fixed if limit.at.covers(under.limit.at)]
    if not bounds:
        return "not known: stated anew since"
    rho = min(limit.rho for limit in bounds)
    power = up_probability(interpretation(None, up_float(rho), None, DELTA)["power"])
    return power if rho == under.limit.rho else f"{power}, by {as_json(rho)}"


def _closed(closed: Entry | None) -> Iterator[Stuck]:
    if closed is not None:
        why = "Nothing is reserved, drawn or published. See that it knows all that was published, and open it"
        yield Stuck("the ledger", "closed", closed.time[:10], why, ["prdp ledger admin reopen"])


def _stuck(ledger: Ledger, rows: Iterable[Row]) -> Iterator[Stuck]:
    for row in rows:
        kind = kind_of(row)
        if kind in WHAT_TO_DO and kind != "held" and (state := ledger.state(row.release)) is not None:
            yield Stuck(f"release {row.release}", kind, row.time[:10], *remedy(kind, state))


def _refused(kept: Sequence[Account], refused: Mapping[str, int]) -> Iterator[Stuck]:
    for account in kept:
        counted, allowed = refused.get(account.name, 0), account.budget.refusals if account.budget else REFUSALS
        if counted >= allowed:
            act = (raising if account.budget else registering)(account.name)
            state = f"{counted} of {allowed} refusals because of records"
            why = "No release of it is read any more. State a larger number as refusals in its file"
            yield Stuck(f"{account.kind} {account.name}", state, "", why, [act])


def _spent(kept: Sequence[Account], this_year: int) -> Table:
    """Return what the reference of each limit, of each dataset and family, has lost by year and in all."""
    lost = [(account, under, defaultdict[int, Fraction](Fraction)) for account in kept for under in account.limits]
    for _, under, of_years in lost:
        for charge in (charge for pair in under.spent for charge in charges_of(*pair, under.limit.at)):
            of_years[charge.year] += charge.loss
    years = sorted({this_year, *(year for _, _, of_years in lost for year in of_years)})
    shown = years[: -MOST_YEARS - 1 : -1]  # the latest first
    earlier = ["earlier"] if len(years) > len(shown) else []
    rows = []
    for account, under, of_years in lost:
        before = total(loss for year, loss in of_years.items() if year not in shown)
        by_year = [under.total, *(of_years[year] for year in shown), *([before] * len(earlier))]
        rows.append((f"{account.kind} {account.name}", _whom(under.limit.at), *map(bound_text, by_year)))
    header = ("of", "whom", "in all", *map(str, shown), *earlier)
    return Table(header, rows, range(2, len(header)))


def _whom(at: Reference) -> str:
    return f"{len(at.records)} together: {at.label}" if at.listed else at.label


def _left(account: Account, refused: Mapping[str, int]) -> dict[str, Any]:
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


def _releases(named: Sequence[tuple[str, Row]]) -> Table:
    rows = [
        (row.release, dataset, kind_of(row), str(row.draws), str(row.charges), row.time[:10], row.operator or "–")
        for dataset, row in reversed(named[-MOST_ACTS:])
    ]
    return Table(("release", "dataset", "state", "draws", "charged", "since", "by"), rows, [3, 4])


def _checks(ledger: Ledger) -> Table | None:
    """Return how often the microdata of each dataset were checked, or diagnosed, and by whom at last."""
    runs: dict[tuple[str, str], list[Diagnosed]] = {}
    for run in ledger.diagnoses():
        runs.setdefault((run.dataset, run.event), []).append(run)
    rows = [
        (dataset, CHECKS[event], f"{len(mine):,}", mine[-1].time[:10], mine[-1].operator or "–")
        for (dataset, event), mine in runs.items()
    ]
    return Table(("dataset", "what", "how often", "last", "by"), rows, [2]) if rows else None


def _people(latest: Sequence[Entry]) -> Table:
    """Return what each person did in these entries, by number, and when at last."""
    acts: dict[str, Counter[str]] = {}
    last = {entry.by: entry.time[:10] for entry in latest}
    for entry in latest:
        acts.setdefault(entry.by, Counter())[_act(entry)] += 1
    rows = [
        (by or "–", ", ".join(f"{number:,} {act}" for act, number in each.most_common()), last[by])
        for by, each in acts.items()
    ]
    return Table(("who", "did", "last"), rows, words=[1])


def _act(entry: Entry) -> str:
    return str(entry.facts["act"]) if entry.event == BUDGETED else entry.event


def _acts(latest: Sequence[Entry]) -> Table:
    rows = [
        (entry.time[:16].replace("T", " "), _act(entry), entry.release or entry.dataset, entry.by or "–", _facts(entry))
        for entry in reversed(latest)
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
    if entry.event == "reserved" and facts.get("supersedes"):
        texts.append(f"supersedes {facts['supersedes']}")
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
    page = officer_page(ledger, lambda state: _staged(ledger, state), datetime.now(UTC))
    with file_errors(f"{arg('out', out)}: it cannot be written (", "): give another file"):
        if os.path.lexists(path) and (path.is_symlink() or GENERATOR not in path.read_bytes()):
            raise StateError(f"{arg('out', out)}: is there already, and no page of a ledger: give a new file")
        LocalPath(path).write_durably(page.encode())
    return path


def _staged(ledger: Ledger, state: ReleaseState) -> tuple[str, str | None]:
    """Return where the page of a held release lies, and a link to it where it is a file that this user sees."""
    from pipeline.publication.site.site_files import staged_page  # noqa: PLC0415 — a fifth of the command

    attempt = root_of_name(ledger, state.stagings[-1]) / state.release / attempt_of(state)
    page, local = staged_page(attempt), staged_page(attempt).as_path()
    if local is not None:
        with suppress(OSError):
            if local.is_file():
                return str(page), local.as_uri()
            return str(attempt / "report.html"), None  # an earlier build staged no site
    return str(page), None
