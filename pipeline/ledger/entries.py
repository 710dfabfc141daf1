"""The entries of the ledger: what one holds, its hash, the chain that the hashes make, and how entries are appended."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pipeline.base.canonical import canonical_json
from pipeline.base.errors import StateError, hint, in_a_line
from pipeline.ledger.database import Connection, among

GENESIS = "0" * 64  # in place of the previous hash, in the first entry
DIAGNOSED = "diagnosed"  # a run of diagnostics: it concerns the dataset, and changes no release's state
CHECKED = "checked"  # a check of the microdata, likewise
REFUSAL_EVENTS = ("refused", "tested")  # events that may refuse a release because of its records
CLOSED, REOPENED = "closed", "reopened"  # the ledger takes no entry in between
BUDGETED = "budgeted"  # a dataset, or a family of them, was registered or its limits were stated anew
REQUIRED = "required"  # approvals by several roles are asked for, of all later releases

NO_STEPS = (DIAGNOSED, CHECKED, BUDGETED, CLOSED, REOPENED, REQUIRED)  # events that change no release's state

# A pin is a digest of the input, against which guesses of it could be tested, and so are fingerprints of its files; a
# salt keeps them from the hashes. Locations say nothing of a record, but how the enclave is built.
FINGERPRINTS = "fingerprints"
SUMMARY = "summaries"  # a reservation vouches for the summaries up to the entry before it
CONFIDENTIAL = ("pin", "source", "staging", FINGERPRINTS, SUMMARY)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the ledger: it is appended, and never changed or removed.

    `seq` counts from 1 without gaps; `time` is UTC, ISO 8601; `payload` is canonical JSON text; `salt` is 32
    hexadecimal digits of the operating system's entropy; `previous` and `hash` are 64 hexadecimal digits.
    """

    seq: int
    time: str
    event: str
    dataset: str
    release: str
    attempt: str | None
    payload: str
    # A head hash is published, and entries hold facts that depend on the microdata (the pin of the input). The
    # salt, which stays in the ledger, keeps an outsider from testing guesses of those facts against the head.
    salt: str
    previous: str
    hash: str

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The payload as a mapping; raises ValueError where the text is no JSON object."""
        facts = json.loads(self.payload)
        if not isinstance(facts, dict):
            raise ValueError("the payload is no JSON object")
        return facts

    @property
    def of_release(self) -> bool:
        """Whether the entry is a step of its release."""
        return self.event not in NO_STEPS

    @property
    def refuses(self) -> bool:
        """Whether it refused a release because of its records."""
        return self.event in REFUSAL_EVENTS and not self.facts.get("passed")

    @property
    def role(self) -> str | None:
        """As whom the ledger's server knew who acted; None in a file. StateError on 77, which is not the role "77"."""
        role = self.facts.get("role")
        if not isinstance(role, str | None):
            raise StateError(f"entry {self.seq}: names a role that is no text")
        return role

    @property
    def by(self) -> str:
        """Who acted, in words: as they said, and as the ledger's server knew them."""
        operator, role = self.facts.get("operator"), self.facts.get("role")
        return f"{operator or '-'} (role {role})" if role else str(operator or "")

    @property
    def columns(self) -> dict[str, Any]:
        """All columns, `hash` included, by name."""
        return {name: getattr(self, name) for name in COLUMNS}  # asdict copies deeply: half the time of a long chain

    def hash_due(self) -> str:
        """Return the SHA-256 of the canonical JSON of every column but `hash`."""
        columns = self.columns
        del columns["hash"]
        return hashlib.sha256(canonical_json(columns).encode()).hexdigest()

    def follows(self, seq: int, head: str) -> bool:
        """Return whether this entry comes right after entry `seq`, whose hash is `head`."""
        return self.seq == seq + 1 and self.previous == head

    def exported(self, confidential: bool = False) -> dict[str, Any]:
        """Return the entry as JSON for other programs; `withheld` names the facts that only the enclave may know.

        With `confidential` none is, and the hash can be computed again from all other columns (docs/ledger.md).
        """
        line = {name: self.columns[name] for name in ("seq", "time", "event", "dataset", "release", "attempt")}
        line["release"] = self.release or None
        chain = {"previous": self.previous, "hash": self.hash}
        facts = dict(self.facts)
        if confidential:
            return line | {"facts": facts, "payload": self.payload, "salt": self.salt} | chain | {"confidential": True}
        withheld = [name for name in CONFIDENTIAL if facts.get(name) is not None]
        kept = {name: value for name, value in facts.items() if name not in CONFIDENTIAL}
        return line | {"facts": kept} | chain | {"withheld": ["salt", *withheld]}


