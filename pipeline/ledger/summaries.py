"""Summaries: of each dataset what the next reservation needs of its releases, kept beside the chain.

Guarantee: nothing kept is trusted that the chain does not vouch for. A summary is a pure function of the chain up to an
entry, and each reservation holds the digest of all summaries up to the entry before it. Whoever reads folds the entries
from that reservation on; where what is kept has another digest, or was made by other code, whose bounds may differ,
everything is computed anew from the chain. Losses are exact: sums are those of a full evaluation.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, delete, insert, select, true

from pipeline.accounting.references import Reference
from pipeline.build import code_digest
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.database import ENTRIES, SUMMARIES
from pipeline.ledger.datasets import Budget, budgets_of, with_joined
from pipeline.ledger.entries import NO_STEPS, REFUSAL_EVENTS, SUMMARY, Entry, entries, head_of
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.summary import Row, Summary


@dataclass(frozen=True)
class Kept:
    """Summaries, by dataset, of all entries before `seq`, the one before which has the hash `head`."""

    seq: int
    head: str
    texts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The digest of all summaries."""
        whole = hashlib.sha256()
        for dataset, text in sorted(self.texts.items()):
            whole.update(f"{canonical_json([dataset, len(text)])}{text}".encode())
        return "sha256:" + whole.hexdigest()


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
                summary.fold(self._touched.get(dataset, ()), self._refusals[dataset])
            self._of[dataset] = summary
        return self._of[dataset]

    def states(self, datasets: Iterable[str] | None = None) -> list[ReleaseState]:
        """Return the states of all releases of the datasets (None: all), in the order of first reservation."""
        names = self.datasets if datasets is None else dict.fromkeys(datasets)
        found = [each for name in names for each in self.of(name).states]
        return [state for _, state in sorted(found, key=lambda each: each[0])]

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
        changed = {name: one for name in self.datasets if (one := self._current(name)) is not None}
        seq, head = head_of(self.connection)
        return Kept(seq + 1, head, {**self.kept.texts, **{name: one.content() for name, one in changed.items()}})

    def _current(self, name: str) -> Summary | None:
        touched = name in self._touched or name in self._refusals
        one = self.of(name) if touched else self._of.get(name)
        return one if one is not None and one.changed else None

    def keep(self) -> dict[str, Any]:
        """Keep all summaries up to the head of the chain; return the fact of the next entry, which vouches for them."""
        current = self.current()
        stale = {name: text for name, text in current.texts.items() if self._there.get(name) != text}
        every = SUMMARIES.c.dataset.in_(stale) if self._there else true()
        self.connection.execute(delete(SUMMARIES).where(every))
        if stale:
            self.connection.execute(
                insert(SUMMARIES), [{"dataset": name, "content": text} for name, text in stale.items()]
            )
        return {SUMMARY: {"code": code_digest(), "digest": current.digest}}

    def _since(self, seq: int) -> tuple[dict[str, list[str]], Counter[str]]:
        """Return the releases of which there are entries from `seq` on, by dataset, and how many of these refuse."""
        since = ENTRIES.c.seq >= seq
        if self._before is not None:
            since &= ENTRIES.c.seq < self._before
        of_releases = ENTRIES.c.event.not_in(NO_STEPS)
        touched: dict[str, list[str]] = {}
        for name, release in self.connection.execute(
            select(ENTRIES.c.dataset, ENTRIES.c.release).where(since & of_releases).distinct()
        ):
            touched.setdefault(name, []).append(release)
        refusing = entries(self.connection, since & ENTRIES.c.event.in_(REFUSAL_EVENTS))
        return touched, Counter(entry.dataset for entry in refusing if entry.refuses)


def require_true(connection: Connection) -> None:
    """Return if the summaries that are kept are those of the chain, computed anew; raises StateError otherwise.

    What was made by other code is not used, and so not looked at; nor is there anything to check where nothing is kept.
    """
    last = _last_reserved(connection)
    if last is None or (last.facts.get(SUMMARY) or {}).get("code") != code_digest():
        return
    kept = Kept(last.seq, last.previous, _texts(connection))
    if not kept.texts:  # of a ledger that was imported
        return
    if kept.digest != last.facts[SUMMARY]["digest"]:
        raise StateError(
            f"the ledger's summaries are not those that entry {last.seq} vouches for: somebody changed them; they are "
            "not used, and the next reservation keeps new ones, computed from the chain"
        )
    anew = Summaries(connection, before=last.seq)
    if set(anew.datasets) != set(kept.texts):
        raise _untrue(min(set(anew.datasets) ^ set(kept.texts)), last.seq)
    for dataset, text in kept.texts.items():
        summary, known = anew.of(dataset), Summary(connection, dataset, text)
        summary.ask(known.references)
        if _only(summary.content(), text) != text:
            raise _untrue(dataset, last.seq)


def _only(content: str, text: str) -> str:
    """Return the content without the losses that `text` does not have."""
    data, kept = json.loads(content), json.loads(text)
    for row, known in zip(data["rows"], kept["rows"], strict=False):
        row[-1] = [None if one is None else loss for loss, one in zip(row[-1], known[-1], strict=False)]
    return canonical_json(data)


def _untrue(dataset: str, seq: int) -> StateError:
    return StateError(
        f"the summary of dataset {dataset} that entry {seq} vouches for is not what the chain says: a release may have "
        "been reserved against a limit: compare the dataset's limits with prdp ledger show"
    )


def _kept(connection: Connection) -> Kept | None:
    """Return the summaries that are kept where the last reservation vouches for them."""
    last = _last_reserved(connection)
    if last is not None and last.facts.get(SUMMARY) is not None and last.facts[SUMMARY]["code"] == code_digest():
        kept = Kept(last.seq, last.previous, _texts(connection))
        if kept.digest == last.facts[SUMMARY]["digest"]:
            return kept
    return None


def _last_reserved(connection: Connection) -> Entry | None:
    reserved = select(ENTRIES.c.seq).where(ENTRIES.c.event == "reserved")
    last = connection.execute(reserved.order_by(ENTRIES.c.seq.desc()).limit(1)).scalar()
    return None if last is None else next(entries(connection, ENTRIES.c.seq == last))


def _texts(connection: Connection) -> dict[str, str]:
    return {row.dataset: row.content for row in connection.execute(select(SUMMARIES))}


def _holds(connection: Connection, known: Kept) -> bool:
    """Return whether the chain still holds the entry up to which `known` was computed."""
    found = connection.execute(select(ENTRIES.c.hash).where(ENTRIES.c.seq == known.seq - 1)).scalar()
    return found == known.head
