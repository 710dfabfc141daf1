"""Approvals by several persons: what a ledger asks for, who approved, and who cannot.

A person is a role of the ledger's server: the name by which a session logged in, which the server itself compares with
the entry (pipeline/ledger/database.py). What is asked for is an entry of the chain, binds every release reserved after
it, and is never lowered.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from pipeline.base.errors import StateError
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.entries import REQUIRED, Act, Entry, entries

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
        given = facts.get(APPROVALS)
        return None if given is None else cls(int(given["number"]), bool(given["by_others"]))

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
    for entry in entries(connection, ENTRIES.c.event == REQUIRED):
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