COLUMNS = tuple(field.name for field in fields(Entry))


def read_entry(line: str) -> Entry:
    """Return the entry of a line of `prdp ledger admin export --confidential`; ValueError where it holds none."""
    data = json.loads(line)
    try:
        columns = {**data, "release": data["release"] or ""}
        entry = Entry(**{name: columns[name] for name in COLUMNS})
    except (KeyError, TypeError):
        raise ValueError("it is no entry of a ledger with all its columns") from None
    texts = {**entry.columns, "attempt": entry.attempt or ""}
    # What a database keeps as another type, such as a number 1.0 as 1, would no longer have the entry's hash.
    if type(texts.pop("seq")) is not int or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("a column of the entry is of another type")
    return entry


@dataclass(frozen=True)
class Act:
    """What an entry records: `event` on `release` of `dataset`, by `attempt` where one is meant, with JSON facts."""

    event: str
    dataset: str
    release: str
    attempt: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """That diagnostics of a plan were made: a plan tuned on them is outside the guarantee (architecture.md, rule 2).

    `time`, `operator` and `role` are those of the entry that records it.
    """

    dataset: str
    release: str
    digest: str  # of the plan
    pin: str  # of the input
    code: str  # its digest
    engine: str
    per_record: bool = False
    compared: str | None = None  # the attempt that was compared with the truth
    event: str = DIAGNOSED  # or CHECKED, of the microdata before a release
    time: str = ""
    operator: str | None = None
    role: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> "Diagnosed":
        """Return the run that an entry records; raises ValueError, KeyError or TypeError where it records none."""
        return cls(dataset=entry.dataset, release=entry.release, event=entry.event, time=entry.time, **entry.facts)

    def act(self) -> Act:
        """Return the act that records the run."""
        facts = asdict(self)
        dataset, release, event = (facts.pop(name) for name in ("dataset", "release", "event"))
        del facts["time"], facts["operator"], facts["role"]
        return Act(event, dataset, release, None, facts)


def next_entry(seq: int, head: str, act: Act) -> Entry:
    """Return the entry of `act` that follows entry `seq` with hash `head`, dated now, freshly salted."""
    of_act: dict[str, Any] = {
        "event": act.event,
        "dataset": act.dataset,
        "release": act.release,
        "attempt": act.attempt,
    }
    time, salt = datetime.now(UTC).isoformat(timespec="microseconds"), os.urandom(16).hex()
    payload = canonical_json(act.facts)
    bare = Entry(seq=seq + 1, time=time, payload=payload, salt=salt, previous=head, hash="", **of_act)
    return replace(bare, hash=bare.hash_due())


def entries(connection: Connection, where: str = "TRUE", *values: object) -> Iterator[Entry]:
    """Yield the entries that meet `where`, in order; StateError at one that is not what was written."""
    chosen = f"SELECT {', '.join(COLUMNS)} FROM prdp.entries WHERE {where} ORDER BY seq"
    for row in connection.execute(chosen, *values):
        entry = Entry(**dict(zip(COLUMNS, row, strict=True)))
        if entry.hash != entry.hash_due():
            raise changed(entry.seq)
        yield entry


def changed(seq: int) -> StateError:
    """Return the error that entry `seq` is not what was written."""
    return StateError(f"the ledger was changed at entry {seq}: restore it from a backup")


def unknown(kind: str, name: str, known: Iterable[str]) -> StateError:
    """Return the error that no release or dataset of this name is in the ledger; it names the nearest of the known."""
    names = list(dict.fromkeys(known))
    return StateError(f"{kind} {name}: is not in the ledger{hint(name, names, kind) or f'; it holds no {kind}'}")


def head_of(connection: Connection) -> tuple[int, str]:
    """Return the last entry's number and hash; (0, 64 zeros) where there is none."""
    seq, head = connection.row("SELECT seq, hash FROM prdp.entries ORDER BY seq DESC LIMIT 1") or (0, GENESIS)
    return seq, head


def last_entry(connection: Connection, where: str, *values: object) -> Entry | None:
    """Return the last entry that meets `where`; None where none does."""
    last = connection.value(f"SELECT max(seq) FROM prdp.entries WHERE {where}", *values)
    return next(entries(connection, "seq = ?", last), None)


def closed_by(connection: Connection) -> Entry | None:
    """Return the entry that closed the ledger; None where it is open."""
    entry = last_entry(connection, "event IN (?, ?)", CLOSED, REOPENED)
    return entry if entry is not None and entry.event == CLOSED else None


