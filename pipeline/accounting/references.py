"""Reference records: the sizes, and where wanted the codes, of records or firms at which losses are stated and limited.

A reference is one unit: a single record, or the list of all records of a firm (or of a group that comes and goes as
one). It is written as data (a plan's or an officer's budget: `{employment: 10, naics3: "722"}`, or a list of such) or
as text (`--at employment=10,naics3=722`, records of a list separated by ";").
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from operator import is_
from typing import Any, TypeVar

from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, hint
from udfs.numbers.exact import as_json, exact

T = TypeVar("T")
QuerySet = frozenset[int]  # the policies, as indices in PolicySum.queries, that one public cell meets
Span = Mapping[str, tuple[Fraction, Fraction | None]]  # measure → its lowest and largest value (None: none) in a class
Lot = tuple["ReferenceRecord", int, int]  # a record, its kind, and how many there are of it
_Sizes = tuple[tuple[str, int, int], ...]  # of each measure the numerator and the denominator
MOST_LOTS = 1000
COARSE = (10, 9, 8)  # bits that are kept of values, of which more than MOST_LOTS are distinct, rounded away from 0
LESS_LOSS = "ask for less loss (more noise)"
OWN_REMEDY = f"{LESS_LOSS}, or raise the limit in the plan's budget"
_PLAIN_NUMBER = re.compile(r"[-+0-9.eE]+")  # Python would also read 1_000, and digits of other scripts


@dataclass(frozen=True)
class ReferenceRecord:
    """One record of a reference.

    `values`: measure → value. `keys`: level → code as written; none: anywhere in the domain. Located in a plan, a
    record has in place of its keys `query_sets`, those that its cell can have (None: all of the policy), and `cells`,
    pairs of a policy's index and the number of the one cell that the record can be in under it, where that is known.

    With `spans` it stands for all records none of whose values is larger, also in lower classes of a measure: its query
    sets have cells of one class each, whose values are those of the span. `caps`: for a policy's index the largest
    values of such a record in its cells.
    """

    values: Mapping[str, Fraction]
    keys: Mapping[str, str] = FrozenMap[str]()
    query_sets: tuple[QuerySet, ...] | None = None
    cells: tuple[tuple[int, int], ...] = ()
    spans: tuple[Span, ...] = ()
    caps: tuple[tuple[int, Mapping[str, Fraction]], ...] = ()

    def capped(self, span: Span) -> Mapping[str, Fraction] | None:
        """Return the largest values within a span of a record that is no larger; None where there is none."""
        values = dict(self.values)
        for measure in values.keys() & span.keys():
            lowest, largest = span[measure]
            if values[measure] < lowest:
                return None
            if largest is not None:
                values[measure] = min(values[measure], largest)
        return FrozenMap.of(values)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "ReferenceRecord":
        """Return the record of a mapping, in which numbers are values and text is codes."""
        values = {name: exact(value) for name, value in data.items() if not isinstance(value, str)}
        codes = {name: value for name, value in data.items() if isinstance(value, str)}
        return cls(FrozenMap.of(values), FrozenMap.of(codes))

    def to_json(self) -> dict[str, object]:
        """Return the record as a plan writes it, values first."""
        return {name: as_json(value) for name, value in self.values.items()} | dict(self.keys)

    @property
    def label(self) -> str:
        """The record in words."""
        return ", ".join(f"{name}={value}" for name, value in self.to_json().items()) or "any record"

    def sizes(self) -> list[Fraction]:
        """Return the magnitudes of the values, by name."""
        return [abs(self.values[name]) for name in sorted(self.values)]

    def covers(self, other: "ReferenceRecord") -> bool:
        """Return whether `other` names every measure named here, in magnitude at most as here; codes are not compared.

        Other measures may have any value: while a limit at this record stands, no release uses them.
        """
        return all(name in other.values and abs(other.values[name]) <= abs(v) for name, v in self.values.items())


@dataclass(frozen=True, eq=False)
class Reach:
    """Where the records of a list can be in the cells of one policy.

    Attributes:
        kinds: of each record the number of its codes; records with the same codes are of one kind.
        apart: kinds, of which one can be in several cells, that share no cell, as pairs in both orders.
        room: the number of cells in which some record can be, or more.
        unfiltered: the policy's table has no filter.
    """

    kinds: tuple[int, ...]
    apart: frozenset[tuple[int, int]]
    room: int
    unfiltered: bool


@dataclass(frozen=True)
class Reference:
    """The records of one unit; `listed`: they are a list, of which there may be one, as of a firm or a group.

    Located in a plan, a list has for each policy its `reach`.
    """

    records: tuple[ReferenceRecord, ...]
    listed: bool = False
    reach: tuple["Reach", ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, data: Mapping[str, Any] | Sequence[Mapping[str, Any]], listed: bool = False) -> "Reference":
        """Return the reference of a mapping, or of a list of mappings; `listed` makes one mapping a list of one."""
        if isinstance(data, Mapping):
            return cls((ReferenceRecord.of(data),), listed)
        return cls(tuple(map(ReferenceRecord.of, data)), listed=True)

    def to_json(self) -> Any:
        """Return the reference as a plan writes it."""
        records = [record.to_json() for record in self.records]
        return records if self.listed else records[0]

    @cached_property
    def known(self) -> dict[str, tuple[Sequence[Any], Any]]:
        """What policies have computed of these records: by its name the objects it depends on, and what it is."""
        return {}

    def once(self, name: str, of: Sequence[Any], compute: Callable[[], T]) -> T:
        """Return what `compute` does, or what it did while it depended on these very objects."""
        if name not in self.known or not all(map(is_, self.known[name][0], of)):
            self.known[name] = of, compute()
        known: T = self.known[name][1]
        return known

    @property
    def label(self) -> str:
        """The reference in words."""
        return "; ".join(record.label for record in self.records)

    def missing(self, measures: Iterable[str]) -> list[str]:
        """Return those of `measures` that one of the records does not name."""
        return sorted({name for name in measures for record in self.records if name not in record.values})

    def anywhere(self) -> "Reference":
        """Return the reference with each record at its worst cell, as a release with other queries takes it."""
        return Reference(tuple(ReferenceRecord(record.values) for record in self.records), self.listed)

    def with_values(self, values: Mapping[str, Fraction]) -> "Reference":
        """Return the reference whose records have these values too; their own stay."""
        records = (replace(record, values=FrozenMap.of({**values, **record.values})) for record in self.records)
        return replace(self, records=tuple(records))

    def of_measures(self, names: Collection[str]) -> "Reference":
        """Return the reference with its values of the measures in `names` alone."""
        values = ({name: value for name, value in record.values.items() if name in names} for record in self.records)
        records = zip(self.records, values, strict=True)
        return replace(self, records=tuple(replace(record, values=FrozenMap.of(kept)) for record, kept in records))

    def largest(self, measure: str) -> Fraction:
        """Return the largest magnitude of a measure, 0 where no record names it."""
        return max(
            (abs(record.values[measure]) for record in self.records if measure in record.values), default=Fraction(0)
        )

    @property
    def measures(self) -> frozenset[str]:
        """All measures that a record names."""
        return frozenset(name for record in self.records for name in record.values)

    @property
    def unordered(self) -> Hashable:
        """What two references have in common that list the same records, in whatever order."""
        return self.listed, frozenset(Counter(self.records).items())

    @cached_property
    def lots(self) -> Sequence[Lot]:
        """These records, equal ones as one lot; of very many different ones with values larger by at most 1 in 128.

        Losses rise with every value: a bound of what the lots lose is one of what the records do.
        """
        kinds = self.reach[0].kinds if self.reach else (0,) * len(self.records)
        first: dict[Hashable, tuple[ReferenceRecord, int]] = {}
        times: Counter[tuple[Hashable, _Sizes]] = Counter()
        for kind, record in zip(kinds, self.records, strict=True):
            alike: Hashable = (kind if self.reach else (record.query_sets, record.cells)), record.caps
            first.setdefault(alike, (record, kind))
            times[alike, tuple([(name, x.numerator, x.denominator) for name, x in record.values.items()])] += 1
        for bits in COARSE:
            if len(times) > MOST_LOTS:
                larger: Counter[tuple[Hashable, _Sizes]] = Counter()
                for (alike, sizes), number in times.items():
                    larger[alike, tuple([(name, _coarser(x, bits), unit) for name, x, unit in sizes])] += number
                times = larger
        lots = []
        for (alike, sizes), number in times.items():
            record, kind = first[alike]
            values = FrozenMap(tuple((name, Fraction(x, unit)) for name, x, unit in sizes))
            lots.append((replace(record, values=values), kind, number))
        return lots

    def covers(self, other: "Reference") -> bool:
        """Return whether each record of `other` can be matched with a record here of its own that covers it."""
        if self.listed != other.listed or len(other.records) > len(self.records):
            return False
        largest, others = (sorted(each.records, key=ReferenceRecord.sizes, reverse=True) for each in (self, other))
        if all(map(ReferenceRecord.covers, largest, others)):
            return True
        matched: dict[int, int] = {}  # record here → record of other

        def match(i: int, tried: set[int]) -> bool:  # augmenting paths
            covering = [j for j, record in enumerate(self.records) if record.covers(other.records[i])]
            for j in sorted(covering, key=matched.__contains__):  # those that are free first
                if j not in tried:
                    tried.add(j)
                    if j not in matched or match(matched[j], tried):
                        matched[j] = i
                        return True
            return False

        return len(self.measures) > 1 and all(match(i, set()) for i in range(len(other.records)))


@dataclass(frozen=True)
class Limit:
    """The loss `rho` that the reference `at` may accumulate over all releases of a dataset; `label` says whose it is.

    `raised_by`: the command that raises it, of a limit in the ledger; "" of one in the plan's own `budget:`.

    Policies being monotone it binds every smaller unit: one whose records can be matched one to one with records of
    the reference that are at least as large in the measures that the limit names, whatever their others: no release
    may use a measure that a limit does not name.
    """

    at: Reference
    rho: Fraction
    label: str = ""
    raised_by: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.at.label)

    @property
    def whose(self) -> str:
        """The reference and whose limit it is, in words."""
        return self.label if self.raised_by else f"{self.label} (the plan's own budget)"

    @property
    def remedy(self) -> str:
        """What to do where it refuses a plan."""
        return f"{LESS_LOSS}, or have an officer raise it: {self.raised_by}" if self.raised_by else OWN_REMEDY

    def anywhere(self) -> "Limit":
        """Return the limit with its records at their worst cells."""
        return replace(self, at=self.at.anywhere())

    def to_json(self) -> dict[str, Any]:
        """Return the limit, located in its plan, as the ledger keeps it."""
        records = [
            {
                "at": {name: as_json(value) for name, value in record.values.items()},
                "places": None if record.query_sets is None else [sorted(each) for each in record.query_sets],
                "cells": [list(pair) for pair in sorted(record.cells)],
            }
            | ({"spans": spans_json(record.spans)} if record.spans else {})
            for record in self.at.records
        ]
        stated: dict[str, Any] = {"label": self.label, "rho": as_json(self.rho)}
        if self.at.listed:
            return stated | {"firm": records}
        return stated | {key: value for key, value in records[0].items() if key != "cells"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Limit":
        """Return the limit that `to_json` wrote."""
        records = tuple(
            replace(
                ReferenceRecord.of(record["at"]),
                query_sets=None if record["places"] is None else tuple(map(frozenset, record["places"])),
                cells=tuple((policy, cell) for policy, cell in record.get("cells", ())),
                spans=spans_of(record.get("spans", ())),
            )
            for record in data.get("firm", [data])
        )
        return cls(Reference(records, listed="firm" in data), exact(data["rho"]), data["label"])


def _coarser(x: int, bits: int) -> int:
    """Return `x`, or a number of this many bits and zeros that is farther from 0."""
    shift = x.bit_length() - bits
    if shift <= 0:
        return x
    size = -(-abs(x) >> shift) << shift
    return size if x > 0 else -size


def spans_json(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """Return spans as JSON."""
    return [
        {name: [as_json(low), None if high is None else as_json(high)] for name, (low, high) in span.items()}
        for span in spans
    ]


def spans_of(data: Iterable[Mapping[str, Any]]) -> tuple[Span, ...]:
    """Return the spans that `spans_json` wrote."""
    return tuple(
        FrozenMap.of({name: (exact(low), None if high is None else exact(high)) for name, (low, high) in span.items()})
        for span in data
    )


class UnknownName(PlanError):
    """The text of a reference names no measure and no level that is known."""


@dataclass(frozen=True)
class Names:
    """What the text of a reference may name: measures, and levels whose codes `require_code` checks.

    `require_code`(level, code) raises PlanError where the domain does not have the code.
    """

    measures: Collection[str]
    levels: Collection[str] = ()
    require_code: Callable[[str, str], object] = lambda level, code: None


def typed_reference(option: str, text: str, names: Names, listed: bool) -> Reference:
    """Return the reference that was typed after `option`, such as "employment=10,naics3=722"; ";" separates records.

    Raises PlanError on anything but measures with numbers of at least 0 and levels with codes, each once in a record.
    """
    records = []
    for part in text.split(";"):
        record: dict[str, str | Fraction] = {}
        for name, value in _pieces(option, part, names):
            record[name] = value if name in names.levels else typed_number(option, name, value)
        records.append(ReferenceRecord.of(record))
    return Reference(tuple(records), listed)


def typed_change(
    option: str, text: str, names: Names
) -> tuple[dict[str, tuple[Fraction, Fraction]], Mapping[str, str]]:
    """Return the two values of each measure, and the keys, of a text such as "naics3=722,employment=10:12".

    Raises PlanError as `typed_reference`, and where a measure has no two values, or none is named.
    """
    values: dict[str, tuple[Fraction, Fraction]] = {}
    keys: dict[str, str] = {}
    for name, value in _pieces(option, text, names):
        one, colon, other = value.partition(":")
        if name in names.levels:
            keys[name] = value
        elif colon:
            values[name] = typed_number(option, name, one), typed_number(option, name, other)
        else:
            raise PlanError(f"{option} {name}: write both values, as in {name}=10:12")
    if not values:
        raise PlanError(f"{option} {text}: name a measure and its two values, as in employment=10:12")
    return values, FrozenMap.of(keys)


def typed_number(option: str, name: str, text: str) -> Fraction:
    """Return a record's value that was typed after `option`; raises PlanError unless it is a number of at least 0."""
    try:
        number = exact(text) if _PLAIN_NUMBER.fullmatch(text) else Fraction(-1)
    except ValueError:
        number = Fraction(-1)
    if not number >= 0:
        raise PlanError(f"{option} {name}: must be a number of at least 0")
    return number


def _pieces(option: str, text: str, names: Names) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = piece.partition("=")
        if not equals or name in seen:
            raise PlanError(f"{option} {text}: write each measure once as name=value, separated by commas")
        known = [*names.measures, *names.levels]
        if name not in known:
            what = "measure or level" if names.levels else "measure of the dataset"
            raise UnknownName(f"{option} {name}: unknown {what}{hint(name, known)}")
        if name in names.levels:
            try:
                names.require_code(name, value)
            except PlanError as error:
                raise PlanError(f"{option} {name}: {error}") from None
        seen.add(name)
        yield name, value
