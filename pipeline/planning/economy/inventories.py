"""Economies as data: a file of conf/economies says which codes, columns and owners made-up microdata have.

All of it is assumed; nothing comes from microdata. Which codes are frequent belongs to the economy, not to the seed.
"""

import csv
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationError

from pipeline.base.errors import PlanError, arg, in_a_line
from pipeline.plan.messages import Mistake, lines_of, missing, shape_mistakes
from pipeline.plan.plan_text import ECONOMY, public_file, read_text
from pipeline.plan.values import LevelName, Line, Name, NonNegative, Positive, Spec, Text
from pipeline.planning.economy import Ints
from pipeline.planning.economy.generate import CONF, FARMS_A_FILE, MOST_FARMS, Generated, ids, write_parquet
from pipeline.storage.paths import filled, require_new
from udfs.numbers.arrays import Floats

HOME: Final = CONF / "economies"
STREAM: Final = 3  # of the seed: establishments have 0 and 1, cattle 2


class ListSpec(Spec):
    """A list of codes: a `copy` of a file, or `rows`, the header first; of a tree those that are nobody's parent."""

    copy_of: Annotated[Text | None, Field(alias="copy")] = None
    rows: list[list[str]] = Field(default_factory=list)
    code: Line = "code"
    parent: Line | None = None


class ColumnSpec(Spec):
    """A column: an `id` (of its record, or of an owner of `records` on average), a code of a list `codes`, or a number.

    A number is `median` · e^(`spread`·Z) · the columns `times` · a factor of its own for each code of the columns
    `by`, in whole numbers, at least `least`; a share `zero` of all is 0. Codes' frequencies have the same `spread`.
    """

    id: Line | None = None
    records: Positive = Fraction(1)
    codes: LevelName | None = None
    median: Positive | None = None
    spread: NonNegative = Fraction(1)
    times: list[Name] = Field(default_factory=list)
    by: dict[Name, NonNegative] = Field(default_factory=dict)
    least: NonNegative = Fraction(0)
    zero: NonNegative = Fraction(0)


class EconomySpec(Spec):
    """Made-up microdata: lists of public codes, the columns of a record, and the plan and product that show them.

    `family`: the limits that the plan's releases keep together.
    """

    economy: Name
    about: Text
    plan: Text
    product: Text
    family: Text | None = None
    lists: dict[LevelName, ListSpec]
    columns: Annotated[dict[Name, ColumnSpec], Field(min_length=1)]


def economies() -> list[str]:
    """Return the names of conf/economies."""
    return sorted(path.stem for path in HOME.glob("*.yaml"))


def load_economy(named: str | Path) -> tuple[EconomySpec, Path]:
    """Return the economy of a file, or of a name of conf/economies, and its file.

    Raises PlanError with file and line of each mistake.
    """
    path = Path(named) if str(named).endswith((".yaml", ".yml")) else HOME / f"{named}.yaml"
    if path.parent == HOME and path.stem not in economies():
        known = ", ".join(economies())
        raise PlanError(f"{arg('economy', named)}: unknown: give a file that ends with .yaml, or one of {known}")
    text = read_text(path, ECONOMY)
    try:
        spec = EconomySpec.model_validate(text.data)
        mistakes = list(_mistakes(spec))
    except ValidationError as error:
        mistakes = list(shape_mistakes(error.errors(include_url=False), EconomySpec))
    if mistakes:
        raise PlanError(*lines_of(mistakes, text, path))
    return spec, path


def _mistakes(spec: EconomySpec) -> Iterator[Mistake]:
    for name, each in spec.lists.items():
        if (each.copy_of is None) == (not each.rows):
            yield Mistake(("lists", name), "must have either copy (a file) or rows")
        header = each.rows[0] if each.rows else [each.code, each.parent]
        for key, title in (("code", each.code), ("parent", each.parent)):
            if title is not None and title not in header:
                yield Mistake(("lists", name, key), f"{title} is no column of its rows")
    seen: list[str] = []
    for name, column in spec.columns.items():
        kinds = [key for key in ("id", "codes", "median") if getattr(column, key) is not None]
        if len(kinds) != 1:
            yield Mistake(("columns", name), "one of id, codes and median is needed, and only one")
        if column.codes is not None and column.codes not in spec.lists:
            yield Mistake(("columns", name, "codes"), f"must be one of {', '.join(spec.lists)}")
        if not column.zero < 1:
            yield Mistake(("columns", name, "zero"), "must be below 1")
        for key, others in (("times", column.times), ("by", column.by)):
            for other in others:
                if other not in seen or (spec.columns[other].median is None) == (key == "times"):
                    what = "numbers" if key == "times" else "codes"
                    yield Mistake(("columns", name, key), f"{other} is no column of {what} before it")
        seen.append(name)
    if spec.columns and next(iter(spec.columns.values())).id is None:
        yield missing(("columns", next(iter(spec.columns)), "id"), " (the first column is the record's)")