def require_open(closed: Entry | None) -> None:
    """Raise StateError where an entry closed the ledger."""
    if closed is not None:
        reason = in_a_line(closed.facts["reason"])
        raise StateError(
            f"the ledger is closed since {closed.time[:10]} ({reason}): nothing is reserved, drawn or "
            "published before an officer opens it: prdp ledger admin reopen"
        )


def closed_after(closed: Entry | None, entry: Entry) -> Entry | None:
    """Return what closes the ledger after `entry`, None where it is open; raises StateError where it may not follow."""
    if entry.event != REOPENED:
        require_open(closed)
    elif closed is None:
        raise StateError("the ledger is open")
    if entry.event == CLOSED and not entry.facts["reason"]:
        raise StateError("the ledger is closed for a reason: state it")
    return entry if entry.event == CLOSED else None


def append(connection: Connection, act: Act, legal: Callable[[Entry], object] = bool) -> Entry:
    """Append `act`, unless `legal` raises at its entry, or the ledger is closed and stays so; return the entry."""
    entry = next_entry(*head_of(connection), act)
    closed_after(closed_by(connection), entry)
    legal(entry)
    write(connection, entry)
    return entry


def write(connection: Connection, entry: Entry) -> None:
    """Write an entry as it is, after the last one: the database takes none in another place."""
    columns = entry.columns
    connection.execute(f"INSERT INTO prdp.entries ({', '.join(columns)}) VALUES {among(columns)}", *columns.values())


# Approvals by several persons: what a ledger asks for, who approved, and who cannot.
#
# A person is a role of the ledger's server: the name by which a session logged in, which the server itself compares
# with the entry (pipeline/ledger/database). What is asked for is an entry of the chain, binds every release reserved
# after it, and is never lowered.

APPROVALS = "approvals"  # the fact of what is asked for, of the act itself and of each reservation after it
MOST = 9


@dataclass(frozen=True)
class Required:
    """How many roles must approve a release; `by_others`: none of them may be one that ran it."""

    number: int
    by_others: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Required | None":
        """Return what an entry's facts hold; None where they hold nothing."""
        asked = facts.get(APPROVALS)
        return None if asked is None else cls(int(asked["number"]), bool(asked["by_others"]))

    @property
    def facts(self) -> dict[str, Any]:
        """The fact as entries hold it."""
        return {APPROVALS: asdict(self)}

    @property
    def act(self) -> Act:
        """The act that asks for it."""
        return Act(REQUIRED, "", "", None, self.facts)

    @property
    def words(self) -> str:
        """What is asked for, in words."""
        others = ", none of which ran it" if self.by_others else ""
        return f"approvals by {self.number} role{'s' * (self.number > 1)} of the ledger's server{others}"


@dataclass(frozen=True)
class Approval:
    """One approval: the role of the server (None: of a file, or of an older version), the operator, the UTC time."""

    role: str | None
    operator: str | None
    time: str

    @classmethod
    def of(cls, entry: Entry) -> "Approval":
        """Return the approval that an entry records."""
        return cls(entry.role, entry.facts.get("operator"), entry.time)


def required_step(before: Required | None, entry: Entry) -> Required:
    """Return what is asked for after `entry`; raises StateError where it would be less than before."""
    after = Required.of(entry.facts)
    if after is None or not 1 <= after.number <= MOST:
        raise StateError(f"approvals: must be by 1 to {MOST} roles")
    if before is not None and (after.number < before.number or (before.by_others and not after.by_others)):
        raise StateError(f"the ledger asks for {before.words}: that is never lowered")
    return after


def required_by(connection: Connection) -> Required | None:
    """Return what the ledger asks of releases that are reserved now; None where it asks for nothing.

    Raises StateError where somebody who went around prdp has lowered it.
    """
    required = None
    for entry in entries(connection, "event = ?", REQUIRED):
        required = required_step(required, entry)
    return required


def require_carried(required: Required | None, reserved: Entry) -> None:
    """Raise StateError where a reservation does not ask for the approvals that the ledger asks for."""
    if Required.of(reserved.facts) != required:
        raise StateError(f"release {reserved.release}: its reservation does not ask for the approvals that it must")


def require_may_approve(
    release: str, required: Required, approvals: tuple[Approval, ...], runners: frozenset[str | None], role: str | None
) -> None:
    """Raise StateError where an approval by `role` does not count beside the others, or by who ran the release."""
    if role is None:
        raise StateError(f"release {release}: asks for {required.words}: a ledger in a file proves nobody's name")
    if any(approval.role == role for approval in approvals):
        raise StateError(f"release {release}: {role} approved it already: another role must approve it too")
    if required.by_others and role in runners:
        raise StateError(f"release {release}: {role} ran it: only other roles may approve it")
