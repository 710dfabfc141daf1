"""A product: all its files, a dictionary of their columns and, last, a manifest that names every one with its digest.

It is made of what releases published and of public lists: post-processing, which costs no record anything.
"""

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from pipeline.base.canonical import code_digest
from pipeline.base.errors import PlanError, arg
from pipeline.base.log import counted
from pipeline.plan.plan_text import public_file
from pipeline.publication import release_folder
from pipeline.publication.manifest import PRODUCT, Manifest, manifest_file, write_manifest
from pipeline.publication.product import product_spec
from pipeline.publication.product.derived_columns import WithholdSpec
from pipeline.publication.product.product_files import BASIC, RANGE, RESEARCH, write_layout, write_table
from pipeline.publication.product.product_layouts import Names
from pipeline.publication.product.product_spec import LayoutSpec, ProductSpec
from pipeline.publication.product.product_tables import ShownTables
from pipeline.storage.location import Location
from pipeline.storage.paths import LARGEST_LIST, filled, read_input

if TYPE_CHECKING:
    from pipeline.publication.signing import PublicKey, SigningKey

DERIVED = (
    "## Ratios, shares and changes",
    "",
    "Ratios, shares and changes are made of the figures before they are rounded. Their ranges hold the true one as "
    "often as the releases' intervals hold theirs; where noise grows with the total, a range is that of all quotients "
    "of two intervals, and misses at most as often as both together. Without a range, or where a figure that it is "
    "made of is withheld, none is shown. What is made of a public list has its error from the figure alone.",
    "",
)
RANGES = (
    "Files of ranges have the interval of every value of the layout, also of those withheld; of totals in whole "
    "numbers the whole numbers in it."
)
PARTS = (
    "Where figures are parts of others beside or above them, such as sizes, or forms of an industry, their ranges end "
    "where those of the others do. Every end from another figure adds at most half of what its range may miss."
)
HEADER = ("file", "column", "type", "unit", "meaning")
THREADS = 4  # at most: each holds a few pieces in memory


def make_product(  # noqa: PLR0913 — what it is made of, and the key
    folders: Sequence[Location],
    named: str | Path,
    out: Path,
    year: int | None = None,
    reconciled: Location | None = None,
    *,
    since: Sequence[Location] = (),
    as_released: bool = False,
    signing: "SigningKey | None" = None,
) -> dict[str, Any]:
    """Write a product of releases and reconciled tables to `out`; return its manifest, which a killed run leaves out.

    The same folders, product (`named`: of conf/products, or a YAML file) and build give the same bytes, archives on one
    kind of processor. Estimates, of `reconciled` or a folder among `folders`, go before what was released, but for
    `as_released`. `since`: the folders of earlier releases, for changes. Raises PlanError where the product's file is
    wrong, the folders lack a table that it needs, or others were reconciled; StateError as `Manifest.verified` and
    `filled`.
    """
    product = product_spec.load_product(named, year)
    with filled(out, PRODUCT.name) as home:
        tables = ShownTables.of(folders, reconciled)
        tables = tables.after(ShownTables.of(since)) if since else tables
        if as_released:
            product.reconciled, tables = False, tables.only_released()
        elif product.reconciled and tables.reconciled is None:
            raise PlanError(
                f"the product {product.product} shows reconciled figures: give the folder that prdp reconcile made of "
                f"these releases, or ask for the released figures with {arg('released')}"
            )
        names: Names = {
            level: tables.names(level) | release_folder.names_of(each.names, each.texts)
            for level, each in product.levels.items()
        }
        absent = [layout.file for layout in product.layouts if layout.optional and not _has(tables, layout)]
        product.layouts = [layout for layout in product.layouts if layout.file not in absent]
        tasks: list[Callable[[], Any]] = [
            *(partial(write_layout, product, layout, tables, names, home) for layout in product.layouts),
            *(partial(write_table, product, table, tables, names, home) for table in product.tables),
        ]
        made = [file.facts(home) for files in counted("writing tables", _all(tasks), len(tasks)) for file in files]
        dictionary = list(_dictionary(product, home))
        for name, text in (
            ("README.md", _readme(product, tables, absent, home)),
            ("dictionary.csv", _as_csv(dictionary)),
            ("dictionary.md", _as_markdown(product, dictionary)),
        ):
            (home / name).write_bytes(text.encode())
            made.append(manifest_file(text.encode(), name))
        folder = product_spec.file_of(named).parent
        public = {each.file for of in (product.lists, product.concordances) for each in of.values()}
        lists = {file: _digest(public_file(folder, file)) for file in sorted(public)}
        manifest = {
            "product": product.product,
            "title": product.title,
            "year": product.year,
            "product_sha256": _digest(product_spec.file_of(named)),
            "options": {
                "basic": {"round": int(product.basic.round)} | _rule_facts(product.basic),
                "layouts": {each.file: each.withhold and _rule_facts(each.withhold) for each in product.layouts},
                "flags": [{"flag": each.flag, "under": each.under and float(each.under)} for each in product.flags],
                **(
                    {"footnotes": [{"note": x.note, "where": x.rule} for x in product.footnotes]}
                    if product.footnotes
                    else {}
                ),
            },
            **({"lists": lists} if lists else {}),
            "releases": tables.releases,
            **({} if tables.since is None else {"since": tables.since.releases}),
            **({} if tables.reconciled is None else {"reconciled": tables.reconciled}),
            "left_out": absent,
            "build": code_digest(),
            "files": sorted(made, key=lambda file: str(file["path"])),
        }
        write_manifest(home, PRODUCT.name, manifest, signing)
    return manifest


