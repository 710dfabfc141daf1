"""The public domain as CSV files: lists of codes, or one list of cells; every error names file and line."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from importlib.resources.abc import Traversable
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar
from zipfile import Path as Zipped

import numpy as np
from numpy.typing import NDArray

from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, hint, in_a_line
from pipeline.base.plain import rule_of_name
from pipeline.plan.domain import Domain, rank
from pipeline.plan.domain.cells import Int32s, read_only
from pipeline.plan.domain.keys import Classes, Dimension, OfOwner, built_in_levels, level_of
from pipeline.plan.domain.published_lists import PlainRows, UnreadableFile, listed, opened, refuse
from pipeline.plan.messages import Mistake
from pipeline.plan.plan_schema import DatasetSpec, DomainSpec, ListSpec, VintageSpec
from pipeline.plan.plan_text import KeyPath, public_file
from pipeline.plan.values import ClassesSpec, MainSpec
from udfs.records.codes import LEVELS, is_text_code, roll_up

T = TypeVar("T")
CHUNK_ROWS = 1 << 12  # of a cells file, held as text at a time; more would fall out of the cache


def files_of(spec: DomainSpec, dataset: DatasetSpec, folder: Path) -> dict[str, Path]:
    """Return the file of each key's codes, of a spec without mistakes; paths in it are relative to `folder`."""
    lists = {key: each.list for key, each in spec.codes.items() if isinstance(each, ListSpec)}
    return {key: public_file(folder, spec.cells or lists[key]) for key in dataset.keys}


def read_domain(
    spec: DomainSpec, dataset: DatasetSpec, folder: Path
) -> tuple[Domain | None, Sequence[Mistake], Sequence[str]]:
    """Return the domain that a spec without mistakes names, if it can be read, and what is wrong with its files.

    That is a mistake for each key whose file cannot be opened, and a line for each other fault.
    """
    vintage = {key: year for key, year in spec.vintage if year is not None}
    files = files_of(spec, dataset, folder)
    steps = {name: measure.step or Fraction(1) for name, measure in dataset.measures.items()}
    classes: dict[str, Dimension] = {}
    for key, each in spec.codes.items():
        if isinstance(each, ClassesSpec):
            of_classes = Classes(each.of, tuple(each.classes), steps[each.of])
            classes[key] = (
                Dimension.of_classes(key, of_classes)
                if each.per == "record"
                else Dimension(key, of_classes.codes, key, of_owner=OfOwner(each.of, of_classes))
            )
    mains = {key: each for key, each in spec.codes.items() if isinstance(each, MainSpec)}
    lines: list[str] = []
    mistakes: list[Mistake] = []

    def tried(path: KeyPath, reading: Callable[[], T]) -> T | None:
        try:
            return reading()
        except UnreadableFile as error:
            mistakes.append(Mistake(path, str(error)))
        except NoLevel as error:
            mistakes.append(error.mistake)
        except PlanError as error:
            lines.extend(error.lines)
        return None

    domain: Domain | None = None
    if spec.cells is not None:
        cells = public_file(folder, spec.cells)
        domain = tried(("domain", "cells"), partial(read_cells, cells, vintage, files, classes, mains))
    else:
        dimensions = []
        for key, each in spec.codes.items():
            if isinstance(each, ListSpec):
                path: KeyPath = ("domain", key) if not each.levels and not each.optional else ("domain", key, "list")
                dimensions.append(tried(path, partial(read_list, files[key], key, each, other=key in spec.other)))
        if None not in dimensions:
            lists = [*filter(None, dimensions)]
            of_main = tried((), lambda: _mains(mains, lists))
            if of_main is not None:
                domain = Domain.of([*lists, *classes.values(), *of_main.values()], vintage)
    if domain is not None:
        lines += foreign_codes(domain, files)
    return domain, mistakes, lines


