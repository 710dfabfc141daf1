"""A product: all its files, a dictionary of their columns and, last, a manifest that names every one with its digest.

It is made of what releases published and of public lists: post-processing, which costs no record anything.
"""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.canonical import code_digest
from pipeline.base.errors import PlanError
from pipeline.base.log import counted
from pipeline.publication.hashed_files import PIECE, Written, written
from pipeline.publication.manifest import PRODUCT, Manifest, manifest_file, write_manifest
from pipeline.publication.product.product_layouts import write_layout
from pipeline.publication.product.product_spec import ProductSpec, TableSpec, file_of, load_product
from pipeline.publication.reconcile.reconciled_folder import with_estimates
from pipeline.publication.release_folder import (
    ERROR,
    PUBLISHED,
    VALUE,
    Source,
    coefficient,
    column,
    names_of,
    needed,
    numbers,
    released,
    rounded_to,
    same_keys,
    text_of,
)
from pipeline.storage.location import Location
from pipeline.storage.paths import LARGEST_TEXT, filled, read_input
from udfs.numbers.arrays import Floats

if TYPE_CHECKING:
    from pipeline.publication.signing import PublicKey, SigningKey

HEADER = ("file", "column", "type", "unit", "meaning")
THREADS = 4  # at most: each holds a few pieces in memory


def make_product(  # noqa: PLR0913 — what it is made of, and the key
    folders: Sequence[Location],
    named: str | Path,
    out: Path,
    year: int | None = None,
    reconciled: Location | None = None,
    *,
    signing: "SigningKey | None" = None,
) -> dict[str, Any]:
    """Write a product of the releases in `folders` to `out`; return its manifest, which a killed run leaves out.

    The same releases, product (`named`: of conf/products, or a YAML file) and build give the same bytes. Estimates of
    `reconciled` go before what was released. Raises PlanError where the product's file is wrong, the releases lack a
    table that it needs, or others were reconciled; StateError as `Manifest.verified` and `filled`.
    """
    product = load_product(named, year)
    with filled(out, PRODUCT.name) as home:
        sources, facts = released([Manifest.verified(folder) for folder in folders])
        estimates: dict[str, Any] = {}
        if reconciled is not None:
            sources, estimates["reconciled"] = with_estimates(sources, facts, reconciled)
        names = {level: names_of(each.names, each.texts) for level, each in product.levels.items()}
        tasks: list[Callable[[], Any]] = [
            *(partial(write_layout, product, layout, sources, home) for layout in product.layouts),
            *(partial(write_table, product, table, sources, names, home) for table in product.tables),
        ]
        made = [file.facts(home) for files in counted("writing tables", _all(tasks), len(tasks)) for file in files]
        dictionary = list(_dictionary(product, home))
        for name, text in (
            ("dictionary.csv", _as_csv(dictionary)),
            ("dictionary.md", _as_markdown(product, dictionary)),
        ):
            (home / name).write_bytes(text.encode())
            made.append(manifest_file(text.encode(), name))
        manifest = {
            "product": product.product,
            "title": product.title,
            "year": product.year,
            "product_sha256": hashlib.sha256(read_input(file_of(named), LARGEST_TEXT)).hexdigest(),
            "options": {
                "basic": {"round": int(product.basic.round), "withhold_from": float(product.basic.withhold_from)},
                "flags": [{"flag": each.flag, "under": each.under and float(each.under)} for each in product.flags],
            },
            "releases": facts,
            **estimates,
            "build": code_digest(),
            "files": sorted(made, key=lambda file: str(file["path"])),
        }
        write_manifest(home, PRODUCT.name, manifest, signing)
    return manifest


@dataclass(frozen=True)
class VerifiedProduct:
    """A product's folder whose every file matches its manifest; `signed_by` as of a release."""

    title: str
    releases: tuple[str, ...]
    files: int
    bytes: int
    signed_by: str | None = None


