"""The story of each release as its entries tell it: who did what when, and how far every attempt came."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.ledger.entries import Entry
from pipeline.ledger.fold import ReleaseState, step

# An entry of these ends the live attempt, or tells how far it came.
_STAGES = ("held", "destroyed", "rejected", "published", "settled", "withdrawn")


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

    def to_json(self) -> dict[str, Any]:
        """The attempt as JSON."""
        return {
            "attempt": self.attempt,
            "draw": self.draw,
            "time": self.time,
            "stage": self.stage,
            "staging": self.staging,
            "exposed": self.exposed,
            "ended": self.ended,
        }


@dataclass(frozen=True)
class Story:
    """A release: its state, its attempts in order, its acts as (time, event, operator or None)."""

    state: ReleaseState
    attempts: tuple[Attempt, ...]
    acts: tuple[tuple[str, str, str | None], ...]


def stories(entries: Iterable[Entry]) -> dict[str, Story]:
    """Return the story of every release in `entries`, in the order of first reservation; StateError as `step`."""
    found: dict[str, Story] = {}
    for entry in entries:
        if entry.of_release:
            found[entry.release] = _told(found.get(entry.release), entry)
    return found


def _told(before: Story | None, entry: Entry) -> Story:
    state = step(before.state if before else None, entry)
    # A name that was given back and reserved anew tells both of its lives, as the ledger does.
    attempts, acts = (before.attempts, before.acts) if before else ((), ())
    if entry.event == "drawn":
        facts = entry.facts
        drawn = Attempt(str(entry.attempt), facts["draw"], entry.time, "drawn", facts.get("staging"))
        attempts = (*attempts, drawn)
    elif attempts and (entry.event in _STAGES or (entry.event == "aborted" and attempts[-1].ended is None)):
        exposed = bool(entry.facts.get("exposed", attempts[-1].exposed))
        ended = None if entry.event in ("held", "published") else entry.time
        attempts = (*attempts[:-1], replace(attempts[-1], stage=entry.event, exposed=exposed, ended=ended))
    return Story(state, attempts, (*acts, (entry.time, entry.event, entry.facts.get("operator"))))