class NoLevel(PlanError):
    """A main code is to be one at a level that no key with a list has."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.rule)
        self.mistake = mistake


def _mains(mains: Mapping[str, MainSpec], lists: Iterable[Dimension]) -> dict[str, Dimension]:
    """Return the dimensions of owners' main codes, which are those of other keys' lists; raises NoLevel."""
    known = {level: each for each in lists for level in each.levels}
    made = {}
    for key, each in mains.items():
        if each.main not in known:
            rule = f"must be a level of another key with a list of codes{hint(each.main, known, 'level')}"
            raise NoLevel(Mistake(("domain", key, "main"), rule))
        codes = known[each.main].level_codes(each.main)
        made[key] = Dimension(key, codes, key, of_owner=OfOwner(each.of, main=each.main))
    return made


NO_MORE = ListSpec(list="-")


def read_list(path: Path, key: str, spec: ListSpec = NO_MORE, *, other: bool = False) -> Dimension:
    """Return the dimension of `key` that `path` lists (header code, or code,name, and the levels that `spec` names).

    Args:
        path: a CSV file.
        key: its name.
        spec: the columns that are coarser levels, and whether a record may lack the key.
        other: whether the plan declares a code for all well-formed codes that the file does not list.

    Raises:
        PlanError: on a file that cannot be read, malformed or mixed codes, a code twice, and an empty list.
    """
    numbering = _Numbering(key)
    parents: dict[str, list[str]] = {level: [] for level in spec.levels}
    names: dict[str, str] = {}
    with listed(path, spec) as rows:
        header = _list_header(rows, path, key, spec.levels)
        columns = {level: header.index(level) for level in spec.levels}
        named = header.index("name") if "name" in header and "name" not in spec.levels else None
        for count, row in enumerate(rows):
            known = len(numbering)
            (number,) = _numbers(row, [numbering], len(header), rows.line_num, path)
            coarser = {level: row[column] for level, column in columns.items()}
            if known == len(numbering):
                again = [level for level, code in coarser.items() if parents[level][number] != code]
                two = f", and has two parents at {again[0]}" if again else ""
                refuse(path, rows.line_num, f'code "{row[0]}" stands twice{two}')
            assert number == count
            for level, code in coarser.items():
                if rule := _parent_rule(row[0], level, code, level in built_in_levels(key)):
                    refuse(path, rows.line_num, rule)
                parents[level].append(code)
            if named is not None and row[named].strip():
                names[row[0]] = _name(path, rows.line_num, row[named])
    if not numbering:
        raise PlanError(f"{path}: holds no code; list at least one below the header")
    further = {
        level: dict(zip(numbering, codes, strict=True))
        for level, codes in parents.items()
        if level not in built_in_levels(key)
    }
    dimension = Dimension.of(key, numbering, further, other=other, optional=spec.optional)
    tree = rows.above.items() if isinstance(rows, PlainRows) else ()
    above = {code: _name(path, f"code {in_a_line(code)}", name) for code, name in tree if name.strip()}
    return replace(dimension, names=FrozenMap.of(names), coarser_names=FrozenMap.of(above))


def _name(path: Path, where: int | str, text: str) -> str:
    name = re.sub(r"\r?\n", " ", text.strip())  # a cell that a spreadsheet wrapped
    if rule := rule_of_name(name):
        refuse(path, where, rule)
    return name


def _list_header(rows: Any, path: Path, key: str, levels: Sequence[str]) -> list[str]:
    header: list[str] = next(rows, [])
    missing_levels = [level for level in levels if level not in header]
    if header[:1] == ["code"] and missing_levels:
        refuse(path, 1, f"there is no column {missing_levels[0]}, which the plan names as a level of {key}")
    known = len(header) == 1 or not {"name", *levels}.isdisjoint(header)
    if header[:1] != ["code"] or len(set(header)) < len(header) or not known:
        refuse(path, 1, "the header must be code or code,name, then columns of levels, each once")
    return header


def _parent_rule(code: str, level: str, parent: str, built_in: bool) -> str | None:
    """Return the rule that a code's coarser one ("" for none) breaks: well-formed, and its own; None for none."""
    if built_in and parent != roll_up(code, level):
        return f'"{in_a_line(parent)}" is not the {level} of {code}, which is {roll_up(code, level)}'
    if parent and not built_in and not is_text_code(parent):
        return f'malformed code "{in_a_line(parent)}" at {level}; leave it empty for none'
    return None


