"""What the ledger shows officers of a release: its state, its attempts and its acts."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.ledger.entries import Entry, Required
from pipeline.ledger.fold import ReleaseState, step

# An entry of these ends the live attempt, or records how far it came.
_STAGES = ("held", "destroyed", "rejected", "published", "settled", "withdrawn")

# What is shown of a release, as `prdp ledger show --json` and `prdp.Ledger.show` have it.
COLUMNS = (
    *("release", "dataset", "state", "attempt", "draws", "charges", "tests", "plan_digest", "out", "supersedes"),
    *("code", "hold", "check", "approved", "approvals", "reason", "attempts", "acts"),
)


@dataclass(frozen=True)
class Attempt:
    """One draw: when, on what staging root, how far it came, and whether others may have seen its staging."""

    attempt: str
    draw: int
    time: str
    stage: str
    staging: str | None
    exposed: bool = False
    ended: str | None = None


@dataclass(frozen=True)
class History:
    """A release: its state, its attempts and its acts, in order."""

    state: ReleaseState
    attempts: tuple[Attempt, ...]
    acts: tuple[tuple[str, str, str | None], ...]  # time, event, operator

    def to_json(self) -> dict[str, Any]:
        """The release as JSON, a key for each of COLUMNS."""
        state = self.state
        approvals = asdict(state.required or Required(int(state.hold)))
        counts = ("kept", "left_out", "passed")
        tests = [{name: getattr(one, name) for name in counts} | one.test.to_json() for one in state.tests]
        values = (
            *(state.release, state.dataset, state.status, state.attempt, state.draws, state.charges),
            tests,
            *(state.digest, state.out, state.reservation["supersedes"], state.reservation["code"]),
            *(state.hold, state.check, state.approved),
            approvals | {"by": [asdict(approval) for approval in state.approvals]},
            state.reason,
            [asdict(attempt) for attempt in self.attempts],
            [{"time": time, "event": event, "operator": operator} for time, event, operator in self.acts],
        )
        return dict(zip(COLUMNS, values, strict=True))


def approval_lines(state: ReleaseState) -> list[str]:
    """Return who approved a release, where several must, and who may still, in lines for people."""
    required, approvals = state.required, state.approvals
    if required is None:
        return []
    lines = [
        f"approved by role {approval.role} ({approval.operator or '-'}) at {approval.time[:19]}"
        for approval in approvals
    ]
    if state.status == "held" and not state.approved:
        runners = state.runners if required.by_others else frozenset[str | None]()
        known = sorted({str(approval.role) for approval in approvals} | set(map(str, runners)))
        missing, others = required.number - len(approvals), f", other than {' and '.join(known)}" if known else ""
        more = "1 more role approves it" if missing == 1 else f"{missing} more roles approve it"
        lines.append(f"{len(approvals)} of {required.number} approvals: it stays held until {more}{others}")
    return lines


def histories(entries: Iterable[Entry]) -> dict[str, History]:
    """Return the history of every release in `entries`, in the order of first reservation; StateError as `step`."""
    releases: dict[str, History] = {}
    for entry in entries:
        if entry.of_release:
            releases[entry.release] = _continued(releases.get(entry.release), entry)
    return releases


def _continued(before: History | None, entry: Entry) -> History:
    state = step(before.state if before else None, entry)
    # A name that was refunded and reserved anew has the history of both reservations, as in the ledger.
    attempts, acts = (before.attempts, before.acts) if before else ((), ())
    if entry.event == "drawn":
        facts = entry.facts
        drawn = Attempt(str(entry.attempt), facts["draw"], entry.time, "drawn", facts.get("staging"))
        attempts = (*attempts, drawn)
    elif attempts and (entry.event in _STAGES or (entry.event == "aborted" and attempts[-1].ended is None)):
        exposed = bool(entry.facts.get("exposed", attempts[-1].exposed))
        ended = None if entry.event in ("held", "published") else entry.time
        attempts = (*attempts[:-1], replace(attempts[-1], stage=entry.event, exposed=exposed, ended=ended))
    return History(state, attempts, (*acts, (entry.time, entry.event, entry.facts.get("operator"))))
