"""Columns of a product's layouts: what is withheld and noted, and figures made of several measures and public lists.

They are made of published values, errors and intervals alone; docs/mathematics.md, section 15, proves their coverage.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainValidator, PrivateAttr

from pipeline.base.errors import PlanError
from pipeline.plan.domain.published_lists import codes_in, numbers_by_code, successors
from pipeline.plan.messages import Mistake, missing
from pipeline.plan.plan_text import KeyPath, public_file
from pipeline.plan.values import LevelName, Positive, Spec, Text, broken
from pipeline.publication.release_folder import coefficient
from udfs.estimates import intervals
from udfs.estimates.intervals import Law, Statistics, Totals, ratio
from udfs.numbers.arrays import Floats

MOST_SHOWN = 20  # codes that a text names


def _times(value: object) -> Fraction:
    with suppress(ValueError, ZeroDivisionError):
        if (number := Fraction(str(value))) > 0:
            return number
    raise broken('must be a number above 0, or a fraction such as "3/13"')


OneOrMore = Annotated[list[Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


class DerivedSpec(Spec):
    """A figure made of measures: their `ratio` `per` others or a public list, the `share` that a row has of the total
    `over` the codes of levels, or the `change` since earlier releases (`relative`: as a share of what it was).

    Of several measures it takes the sum. It is shown `times` a factor, with so many `decimals`.
    """

    meaning: Text
    unit: Text
    ratio: OneOrMore = Field(default_factory=list)
    per: OneOrMore = Field(default_factory=list)
    share: OneOrMore = Field(default_factory=list)
    over: OneOrMore = Field(default_factory=list)
    change: OneOrMore = Field(default_factory=list)
    relative: bool = False
    times: Annotated[Fraction, PlainValidator(_times)] = Fraction(1)
    decimals: Annotated[int, Field(ge=0, le=9)] = 1

    def mistakes(self, path: KeyPath, known: Collection[str], lists: Collection[str]) -> Iterator[Mistake]:
        """Yield what does not go together."""
        if sum(map(bool, (self.ratio, self.share, self.change))) != 1:
            yield Mistake(path, "one of ratio, share and change is needed, and only one")
        for of, kind in (("per", "ratio"), ("over", "share"), ("relative", "change")):
            if getattr(self, of) and not getattr(self, kind):
                yield Mistake((*path, of), f"goes with {kind}")
            elif getattr(self, kind) and not getattr(self, of) and of != "relative":
                yield missing((*path, of))
        listed = self.per[0] if self.per and self.per[0] in lists else None
        if listed is not None and len(self.per) > 1:
            yield Mistake((*path, "per"), f"the public list {listed} must stand alone")
        for name in (*self.ratio, *self.share, *self.change, *(self.per if listed is None else ())):
            if name not in known:
                yield Mistake(path, f"{name}: must be one of {', '.join(known)}")


class WithholdSpec(Spec):
    """The public rule by which values are withheld: where a coefficient in percent is reached, or 0 is not excluded.

    It reads published values and their errors alone. Values below 0 and those outside their own interval are withheld
    too; values without error never are.
    """

    withhold_from: Positive = Fraction(100)
    interval_holds_zero: bool = False

    @property
    def rule(self) -> str:
        """The rule in words."""
        zero = "its interval reaches down to 0" if self.interval_holds_zero else "it is negative"
        return (
            f"{zero}, its standard error is {float(self.withhold_from):g} % of it or more, or it lies outside its range"
        )


class NumbersSpec(Spec):
    """Public numbers by code, such as inhabitants: their column in a `file`, and that of each level's codes.

    Every code of the first level has one line; the number of a code of other levels is the sum of its lines.
    """

    meaning: Text
    unit: Text
    file: Text
    number: Text
    codes: Annotated[dict[LevelName, Text], Field(min_length=1)]
    _numbers: Mapping[str, Mapping[str, float]] = PrivateAttr({})

    def read(self, folder: Path) -> None:
        """Read the file; PlanError names its line."""
        self._numbers = numbers_by_code(public_file(folder, self.file), self.number, self.codes)

    def of(self, level: str, codes: Sequence[str]) -> Floats:
        """Return the number of each code of a level; NaN of those that it does not list."""
        known = self._numbers[level]
        return np.array([known.get(code, np.nan) for code in codes], dtype=np.float64)


class ConcordanceSpec(Spec):
    """Which codes follow those of earlier releases: a `file` with the columns of `old` and `new` ones.

    Codes that no line has stay what they are; an old one without a new one ends.
    """

    file: Text
    old: Text = "old"
    new: Text = "new"
    _successors: Mapping[str, tuple[int, str]] = PrivateAttr({})
    _path: Path = PrivateAttr(Path())

    def read(self, folder: Path) -> None:
        """Read the file; PlanError names its line."""
        self._path = public_file(folder, self.file)
        self._successors = successors(self._path, self.old, self.new)

    def followed(self, old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
        """Return by each of the old codes the new one that it became, where there is one.

        Raises PlanError, which names the line, where a code is known on one side of it alone: a sum would lack it.
        """
        known_old, known_new = set(old), set(new)
        became = {code: code for code in old if code in known_new and code not in self._successors}
        for code, (line, other) in self._successors.items():
            if other and (code in known_old) != (other in known_new):
                lacking = f"earlier releases have no {code}" if other in known_new else f"the releases have no {other}"
                raise PlanError(f"{self._path}: line {line}: {lacking}, so that {other} would lack a part")
            if other and code in known_old:
                became[code] = other
        return became


class NoteSpec(Spec):
    """A footnote, for the cells that meet all that it says: of which figures, and by which public condition.

    `missing`: the tables, the earlier releases or a public list do not have the cell's codes. `levels`: its row has all
    of them; `codes`: its code at each level is one of these, or of those in a file's column `code`.
    """

    note: Text
    text: Text
    of: list[Text] = Field(default_factory=list)
    withheld: bool | None = None
    missing: bool | None = None
    wider_than: Positive | None = None
    error_from: Positive | None = None
    levels: list[Text] = Field(default_factory=list)
    codes: dict[LevelName, Annotated[list[Text], Field(min_length=1)] | Text] = Field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """Read the files that name codes; PlanError names their line."""
        for level, codes in self.codes.items():
            self.codes[level] = codes_in(public_file(folder, codes)) if isinstance(codes, str) else codes

    def mistakes(self, path: KeyPath, levels: Collection[str], figures: Collection[str]) -> Iterator[Mistake]:
        """Yield what it names that there is not."""
        if set(self.note) & set(" \t\n"):
            yield Mistake((*path, "note"), "must have no space: notes of one cell stand side by side")
        if self.rule == "":
            yield Mistake(path, "a condition is needed: withheld, missing, wider_than, error_from, levels or codes")
        for key, names, known in (("of", self.of, figures), ("levels", self.levels, levels)):
            yield from (
                Mistake((*path, key, i), f"must be one of {', '.join(known)}")
                for i, name in enumerate(names)
                if name not in known
            )
        yield from (Mistake((*path, "codes", level), "is no level") for level in self.codes if level not in levels)

    @property
    def rule(self) -> str:
        """The condition in words."""
        parts = [
            f"{'' if self.withheld else 'not '}withheld" if self.withheld is not None else "",
            f"its codes are {'not ' if self.missing else ''}all known" if self.missing is not None else "",
            f"its range is {float(self.wider_than):g} % of it or wider" if self.wider_than is not None else "",
            f"its standard error is {float(self.error_from):g} % or more" if self.error_from is not None else "",
            f"by {' and '.join(self.levels)}" if self.levels else "",
            *(f"{level} is {some(codes)}" for level, codes in self.codes.items()),
        ]
        return ", ".join(filter(None, parts))

    def holds(self, name: str, figures: "Figures | None", places: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which cells of a figure it is for; `places`: which meet what it says of levels and codes."""
        if (self.of and name not in self.of) or (figures is None and not self.missing):
            return np.zeros(places.shape, bool)
        if figures is None:  # an optional column without cells
            wants = (self.withheld, self.wider_than, self.error_from)
            return places if wants == (None, None, None) else np.zeros(places.shape, bool)
        cells = places.copy()
        hidden = figures.withheld & ~figures.missing
        for wanted, is_so in ((self.withheld, hidden), (self.missing, figures.missing)):
            cells &= True if wanted is None else is_so == wanted
        with np.errstate(invalid="ignore"):  # of an infinite range
            width = 100 * (figures.upper - figures.lower) / np.maximum(np.abs(figures.shown), 1e-300)
        for least, size in ((self.wider_than, width), (self.error_from, figures.relative)):
            cells &= True if least is None else ~(size < float(least)) & ~figures.missing
        return cells