def read_cells(
    path: Path,
    vintage: Mapping[str, int],
    keys: Iterable[str] = ("naics", "county"),
    classes: Mapping[str, Dimension] | None = None,
    mains: Mapping[str, MainSpec] | None = None,
) -> Domain:
    """Return the domain of the cells listed in `path`: a column for each of the keys, in any order, and for classes
    and main codes of owners.

    Memory: some 50 bytes a cell, and a few rows as text. Raises PlanError as `read_list` does, and on a cell twice.
    """
    known, mains = dict(classes or {}), mains or {}
    names = sorted([*keys, *known, *mains], key=rank)
    with opened(path) as rows:
        header: list[str] = next(rows, [])
        if sorted(header) != sorted(names):
            ways = " or ".join(",".join(each) for each in ((names, names[::-1]) if len(names) == 2 else (names,)))
            refuse(path, 1, f"the header must be {ways}")
        numberings = [_Numbering(key, known.get(key)) for key in header]
        chunks = list(_numbered_chunks(rows, numberings, path))
    if not chunks:
        raise PlanError(f"{path}: holds no cell; list at least one below the header")
    of_lists = {each.key: each.dimension for each in numberings if each.key not in mains}
    dimensions = of_lists | _mains(mains, (each for key, each in of_lists.items() if key not in known))
    sorted_codes = [
        (dimensions[key], numberings[column].sorted(np.concatenate([chunk[column] for chunk in chunks]), of_key, path))
        for key, column, of_key in ((key, header.index(key), dimensions[key]) for key in names)
    ]
    cells = _sorted_cells([indices for _, indices in sorted_codes], path)
    return Domain(tuple(dimension for dimension, _ in sorted_codes), cells, FrozenMap.of(vintage))


class _Numbering(dict[str, int]):
    """Numbers the codes of one key in order of appearance; each is checked when it first appears (ValueError)."""

    def __init__(self, key: str, classes: Dimension | None = None) -> None:
        super().__init__()
        self.key = key
        self.classes = classes
        self.level: str | None = None

    def __missing__(self, code: str) -> int:
        if self.classes is not None and code not in self.classes.codes:
            raise ValueError(f'"{in_a_line(code)}" is no class of {self.key}: {", ".join(self.classes.codes)}')
        level = level_of(self.key, code)
        if level != (self.level or level):
            raise ValueError(f'code "{code}" is of {level}, the codes above it of {self.level}; use one level')
        self.level = level
        self[code] = number = len(self)
        return number

    @property
    def dimension(self) -> Dimension:
        """The dimension of these codes."""
        return self.classes or Dimension.of(self.key, self)

    def sorted(self, numbers: Int32s, dimension: Dimension, path: Path) -> NDArray[np.int64]:
        """Return the index in a dimension of each number's code, those of the rows of `path`."""
        numbering = dimension.index(dimension.level)
        for number, code in enumerate(self):
            if code not in numbering:
                rule = dimension.of_owner
                line = int(np.argmax(numbers == number)) + 2
                refuse(path, line, f'"{in_a_line(code)}" is no code at {rule and rule.main}, which {self.key} is of')
        index = np.array([numbering[code] for code in self], dtype=np.int64)
        return index[numbers]


def _numbered_chunks(rows: Any, numberings: list[_Numbering], path: Path) -> Iterator[list[Int32s]]:
    above = rows.line_num
    while chunk := list(islice(rows, CHUNK_ROWS)):
        try:
            columns = zip(*chunk, strict=True)
            yield [
                np.fromiter(map(numbering.__getitem__, column), dtype=np.int32, count=len(chunk))
                for numbering, column in zip(numberings, columns, strict=True)
            ]
        except ValueError:  # some row is wrong: go through them for the first
            for line, row in enumerate(chunk, above + 1):
                _numbers(row, numberings, len(numberings), line, path)
            raise
        above = rows.line_num


def _numbers(row: list[str], numberings: list[_Numbering], columns: int, line: int, path: Path) -> list[int]:
    if len(row) != columns:
        refuse(path, line, f"{len(row)} columns, but the header has {columns}")
    try:
        return [numbering[code] for numbering, code in zip(numberings, row, strict=False)]
    except ValueError as error:
        refuse(path, line, str(error))


def _sorted_cells(codes: Sequence[NDArray[np.int64]], path: Path) -> tuple[Int32s, ...]:
    """Return the cells' codes, sorted by them, or refuse a cell that stands twice."""
    order = np.lexsort(codes[::-1])
    cells = tuple(read_only(each[order].astype(np.int32)) for each in codes)
    same = np.logical_and.reduce([each[1:] == each[:-1] for each in cells])
    if same.any():
        refuse(path, int(order[1:][same].min()) + 2, "the cell stands twice")
    return cells


# Vintages: which public codes are in effect in a year, by the lists in conf/codes and by nothing else.
#
# A plan may declare the years of its code lists; its domain must then hold codes of those years alone. All of it is
# public.

HOME = Path(__file__).resolve().parents[3]  # the checkout, the installation, or the file that jobs.submit packed
CONF: Traversable = Zipped(HOME, "conf/") if HOME.is_file() else HOME / "conf"
LISTS = CONF.joinpath("codes")
TABLE = "vintages.csv"  # key, first, last, published, file: a vintage's codes are those of all its files
MOST_SHOWN = 5  # codes that a message names


