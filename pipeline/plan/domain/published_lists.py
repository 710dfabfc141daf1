"""Files of public codes: plain CSV, and as offices publish them, as a tree of any columns, or in SDMX-JSON.

Beside them files of public numbers by code, and of the codes that follow earlier ones.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from pipeline.base.errors import PlanError, in_a_line
from pipeline.plan.plan_schema import ListSpec
from pipeline.storage.paths import LARGEST_LIST, input_lines, open_input


def refuse(path: Path, where: int | str, what: str) -> NoReturn:
    """Raise PlanError with the file and the place in it: a line's number, or words."""
    place = f"line {where}" if isinstance(where, int) else where
    raise PlanError(f"{path}: {place}: {what}") from None


class UnreadableFile(PlanError):
    """A file that cannot be opened: the key that names it is what is wrong."""


@contextmanager
def opened(path: Path, *, any_separator: bool = False) -> Iterator[Any]:
    """Give a CSV reader of a UTF-8 file; whatever goes wrong with the file becomes a PlanError."""
    with _readable(path), input_lines(path) as lines:
        header = next(lines, "")
        separators = [each for each in ",;\t" if each in header] if any_separator else []
        rows = csv.reader(chain([header], lines), strict=True, delimiter=separators[0] if separators else ",")
        try:
            yield rows
        except csv.Error as error:
            refuse(path, rows.line_num, f"not CSV: {error}")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        refuse(path, _undecodable_line(path), "not UTF-8; save the file as UTF-8")
    except FileNotFoundError:
        raise UnreadableFile(f"{path}: no such file; paths are relative to the file that names them") from None
    except OSError as error:
        raise UnreadableFile(f"{path}: cannot be read: {error.strerror}") from None


def _undecodable_line(path: Path) -> int:
    with open_input(path, LARGEST_LIST) as file:
        for line, text in enumerate(file, 1):
            try:
                text.decode()
            except UnicodeDecodeError:
                return line
    raise PlanError(f"{path}: changed while it was read; run again")


@contextmanager
def listed(path: Path, spec: ListSpec) -> Iterator[Any]:
    """Give the rows of a plain list, whatever the shape in which the codes were published."""
    if path.suffix == ".json":
        with _readable(path):
            rows = rows_of_sdmx(path, spec)
        yield rows
    else:
        published = is_published(path, spec)
        with opened(path, any_separator=published) as rows:
            yield rows_of_columns(rows, path, spec) if published else rows


@dataclass(frozen=True)
class Entry:
    """A code of a published list, its name, the coarser code above it ("" for none), and those of the list's levels."""

    where: int | str
    code: str
    name: str
    parent: str = ""
    levels: tuple[str, ...] = ()


class PlainRows:
    """Rows of code, name and levels, coarse to fine, after a header that says so; `line_num` is the place of the last.

    `above`: the names of the tree's coarser codes.
    """

    def __init__(self, spec: ListSpec, rows: Iterable[Entry], above: Mapping[str, str]) -> None:
        self.line_num: int | str = 1
        self.above = above
        self._rows = iter([Entry(1, "code", "name", levels=tuple(spec.levels)), *rows])

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        entry = next(self._rows)
        self.line_num = entry.where
        return [entry.code, entry.name, *entry.levels]


def is_published(path: Path, spec: ListSpec) -> bool:
    """Return whether a list is one that an office published, by what the plan says of it."""
    return path.suffix == ".json" or not (spec.code is None and spec.name is None and spec.parent is None)


def rows_of_columns(rows: Any, path: Path, spec: ListSpec) -> PlainRows:
    """Return the rows of a CSV file whose columns the plan names.

    Raises PlanError where a column is not there, or a code that another has above it, and where codes have different
    numbers of codes above them.
    """
    header: list[str] = next(rows, [])
    wanted = [spec.code or "code", spec.name or "name", *([] if spec.parent is None else [spec.parent])]
    wanted += spec.levels if spec.parent is None else []
    named = {name: header.index(name) for name in wanted if name in header}
    for name in wanted:
        if name not in named and not (name == "name" and spec.name is None):
            refuse(path, 1, f"there is no column {in_a_line(name)}, which the plan names")
    entries = []
    for row in rows:
        if len(row) != len(header):
            refuse(path, rows.line_num, f"{len(row)} columns, but the header has {len(header)}")
        of = {name: row[column] for name, column in named.items()}
        parent = "" if spec.parent is None else of[spec.parent]
        levels = tuple(of[level] for level in spec.levels) if spec.parent is None else ()
        entries.append(Entry(rows.line_num, of[wanted[0]], of.get(wanted[1], ""), parent, levels))
    return PlainRows(spec, entries, {}) if spec.parent is None else _of_tree(entries, path, spec)


