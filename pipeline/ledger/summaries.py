"""What is known of one dataset's releases: each in brief, and what references lose by it, exactly.

It is a function of the chain; `Summaries` keeps it, and says when what is kept is trusted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, insert, select, true

from pipeline.accounting.accountant import Counted
from pipeline.accounting.policy import measures_of
from pipeline.accounting.references import Limit, Reference
from pipeline.base.canonical import canonical_json, code_digest, digest
from pipeline.base.errors import StateError
from pipeline.ledger.database import ENTRIES, SUMMARIES
from pipeline.ledger.datasets import RECORD_RULES, Budget, budgets_of, with_joined
from pipeline.ledger.entries import FINGERPRINTS, NO_STEPS, REFUSAL_EVENTS, SUMMARY, Entry, entries, head_of, last_entry
from pipeline.ledger.fold import ReleaseState, step
from pipeline.ledger.reservation import Origin, charged

_KEPT = ("since", "reserved_on", "status", "approved", "draws", "charges")  # of a state, in brief
MOST_REFERENCES = 32  # of a dataset at which losses are kept, those that were asked for last
MOST_BITS = 1024  # of the denominator of a loss that is kept


class Row(NamedTuple):
    """A release in brief, as it is kept.

    `first`: the entry that first reserved it; `time` and `operator` of its last act; `about`: the number of what its
    reservation says, None where tests are charged by themselves, so that the chain is read; `files`: its salted
    fingerprints; `losses`: at the summary's references, as text, None where not evaluated. The others: as ReleaseState.
    """

    first: int
    release: str
    time: str
    operator: str | None
    since: int
    reserved_on: str
    status: Any
    awaits_scan: bool
    approved: bool
    draws: int
    charges: int
    about: int | None
    files: Mapping[str, Any] | None
    losses: Sequence[str | None]


@dataclass(frozen=True, kw_only=True)
class Brief(ReleaseState):
    """The state of a release of which no test is charged by itself; its reservation holds what others need of it."""

    summary: "Summary" = field(compare=False)

    @property
    def measures(self) -> frozenset[str]:
        """The measures that a reference must name."""
        return frozenset(self.reservation["measures"]) if self.charges else frozenset()

    def loss_at(self, at: Reference) -> Fraction:
        """Return what a reference, anywhere in the domain, loses by all that was charged."""
        return self.summary.loss_at(self.release, at)


def counted(state: ReleaseState) -> Counted:
    """Return what a release is charged, as the accountant takes it."""
    return state if isinstance(state, Brief) else charged(state, state.charges)


class Summary:
    """What is known of one dataset: its releases in brief, in the order of first reservation, and their losses."""

    def __init__(self, connection: Connection, dataset: str, kept: str | None, before: int | None = None) -> None:
        self.dataset = dataset
        self.changed = False
        self._connection = connection
        self._before = before
        data: dict[str, Any] = json.loads(kept or '{"refusals":[],"references":[],"about":[],"rows":[]}')
        self.refusals = Counter({Origin(source, family): number for source, family, number in data["refusals"]})
        self.references = [Limit.from_json(reference).at for reference in data["references"]]
        self._about: list[Mapping[str, Any]] = data["about"]
        self._abouts = {canonical_json(about): i for i, about in enumerate(self._about)}
        self.rows = {row[1]: Row(*row) for row in data["rows"]}
        self._numbers = {reference.unordered: i for i, reference in enumerate(self.references)}
        self._seen: dict[int, tuple[Reference, int]] = {}
        self._asked: set[int] = set()
        self._losses: dict[tuple[str, int], Fraction] = {}  # evaluated here: by release and reference
        self._known: dict[tuple[str, int], Fraction] = {}  # likewise of one charge, by the digest of a policy

    def fold(self, releases: Iterable[str], refusals: Mapping[Origin, int]) -> None:
        """Take in that entries of these releases followed, and that so many of them refuse."""
        self.changed = True
        self.refusals.update(refusals)
        for release in releases:
            self.rows[release] = self._row(release)

    @cached_property
    def states(self) -> list[tuple[int, ReleaseState]]:
        """All releases, each with the number of the entry that first reserved it."""
        return [(row.first, self._state(row)) for row in self._ordered]

    @property
    def joins(self) -> bool:
        """Whether a release may have made the dataset one of a family."""
        named = any("family" in about["plan"]["dataset"] for about in self._about)
        return named or any(row.about is None for row in self.rows.values())

    @cached_property
    def scans(self) -> list[tuple[str, Origin]]:
        """The releases whose microdata are being read, or will be."""
        return [(row.release, Origin.of(self._state(row).reservation)) for row in self._ordered if row.awaits_scan]

    def files(self) -> Iterator[Mapping[str, Any]]:
        """Yield the fingerprints of each reservation of which something is charged."""
        for row in self._ordered:
            if row.about is not None and row.charges and row.files is not None:
                yield row.files
            elif row.about is None:
                state, mine = self._read(row.release)
                known = (entry.facts.get(FINGERPRINTS) for entry in mine if entry.seq in state.charged_since)
                yield from (files for files in known if files is not None)

    def ask(self, references: Iterable[Reference]) -> None:
        """Evaluate every release that is charged at the references, anywhere in the domain, where it is not yet."""
        numbers = list(map(self._number, references))
        for row in self.rows.values():
            if row.charges and row.about is not None and any(self._loss(row, i) is None for i in numbers):
                self._evaluate(row, numbers)

    def loss_at(self, release: str, at: Reference) -> Fraction:
        """Return what the reference loses by a release that is in brief."""
        row, number = self.rows[release], self._number(at)
        if not row.charges:
            return Fraction(0)
        if self._loss(row, number) is None:
            self._evaluate(row, [number])
        loss = self._loss(row, number)
        return loss if isinstance(loss, Fraction) else _fraction(str(loss))

    def content(self) -> str:
        """Return the summary as it is kept."""
        late = [i for i in range(len(self.references)) if i not in self._asked] + sorted(self._asked)
        kept = late[-MOST_REFERENCES:]
        numbers: dict[int, int] = {}
        rows = []
        for row in self._ordered:
            about = None if row.about is None else numbers.setdefault(row.about, len(numbers))
            rows.append(row._replace(about=about, losses=[self._kept_loss(row, i) for i in kept]))
        refusals = sorted(([*origin, n] for origin, n in self.refusals.items()), key=canonical_json)
        references = [Limit(self.references[i], Fraction(0), "at").to_json() for i in kept]
        about_all = [self._about[i] for i in numbers]
        return canonical_json({"refusals": refusals, "references": references, "about": about_all, "rows": rows})

    @property
    def _ordered(self) -> list[Row]:
        return sorted(self.rows.values())

    def _state(self, row: Row) -> ReleaseState:
        if row.about is None:
            return self._read(row.release)[0]
        of: dict[str, Any] = {"dataset": self.dataset, "release": row.release, "reservation": self._about[row.about]}
        return Brief(summary=self, **of, **{name: getattr(row, name) for name in _KEPT})

    def _read(self, release: str) -> tuple[ReleaseState, list[Entry]]:
        state, mine = None, []
        where = ENTRIES.c.release == release
        if self._before is not None:
            where &= ENTRIES.c.seq < self._before
        for entry in entries(self._connection, where):
            if entry.of_release and entry.dataset == self.dataset:
                state = step(state, entry)
                mine.append(entry)
        if state is None:
            raise StateError(f"release {release}: the ledger was changed while it was read")
        return state, mine

    def _row(self, release: str) -> Row:
        state, mine = self._read(release)
        before = self.rows.get(release)
        about = None
        if not state.tests_alone:
            said = _about(state)
            about = self._abouts.setdefault(canonical_json(said), len(self._about))
            self._about += [said] if about == len(self._about) else []
        costs = (state.since, state.charges, about)
        same = before is not None and (before.since, before.charges, before.about) == costs
        return Row(
            first=mine[0].seq,
            release=release,
            time=mine[-1].time,
            operator=mine[-1].facts.get("operator"),
            awaits_scan=state.awaits_scan,
            about=about,
            files=state.reservation.get(FINGERPRINTS),
            losses=before.losses if before is not None and same else (),
            **{name: getattr(state, name) for name in _KEPT},
        )

    def _number(self, reference: Reference) -> int:
        known = self._seen.get(id(reference))
        if known is None:
            anywhere = reference.anywhere()
            number = self._numbers.setdefault(anywhere.unordered, len(self.references))
            if number == len(self.references):
                self.references.append(anywhere)
            known = self._seen[id(reference)] = reference, number
            self._asked.add(number)
        return known[1]

    def _loss(self, row: Row, number: int) -> Fraction | str | None:
        kept = row.losses[number] if number < len(row.losses) else None
        return self._losses.get((row.release, number)) if kept is None else kept

    def _kept_loss(self, row: Row, number: int) -> str | None:
        loss = self._loss(row, number)
        if isinstance(loss, Fraction):
            return str(loss) if loss.denominator.bit_length() <= MOST_BITS else None
        return loss

    def _evaluate(self, row: Row, numbers: Sequence[int]) -> None:
        state = self._read(row.release)[0]
        facts = ("policy", "cells", "certified")
        policy = digest([state.reservation.get(key) for key in facts])
        if any((policy, i) not in self._known for i in numbers):
            one = charged(state, 1)
            self._known.update({(policy, i): one.loss_at(self.references[i]) for i in numbers})
        for i in numbers:
            self._losses[row.release, i] = row.charges * self._known[policy, i]
        self.changed = True


@lru_cache(maxsize=1 << 16)
def _fraction(text: str) -> Fraction:
    above, _, below = text.partition("/")
    return Fraction(int(above), int(below or 1))


def _about(state: ReleaseState) -> Mapping[str, Any]:
    reserved = state.reservation
    known = {key: reserved[key] for key in ("dataset_facts", "limits", "synthetic", "source") if key in reserved}
    rules = reserved.get("plan", {}).get("dataset", {})
    plan = {"dataset": {key: rules[key] for key in (*RECORD_RULES, "family") if key in rules}}
    return known | {"plan": plan, "measures": sorted(measures_of(reserved["policy"]))}


# Summaries: of each dataset what the next reservation needs of its releases, kept beside the chain.
#
# Guarantee: nothing kept is trusted that the chain does not vouch for. A summary is a pure function of the chain up to
# an entry, and each reservation holds the digest of all summaries up to the entry before it. Whoever reads folds the
# entries from that reservation on; where what is kept has another digest, or was made by other code, whose bounds may
# differ, everything is computed anew from the chain. Losses are exact: sums are those of a full evaluation.


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
        if vouched is None and known is not None:
            before_known = select(ENTRIES.c.hash).where(ENTRIES.c.seq == known.seq - 1)
            known = known if connection.execute(before_known).scalar() == known.head else None
        self.kept = vouched or known or NOTHING
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
        return sorted(rows, key=lambda named: named[1].first)

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
        if rows := [{"dataset": name, "content": text} for name, text in stale.items()]:
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
