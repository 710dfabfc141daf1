"""Summaries: of each dataset what the next reservation needs of its releases, kept beside the chain.

Guarantee: nothing kept is trusted that the chain does not vouch for. A summary is a pure function of the chain up to an
entry, and each reservation holds the digest of all summaries up to the entry before it. Whoever reads folds the entries
from that reservation on; where what is kept has another digest, or was made by other code, whose bounds may differ,
everything is computed anew from the chain. Losses are exact: sums are those of a full evaluation.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, delete, insert, select, true

from pipeline.accounting.references import Reference
from pipeline.base.build import code_digest
from pipeline.base.canonical import canonical_json
from pipeline.ledger.database import ENTRIES, SUMMARIES
from pipeline.ledger.datasets import Budget, budgets_of, with_joined
from pipeline.ledger.entries import NO_STEPS, REFUSAL_EVENTS, SUMMARY, Entry, entries, head_of, last_entry
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.summary import Origin, Row, Summary


@dataclass(frozen=True)
class Kept:
    """Summaries, by dataset, of all entries before `seq`, the one before which has the hash `head`."""

    seq: int
    head: str
    texts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The digest of all summaries."""
        over = hashlib.sha256()
        for dataset, text in sorted(self.texts.items()):
            over.update(f"{canonical_json([dataset, len(text)])}{text}".encode())
        return "sha256:" + over.hexdigest()


NOTHING = Kept(1, "", {})


class Summaries:
    """The summaries of all datasets, of the whole chain, for one transaction."""

    def __init__(self, connection: Connection, known: "Kept | None" = None, before: int | None = None) -> None:
        """Begin with what is kept; else with what was computed before, `known`; `before` an entry, with nothing."""
        self.connection = connection
        self._before = before
        self._of: dict[str, Summary] = {}
        vouched = None if before is not None else _kept(connection)
        self.vouched = vouched is not None  # whether the chain vouches for what is kept
        self._there = {} if vouched is None else vouched.texts
        self.kept = vouched or (known if known is not None and _holds(connection, known) else NOTHING)
        self._touched, self._refusals = self._since(self.kept.seq)

    @cached_property
    def budgets(self) -> dict[str, Budget]:
        """The registered datasets and families by name."""
        return budgets_of(self.connection)

    @cached_property
    def kin(self) -> dict[str, Budget]:
        """The registered datasets and families, and the datasets that releases made one of a family."""
        return self.joined(self.budgets)

    def joined(self, budgets: Mapping[str, Budget]) -> dict[str, Budget]:
        """Return `budgets` and the datasets that releases made one of a family, as `with_joined`."""
        joining = [name for name in self.datasets if self.of(name).joins]
        return with_joined(budgets, self.charged(joining))

    @property
    def datasets(self) -> list[str]:
        """All datasets that have a summary, by name."""
        return sorted({*self.kept.texts, *self._touched, *self._refusals})

    def of(self, dataset: str) -> Summary:
        """Return the summary of a dataset; that of an unknown one is empty."""
        if dataset not in self._of:
            summary = Summary(self.connection, dataset, self.kept.texts.get(dataset), self._before)
            if dataset in self._touched or dataset in self._refusals:
                summary.fold(self._touched.get(dataset, ()), self._refusals.get(dataset, {}))
            self._of[dataset] = summary
        return self._of[dataset]

    def states(self, datasets: Iterable[str] | None = None) -> list[ReleaseState]:
        """Return the states of all releases of the datasets (None: all), in the order of first reservation."""
        names = self.datasets if datasets is None else dict.fromkeys(datasets)
        numbered = [pair for name in names for pair in self.of(name).states]
        return [state for _, state in sorted(numbered, key=lambda pair: pair[0])]

    def rows(self) -> list[tuple[str, Row]]:
        """Return all releases in brief, each with its dataset, in the order of first reservation."""
        rows = [(name, row) for name in self.datasets for row in self.of(name).rows.values()]
        return sorted(rows, key=lambda each: each[1].first)

    def charged(self, datasets: Iterable[str], at: Collection[Reference] = ()) -> list[ReleaseState]:
        """Return the states of all that counts against a budget of the datasets, evaluated at the references `at`."""
        names = list(datasets)
        for name in names if at else ():
            self.of(name).ask(at)
        return [state for state in self.states(names) if state.counts]

    def current(self) -> Kept:
        """Return all summaries up to the head of the chain."""
        read = {*self._of, *self._touched, *self._refusals}
        touched = [self.of(name) for name in self.datasets if name in read]
        seq, head = head_of(self.connection)
        texts = {one.dataset: one.content() for one in touched if one.changed}
        return Kept(seq + 1, head, {**self.kept.texts, **texts})

    def keep(self) -> dict[str, Any]:
        """Keep all summaries up to the head of the chain; return the fact of the next entry, which vouches for them."""
        current = self.current()
        stale = {name: text for name, text in current.texts.items() if self._there.get(name) != text}
        every = SUMMARIES.c.dataset.in_(stale) if self._there else true()
        self.connection.execute(delete(SUMMARIES).where(every))
        if stale:
            rows = [{"dataset": name, "content": text} for name, text in stale.items()]
            self.connection.execute(insert(SUMMARIES), rows)
        return {SUMMARY: {"code": code_digest(), "digest": current.digest}}

    def _since(self, seq: int) -> tuple[dict[str, list[str]], dict[str, Counter[Origin]]]:
        """Return the releases of which there are entries from `seq` on, by dataset, and how many of these refuse.

        Refusals are by the origin of what was refused: a name that is reserved anew may take other microdata.
        """
        since = ENTRIES.c.seq >= seq
        if self._before is not None:
            since &= ENTRIES.c.seq < self._before
        of_releases = ENTRIES.c.event.not_in(NO_STEPS)
        touched: dict[str, list[str]] = {}
        for name, release in self.connection.execute(
            select(ENTRIES.c.dataset, ENTRIES.c.release).where(since & of_releases).distinct()
        ):
            touched.setdefault(name, []).append(release)
        refused: dict[str, Counter[Origin]] = {}
        for entry in entries(self.connection, since & ENTRIES.c.event.in_(REFUSAL_EVENTS)):
            if entry.refuses:
                refused.setdefault(entry.dataset, Counter())[self._origin(entry)] += 1
        return touched, refused

    def _origin(self, refusal: Entry) -> Origin:
        mine = (ENTRIES.c.release == refusal.release) & (ENTRIES.c.event == "reserved")
        reserved = last_entry(self.connection, mine & (ENTRIES.c.seq < refusal.seq))
        return Origin(None, None) if reserved is None else Origin.of(reserved.facts)


def _kept(connection: Connection) -> Kept | None:
    kept, due = what_is_kept(connection)
    return kept if kept is not None and kept.digest == due else None


def what_is_kept(connection: Connection) -> tuple[Kept | None, str]:
    """Return the summaries as they are kept, and the digest that the last reservation has of them.

    None where other code made them: its bounds may differ.
    """
    last = last_entry(connection, ENTRIES.c.event == "reserved")
    known = None if last is None else last.facts.get(SUMMARY)
    if last is None or known is None or known["code"] != code_digest():
        return None, ""
    texts = {row.dataset: row.content for row in connection.execute(select(SUMMARIES))}
    return Kept(last.seq, last.previous, texts), known["digest"]


def _holds(connection: Connection, known: Kept) -> bool:
    found = connection.execute(select(ENTRIES.c.hash).where(ENTRIES.c.seq == known.seq - 1)).scalar()
    return found == known.head