def verify_product(folder: Location, key: "PublicKey | None" = None) -> VerifiedProduct:
    """Return what was verified of a product, as `Manifest.verified`."""
    manifest = Manifest.verified(folder, PRODUCT, key)
    releases = tuple(each["release"] for each in manifest["releases"])
    return VerifiedProduct(manifest["title"], releases, *manifest.size, manifest.signed_by)


def _all(tasks: list[Callable[[], Any]]) -> Iterator[Any]:
    """Yield what tasks return, in their order; the first that fails ends those that have not begun."""
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        running = [pool.submit(task) for task in tasks]
        try:
            yield from (each.result() for each in running)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _dictionary(product: ProductSpec, home: Path) -> Iterator[tuple[str, ...]]:
    for table in product.tables:
        for kind in (RESEARCH, BASIC):
            name = f"{kind}/{table.name}"
            schema = pq.read_schema(home / f"{name}.parquet")
            for field in schema:
                meaning = _meaning(product, field.name, kind, schema.names)
                yield f"{name}.parquet, .csv", field.name, _type(field), *meaning
    for layout in product.layouts:
        schema = pq.read_schema((home / "layouts" / layout.file).with_suffix(".parquet"))
        for each in layout.columns:
            unit = product.measures[each.value].unit if each.value else ""
            yield f"layouts/{layout.file}, .parquet", each.name, _type(schema.field(each.name)), unit, each.meaning


def _meaning(product: ProductSpec, name: str, kind: str, columns: Sequence[str]) -> tuple[str, str]:
    level = name.removesuffix("_name")
    if name in product.levels:
        return "", product.levels[name].meaning
    if level in product.levels:
        return "", f"{product.levels[level].meaning}: its name"
    if name in product.measures:
        measure = product.measures[name]
        what = "reconciled" if f"{name}_published" in columns else "as released"
        if kind != RESEARCH:
            what = f"rounded to {int(product.basic.round)}; empty where it is withheld"
        return measure.unit, f"{measure.meaning}, {what}"
    of, _, what = name.rpartition("_")
    of, published, _ = of.partition("_published") if what == "variance" else (of, "", "")
    measure = product.measures[of]
    limit = f"negative, or with a coefficient of variation of {float(product.basic.withhold_from):g} % or more"
    return {
        "variance": (
            f"({measure.unit})²",
            f"{measure.meaning}: variance, the square of the standard error{' as released' if published else ''}",
        ),
        "published": (measure.unit, f"{measure.meaning}, as released"),
        "sd": (measure.unit, f"{measure.meaning}: standard deviation, the standard error as released"),
        "cv": (
            "%",
            f"{measure.meaning}: coefficient of variation, the standard deviation over the value",
        ),
        "flag": ("", f"{measure.meaning}: {WITHHELD} where the value is withheld ({limit})"),
    }[what]


def _type(field: Any) -> str:
    return {"string": "text", "int64": "whole number"}.get(str(field.type), "number")


def _as_csv(rows: list[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
    return text.getvalue()


def _as_markdown(product: ProductSpec, rows: list[tuple[str, ...]]) -> str:
    lines = [f"# {product.title}: data dictionary", ""]
    if product.flags:
        lines += ["Flags of relative error (coefficient of variation):", ""]
        lines += [f"- {flag.flag}: {flag.meaning}" for flag in product.flags] + [""]
    for file, columns in groupby(rows, lambda row: row[0]):
        about = next((each.about for each in product.layouts if file.startswith(f"layouts/{each.file},")), "")
        lines += [f"## {file}", "", *([about, ""] if about else [])]
        lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row[1:]) + " |" for row in columns] + [""]
    return "\n".join(lines)


# Research and Basic tables: released tables with the same cells, side by side.
#
# Research: every value as it was released, and its variance; where there is an estimate, both of it before. Basic:
# names of codes, rounded values, standard deviations and coefficients of variation; a value is withheld where it is
# negative or its coefficient reaches the product's limit.

RESEARCH, BASIC = "research", "basic"
FORMATS = ("parquet", "csv")
WITHHELD = "S"  # County Business Patterns' letter for what does not meet publication standards
DIGITS = 4  # of a standard deviation in a Basic table
Names = Mapping[str, Mapping[str, str]]  # level → code → name


