"""A ledger as it is read: states, entries, budgets, what is spent, whether its chain is intact; nothing is written.

Of a release officers are shown its state, its attempts and its acts (`History`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from pipeline.base.canonical import canonical_json
from pipeline.base.errors import StateError
from pipeline.ledger.admission import Account, accounts, require_source
from pipeline.ledger.database import Connection, Database, among
from pipeline.ledger.datasets import Budget, budget_step, budgets_of, registered_at
from pipeline.ledger.entries import (
    BUDGETED,
    CHECKED,
    DIAGNOSED,
    GENESIS,
    REQUIRED,
    Diagnosed,
    Entry,
    Required,
    changed,
    closed_after,
    closed_by,
    entries,
    head_of,
    require_carried,
    required_by,
    required_step,
)
from pipeline.ledger.fold import ReleaseState, state_of, states_of, step
from pipeline.ledger.microdata_rules import known_as, refusals_of
from pipeline.ledger.summaries import Kept, Row, Summaries, Summary, what_is_kept

_UNCHANGING = ("settled", "rejected", "withdrawn")


def verified(chain: Iterable[Entry]) -> tuple[int, str]:
    """Return the number and hash of the last entry of the `chain`, each entry of which has its own hash.

    Raises StateError that names the first entry that is not linked to the one before it, or could not legally follow.
    """
    seq, head = 0, GENESIS
    closed: Entry | None = None
    states: dict[str, ReleaseState] = {}
    budgets: dict[str, Budget] = {}
    required: Required | None = None
    for entry in chain:
        if not entry.follows(seq, head):
            raise changed(seq + 1)
        try:
            closed = closed_after(closed, entry)
            if entry.event == "reserved":
                require_carried(required, entry)
            if entry.of_release:
                state = step(states.get(entry.release), entry)
                done = state.status in _UNCHANGING  # what was reserved and tested says nothing to later steps
                states[entry.release] = replace(state, reservation={}, tests=()) if done else state
            elif entry.event == BUDGETED:
                budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
            elif entry.event == REQUIRED:
                required = required_step(required, entry)
            elif entry.event in (DIAGNOSED, CHECKED):
                Diagnosed.of(entry)
        except (StateError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the ledger breaks its own rules at entry {entry.seq}: {error}") from None
        seq, head = entry.seq, entry.hash
    return seq, head


def require_true(connection: Connection) -> None:
    """Return if the summaries that are kept are those of the chain, computed anew; raises StateError otherwise.

    What was made by other code is not used, and so not looked at; nor is there anything to check where nothing is kept.
    """
    kept, due = what_is_kept(connection)
    if kept is None or not kept.texts:  # there are none in a ledger that was imported
        return
    if kept.digest != due:
        raise StateError(
            f"the ledger's summaries are not those that entry {kept.seq} vouches for: somebody changed them; they are "
            "not used, and the next reservation keeps new ones, computed from the chain"
        )
    anew = Summaries(connection, before=kept.seq)
    if set(anew.datasets) != set(kept.texts):
        raise _untrue(min(set(anew.datasets) ^ set(kept.texts)), kept.seq)
    for dataset, text in kept.texts.items():
        summary, known = anew.of(dataset), Summary(connection, dataset, text)
        summary.ask(known.references)
        if _only(summary.content(), text) != text:
            raise _untrue(dataset, kept.seq)


def _only(content: str, text: str) -> str:
    data, kept = json.loads(content), json.loads(text)
    for policy, known in zip(data["policies"], kept["policies"], strict=False):
        policy[1] = [None if one is None else loss for loss, one in zip(policy[1], known[1], strict=False)]
    return canonical_json(data)


def _untrue(dataset: str, seq: int) -> StateError:
    return StateError(
        f"the summary of dataset {dataset} that entry {seq} vouches for is not what the chain says: a release may have "
        "been reserved against a limit: compare the dataset's limits with prdp ledger show"
    )


Answer = TypeVar("Answer")


class ReadLedger:
    """What the ledger in a database records; each question is answered from one state of it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Kept | None = None  # summaries that were computed here; the chain says whether they are still true

    def _read(self, question: Callable[[Connection], Answer]) -> Answer:
        with self._reading() as connection:
            return question(connection)

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    @property
    def address(self) -> str:
        """The file, or the server's address without password, as messages name the ledger."""
        return self._database.name

    @property
    def path(self) -> Path | None:
        """The file that holds the ledger; None where a server does."""
        return self._database.path

    @property
    def staging_root(self) -> Path:
        """The folder under which attempts are staged unless a run names another: beside a ledger's file."""
        return self._database.staging_root

    def connection_files(self) -> Mapping[str, Path]:
        """The files that a connection to a server reads, by the names of its settings; none for a file."""
        return self._database.connection_files()

    def served_certificate(self) -> bytes | None:
        """The certificate, in DER, that the ledger's server shows; None for a file, and where it shows none."""
        return self._database.served_certificate()

    def server_time(self) -> datetime | None:
        """Return what the server's clock says, with its zone; None where the ledger is a file of this machine."""
        now = "SELECT pg_catalog.clock_timestamp()"
        return None if self.path else self._read(lambda connection: cast("datetime", connection.value(now)))

    def lock(self, release: str) -> AbstractContextManager[None]:
        """Hold the lock on `release` for a block; StateError at once where another attempt is alive."""
        return self._database.lock(release)

    def state(self, release: str) -> ReleaseState | None:
        """Return the state of `release`, None where it was never reserved."""
        return self._read(lambda connection: state_of(connection, release))

    def states(self) -> list[ReleaseState]:
        """Return the states of all releases, in the order of first reservation."""
        return list(self._read(states_of).values())

    def diagnoses(self) -> list[Diagnosed]:
        """Return all runs of diagnostics, and all checks of microdata, in order."""
        runs = "event IN (?, ?)", DIAGNOSED, CHECKED
        return self._read(lambda connection: [Diagnosed.of(entry) for entry in entries(connection, *runs)])

    def head(self) -> tuple[int, str]:
        """Return the last entry's number and hash; (0, 64 zeros) for an empty ledger."""
        return self._read(head_of)

    def identity(self) -> str | None:
        """Return the hash of the first entry, which no other ledger has, wherever this one lies; None while empty."""
        return self._read(lambda connection: next((entry.hash for entry in entries(connection, "seq = 1")), None))

    def budgets(self) -> dict[str, Budget]:
        """Return the registered datasets and families by name."""
        return self._read(budgets_of)

    def require_source(self, dataset: str, names: Sequence[str], *, registered_only: bool = False) -> None:
        """Raise StateError unless a dataset's microdata may lie at a place of these names; nothing is looked at."""
        require_source(self.budgets(), dataset, names, registered_only)

    def dataset_at(self, names: Sequence[str]) -> Budget | None:
        """Return the registered dataset whose microdata a place of one of these names is, or holds, or is a part of."""
        return registered_at(self.budgets(), names)

    def dataset_with(self, fingerprints: Sequence[str]) -> str | None:
        """Return a dataset, registered or ever reserved, of which a file with one of the fingerprints is; else None."""
        return self._read(lambda connection: known_as(connection, fingerprints, budgets_of(connection)))

    def entries(self, release: str | None = None) -> list[Entry]:
        """Return all entries in order, or those that name a release; each is checked against its hash."""
        where = () if release is None else ("release = ?", release)
        return self._read(lambda connection: list(entries(connection, *where)))

    def latest(self, number: int, but: Sequence[str] = ()) -> list[Entry]:
        """Return the last `number` entries of other events than `but`, in order; each is checked against its hash."""
        others = f"event NOT IN {among(but)}" if but else "TRUE"
        last = f"SELECT seq FROM prdp.entries WHERE {others} ORDER BY seq DESC LIMIT ?"

        def read(connection: Connection) -> list[Entry]:
            first = min((seq for (seq,) in connection.execute(last, *but, number)), default=0)
            return list(entries(connection, f"{others} AND seq >= ?", *but, first))

        return self._read(read)

    @contextmanager
    def summaries(self) -> Iterator[Summaries]:
        """Yield what is known of all releases, in one state of the ledger; what it takes long to compute is kept here.

        Once the block has ended, its states in brief evaluate nothing more.
        """
        with self._reading() as connection:
            summaries = Summaries(connection, self._known)
            yield summaries
            if not summaries.vouched:
                self._known = summaries.current()

    def overview(self) -> tuple[list[tuple[str, Row]], list[Account]]:
        """Return all releases in brief with their datasets, in order, and the accounts of datasets and families."""
        with self.summaries() as summaries:
            return summaries.rows(), accounts(summaries.budgets, summaries.states())

    def sources(self) -> set[tuple[str, str | None]]:
        """Return each dataset of which a release is charged, with where the microdata of one lay."""
        with self.summaries() as summaries:
            charged = (state for state in summaries.states() if state.charges > 0)
            return {(state.dataset, state.reservation.get("source")) for state in charged}

    def places(self) -> list[str]:
        """Return the outputs and staging roots that releases name, as the ledger names them."""
        with self.summaries() as summaries:
            states = summaries.states()
            named = [
                name for state in states for name in (state.out, state.reservation.get("staging"), *state.stagings)
            ]
            return [name for name in dict.fromkeys(named) if name is not None]

    def counted(self, dataset: str) -> list[str]:
        """Return the releases of a dataset of which something counts against a budget."""
        with self.summaries() as summaries:
            return [state.release for state in summaries.charged([dataset])]

    def refusals(self) -> dict[str, int]:
        """Return how many releases were refused because of their records, by dataset and by family."""
        with self.summaries() as summaries:
            return refusals_of(summaries)

    def required(self) -> Required | None:
        """Return the approvals that releases take which are reserved now; None: one, of those that are held."""
        return self._read(required_by)

    def closed(self) -> Entry | None:
        """Return the entry that closed the ledger; None where it is open."""
        return self._read(closed_by)

    def verify(self) -> tuple[int, str]:
        """Return the head after checking every entry: its hash, its link, no gap, and a legal history.

        Raises StateError that names the first bad entry. Entries cut from the end leave no trace in the file: compare
        the head with one that was published.
        """
        with self._reading() as connection:
            head = verified(entries(connection))
            require_true(connection)
            return head


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