def _digest(file: Path) -> str:
    return hashlib.sha256(read_input(file, LARGEST_LIST)).hexdigest()


def _has(tables: ShownTables, layout: LayoutSpec) -> bool:
    return any(tables.has(wanted) for rows in layout.rows for wanted in rows.values.values())


def _rule_facts(rule: WithholdSpec) -> dict[str, Any]:
    return {"withhold_from": float(rule.withhold_from), "interval_holds_zero": rule.interval_holds_zero}


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
        running = [pool.submit(copy_context().run, task) for task in tasks]  # messages name arguments as its user does
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
            text = f", {_text_ending(product, '.csv')}" if product.csv else ""
            for field in schema:
                meaning = _meaning(product, field.name, kind, schema.names)
                yield f"{name}.parquet{text}", field.name, _type(field), *meaning
    for layout in product.layouts:
        schema = pq.read_schema((home / "layouts" / layout.file).with_suffix(".parquet"))
        for each in layout.columns:
            unit = product.figures[each.value].unit if each.value else ""
            yield _label(product, layout.file), each.name, _type(schema.field(each.name)), unit, each.meaning
        for each in layout.columns if layout.ranges else ():
            ranges = _label(product, layout.ranges_file)
            if each.codes is not None:
                yield ranges, each.name, "text", "", each.meaning
            for ending, end in RANGE if each.value and each.value not in product.lists else ():
                bounds = f"{each.meaning}: {end} end of its range; empty where nothing bounds it"
                kind = "number" if each.value in product.derived else "whole number"
                yield ranges, f"{each.name}_{ending}", kind, product.figures[str(each.value)].unit, bounds


def _text_ending(product: ProductSpec, ending: str) -> str:
    return ".zip" if product.zip else ending


def _label(product: ProductSpec, file: str) -> str:
    path = Path(file)
    return f"layouts/{path.stem}{_text_ending(product, path.suffix)}, .parquet"


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
    return {
        "variance": (
            f"({measure.unit})²",
            f"{measure.meaning}: variance, the square of the standard error{' as released' if published else ''}",
        ),
        "published": (measure.unit, f"{measure.meaning}, as released"),
        "sd": (measure.unit, f"{measure.meaning}: standard deviation, the standard error as released"),
        "cv": ("%", f"{measure.meaning}: coefficient of variation, the standard deviation over the value"),
        "flag": ("", f"{measure.meaning}: {product_spec.WITHHELD} where the value is withheld: {product.basic.rule}"),
    }[what]


def _type(field: Any) -> str:
    return {"string": "text", "int64": "whole number"}.get(str(field.type), "number")