def some(codes: Sequence[str] | str) -> str:
    """Return codes as a text, the first ones of many; a file by its name."""
    if isinstance(codes, str):
        return f"in {codes}"
    return f"{', '.join(codes[:MOST_SHOWN])}{f', … ({len(codes)} in all)' if len(codes) > MOST_SHOWN else ''}"


class Figures(NamedTuple):
    """What a layout shows of some areas' cells, a row for each area.

    `shown`: whole numbers, decimals where it is derived; `flag`: of each the number of the flag; `lower`, `upper`: ends
    of its range; `relative`: the percentage that flags go by; `missing`: what has no figure for want of its codes.
    """

    shown: NDArray[Any]
    withheld: NDArray[np.bool_]
    flag: NDArray[np.int8]
    lower: NDArray[Any]
    upper: NDArray[Any]
    relative: Floats
    missing: NDArray[np.bool_]


class Noted(NamedTuple):
    """Which footnotes some areas' cells have: the number whose bits are those of the product's notes."""

    notes: NDArray[np.int64]


def withheld(
    rule: WithholdSpec, values: NDArray[Any], errors: Floats, lower: NDArray[Any], relative: Floats
) -> NDArray[np.bool_]:
    """Return which values a product's rule withholds, from published figures alone; never one without error.

    `relative`: the `coefficient` of values and errors.
    """
    unclear = (values < 0) | (relative >= float(rule.withhold_from))
    if rule.interval_holds_zero:
        unclear |= lower <= 0
    return unclear & ((errors > 0) | (values < 0))