@dataclass(frozen=True)
class Vintage:
    """The codes of one key, "naics" or "county", in the years `first` to `last` (None: until a later list is added).

    `published`: the last year whose data were still published by these codes, which can be later than `last`.
    """

    key: str
    first: int
    last: int | None
    published: int | None
    files: tuple[str, ...]

    def __contains__(self, year: int) -> bool:
        return self.first <= year and (self.last is None or year <= self.last)

    def of_data(self, year: int) -> bool:
        """Return whether data of a year may be published by these codes."""
        return self.first <= year and (self.published is None or year <= self.published)

    @property
    def years_of_data(self) -> str:
        """The years whose data may be published by these codes, in words."""
        return _span(self.first, self.published)

    def __str__(self) -> str:
        return _span(self.first, self.last)

    def holds(self, code: str, level: str) -> bool:
        """Return whether a code is one at `level` in this vintage."""
        return code in _codes(self, level)

    def lacks(self, codes: Iterable[str], level: str) -> list[str]:
        """Return those of `codes` that are no code at `level` in this vintage, in their order."""
        valid = _codes(self, level)
        return [code for code in codes if code not in valid]


@cache
def vintages(key: str) -> tuple[Vintage, ...]:
    """Return the known vintages of a key, oldest first."""
    rows = [row for row in _rows(TABLE) if row["key"] == key]
    spans = groupby(rows, lambda row: (int(row["first"]), _year(row["last"]), _year(row["published"])))
    return tuple(Vintage(key, *span, tuple(row["file"] for row in rows)) for span, rows in spans)


def vintage_of(key: str, year: int) -> Vintage | None:
    """Return the vintage of a key in a year; None where conf/codes has no list of that year."""
    return next((vintage for vintage in vintages(key) if year in vintage), None)


@cache
def _codes(vintage: Vintage, level: str) -> frozenset[str]:
    return frozenset(roll_up(row["code"], level) for file in vintage.files for row in _rows(file))


def _span(first: int, last: int | None) -> str:
    return f"{first} and later" if last is None else f"{first} to {last}"


def _year(text: str) -> int | None:
    return int(text) if text else None


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(LISTS.joinpath(file).read_text(encoding="utf-8").splitlines()))


def vintage_mistakes(spec: VintageSpec) -> Iterator[Mistake]:
    """Yield the years that have no list, and two years that cannot be those of the same data."""
    years = {key: year for key in LEVELS if (year := getattr(spec, key)) is not None}
    declared = {key: vintage_of(key, year) for key, year in years.items()}
    for key, vintage in declared.items():
        if vintage is None:
            known = ", ".join(map(str, vintages(key)))
            yield Mistake(("domain", "vintage", key), f"no list of this year; known years: {known}; or leave it out")
    naics = declared.get("naics")
    if naics is not None and declared.get("county") is not None and not naics.of_data(years["county"]):
        rule = f"counties of {years['county']} do not go with NAICS {years['naics']}, which is for data of"
        yield Mistake(
            ("domain", "vintage"), f"{rule} {naics.years_of_data}; give both the year of the data, or leave one out"
        )


def foreign_codes(domain: Domain, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each key of the domain that has codes beyond the declared vintage; `files` names its file."""
    for dimension in domain.dimensions:
        year = domain.vintage.get(dimension.key)
        vintage = None if year is None else vintage_of(dimension.key, year)
        foreign = [] if vintage is None else vintage.lacks(dimension.listed, dimension.level)
        if foreign:
            rest = f", … ({len(foreign)} in all)" if len(foreign) > MOST_SHOWN else ""
            shown = f"no {dimension.key} codes of the vintage {year}: {', '.join(foreign[:MOST_SHOWN])}{rest}"
            yield f"{files[dimension.key]}: {shown}; {_advice(dimension, foreign)}"


def _advice(dimension: Dimension, foreign: list[str]) -> str:
    latest_first = vintages(dimension.key)[::-1]
    for_all, for_some = (
        next((vintage for vintage in latest_first if not vintage.lacks(codes, dimension.level)), None)
        for codes in (dimension.listed, foreign)
    )
    if for_all is not None:
        year = f"write such a year as domain.vintage.{dimension.key}"
        return f"the whole list is of {for_all}: take another list, or {year}"
    if for_some is not None:
        return f"they are of {for_some}, and a list must not mix vintages: correct it"
    return f"correct the list, or leave domain.vintage.{dimension.key} out"
