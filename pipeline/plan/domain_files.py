"""The public domain as CSV files: lists of codes, or one list of cells; every error names file and line."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.canonical import FrozenMap
from pipeline.errors import PlanError, in_a_line
from pipeline.names import hint, nearest
from pipeline.plan.cells import Int32s, read_only
from pipeline.plan.domain import Domain, rank
from pipeline.plan.keys import Classes, Dimension, built_in_levels, level_of
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.schema import ClassesSpec, DatasetSpec, DomainSpec, ListSpec, MeasureSpec
from pipeline.plan.values import level_name_rule
from udfs.numbers.wide import LARGEST
from udfs.records.codes import LEVELS, is_text_code, roll_up

T = TypeVar("T")
CHUNK_ROWS = 1 << 12  # of a cells file, held as text at a time; more would fall out of the cache


def domain_mistakes(spec: DomainSpec, dataset: DatasetSpec | None) -> Iterator[Mistake]:
    """Yield what is wrong with the choice of keys and files; what has a wrong shape is absent, and was reported."""
    columns: Mapping[str, str] | None = getattr(dataset, "keys", None)
    if columns is None or not is_readable(spec, dataset):
        return
    codes = spec.codes
    lists = {key: each for key, each in codes.items() if isinstance(each, ListSpec)}
    for key in columns:
        if key in lists and spec.cells is not None:
            yield Mistake(("domain", key), "must be left out beside cells")
        elif key not in codes and spec.cells is None:
            yield missing(("domain", key), f" (give {' and '.join(columns)}, or cells)")
        elif key in codes and key not in lists:
            yield Mistake(("domain", key), f"classes of a measure have no column: leave out dataset.keys.{key}")
    for key in [key for key in lists if key not in columns]:
        meant = nearest(key, dict.fromkeys((*columns, *DomainSpec.model_fields)))
        if meant is None or meant == key:
            yield missing(("dataset", "keys", key), f" (the column of the codes that domain.{key} lists)")
        else:
            yield Mistake(("domain", key), f"unknown key; nearest known key: {meant}", unknown=True)
    first: dict[str, str] = {}
    for column, key in ((column, key) for key, column in columns.items()):
        if column in first:
            yield Mistake(("dataset", "keys", key), f"must have another column than {first[column]}")
        first.setdefault(column, key)
    if lists and all(each.optional for each in lists.values()):
        yield Mistake(("domain", next(iter(lists)), "optional"), "some key must have a code for every record")
    yield from _other_mistakes(spec, lists)
    yield from _level_mistakes(lists, codes)
    yield from _class_mistakes(codes, getattr(dataset, "measures", None))


def _other_mistakes(spec: DomainSpec, lists: Mapping[str, ListSpec]) -> Iterator[Mistake]:
    if spec.other and spec.cells is not None:
        yield Mistake(("domain", "other"), "must be left out beside cells; only lists of codes have other cells")
        return
    for i, key in enumerate(spec.other):
        if key in spec.other[:i]:
            yield Mistake(("domain", "other", i), "this key stands twice")
        elif key not in lists:
            yield Mistake(("domain", "other", i), f"must be one of {', '.join(lists)}")


def _level_mistakes(lists: Mapping[str, ListSpec], codes: Mapping[str, object]) -> Iterator[Mistake]:
    """Yield levels that have no one key: each name is that of one level of one key."""
    owner = {level: key for key, levels in LEVELS.items() for level in levels}
    for key in codes:
        if owner.setdefault(key, key) != key:
            yield Mistake(("domain", key), f"{key} is a level of key {owner[key]}; give the key another name")
    for key, each in lists.items():
        for i, level in enumerate(each.levels):
            if level in each.levels[:i]:
                yield Mistake(("domain", key, "levels", i), "this level stands twice")
            elif owner.get(level, key) != key or level == key:
                rule = f"{level} is a level of key {owner.get(level, key)} too; rename the column of one of them"
                yield Mistake(("domain", key, "levels", i), rule)
            owner.setdefault(level, key)


def _class_mistakes(codes: Mapping[str, object], measures: Mapping[str, MeasureSpec] | None) -> Iterator[Mistake]:
    for key, each in codes.items():
        if not isinstance(each, ClassesSpec):
            continue
        path: KeyPath = ("domain", key)
        if rule := level_name_rule(key):
            yield Mistake(path, f"the key's name {rule}")
        if key in LEVELS:
            yield Mistake(path, f"{key} is a key of codes; give the classes another name")
        if measures is not None and each.of not in measures:
            yield Mistake((*path, "of"), f"unknown measure{hint(each.of, measures, 'measure')}")
            continue
        if each.classes[0] != 0:
            yield Mistake((*path, "classes", 0), "must be 0: the classes must hold every value that a record may have")
        for i, (low, high) in enumerate(pairwise(each.classes), 1):
            if not low < high:
                yield Mistake((*path, "classes", i), "must be above the one before it")
        step = measures[each.of].step or Fraction(1) if measures else Fraction(1)
        for i, low in enumerate(each.classes):
            if (low / step).denominator != 1 or low / step > LARGEST:
                yield Mistake((*path, "classes", i), f"must be a whole multiple of {each.of}'s step, below 2⁶³ of it")


def is_readable(spec: DomainSpec, dataset: DatasetSpec | None) -> bool:
    """Return whether all that decides the public cells has the right shape."""
    needed = (*LEVELS, "cells", "other")
    return all(hasattr(spec, key) for key in needed) and hasattr(dataset, "keys") and hasattr(dataset, "measures")


def files_of(spec: DomainSpec, dataset: DatasetSpec, folder: Path) -> dict[str, Path]:
    """Return the file of each key's codes, of a spec without mistakes; paths in it are relative to `folder`."""
    lists = {key: each.list for key, each in spec.codes.items() if isinstance(each, ListSpec)}
    return {key: folder / (spec.cells or lists[key]) for key in dataset.keys}