def summed(cube: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Return sums along axes; those of whole numbers are held at ±(2⁶³ − 1), where they would wrap."""
    sums: NDArray[Any] = cube.sum(axis=axes)
    if cube.dtype != np.int64:
        return sums
    largest = max(float(cube.max(initial=0)), -float(cube.min(initial=0)))
    if largest * prod(cube.shape[axis] for axis in axes) >= 2.0**62:
        exact = cube.astype(object).sum(axis=axes)
        most = np.iinfo(np.int64).max
        sums = np.clip(exact, -most, most).astype(np.int64)
    return sums


@dataclass(frozen=True, eq=False)
class Part:
    """What is published of one measure in some rows.

    `table`: whose noise it has; parts of one have the same cells. `group`: of estimates, what they add up with: errors
    of one group are correlated. `law` None: intervals alone tell of the error. `step`: of the measure, times the cells
    that are added up in a row. An interval of 1: public numbers, without error.
    """

    table: Hashable
    group: Hashable | None
    law: Law | None
    step: float
    interval: float
    figures: Statistics

    @classmethod
    def public(cls, source: Hashable, numbers: Floats) -> "Part":
        """Return public numbers above 0; NaN where there is none."""
        return cls(source, None, Law.GAUSSIAN, 0.0, 1.0, Statistics(numbers, numbers * 0, numbers, numbers))


def quotient_of(above: Sequence[Part], below: Sequence[Part]) -> Statistics:
    """Return the ratio of two sums of parts, whose interval holds it as often as the least of theirs.

    But where intervals alone tell of an error it is the range of all quotients, and misses at most as often as all of
    these together. Errors of parts of one group, of which nothing is known but their size, are taken at the worst. Of
    one part over public numbers it is the part's own interval over them.
    """
    if len(above) == 1 and all(part.interval == 1 for part in below):
        stated, over = above[0].figures, _sum(below).value
        return Statistics(stated.value / over, stated.standard_error / over, stated.lower / over, stated.upper / over)
    parts = list({part.table: part for part in (*above, *below)}.values())
    n, d = _sum(above), _sum(below)
    if any(part.law is None for part in parts):
        return intervals.ratio_of_intervals(n, d)
    k = _reach(parts, sum((_shares(part) for part in parts), np.zeros(())))
    groups = [part.group for part in parts if part.group is not None]
    if len({*groups}) < len(groups):
        return _at_worst(n.value, d.value, _together(above), _together(below), k)
    both = {part.table for part in above} & {part.table for part in below}
    covariance = sum((part.figures.standard_error**2 for part in above if part.table in both), np.zeros(()))
    one, two = (Totals(each.value, each.standard_error**2) for each in (n, d))
    return ratio(one, two, k, covariance)


def share_of_rows(parts: Sequence[Part], shape: tuple[int, ...], axes: tuple[int, ...]) -> Statistics:
    """Return of each row the share of the sum of all rows along `axes`; rows are in an array of that shape.

    No part may have an error that intervals alone tell.
    """
    n = _sum(parts)

    def total(rows: Floats) -> Floats:
        summed: Floats = np.broadcast_to(rows.reshape(shape).sum(axis=axes, keepdims=True), shape).reshape(rows.shape)
        return summed

    k = _reach(parts, total(sum((_shares(part) for part in parts), np.zeros(n.value.shape))))
    if any(part.group is not None for part in parts):
        return _at_worst(n.value, total(n.value), _together(parts), total(_together(parts)), k)
    variance = n.standard_error**2
    return ratio(Totals(n.value, variance), Totals(total(n.value), total(variance)), k, variance)


def change_of_rows(after: Sequence[Part], before: Sequence[Part], *, relative: bool) -> Statistics:
    """Return the change since other releases, whose noise is independent; `relative`: as a share of what it was."""
    if relative:
        return quotient_of(after, before).less(1)
    a, b = _sum(after), _sum(before)
    parts = [*after, *before]
    if any(part.law is None for part in parts):
        return Statistics(a.value - b.value, np.full(a.value.shape, np.nan), a.lower - b.upper, a.upper - b.lower)
    k = _reach(parts, sum((_shares(part) for part in parts), np.zeros(())))
    one, two = (Totals(each.value, each.standard_error**2) for each in (a, b))
    return intervals.difference(one, two, k)


def _sum(parts: Sequence[Part]) -> Statistics:
    stated = [part.figures for part in parts]
    value, lower, upper = (np.sum([getattr(x, name) for x in stated], axis=0) for name in ("value", "lower", "upper"))
    return Statistics(value, np.sqrt(np.sum([x.standard_error**2 for x in stated], axis=0)), lower, upper)


def _together(parts: Sequence[Part]) -> Floats:
    """Return the standard error of the sum of parts, whatever their correlation."""
    errors: Floats = np.sum([part.figures.standard_error for part in parts], axis=0)
    return errors


def _at_worst(n: Floats, d: Floats, of_n: Floats, of_d: Floats, k: Floats) -> Statistics:
    """Return the ratio of two estimates whose errors are correlated, nobody knows how.

    sd(N − θD) ≤ sd(N) + |θ|·sd(D), which is Fieller's at the covariance −sd(N)·sd(D) for θ ≥ 0, and at its negative for
    θ < 0: the interval is the hull of both.
    """
    signs = (-of_n * of_d, of_n * of_d)
    one, two = (ratio(Totals(n, of_n**2), Totals(d, of_d**2), k, sign) for sign in signs)
    error = np.maximum(one.standard_error, two.standard_error)
    return Statistics(one.value, error, np.minimum(one.lower, two.lower), np.maximum(one.upper, two.upper))


def _shares(part: Part) -> Floats:
    """Return the square of the step over the standard error, which `half_step` adds up; 0 without an error."""
    error = part.figures.standard_error
    return np.divide(part.step, error, out=np.zeros(error.shape), where=error > 0) ** 2


def _reach(parts: Sequence[Part], squares: Floats) -> Floats:
    law = intervals.combined(part.law for part in parts if part.law is not None)
    reach: Floats = intervals.multiplier(1 - min(part.interval for part in parts), law) + np.sqrt(squares) / 2
    return reach


def derived_figures(
    spec: DerivedSpec, made: Statistics, parts: Sequence[Part], rule: WithholdSpec | None, limits: list[float]
) -> Figures:
    """Return what is shown of a derived figure: nothing without an interval, or where what it is made of is withheld.

    Its own error withholds it too, but not a change. Where there is no standard error a quarter of the range stands
    for it.
    """
    error = np.where(np.isnan(made.standard_error), (made.upper - made.lower) / 4, made.standard_error)
    relative = 100 * error if spec.relative else coefficient(made.value, error)
    letters = np.digitize(relative, limits)
    hidden = ~np.isfinite(made.value) | np.isnan(made.lower)
    if rule is not None:
        for part in parts:
            of = part.figures
            hidden |= withheld(rule, of.value, of.standard_error, of.lower, coefficient(of.value, of.standard_error))
        if not spec.change:
            hidden |= withheld(rule, made.value, error, made.lower, coefficient(made.value, error))
    factor, tens = float(spec.times), 10.0**spec.decimals
    lower, upper = np.floor(made.lower * factor * tens) / tens, np.ceil(made.upper * factor * tens) / tens
    shown = np.round(made.value * factor, spec.decimals)
    lacking = np.logical_or.reduce([np.isnan(part.figures.value) for part in parts])
    flags = np.where(hidden, len(limits) + 1, letters).astype(np.int8)
    return Figures(shown, hidden, flags, lower, upper, relative, lacking)


def public_figures(part: Part) -> Figures:
    """Return what is shown of public numbers: they themselves, as their own range."""
    numbers = part.figures.value
    lacking, nothing = np.isnan(numbers), np.zeros(numbers.shape)
    return Figures(numbers, lacking, nothing.astype(np.int8), numbers, numbers, nothing, lacking)
