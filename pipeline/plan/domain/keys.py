"""One public key: its finest codes, fixed by the plan, and the levels to which they roll up."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import in_a_line
from pipeline.plan.domain.cells import Axis, Int32s, read_only
from udfs.numbers.exact import as_json, exact
from udfs.records.codes import LEVELS, OTHER, SECTOR_RANGES, is_code, is_text_code, roll_up

Where = Mapping[str, Sequence[str]]  # level → codes; levels are joined by "and", codes by "or"
Masks = NDArray[np.bool_]


def built_in_levels(key: str) -> tuple[str, ...]:
    """Return the levels of a key that need no column of its list, coarse to fine; the last is the finest."""
    return LEVELS.get(key, (key,))


def level_of(key: str, code: str) -> str:
    """Return the level of a well-formed finest code of `key`; raises ValueError with the rule that another breaks."""
    if code == OTHER:
        raise ValueError(f'"{OTHER}" stands in no list; declare it in the plan, as domain: {{…, other: [{key}]}}')
    if key not in LEVELS and is_text_code(code):
        return key
    finest = {"naics": LEVELS["naics"], "county": ("county",)}
    for level in finest.get(key, ()):
        if is_code(code, level):
            return level
    if key == "naics" and code in SECTOR_RANGES:
        raise ValueError(f'"{code}" is a part of a sector; write {SECTOR_RANGES[code]}')
    rules = {"naics": "2 to 6 digits (sectors as 31-33)", "county": "5 digits"}
    rule = rules.get(key, "1 to 100 signs without spaces around them")
    raise ValueError(f'malformed code "{in_a_line(code)}"; {rule} are needed')


@dataclass(frozen=True)
class Classes:
    """Classes of a measure: a record's code is that of the class that holds its value.

    `lowest`: the lowest value of each class, rising from 0; the last class has no upper end.
    """

    measure: str
    lowest: tuple[Fraction, ...]
    step: Fraction

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the classes, by their values: "0-4", "5-9", "10+"."""
        low = [str(as_json(each)) for each in self.lowest]
        high = [str(as_json(each - self.step)) for each in self.lowest[1:]]
        spans = (one if one == last else f"{one}-{last}" for one, last in zip(low, high, strict=False))
        return (*spans, f"{low[-1]}+")

    def class_of(self, value: Fraction) -> int:
        """Return the number of the class of a value ≥ 0."""
        return sum(each <= value for each in self.lowest) - 1

    def largest(self, number: int) -> Fraction | None:
        """Return the largest value of a class; None where it has none."""
        return self.lowest[number + 1] - self.step if number + 1 < len(self.lowest) else None