def write_table(product: ProductSpec, table: TableSpec, sources: Mapping[str, Source], names: Names, home: Path) -> Any:
    """Write a table's Research and Basic files into the folder `home`; return them.

    Raises PlanError where no release has one of its tables, or they have not the same cells.
    """
    of_measure = needed(sources, table.values, table.name)
    first, *others = of_measure.values()
    for level in first.levels:
        if level not in product.levels:
            raise PlanError(f"{table.name}: levels.{level}: say what it is: the released table {first.name} has it")
    for other in others:
        if (other.levels, other.rows) != (first.levels, first.rows):
            raise _differ(table, first, other)
    with ExitStack() as open_files:
        made = {
            kind: open_files.enter_context(written(*(home / kind / f"{table.name}.{each}" for each in FORMATS)))
            for kind in (RESEARCH, BASIC)
        }
        for pieces in _side_by_side(table, of_measure):
            keys = next(iter(pieces.values()))
            made[RESEARCH].write(_research(keys, first.levels, pieces))
            made[BASIC].write(_basic(keys, first.levels, pieces, names, product))
    files: list[Written] = list(made.values())
    return [file for each in files for file in each.files]


def _side_by_side(table: TableSpec, sources: Mapping[str, Source]) -> Iterator[dict[str, pa.Table]]:
    readers = {measure: source.reader() for measure, source in sources.items()}
    (first, of_first), *others = sources.items()
    done = False
    while not done:
        pieces = {measure: reader.take(PIECE) for measure, reader in readers.items()}
        for measure, other in others:
            if not same_keys(pieces[first], pieces[measure], of_first.levels):
                raise _differ(table, of_first, other)
        done = len(pieces[first]) < PIECE
        yield pieces


def _differ(table: TableSpec, first: Source, other: Source) -> PlanError:
    return PlanError(
        f"{table.name}: the released tables {first.name} and {other.name} have not the same cells in the same order: "
        "they cannot stand side by side; give them tables of their own"
    )


def _research(keys: pa.Table, levels: tuple[str, ...], pieces: Mapping[str, pa.Table]) -> pa.Table:
    columns: dict[str, Any] = {level: column(keys, level).cast(pa.string()) for level in levels}
    for measure, piece in pieces.items():
        columns[measure] = column(piece, VALUE)
        columns[f"{measure}_variance"] = numbers(piece, ERROR) ** 2
        if PUBLISHED[0] in piece.column_names:
            columns[f"{measure}_published"] = column(piece, PUBLISHED[0])
            columns[f"{measure}_published_variance"] = numbers(piece, PUBLISHED[1]) ** 2
    return pa.table(columns)


def _basic(
    keys: pa.Table, levels: tuple[str, ...], pieces: Mapping[str, pa.Table], names: Names, product: ProductSpec
) -> pa.Table:
    columns: dict[str, Any] = {}
    for level in levels:
        coded = column(keys, level)
        columns[level] = coded.cast(pa.string())
        if names.get(level):
            columns[f"{level}_name"] = text_of(coded, names[level])
    for measure, piece in pieces.items():
        values, errors = numbers(piece, VALUE), numbers(piece, ERROR)
        coefficients = coefficient(values, errors)
        withheld = (values < 0) | (coefficients >= float(product.basic.withhold_from))
        columns[measure] = pa.array(rounded_to(values, int(product.basic.round)), mask=withheld)
        columns[f"{measure}_sd"] = _short(errors)
        columns[f"{measure}_cv"] = pa.array(np.round(coefficients, 1), mask=withheld)
        columns[f"{measure}_flag"] = pa.array([WITHHELD, ""]).take(pa.array((~withheld).astype(np.int8)))
    return pa.table(columns)


def _short(errors: Floats) -> Floats:
    """Return standard errors in DIGITS digits; infinite ones and 0 as they are."""
    usual = np.isfinite(errors) & (errors > 0)
    places = DIGITS - 1 - np.floor(np.log10(np.where(usual, errors, 1.0)))
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.where(usual, np.rint(errors * up / down) / up * down, errors)
