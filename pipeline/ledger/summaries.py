"""What is known of one dataset's releases: each in brief, and what references lose by it, exactly.

It is a function of the chain; `Summaries` keeps it, and says when what is kept is trusted. Losses are kept of each
policy once, however many releases were charged it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, reduce
from itertools import chain
from typing import Any, NamedTuple, cast

from pipeline.accounting.accountant import Charged, Counted
from pipeline.accounting.references import Limit, Reference
from pipeline.base.canonical import canonical_json, code_digest
from pipeline.base.errors import StateError
from pipeline.ledger.database import Connection, among
from pipeline.ledger.datasets import Budget, budgets_of, with_joined
from pipeline.ledger.entries import FINGERPRINTS, NO_STEPS, REFUSAL_EVENTS, SUMMARY, Entry, entries, head_of, last_entry
from pipeline.ledger.fold import ReleaseState, step
from pipeline.ledger.reservation import Origin, charged, cost_digest, in_brief

_EMPTY = '{"refusals":[],"references":[],"about":[],"policies":[],"rows":[]}'
_KEPT = ("since", "reserved_on", "status", "approved", "draws", "charges", "stagings")  # of a state, in brief
MOST_REFERENCES = 32  # of a dataset at which losses are kept, those that were asked for last
MOST_BITS = 1024  # of the denominator of a loss that is kept
_END = 2**63 - 1  # an entry after all others
AT_ONCE = 100  # releases whose entries are read together


class Row(NamedTuple):
    """A release in brief, as it is kept.

    `first`: the entry that first reserved it; `time` and `operator` of its last act; `about`: the number of what its
    reservation says, None where tests are charged by themselves, so that the chain is read; `files`: its salted
    fingerprints; `policy`: the number of what one charge costs, -1 where none is. The others: as ReleaseState.
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
    stagings: Sequence[str | None]
    about: int | None
    files: Mapping[str, Any] | None
    policy: int


class Policy(NamedTuple):
    """What one charge costs: a digest of policy and certified bounds; losses at references, None: not evaluated."""

    digest: str
    losses: Sequence[str | None] = ()


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

    @property
    def charged(self) -> Charged:
        """What is charged, as the accountant takes it; one object of all that were charged the same."""
        return self.summary.charged(self.release)


def counted(state: ReleaseState) -> Counted:
    """Return what a release is charged, as the accountant takes it."""
    return state if isinstance(state, Brief) else charged(state, state.charges)