@dataclass(frozen=True)
class OfOwner:
    """How an owner's code follows from its records: by the class of their total of a measure ≥ 0, or `main`, the code
    at this level, of another key, that most of the total has; of equal ones the first."""

    measure: str
    classes: Classes | None = None
    main: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the rule as JSON."""
        lowest = [as_json(each) for each in self.classes.lowest] if self.classes else None
        return {"of": self.measure, "lowest": lowest, "main": self.main}


@dataclass(frozen=True, eq=False)
class Dimension:
    """The public codes of one key, distinct and in their order; a key's codes are text, or classes of a measure.

    Last of them may be OTHER, which stands for all well-formed codes that are not listed.

    Attributes:
        key: Its name.
        codes: The finest codes, all of `level`: sorted, or in the order of the classes.
        level: Their level.
        further: Level → of each of `codes` its code there; "" for a code that is in no cell of that level.
        classes: The classes that are the codes, if they are.
        of_owner: How the one code of all records of an owner follows from these, if it does.
        optional: Whether a record may have no code; it is in no cell of the queries that use this key.
        names: What its codes are called, for readers alone: part of no digest.
        coarser_names: What codes of its coarser levels are called, where the list is a tree.
    """

    key: str
    codes: tuple[str, ...]
    level: str
    further: Mapping[str, tuple[str, ...]] = field(default_factory=FrozenMap)
    classes: Classes | None = None
    optional: bool = False
    names: Mapping[str, str] = field(default_factory=FrozenMap)
    coarser_names: Mapping[str, str] = field(default_factory=FrozenMap)
    of_owner: OfOwner | None = None

    @classmethod
    def of(
        cls,
        key: str,
        codes: Iterable[str],
        further: Mapping[str, Mapping[str, str]] | None = None,
        *,
        other: bool = False,
        optional: bool = False,
    ) -> "Dimension":
        """Return the dimension of at least one well-formed code, all of one level; with `other`, OTHER as one more.

        `further`: level → code → its code there, "" for none.
        """
        ordered = tuple(sorted(set(codes)))
        last = (OTHER,) if other else ()
        coarser = {level: (*(of[code] for code in ordered), *last) for level, of in (further or {}).items()}
        return cls(key, (*ordered, *last), level_of(key, ordered[0]), FrozenMap.of(coarser), None, optional)

    @classmethod
    def of_classes(cls, key: str, classes: Classes) -> "Dimension":
        """Return the dimension whose codes are classes of a measure."""
        return cls(key, classes.codes, key, classes=classes)

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures from which codes follow, which must not be negative."""
        return tuple(rule.measure for rule in (self.classes, self.of_owner) if rule is not None)

    @property
    def has_other(self) -> bool:
        """Whether codes that are not listed have a public code."""
        return self.codes[-1] == OTHER and self.of_owner is None

    @property
    def listed(self) -> tuple[str, ...]:
        """The codes but OTHER: those that microdata may have, or roll up to."""
        return self.codes[:-1] if self.has_other else self.codes

    @property
    def digits(self) -> int | None:
        """The number of digits of all listed codes; None where they are not digits, or of several lengths."""
        lengths = {len(code) if code.isascii() and code.isdigit() else None for code in self.listed}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def everyone(self) -> bool:
        """Whether every record that meets the contract has one of the codes."""
        classes = self.classes or (self.of_owner and self.of_owner.classes)
        return classes is not None or (self.has_other and not self.optional)

    @property
    def built_in(self) -> tuple[str, ...]:
        """The levels that need no column of the list, coarse to fine."""
        levels = built_in_levels(self.key)
        return levels[: levels.index(self.level) + 1]

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that a query may use: built-in ones coarse to fine, then those of the list's columns."""
        return (*self.built_in, *self.further)

    def level_codes(self, level: str) -> tuple[str, ...]:
        """Return the codes at `level`, one of `levels`, in their order."""
        return tuple(self._rolled_up[level][0])

    def index(self, level: str) -> Mapping[str, int]:
        """Return the index of each code in level_codes(level)."""
        return self._rolled_up[level][0]

    def parent(self, level: str | None) -> Int32s:
        """Return the index in level_codes(level) of each finest code's roll-up, −1 for none; all 0 for None."""
        return read_only(np.zeros(len(self.codes), dtype=np.int32)) if level is None else self._rolled_up[level][1]

    def between(self, fine: str, coarse: str) -> Int32s | None:
        """Return the index of the one code at `coarse` of each code at `fine`; None where one has none, or several."""
        of_fine, of_coarse = self.parent(fine), self.parent(coarse)
        coarser = np.full(len(self.index(fine)), -1, dtype=np.int32)
        inside = of_fine >= 0
        coarser[of_fine[inside]] = of_coarse[inside]
        return coarser if (coarser >= 0).all() and np.array_equal(coarser[of_fine[inside]], of_coarse[inside]) else None

    def mask(self, where: Where) -> Masks:
        """Return which finest codes meet the levels of this key in a filter of known levels and codes."""
        mask = np.ones(len(self.codes), dtype=bool)
        for level in where.keys() & set(self.levels):
            index = self.index(level)
            chosen = np.zeros(len(index) + 1, dtype=bool)  # the last: for codes that have none there
            chosen[[index[code] for code in where[level]]] = True
            mask &= chosen[self.parent(level)]
        return mask

    def axis(self, number: int, level: str | None, mask: Masks) -> Axis:
        """Return this key's axis of a query's cells by `level` that meet `mask`; `number` is the key's."""
        parent, count = self.parent(level), 1 if level is None else len(self.index(level))
        mask = mask & (parent >= 0)
        kept = np.flatnonzero(np.bincount(parent[mask], minlength=count)).astype(np.int32)
        position_of = np.full(count, -1, dtype=np.int32)
        position_of[kept] = np.arange(len(kept), dtype=np.int32)
        position = np.where(mask, position_of[parent], np.int32(-1))
        codes = () if level is None else self.level_codes(level)
        return Axis(number, level, codes, read_only(kept), read_only(position), self.everyone and bool(mask.all()))

    def to_json(self) -> dict[str, object]:
        """Return all that the codes mean, as JSON."""
        classes = self.classes and {"of": self.classes.measure, "lowest": [as_json(x) for x in self.classes.lowest]}
        further = {level: list(codes) for level, codes in self.further.items()}
        facts = {"key": self.key, "level": self.level, "codes": self.codes, "levels": further}
        of_owner = {} if self.of_owner is None else {"of_owner": self.of_owner.to_json()}
        return {**facts, "classes": classes, "optional": self.optional, **of_owner}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], steps: Mapping[str, Fraction]) -> "Dimension":
        """Return the dimension of which `to_json` told; `steps` are those of the measures."""
        classes, codes = facts["classes"], tuple(facts["codes"])
        if classes is not None:
            lowest = tuple(exact(each) for each in classes["lowest"])
            return cls.of_classes(facts["key"], Classes(classes["of"], lowest, steps[classes["of"]]))
        if (rule := facts.get("of_owner")) is not None:
            lows = tuple(exact(each) for each in rule["lowest"] or ())
            of_total = Classes(rule["of"], lows, steps[rule["of"]]) if lows else None
            return cls(facts["key"], codes, facts["level"], of_owner=OfOwner(rule["of"], of_total, rule["main"]))
        further = FrozenMap.of({level: tuple(of) for level, of in facts["levels"].items()})
        return cls(facts["key"], codes, facts["level"], further, None, facts["optional"])

    @cached_property
    def _rolled_up(self) -> dict[str, tuple[dict[str, int], Int32s]]:
        """Return, by level, the index of its codes and each finest code's parent."""
        rolled_up = {}
        for level in self.levels:
            if level in self.further:
                coarse = list(self.further[level])
            elif self.key in LEVELS:
                coarse = [roll_up(code, level) for code in self.codes]
            else:
                coarse = list(self.codes)
            ordered = sorted({*coarse} - {""}, key=lambda code: (code == OTHER, code))
            if level == self.level:
                ordered = coarse
            index = {code: i for i, code in enumerate(ordered)}
            rolled_up[level] = index, read_only(np.array([index.get(code, -1) for code in coarse], dtype=np.int32))
        return rolled_up