class UnreadableFile(PlanError):
    """A file that cannot be opened: the key that names it is what is wrong."""


class WrongFiles(PlanError):
    """Files of a domain are wrong: a line for each, and a mistake for each key whose file cannot be opened."""

    def __init__(self, lines: Sequence[str], mistakes: Sequence[Mistake]) -> None:
        super().__init__(*lines)
        self.mistakes = mistakes


def read_domain(spec: DomainSpec, dataset: DatasetSpec, folder: Path) -> Domain:
    """Return the domain that a spec without mistakes names; raises WrongFiles."""
    years = dict(spec.vintage) if hasattr(spec, "vintage") else {}
    vintage = {key: year for key, year in years.items() if year is not None}
    files = files_of(spec, dataset, folder)
    classes = {
        key: Dimension.of_classes(key, Classes(each.of, tuple(each.classes), _step(dataset, each.of)))
        for key, each in spec.codes.items()
        if isinstance(each, ClassesSpec)
    }
    lines: list[str] = []
    mistakes: list[Mistake] = []

    def read(path: KeyPath, reading: Callable[[], T]) -> list[T]:
        try:
            return [reading()]
        except UnreadableFile as error:
            mistakes.append(Mistake(path, str(error)))
        except PlanError as error:
            lines.extend(error.lines)
        return []

    domains: list[Domain] = []
    if spec.cells is not None:
        domains = read(("domain", "cells"), lambda: read_cells(folder / str(spec.cells), vintage, files, classes))
    else:
        dimensions = []
        for key, each in spec.codes.items():
            if isinstance(each, ListSpec):
                at: KeyPath = ("domain", key) if not each.levels and not each.optional else ("domain", key, "list")
                dimensions += read(at, partial(read_list, files[key], key, each, other=key in spec.other))
        if len(dimensions) == len(files):
            domains = [Domain.of([*dimensions, *classes.values()], vintage)]
    if not domains:
        raise WrongFiles(lines, mistakes)
    return domains[0]


def _step(dataset: DatasetSpec, measure: str) -> Fraction:
    return dataset.measures[measure].step or Fraction(1)


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
    with _opened(path) as rows:
        header = _list_header(rows, path, key, spec.levels)
        columns = {level: header.index(level) for level in spec.levels}
        for count, row in enumerate(rows):
            known = len(numbering)
            (number,) = _numbers(row, [numbering], len(header), rows.line_num, path)
            found = {level: row[column] for level, column in columns.items()}
            if known == len(numbering):
                again = [level for level, code in found.items() if parents[level][number] != code]
                two = f", and has two parents at {again[0]}" if again else ""
                _refuse(path, rows.line_num, f'code "{row[0]}" stands twice{two}')
            assert number == count
            for level, code in found.items():
                parents[level].append(_parent(path, rows.line_num, row[0], level, code))
    if not numbering:
        raise PlanError(f"{path}: holds no code; list at least one below the header")
    further = {
        level: dict(zip(numbering, codes, strict=True))
        for level, codes in parents.items()
        if level not in built_in_levels(key)
    }
    return Dimension.of(key, numbering, further, other=other, optional=spec.optional)