def rows_of_sdmx(path: Path, spec: ListSpec) -> PlainRows:
    """Return the rows of an SDMX-JSON structure message with one code list; `name` is the language of its names.

    Raises PlanError as `rows_of_columns`, and where the file is no such message; OSError where it cannot be read.
    """
    with open_input(path, LARGEST_LIST) as file:
        try:
            message = json.load(file)
        except (ValueError, RecursionError) as error:
            line = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
            raise PlanError(f"{path}: {line}not JSON; give a CSV file, or a structure message in SDMX-JSON") from None
    try:
        (codelist,) = message["data"]["codelists"]
        codes = [*enumerate(codelist["codes"], 1)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise PlanError(f"{path}: must be a structure message in SDMX-JSON with one code list") from None
    entries = [_of_sdmx(number, code, spec, path) for number, code in codes]
    return _of_tree(entries, path, spec) if spec.levels else PlainRows(spec, entries, {})


def _of_sdmx(number: int, code: Any, spec: ListSpec, path: Path) -> Entry:
    where, of = f"code {number}", code if isinstance(code, dict) else {}
    names: Any = of.get("names") if isinstance(of.get("names"), dict) else {}
    if spec.name is not None and not isinstance(names.get(spec.name), str):
        there = f"its names are in {in_a_line(', '.join(map(str, names)))}" if names else "it has names in no language"
        refuse(path, where, f"has no name in {in_a_line(spec.name)}: {there}; choose another by `name`")
    texts: list[Any] = [of.get("id"), of.get("name") or "", of.get("parent") or ""]
    if spec.name is not None:
        texts[1] = names[spec.name]
    if not all(isinstance(text, str) for text in texts):
        refuse(path, where, "must have an id, and an id above it if any, which are text")
    return Entry(where, *texts)


def _of_tree(entries: list[Entry], path: Path, spec: ListSpec) -> PlainRows:
    """Return the finest codes of a tree with those above them, one for each level; refuse all else."""
    known: dict[str, Entry] = {}
    for entry in entries:
        if (first := known.setdefault(entry.code, entry)) is not entry:
            two = "" if first.parent == entry.parent else ", and has two parents"
            refuse(path, entry.where, f'code "{in_a_line(entry.code)}" stands twice{two}')
        if not entry.code:
            refuse(path, entry.where, "there is no code")
    for entry in entries:
        if entry.parent and entry.parent not in known:
            refuse(path, entry.where, f'"{in_a_line(entry.parent)}", which is above it, is no code of the list')
    inner = {entry.parent for entry in entries}
    rows = []
    for entry in entries:
        above: list[str] = []
        parent = entry.parent
        while parent and len(above) <= len(spec.levels):
            above.insert(0, parent)
            parent = known[parent].parent
        if len(above) > len(spec.levels) or (entry.code not in inner and len(above) < len(spec.levels)):
            number = f"{len(above)}{' or more' if parent else ''} above it, but `levels` names {len(spec.levels)}"
            refuse(path, entry.where, f'"{in_a_line(entry.code)}" has {number}; name those of every finest code')
        if entry.code not in inner:
            rows.append(Entry(entry.where, entry.code, entry.name, levels=tuple(above)))
    return PlainRows(spec, rows, {entry.code: entry.name for entry in entries if entry.code in inner})


# Of a product: columns of public files, of which it says the names.

NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")


def columns_of(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the texts of these columns of each row of a CSV file; PlanError where one is not there."""
    with opened(path, any_separator=True) as rows:
        header: list[str] = next(rows, [])
        for name in wanted:
            if header.count(name) != 1:
                there = "there is no column" if name not in header else "there are two columns"
                refuse(path, 1, f"{there} {in_a_line(name)}; its columns are {in_a_line(', '.join(header))}")
        positions = [header.index(name) for name in wanted]
        for row in rows:
            if len(row) != len(header):
                refuse(path, rows.line_num, f"{len(row)} columns, but the header has {len(header)}")
            yield rows.line_num, [row[position].strip() for position in positions]


def numbers_by_code(path: Path, number: str, codes: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return, by level, the number of each code: of the first level one a line, of others the sum of their lines.

    `codes` names the column of each level's codes. Raises PlanError, which names the line, on a number that is not
    above 0 and on a code of the first level that stands twice.
    """
    numbers: dict[str, dict[str, list[float]]] = {level: {} for level in codes}
    finest = next(iter(codes))
    for line, (text, *row) in columns_of(path, [number, *codes.values()]):
        value = float(text) if NUMBER.fullmatch(text) else math.nan
        if not 0 < value < math.inf:
            refuse(path, line, f"{in_a_line(number)} must be a number above 0, such as 1234.5, or the line be left out")
        for level, code in zip(codes, row, strict=True):
            if level == finest and (not code or code in numbers[level]):
                refuse(path, line, f'code "{in_a_line(code)}" stands twice' if code else "there is no code")
            if code:
                numbers[level].setdefault(code, []).append(value)
    if not numbers[finest]:
        raise PlanError(f"{path}: holds no code; list at least one below the header")
    return {level: {code: math.fsum(each) for code, each in of.items()} for level, of in numbers.items()}


def codes_in(path: Path) -> list[str]:
    """Return the codes of the column `code`; PlanError, which names the line, on one that stands twice or is empty."""
    codes: dict[str, None] = {}
    for line, (code,) in columns_of(path, ["code"]):
        if not code or code in codes:
            refuse(path, line, f'code "{in_a_line(code)}" stands twice' if code else "there is no code")
        codes[code] = None
    return list(codes)


def successors(path: Path, old: str, new: str) -> dict[str, tuple[int, str]]:
    """Return of each old code that stands in a file its line and the new code that it became, "" for none.

    Raises PlanError, which names the line, on an old code of two lines: its totals cannot be divided among new ones.
    """
    became: dict[str, tuple[int, str]] = {}
    for line, (code, other) in columns_of(path, [old, new]):
        if not code:
            refuse(path, line, f"there is no code in the column {in_a_line(old)}")
        if code in became:
            twice = f'"{in_a_line(code)}" stands in line {became[code][0]} too'
            rule = "" if became[code][1] == other else ": totals of an old code cannot be divided among new ones"
            refuse(path, line, f"{twice}{rule}")
        became[code] = line, other
    return became
