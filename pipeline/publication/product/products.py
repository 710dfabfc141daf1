"""A product: all its files, a dictionary of their columns and, last, a manifest that names every one with its digest.

It is made of what releases published and of public lists: post-processing, which costs no record anything.
"""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pipeline.base.build import code_digest
from pipeline.base.log import counted
from pipeline.publication.manifest import PRODUCT, Manifest, manifest_file, write_manifest
from pipeline.publication.product.product_layouts import write_layout
from pipeline.publication.product.product_spec import ProductSpec, file_of, load_product
from pipeline.publication.product.product_tables import BASIC, RESEARCH, WITHHELD, write_table
from pipeline.publication.reconcile.reconciled_folder import with_estimates
from pipeline.publication.reconcile.sources import names_of, released
from pipeline.storage.folders import filled
from pipeline.storage.inputs import LARGEST_TEXT, read_input
from pipeline.storage.location import Location

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
    """Yield file, column, type, unit and meaning of each column, as HEADER names them."""
    for table in product.tables:
        for kind in (RESEARCH, BASIC):
            name = f"{kind}/{table.name}"
            schema = pq.read_schema(home / f"{name}.parquet")
            for field in schema:
                told = _meaning(product, field.name, kind, schema.names)
                yield f"{name}.parquet, .csv", field.name, _type(field), *told
    for layout in product.layouts:
        schema = pq.read_schema((home / "layouts" / layout.file).with_suffix(".parquet"))
        for each in layout.columns:
            unit = product.measures[each.value].unit if each.value else ""
            yield f"layouts/{layout.file}, .parquet", each.name, _type(schema.field(each.name)), unit, each.meaning


def _meaning(product: ProductSpec, name: str, kind: str, columns: Sequence[str]) -> tuple[str, str]:
    """Return unit and meaning of a column of a Research or Basic table that has these `columns`."""
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
    """Return the dictionary for people: a table of columns for each file, and the letters of the flags."""
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