class Summary:
    """What is known of one dataset: its releases in brief, in the order of first reservation, and their losses."""

    def __init__(self, connection: Connection, dataset: str, kept: str | None, before: int = _END) -> None:
        self.dataset = dataset
        self.changed = False
        self._connection = connection
        self._before = before
        data: dict[str, Any] = json.loads(kept or _EMPTY)
        self.refusals = Counter({Origin(source, family): number for source, family, number in data["refusals"]})
        self.references = [Limit.from_json(reference).at for reference in data["references"]]
        self._about: list[Mapping[str, Any]] = data["about"]
        self._abouts = {canonical_json(about): i for i, about in enumerate(self._about)}
        self._policies = [Policy(*policy) for policy in data["policies"]]
        self._by_digest = {policy.digest: i for i, policy in enumerate(self._policies)}
        self.rows = {row[1]: Row(*row) for row in data["rows"]}
        self._numbers = {reference.unordered: i for i, reference in enumerate(self.references)}
        self._seen: dict[int, tuple[Reference, int]] = {}
        self._asked: set[int] = set()
        self._losses: dict[tuple[int, int], Fraction] = {}  # of one charge: by policy and reference
        self._charges: dict[tuple[int, int], Charged] = {}  # by policy and how often it counts

    def fold(self, releases: Iterable[str], refusals: Mapping[Origin, int]) -> None:
        """Take in that entries of these releases followed, and that so many of them refuse."""
        self.changed = True
        self.refusals.update(refusals)
        for release, state, mine in self._read(releases):
            self.rows[release] = self._row(state, mine)

    @cached_property
    def states(self) -> list[tuple[int, ReleaseState]]:
        """All releases, each with the number of the entry that first reserved it."""
        return [(row.first, state) for row, state in self._with_states(self._ordered)]

    @property
    def joins(self) -> bool:
        """Whether a release may have made the dataset one of a family."""
        named = any("family" in about["plan"]["dataset"] for about in self._about)
        return named or any(row.about is None for row in self.rows.values())

    @cached_property
    def scans(self) -> list[tuple[str, Origin]]:
        """The releases whose microdata are being read, or will be."""
        awaiting = [row for row in self._ordered if row.awaits_scan]
        return [(row.release, Origin.of(state.reservation)) for row, state in self._with_states(awaiting)]

    def files(self) -> Iterator[Mapping[str, Any]]:
        """Yield the fingerprints of each reservation of which something is charged."""
        for row in self._ordered:
            if row.about is not None and row.charges and row.files is not None:
                yield row.files
            elif row.about is None:
                ((_, state, mine),) = self._read([row.release])
                known = (entry.facts.get(FINGERPRINTS) for entry in mine if entry.seq in state.charged_since)
                yield from (files for files in known if files is not None)

    def ask(self, references: Iterable[Reference]) -> None:
        """Evaluate every policy that is charged at the references, anywhere in the domain, where it is not yet."""
        numbers = list(map(self._number, references))
        for row in {row.policy: row for row in self.rows.values() if row.policy >= 0}.values():
            for number in numbers:
                self._loss(row, number)

    def loss_at(self, release: str, at: Reference) -> Fraction:
        """Return what the reference loses by a release that is in brief."""
        row = self.rows[release]
        return row.charges * self._loss(row, self._number(at)) if row.charges else Fraction(0)

    def charged(self, release: str) -> Charged:
        """Return what a release in brief that has a charge is charged: one object of all that were charged the same."""
        return self._charge(self.rows[release], self.rows[release].charges)

    def content(self) -> str:
        """Return the summary as it is kept."""
        late = [i for i in range(len(self.references)) if i not in self._asked] + sorted(self._asked)
        kept = late[-MOST_REFERENCES:]
        abouts: dict[int, int] = {}
        policies = {-1: -1}
        rows = []
        for row in self._ordered:
            about = None if row.about is None else abouts.setdefault(row.about, len(abouts))
            rows.append(row._replace(about=about, policy=policies.setdefault(row.policy, len(policies) - 1)))
        refusals = sorted(([*origin, n] for origin, n in self.refusals.items()), key=canonical_json)
        references = [Limit(self.references[i], Fraction(0), "at").to_json() for i in kept]
        of_policies = [(self._policies[j].digest, [self._kept_loss(j, i) for i in kept]) for j in policies if j >= 0]
        facts = {"refusals": refusals, "references": references, "about": [self._about[i] for i in abouts]}
        return canonical_json(facts | {"policies": of_policies, "rows": rows})

    @property
    def _ordered(self) -> list[Row]:
        return sorted(self.rows.values())

    def _with_states(self, rows: Sequence[Row]) -> Iterator[tuple[Row, ReleaseState]]:
        full = {name: state for name, state, _ in self._read([row.release for row in rows if row.about is None])}
        for row in rows:
            of: dict[str, Any] = {"dataset": self.dataset, "release": row.release}
            if row.about is None:
                yield row, full[row.release]
            else:
                kept = {name: getattr(row, name) for name in _KEPT} | {"stagings": tuple(row.stagings)}
                yield row, Brief(summary=self, reservation=self._about[row.about], **of, **kept)

    def _read(self, releases: Iterable[str]) -> Iterator[tuple[str, ReleaseState, list[Entry]]]:
        names = list(releases)
        for some in (names[i : i + AT_ONCE] for i in range(0, len(names), AT_ONCE)):
            mine: dict[str, list[Entry]] = {name: [] for name in some}
            for entry in entries(self._connection, f"release IN {among(some)} AND seq < ?", *some, self._before):
                if entry.of_release and entry.dataset == self.dataset:
                    mine[entry.release].append(entry)
            for name, of_release in mine.items():
                state = reduce(step, of_release, cast("ReleaseState | None", None))
                if state is None:
                    raise StateError(f"release {name}: the ledger was changed while it was read")
                yield name, state, of_release

    def _row(self, state: ReleaseState, mine: Sequence[Entry]) -> Row:
        about, policy = None, -1
        if not state.tests_alone:
            said = in_brief(state.reservation)
            about = self._abouts.setdefault(canonical_json(said), len(self._about))
            self._about += [said] if about == len(self._about) else []
        if about is not None and state.charges:
            policy = self._by_digest.setdefault(cost := cost_digest(state.reservation), len(self._policies))
            self._policies += [Policy(cost)] if policy == len(self._policies) else []
        return Row(
            first=mine[0].seq,
            release=state.release,
            time=mine[-1].time,
            operator=mine[-1].facts.get("operator"),
            awaits_scan=state.awaits_scan,
            about=about,
            files=state.reservation.get(FINGERPRINTS),
            policy=policy,
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

    def _loss(self, row: Row, number: int) -> Fraction:
        if (row.policy, number) not in self._losses:
            text = self._kept_loss(row.policy, number)
            self.changed |= text is None
            loss = (
                Fraction(*map(int, text.split("/"))) if text else self._charge(row, 1).loss_at(self.references[number])
            )
            self._losses[row.policy, number] = loss
        return self._losses[row.policy, number]

    def _charge(self, row: Row, times: int) -> Charged:
        if (row.policy, times) not in self._charges:
            ((_, state, _),) = self._read([row.release])
            self._charges[row.policy, times] = charged(state, times)
        return self._charges[row.policy, times]

    def _kept_loss(self, policy: int, number: int) -> str | None:
        losses = self._policies[policy].losses
        if (policy, number) not in self._losses:
            return losses[number] if number < len(losses) else None
        loss = self._losses[policy, number]
        return str(loss) if loss.denominator.bit_length() <= MOST_BITS else None


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
        self._before = _END if before is None else before
        self._of: dict[str, Summary] = {}
        vouched = None if before is not None else _kept(connection)
        self.vouched = vouched is not None  # whether the chain vouches for what is kept
        self._there = {} if vouched is None else vouched.texts
        if vouched is None and known is not None:
            before_known = connection.value("SELECT hash FROM prdp.entries WHERE seq = ?", known.seq - 1)
            known = known if before_known == known.head else None
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
        if not self._there:
            self.connection.execute("DELETE FROM prdp.summaries")
        if stale:
            self.connection.execute(f"DELETE FROM prdp.summaries WHERE dataset IN {among(stale)}", *stale)
            rows = ", ".join(map(among, stale.items()))
            self.connection.execute(f"INSERT INTO prdp.summaries VALUES {rows}", *chain(*stale.items()))
        return {SUMMARY: {"code": code_digest(), "digest": current.digest}}

    def _since(self, seq: int) -> tuple[dict[str, list[str]], dict[str, Counter[Origin]]]:
        """Return the releases of which there are entries from `seq` on, by dataset, and how many of these refuse.

        Refusals are by the origin of what was refused: a name that is reserved anew may take other microdata.
        """
        since, span = "seq >= ? AND seq < ? AND event", (seq, self._before)
        named = f"SELECT DISTINCT dataset, release FROM prdp.entries WHERE {since} NOT IN {among(NO_STEPS)}"
        touched: dict[str, list[str]] = {}
        for name, release in self.connection.execute(named, *span, *NO_STEPS):
            touched.setdefault(name, []).append(release)
        refused: dict[str, Counter[Origin]] = {}
        for entry in entries(self.connection, f"{since} IN {among(REFUSAL_EVENTS)}", *span, *REFUSAL_EVENTS):
            if entry.refuses:
                refused.setdefault(entry.dataset, Counter())[self._origin(entry)] += 1
        return touched, refused

    def _origin(self, refusal: Entry) -> Origin:
        before = "event = 'reserved' AND release = ? AND seq < ?"
        reserved = last_entry(self.connection, before, refusal.release, refusal.seq)
        return Origin(None, None) if reserved is None else Origin.of(reserved.facts)


def _kept(connection: Connection) -> Kept | None:
    kept, due = what_is_kept(connection)
    return kept if kept is not None and kept.digest == due else None


def what_is_kept(connection: Connection) -> tuple[Kept | None, str]:
    """Return the summaries as they are kept, and the digest that the last reservation has of them.

    None where other code made them: its bounds may differ.
    """
    last = last_entry(connection, "event = 'reserved'")
    known = None if last is None else last.facts.get(SUMMARY)
    if last is None or known is None or known["code"] != code_digest():
        return None, ""
    texts = dict(connection.execute("SELECT dataset, content FROM prdp.summaries"))
    return Kept(last.seq, last.previous, texts), known["digest"]