def _list_header(rows: Any, path: Path, key: str, levels: Sequence[str]) -> list[str]:
    header: list[str] = next(rows, [])
    missing_levels = [level for level in levels if level not in header]
    if header[:1] == ["code"] and missing_levels:
        _refuse(path, 1, f"there is no column {missing_levels[0]}, which the plan names as a level of {key}")
    known = len(header) == 1 or not {"name", *levels}.isdisjoint(header)
    if header[:1] != ["code"] or len(set(header)) < len(header) or not known:
        _refuse(path, 1, "the header must be code or code,name, then columns of levels, each once")
    return header


def _parent(path: Path, line: int, code: str, level: str, parent: str) -> str:
    """Return a code at a coarser level, "" for none; refuse what is malformed, or not that of the code."""
    if any(level in levels for levels in LEVELS.values()):
        if parent != roll_up(code, level):
            _refuse(path, line, f'"{in_a_line(parent)}" is not the {level} of {code}, which is {roll_up(code, level)}')
    elif parent and not is_text_code(parent):
        _refuse(path, line, f'malformed code "{in_a_line(parent)}" at {level}; leave it empty for none')
    return parent


def read_cells(
    path: Path,
    vintage: Mapping[str, int],
    keys: Iterable[str] = ("naics", "county"),
    classes: Mapping[str, Dimension] | None = None,
) -> Domain:
    """Return the domain of the cells listed in `path`: a column for each of the keys, in any order, and for classes.

    Memory: some 50 bytes a cell, and a few rows as text. Raises PlanError as `read_list` does, and on a cell twice.
    """
    known = classes or {}
    names = sorted([*keys, *known], key=rank)
    with _opened(path) as rows:
        header: list[str] = next(rows, [])
        if sorted(header) != sorted(names):
            ways = " or ".join(",".join(each) for each in ((names, names[::-1]) if len(names) == 2 else (names,)))
            _refuse(path, 1, f"the header must be {ways}")
        numberings = [_Numbering(key, known.get(key)) for key in header]
        chunks = list(_numbered_chunks(rows, numberings, path))
    if not chunks:
        raise PlanError(f"{path}: holds no cell; list at least one below the header")
    sorted_codes = [
        numberings[column].sorted(np.concatenate([chunk[column] for chunk in chunks]))
        for column in (header.index(key) for key in names)
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

    def sorted(self, numbers: Int32s) -> tuple[Dimension, NDArray[np.int64]]:
        """Return the dimension of these codes, and the index in it of each number's code."""
        dimension = self.classes or Dimension.of(self.key, self)
        numbering = dimension.index(dimension.level)
        index = np.array([numbering[code] for code in self], dtype=np.int64)
        return dimension, index[numbers]


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
    """Return the numbers of a row's codes, or refuse the row."""
    if len(row) != columns:
        _refuse(path, line, f"{len(row)} columns, but the header has {columns}")
    try:
        return [numbering[code] for numbering, code in zip(numberings, row, strict=False)]
    except ValueError as error:
        _refuse(path, line, str(error))


def _sorted_cells(codes: Sequence[NDArray[np.int64]], path: Path) -> tuple[Int32s, ...]:
    """Return the cells' codes, sorted by them, or refuse a cell that stands twice."""
    order = np.lexsort(codes[::-1])
    cells = tuple(read_only(each[order].astype(np.int32)) for each in codes)
    same = np.logical_and.reduce([each[1:] == each[:-1] for each in cells])
    if same.any():
        _refuse(path, int(order[1:][same].min()) + 2, "the cell stands twice")
    return cells


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Give a CSV reader of a UTF-8 file; whatever goes wrong with the file becomes a PlanError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, strict=True)
            try:
                yield rows
            except csv.Error as error:
                _refuse(path, rows.line_num, f"not CSV: {error}")
    except UnicodeDecodeError:
        _refuse(path, _undecodable_line(path), "not UTF-8; save the file as UTF-8")
    except FileNotFoundError:
        raise UnreadableFile(f"{path}: no such file; paths in a plan are relative to the plan's folder") from None
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read: {error.strerror}") from None


def _undecodable_line(path: Path) -> int:
    with path.open("rb") as file:
        for line, text in enumerate(file, 1):
            try:
                text.decode()
            except UnicodeDecodeError:
                return line
    raise PlanError(f"{path}: changed while it was read; run again")


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise PlanError(f"{path}: line {line}: {what}") from None
