"""The public domain as CSV files: lists of codes, or one list of cells; every error names file and line."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.canonical import FrozenMap
from pipeline.errors import PlanError
from pipeline.plan.cells import Int32s, read_only
from pipeline.plan.domain import Dimension, Domain, level_of
from pipeline.plan.messages import Mistake, missing
from pipeline.plan.schema import DomainSpec
from udfs.records.codes import LEVELS

T = TypeVar("T")
CHUNK_ROWS = 1 << 12  # of a cells file, held as text at a time; more would fall out of the cache
LIST_HEADERS = (["code"], ["code", "name"])
CELL_HEADERS = (["naics", "county"], ["county", "naics"])


def domain_mistakes(spec: DomainSpec) -> Iterator[Mistake]:
    """Yield what is wrong with the choice of files, of a spec whose every value has the right shape or is absent."""
    if not is_readable(spec):
        return
    for key in LEVELS:
        if getattr(spec, key) is not None and spec.cells is not None:
            yield Mistake(("domain", key), "must be left out beside cells")
        elif getattr(spec, key) is None and spec.cells is None:
            yield missing(("domain", key), " (give naics and county, or cells)")
    if spec.other and spec.cells is not None:
        yield Mistake(("domain", "other"), "must be left out beside cells; only lists of codes have other cells")
    for i, key in enumerate(spec.other):
        if key in spec.other[:i]:
            yield Mistake(("domain", "other", i), "this key stands twice")


def is_readable(spec: DomainSpec) -> bool:
    """Return whether all that decides the public cells has the right shape."""
    return all(hasattr(spec, key) for key in (*LEVELS, "cells", "other"))


def files_of(spec: DomainSpec, folder: Path) -> dict[str, Path]:
    """Return the file of each key's codes, of a spec without mistakes; paths in it are relative to `folder`."""
    return {key: folder / str(spec.cells or getattr(spec, key)) for key in LEVELS}


class UnreadableFile(PlanError):
    """A file that cannot be opened: the key that names it is what is wrong."""


class WrongFiles(PlanError):
    """Files of a domain are wrong: a line for each, and a mistake for each key whose file cannot be opened."""

    def __init__(self, lines: Sequence[str], mistakes: Sequence[Mistake]) -> None:
        super().__init__(*lines)
        self.mistakes = mistakes


def read_domain(spec: DomainSpec, folder: Path) -> Domain:
    """Return the domain that a spec without mistakes names; raises WrongFiles."""
    years = dict(spec.vintage) if hasattr(spec, "vintage") else {}
    vintage = {key: year for key, year in years.items() if year is not None}
    files = files_of(spec, folder)
    lines: list[str] = []
    mistakes: list[Mistake] = []

    def read(key: str, reading: Callable[[], T]) -> T | None:
        try:
            return reading()
        except UnreadableFile as error:
            mistakes.append(Mistake(("domain", key), str(error)))
        except PlanError as error:
            lines.extend(error.lines)
        return None

    domain = None
    if spec.cells is not None:
        domain = read("cells", lambda: read_cells(files["naics"], vintage))
    else:
        naics = read("naics", lambda: read_list(files["naics"], "naics", other="naics" in spec.other))
        county = read("county", lambda: read_list(files["county"], "county", other="county" in spec.other))
        if naics is not None and county is not None:
            domain = Domain(naics, county, None, FrozenMap.of(vintage))
    if domain is None:
        raise WrongFiles(lines, mistakes)
    return domain


def read_list(path: Path, key: str, *, other: bool = False) -> Dimension:
    """Return the dimension of `key` ("naics" or "county") that `path` lists (header code or code,name).

    Args:
        path: a CSV file.
        key: "naics" or "county".
        other: whether the plan declares a code for all well-formed codes that the file does not list.

    Raises:
        PlanError: on a file that cannot be read, malformed or mixed codes, a code twice, and an empty list.
    """
    numbering = _Numbering(key)
    with _opened(path) as rows:
        header = _header(rows, path, LIST_HEADERS)
        for count, row in enumerate(rows):
            if _numbers(row, [numbering], len(header), rows.line_num, path) != [count]:
                _refuse(path, rows.line_num, f'code "{row[0]}" stands twice')
    if not numbering:
        raise PlanError(f"{path}: holds no code; list at least one below the header")
    return Dimension.of(key, numbering, other=other)


def read_cells(path: Path, vintage: Mapping[str, int]) -> Domain:
    """Return the domain of the cells listed in `path` (header naics,county in either order).

    Memory: some 50 bytes a cell, and a few rows as text. Raises PlanError as `read_list` does, and on a cell twice.
    """
    with _opened(path) as rows:
        header = _header(rows, path, CELL_HEADERS)
        numberings = [_Numbering(key) for key in header]
        chunks = list(_numbered_chunks(rows, numberings, path))
    if not chunks:
        raise PlanError(f"{path}: holds no cell; list at least one below the header")
    (naics, i), (county, j) = (
        numberings[column].sorted(np.concatenate([chunk[column] for chunk in chunks]))
        for column in (header.index(key) for key in LEVELS)
    )
    cells = _sorted_cells(i * len(county.codes) + j, len(county.codes), path)
    return Domain(naics, county, cells, FrozenMap.of(vintage))


class _Numbering(dict[str, int]):
    """Numbers the codes of one key in order of appearance; each is checked when it first appears (ValueError)."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.level: str | None = None

    def __missing__(self, code: str) -> int:
        level = level_of(self.key, code)
        if level != (self.level or level):
            raise ValueError(f'code "{code}" is of {level}, the codes above it of {self.level}; use one level')
        self.level = level
        self[code] = number = len(self)
        return number

    def sorted(self, numbers: Int32s) -> tuple[Dimension, NDArray[np.int64]]:
        """Return the dimension of these codes, and the index in it of each number's code."""
        dimension = Dimension.of(self.key, self)
        index = np.empty(len(self), dtype=np.int64)
        index[[self[code] for code in dimension.codes]] = np.arange(len(self))
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


def _sorted_cells(keys: NDArray[np.int64], stride: int, path: Path) -> tuple[Int32s, Int32s]:
    if (np.diff(keys) <= 0).any():
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        again = order[1:][keys[1:] == keys[:-1]]
        if len(again):
            _refuse(path, int(again.min()) + 2, "the cell stands twice")
    i, j = np.divmod(keys, stride)
    return read_only(i.astype(np.int32)), read_only(j.astype(np.int32))


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


def _header(rows: Any, path: Path, allowed: tuple[list[str], ...]) -> list[str]:
    header: list[str] = next(rows, [])
    if header not in allowed:
        _refuse(path, 1, f"the header must be {' or '.join(','.join(names) for names in allowed)}")
    return header


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
