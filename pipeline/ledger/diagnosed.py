"""A run of confidential diagnostics, as the ledger keeps it."""

from dataclasses import dataclass
from typing import Any

from pipeline.ledger.entries import Entry


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """That diagnostics of a plan were made: a plan tuned on them would be outside the guarantee (DESIGN rule 2).

    `digest` is the plan's, `pin` that of the input, `code` that of the code; `compared` the attempt that was held
    against the truth (None: no release was). `time` is the entry's, UTC, ISO 8601; empty before it is recorded.
    `operator` is who is said to have made it: the ledger that records it fills it in.
    """

    dataset: str
    release: str
    digest: str
    pin: str
    code: str
    engine: str
    per_record: bool
    compared: str | None
    time: str = ""
    operator: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> "Diagnosed":
        """Return what an entry says; raises ValueError, KeyError or TypeError where it is none of these."""
        facts = dict(entry.facts)
        return cls(dataset=entry.dataset, release=entry.release, time=entry.time, **facts)

    def facts(self) -> dict[str, Any]:
        """The run as JSON, as the ledger keeps it."""
        return {
            "digest": self.digest,
            "pin": self.pin,
            "code": self.code,
            "engine": self.engine,
            "per_record": self.per_record,
            "compared": self.compared,
        }