def _as_csv(rows: list[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
    return text.getvalue()


def _as_markdown(product: ProductSpec, rows: list[tuple[str, ...]]) -> str:
    lines = [f"# {product.title}: data dictionary", "", *_flags(product), *_footnotes(product)]
    for file, columns in groupby(rows, lambda row: row[0]):
        about = next((each.about for each in product.layouts if file == _label(product, each.file)), "")
        lines += [f"## {file}", "", *([about, ""] if about else [])]
        lines += ["| column | type | unit | meaning |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row[1:]) + " |" for row in columns] + [""]
    return "\n".join(lines)


def _flags(product: ProductSpec) -> list[str]:
    if not product.flags:
        return []
    rules = sorted({each.withhold.rule for each in product.layouts if each.withhold})
    return [
        "## Flags",
        "",
        "Of relative error, the standard error in per cent of the value:",
        "",
        *(f"- {flag.flag}: {flag.meaning}" for flag in product.flags),
        *(f"- {product_spec.WITHHELD}: the value is withheld: {rule}" for rule in rules),
        "",
    ]


def _footnotes(product: ProductSpec) -> list[str]:
    shown = {each.notes for layout in product.layouts for each in layout.columns} - {None}
    if not shown:
        return []
    notes = [(note, ", ".join(note.of) or "all with a column of notes") for note in product.footnotes]
    return [
        "## Footnotes",
        "",
        "| note | text | figures | where |",
        "|---|---|---|---|",
        *(f"| {note.note} | {note.text} | {of} | {note.rule} |" for note, of in notes),
        "",
    ]


def _lists(product: ProductSpec, tables: ShownTables) -> list[str]:
    """Return which public lists figures are made of, and what is to be known of codes."""
    of = (f"- {each.meaning} ({each.unit}): {Path(each.file).name}, {each.number}" for each in product.lists.values())
    follow = (
        f"- {level}: {Path(each.file).name} says which codes follow earlier ones; their totals are added up"
        for level, each in product.concordances.items()
    )
    lines = [*of, *(follow if tables.since else ())]
    lines = ["## Public lists", "", *lines, ""] if lines else []
    remarks = (f"- {each}" for each in sorted(tables.remarks))
    return lines + (["## Codes that differ", "", *remarks, ""] if tables.remarks else [])


def _readme(product: ProductSpec, tables: ShownTables, absent: Sequence[str], home: Path) -> str:
    """Return what readers must know first: whose figures these are, what is withheld and why, and where ranges are."""
    figures = "reconciled figures, which add up over all tables" if tables.reconciled else "figures as released"
    of = ", ".join(f"{each['release']} (attempt {each['attempt']})" for each in tables.releases)
    lines = [f"# {product.title}", "", f"These files show {figures}, of {of}."]
    lines += ["They were made of published files alone. dictionary.md says what every column means.", ""]
    if product.zip:
        lines += ["Each .zip holds one text file.", ""]
    if product.layouts:
        lines += [
            "| file | what | rows | withheld | rows in which nothing is shown | ranges |",
            "|---|---|---:|---|---|---|",
        ]
    for each in product.layouts:
        name = _label(product, each.file).partition(",")[0]
        ranges = _label(product, each.ranges_file).partition(",")[0] if each.ranges else "none"
        rule = each.withhold.rule if each.withhold else "nothing"
        empty = "left out" if each.leave_out_empty else "kept"
        rows = pq.read_metadata((home / "layouts" / each.file).with_suffix(".parquet")).num_rows
        lines.append(f"| {name} | {each.about} | {rows:,} | {rule} | {empty} | {ranges} |")
    lines += [""] * bool(product.layouts)
    if any(each.withhold for each in product.layouts) or product.tables:
        lines += [
            "## What is withheld",
            "",
            "A value is withheld where it cannot be told from nothing, or is too uncertain to be read, by a rule that "
            "reads published values and their published errors alone. The rule protects nobody (the noise does), "
            "and hides nothing: it keeps readers from figures that are noise. A withheld value is empty, and its flag, "
            f"where the layout has one, is {product_spec.WITHHELD}.",
            "",
        ]
        lines += [f"Basic tables: {product.basic.rule}.", ""] if product.tables else []
        if any(each.ranges for each in product.layouts):
            lines += [RANGES, ""]
            lines += [PARTS, ""] if tables.reconciled else []
        if product.tables:
            lines += ["Research tables withhold nothing: every figure stands there with its variance.", ""]
    if any(each.measure in product.derived for of in product.layouts for each in of.columns):
        lines += DERIVED
    lines += [*_lists(product, tables), *_flags(product), *_footnotes(product)]
    lines += [f"Left out, since no folder has their tables: {', '.join(absent)}.", ""] if absent else []
    return "\n".join(lines)
