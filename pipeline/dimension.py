"""The public codes of one key, and what they roll up to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.cells import Int32s
from pipeline.errors import in_a_line
from udfs.codes import LEVELS, OTHER, SECTOR_RANGES, is_code, roll_up


def level_of(key: str, code: str) -> str:
    """Return the level of a well-formed finest code of `key` ("naics" or "county"); raises ValueError with the rule."""
    candidates = LEVELS["naics"] if key == "naics" else ("county",)
    for level in candidates:
        if is_code(code, level):
            return level
    if code == OTHER:
        raise ValueError(f'"{OTHER}" stands in no list; declare it in the plan, as domain: {{…, other: [{key}]}}')
    if key == "naics" and code in SECTOR_RANGES:
        raise ValueError(f'"{code}" is a part of a sector; write {SECTOR_RANGES[code]}')
    digits = "2 to 6 digits (sectors as 31-33) are" if key == "naics" else "5 digits are"
    raise ValueError(f'malformed code "{in_a_line(code)}"; {digits} needed')


@dataclass(frozen=True, eq=False)
class Dimension:
    """The public codes of one key, "naics" or "county": `codes` are sorted, distinct and all of `level`.

    Last of them may be OTHER, which stands for all well-formed codes that are not listed, and sorts after every digit.
    """

    key: str
    codes: tuple[str, ...]
    level: str

    @classmethod
    def of(cls, key: str, codes: Iterable[str]) -> "Dimension":
        """Return the dimension of at least one well-formed code, all of one level."""
        ordered = tuple(sorted(set(codes)))
        return cls(key, ordered, level_of(key, ordered[0]))

    def with_other(self, *, declared: bool) -> "Dimension":
        """Return this dimension of listed codes, with OTHER as one more where the plan declares it."""
        return Dimension(self.key, (*self.codes, OTHER), self.level) if declared else self

    @property
    def has_other(self) -> bool:
        """Whether codes that are not listed have a public code."""
        return self.codes[-1] == OTHER

    @property
    def listed(self) -> tuple[str, ...]:
        """The codes but OTHER: those that microdata may have, or roll up to."""
        return self.codes[:-1] if self.has_other else self.codes

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels a query may use, coarse to fine."""
        return LEVELS[self.key][: LEVELS[self.key].index(self.level) + 1]

    def level_codes(self, level: str) -> tuple[str, ...]:
        """Return the sorted codes at `level`, one of `levels`."""
        return self._rolled[level].codes

    def places(self, level: str) -> Mapping[str, int]:
        """Return the place of each code in level_codes(level)."""
        return self._rolled[level].places

    def parent(self, level: str) -> Int32s:
        """Return for each finest code the place of its roll-up in level_codes(level); non-decreasing."""
        return self._rolled[level].parent

    @cached_property
    def _rolled(self) -> dict[str, "_Rolled"]:
        return {level: _Rolled.of(self.codes, level) for level in self.levels}


@dataclass(frozen=True, eq=False)
class _Rolled:
    """The roll-up of finest codes to one level."""

    codes: tuple[str, ...]
    places: Mapping[str, int]
    parent: Int32s

    @classmethod
    def of(cls, finest: Iterable[str], level: str) -> "_Rolled":
        coarse = [roll_up(code, level) for code in finest]
        codes = tuple(sorted(set(coarse)))
        places = {code: i for i, code in enumerate(codes)}
        parent = np.array([places[code] for code in coarse], dtype=np.int32)
        parent.flags.writeable = False
        return cls(codes, places, parent)
