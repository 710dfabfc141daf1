"""What is probably wrong with a code of the microdata, by public lists alone: the domain's and those of all vintages.

A code is told only where a public list holds it, or what it was meant to be: any other text could name a record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.plan.domain import Domain
from pipeline.plan.keys import Dimension
from pipeline.plan.vintages import Vintage, vintage_of, vintages
from udfs.records.codes import NAICS_LEVELS, OTHER, SECTOR_RANGES, is_code
from udfs.records.keys import ABSENT, MALFORMED, CodeColumn

DIGITS = {"naics6": 6, "county": 5}  # of a record's code


class Wrong(StrEnum):
    """What is wrong with a code; OUTSIDE alone is no mistake."""

    EMPTY = "empty"
    LOST_ZEROS = "without its leading zeros"
    DECIMALS = "written as a number with decimals"
    SPACES = "with spaces around it"
    RANGE = "a range of sectors"
    COARSE = "of fewer digits: a coarser code"
    DIGITS = "of another number of digits"
    TEXT = "no code at all"
    EARLIER = "retired"
    LATER = "of a later vintage"
    UNKNOWN = "well formed, but in no public list"
    OUTSIDE = "valid, but outside the plan's domain"


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a code; the code, where it may be told, and what it was meant to be, where that is known."""

    wrong: Wrong
    code: str = ""
    meant: str = ""


@dataclass(frozen=True, eq=False)
class CodeJudge:
    """Judges the codes of one key column.

    `own`: the vintages of the domain, which are the declared one, or all that hold its every code (several, or none).
    """

    key: CodeColumn
    own: tuple[Vintage, ...]
    others: tuple[Vintage, ...]

    @classmethod
    def of(cls, key: CodeColumn, dimension: Dimension, domain: Domain) -> "CodeJudge":
        """Return the judge of a key column of a plan's domain."""
        known = vintages(dimension.key)
        year = domain.vintage.get(dimension.key)
        declared = None if year is None else vintage_of(dimension.key, year)
        fitting = (
            [v for v in known if not v.lacks(dimension.listed, dimension.level)] if declared is None else [declared]
        )
        return cls(key, tuple(fitting), tuple(v for v in known if v not in fitting))

    def judged(self, code: str | None) -> Judgement | None:
        """Return what is wrong with a record's code; None where nothing is."""
        index = self.key.index_of(code)
        if index == ABSENT:
            return None
        if code is None or not code.strip():
            return Judgement(Wrong.EMPTY)
        if index == MALFORMED:
            return self._malformed(code)
        return None if index >= 0 and index != self.key.other else self._outside(code)

    def _outside(self, code: str) -> Judgement:
        if not self.own and not self.others:
            return Judgement(Wrong.OUTSIDE)  # of a key of the plan's own no public list is known
        if self._in(self.own, code):
            return Judgement(Wrong.OUTSIDE, code)
        holders = [vintage for vintage in self.others if self._in([vintage], code)]
        if not holders:
            return Judgement(Wrong.UNKNOWN)
        if not self.own:
            return Judgement(Wrong.OUTSIDE, code)
        earlier = holders[-1].first < self.own[0].first
        return Judgement(Wrong.EARLIER if earlier else Wrong.LATER, code, str(holders[-1 if earlier else 0]))

    def _malformed(self, code: str) -> Judgement:
        bare = code.strip()
        if bare != code:
            return Judgement(Wrong.SPACES, code, bare) if self._known(bare) else Judgement(Wrong.TEXT)
        whole, point, zeros = code.partition(".")
        if point and not zeros.strip("0"):
            full = self._filled(whole)
            return Judgement(Wrong.DECIMALS, code, full) if full else Judgement(Wrong.TEXT)
        if code in SECTOR_RANGES.values() and self._of_industries:
            return Judgement(Wrong.RANGE, code)
        if not (code.isascii() and code.isdigit()):
            return Judgement(Wrong.TEXT)
        if self._of_industries and self._is_coarser(code):
            return Judgement(Wrong.COARSE, code)
        full = self._filled(code)
        return Judgement(Wrong.LOST_ZEROS, code, full) if full else Judgement(Wrong.DIGITS)

    @property
    def _of_industries(self) -> bool:
        return self.key.record_level in NAICS_LEVELS

    def _filled(self, digits: str) -> str:
        """Return digits with leading zeros as a known code; "" where there is none."""
        full = digits.zfill(self.key.digits or DIGITS.get(str(self.key.record_level), 0))
        return full if self._known(full) else ""

    def _known(self, code: str) -> bool:
        if not self.key.is_well_formed(code) or code == OTHER:
            return False
        return self.key.index_of(code) not in (MALFORMED, self.key.other) or self._in((*self.own, *self.others), code)

    def _is_coarser(self, code: str) -> bool:
        levels = [level for level in NAICS_LEVELS[:-1] if is_code(code, level)]
        sector = code in SECTOR_RANGES
        return sector or any(v.holds(code, level) for level in levels for v in (*self.own, *self.others))

    def _in(self, lists: Sequence[Vintage], code: str) -> bool:
        level = self.key.record_level
        return level is not None and any(vintage.holds(code, level) for vintage in lists)