def generate_economy(named: str | Path, records: int, seed: int, out: Path) -> Generated:
    """Write so many records of an economy as out/microdata/*.parquet, with their lists, plan and product.

    The same seed gives the same bytes. Raises PlanError where a number is out of range or the economy is wrong,
    StateError where `out` is neither absent nor an empty folder.
    """
    if not 0 <= records <= MOST_FARMS:
        raise PlanError(f"{arg('records')}: a number from 0 to {MOST_FARMS} is needed")
    if not seed >= 0:
        raise PlanError(f"{arg('seed')}: a whole number of at least 0 is needed")
    spec, path = load_economy(named)
    files_of = {key: each for key in ("product", "family", "plan") if (each := getattr(spec, key)) is not None}
    sources = files_of | {name: each.copy_of for name, each in spec.lists.items() if each.copy_of is not None}
    places = {name: public_file(path.parent, each) for name, each in sources.items()}
    for name, place in places.items():
        if not place.is_file():
            raise PlanError(f"{path}: {name}: {place}: no such file; paths are relative to the economy's folder")
    require_new(out)
    files = max(1, -(-records // FARMS_A_FILE))
    with filled(out, "plan.yaml") as folder:
        (folder / "microdata").mkdir()
        (folder / "domain").mkdir()
        lists = {
            name: _write_list(each, places.get(name), folder / "domain", name) for name, each in spec.lists.items()
        }
        for name, codes in lists.items():
            if twice := [code for code, times in Counter(codes).items() if times > 1]:
                raise PlanError(f"{path}: lists.{name}: the code {in_a_line(twice[0])} stands there more than once")
        for file in range(files):
            first, end = (records * edge // files for edge in (file, file + 1))
            rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM, file)))
            table = _drawn(rng, np.arange(first + 1, end + 1), spec, lists)
            coded = [name for name, column in spec.columns.items() if column.codes is not None]
            write_parquet([table], folder / "microdata" / f"part-{file:05d}.parquet", coded)
        for name in files_of:
            shutil.copyfile(places[name], folder / f"{name}.yaml")
    return Generated.at(out, records=records, files=files, seed=seed)


def _write_list(spec: ListSpec, copied: Path | None, folder: Path, name: str) -> list[str]:
    """Write a list to a folder; return its codes, the finest of a tree."""
    path = folder / f"{name}.csv"
    if copied is None:
        with path.open("w", encoding="utf-8", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows(spec.rows)
    else:
        shutil.copyfile(copied, path)
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or spec.code not in rows[0] or (spec.parent is not None and spec.parent not in rows[0]):
        raise PlanError(f"{copied or path}: line 1: a header with {spec.code} and a row are needed")
    above = {row[spec.parent] for row in rows} if spec.parent is not None else set()
    return [row[spec.code] for row in rows if row[spec.code] not in above]


def _drawn(rng: np.random.Generator, numbers: Ints, spec: EconomySpec, lists: Mapping[str, list[str]]) -> pa.Table:
    count = len(numbers)
    values: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for name, column in spec.columns.items():
        fixed = np.random.default_rng(crc32(f"{spec.economy}/{name}".encode()))
        if column.id is not None:
            begins = np.concatenate([[True], rng.random(max(count - 1, 0)) * float(column.records) < 1])[:count]
            made[name] = ids(column.id, np.maximum.accumulate(np.where(begins, numbers, 0)))
        elif column.codes is not None:
            codes = lists[column.codes]
            weights = np.exp(float(column.spread) * fixed.standard_normal(len(codes)))
            values[name] = rng.choice(len(codes), count, p=weights / weights.sum())
            made[name] = pa.DictionaryArray.from_arrays(pa.array(values[name].astype(np.int32)), pa.array(codes))
        else:
            size: Floats = float(column.median or 1) * np.exp(float(column.spread) * rng.standard_normal(count))
            for other in column.times:
                size = size * values[other]
            for other, spread in column.by.items():
                codes = lists[str(spec.columns[other].codes)]
                size = size * np.exp(float(spread) * fixed.standard_normal(len(codes)))[values[other]]
            rounded = np.maximum(np.rint(size), float(column.least)).astype(np.int64)
            values[name] = np.where(rng.random(count) < float(column.zero), 0, rounded)
            made[name] = pa.array(values[name])
    return pa.table(made)
