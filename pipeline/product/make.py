"""A product: all its files, a dictionary of their columns and, last, a manifest that names every one with its digest.

It is made of what releases published and of public lists: post-processing, which costs no record anything.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pipeline.build import code_digest
from pipeline.errors import StateError
from pipeline.log import counted
from pipeline.product.files import write_manifest
from pipeline.product.layouts import write_layout
from pipeline.product.reconciled_folder import require_files, with_estimates
from pipeline.product.sources import names_of, released
from pipeline.product.spec import ProductSpec, file_of, load_product
from pipeline.product.tables import BASIC, RESEARCH, WITHHELD, write_table
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.new_folder import filled, require_no_release

if TYPE_CHECKING:
    from pipeline.release.signing import PublicKey, SigningKey

MANIFEST = "product.json"
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
    """Write a product of the releases in `folders` to `out`; return its manifest.

    The same releases, product and build give the same bytes. A run that is killed leaves no manifest.

    Args:
        folders: Each holds a release.json.
        named: A name of conf/products, or a product's YAML file.
        out: The folder to write, new or empty.
        year: The year in the names of files, where the product's file has none or another.
        reconciled: A folder of tables that were reconciled from these releases: its estimates go before what was
            released.
        signing: The key that signs the manifest; None: it is not signed.

    Raises:
        PlanError: The product's file is wrong, the releases lack a table that it needs, or others were reconciled.
        StateError: A release's file is missing, changed or too many; `out` is neither absent nor empty.
    """
    product = load_product(named, year)
    require_no_release(out)
    with filled(out, MANIFEST) as home:
        sources, facts = released(folders)
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
            made.append({"path": name, "bytes": len(text.encode()), "sha256": sha256(text.encode()).hexdigest()})
        manifest = {
            "product": product.product,
            "title": product.title,
            "year": product.year,
            "product_sha256": sha256(file_of(named).read_bytes()).hexdigest(),
            "options": {
                "basic": {"round": int(product.basic.round), "withhold_from": float(product.basic.withhold_from)},
                "flags": [{"flag": each.flag, "under": each.under and float(each.under)} for each in product.flags],
            },
            "releases": facts,
            **estimates,
            "build": code_digest(),
            "files": sorted(made, key=lambda file: str(file["path"])),
        }
        write_manifest(home, MANIFEST, manifest, signing)
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
    """Return what was verified: each file of product.json is there, unchanged, no other is; raises StateError.

    With `key` also where product.json is not signed by it.
    """
    manifest = read_product(folder, key)
    releases, sizes = (each["release"] for each in manifest["releases"]), [file["bytes"] for file in manifest["files"]]
    signed_by = None if key is None else key.fingerprint
    return VerifiedProduct(manifest["title"], tuple(releases), len(sizes), sum(sizes), signed_by)


def read_product(folder: Location, key: "PublicKey | None" = None) -> dict[str, Any]:
    """Return the manifest of a product whose files are all there, unchanged; raises StateError as `verify_product`."""
    path = folder / MANIFEST
    try:
        data = path.read()
        if key is not None:
            key.require_signed(folder, data, MANIFEST)
        manifest: dict[str, Any] = json.loads(data)
        for file in manifest["files"]:
            FileDigest(file["sha256"], file["bytes"])
        complete = all(
            isinstance(each[name], str) for each in manifest["releases"] for name in ("manifest_sha256", "release")
        )
        complete &= isinstance(manifest["title"], str)
    except OSError:
        raise StateError(f"{path} is not there: no product is in this folder") from None
    except (ValueError, KeyError, TypeError):
        complete = False
    if not complete:
        raise StateError(f"{path} lacks what every manifest of a product has: it was changed or is not one")
    require_files(folder, manifest, of=MANIFEST, what="the product")
    return manifest


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
