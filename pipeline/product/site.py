"""A second public site, of a release's folder alone: as it was published, or with reconciled figures beside these, and
with the files of a product for download.

It is made of published files: post-processing, which costs no record anything. The release's folder is not changed.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import PlanError, StateError
from pipeline.plan.model import VALUES
from pipeline.product.make import MANIFEST as PRODUCT_MANIFEST
from pipeline.product.make import read_product
from pipeline.product.reconciled_folder import read_reconciled_manifest, require_files
from pipeline.product.sources import structure_of
from pipeline.release.export import as_written, published_bytes, published_json, published_part, published_parts
from pipeline.release.manifest import named_signer, read_manifest, verify_release
from pipeline.report.page import NOT_ADDING, SUMS
from pipeline.report.site.facts import METADATA, Facts
from pipeline.report.site.pages import files_of, published_page
from pipeline.report.site.write import FRONT, SITE, Site, write_site
from pipeline.storage.local import LocalPath
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.new_folder import filled, require_no_release
from pipeline.storage.staging import MANIFEST, SIGNED

PRODUCT = "product"  # the folder of a product's files, which keep their names
PUBLISHED = "published"  # the folder of the site with published figures, where SITE has reconciled ones
RECONCILED = "reconciled"
OF_RECONCILED = (
    "Tables that are called reconciled are estimates from all published tables together: their cells add up, also "
    "between tables. Their errors depend on each other: prdp reconcile --sum states that of a sum."
)


def make_site(
    folder: Location, out: Path, reconciled: Location | None = None, product: Location | None = None
) -> dict[str, Any]:
    """Write a site of the published release in `folder` to `out`, with copies of its files; return what was written.

    Args:
        folder: Holds release.json.
        out: The folder to write, new or empty.
        reconciled: A folder that `prdp reconcile` made of this release, maybe with others: its tables' pages then show
            reconciled figures, and lead to the published ones.
        product: A folder that `prdp product` made of this release, maybe with others: its files are for download.

    Raises:
        PlanError: The reconciled folder, or the product, was made of other releases.
        StateError: A file is missing, changed or too many; the release was published without a site; `out` is neither
            absent nor empty, or lies in a release's folder.
    """
    verified = verify_release(folder)
    manifest = read_manifest(folder)
    require_no_release(out)
    home = f"{verified.attempt}/"
    files = {file["path"].removeprefix(home): file for file in manifest["files"]}
    if f"{SITE}/{METADATA}" not in files:
        raise StateError(f"{folder}: an earlier build published this release, without a public site")
    facts: Facts = published_json(folder, files[f"{SITE}/{METADATA}"])
    with as_written(folder / home / SITE / METADATA):
        _require_facts(facts, {table["query"] for table in manifest["tables"]})
    structure = structure_of(folder)
    tables = {table["query"]: table for table in manifest["tables"]}
    estimates = {} if reconciled is None else _estimates(folder, reconciled, set(tables))
    loads = None if product is None else _of_this_release(read_product(product), folder, product)

    def listed(table: str) -> list[dict[str, Any]]:
        own = [
            {**file, "name": file["path"].removeprefix(f"{home}tables/")} for file in files_of(manifest, tables[table])
        ]
        made = [{**estimates[table], "name": f"{RECONCILED}/{table}.parquet"}] if table in estimates else []
        return [file | {"href": _path(file, home)} for file in (*own, *made)]

    def read(table: str) -> Iterator[pa.RecordBatch]:
        for part in published_parts(folder, tables[table]):
            yield from part.iter_batches(columns=VALUES)

    def estimated(table: str) -> Iterator[pa.RecordBatch]:
        if table not in estimates or reconciled is None:
            return read(table)
        batches: Iterator[pa.RecordBatch] = published_part(reconciled, estimates[table]).iter_batches(columns=VALUES)
        return batches

    def hrefs(table: str, cells: int) -> list[dict[str, Any]]:
        return [file | {"href": f"../../{file['href']}"} for file in listed(table)]

    with filled(out) as place:
        for file in (file for file in (*files.values(), *(f for name in tables for f in tables[name]["files"]))):
            if not file["path"].startswith(f"{home}{SITE}/"):
                _write(place / file["path"].removeprefix(home), published_bytes(folder, file))
        for table, file in estimates.items():
            assert reconciled is not None
            _write(place / RECONCILED / f"{table}.parquet", published_bytes(reconciled, file))
        shown = _with_estimates(facts, estimates, f"../../{PUBLISHED}/tables") if estimates else facts
        front = f"../{FRONT}"
        write_site(Site(shown, structure, estimated, hrefs, front), _into(place / SITE))
        if estimates:
            other = [
                each | {"other": f"../../{SITE}/tables/{each['name']}.html"} if each["name"] in estimates else each
                for each in facts["tables"]
            ]
            write_site(Site(facts | {"tables": other}, structure, read, hrefs, front), _into(place / PUBLISHED))
        if product is not None and loads is not None:
            signature = {"path": f"{PRODUCT_MANIFEST}{SIGNED}"}
            signed = [signature] * (product / signature["path"]).is_file()
            for file in ({"path": PRODUCT_MANIFEST}, *signed, *loads["files"]):
                _copy(product / file["path"], place / PRODUCT / file["path"], file)
            loads = loads | {"files": [file | {"href": f"{PRODUCT}/{file['path']}"} for file in loads["files"]]}
        whole = manifest | {"tables": [{"query": name, "files": listed(name)} for name in tables], "home": ""}
        whole |= {"files": [{"path": path} for path in files if not path.startswith(f"{SITE}/")], "product": loads}
        (place / FRONT).write_text(
            published_page(shown, f"{SITE}/", whole, signer=named_signer(folder)), encoding="utf-8"
        )
    return {
        "release": verified.release,
        "attempt": verified.attempt,
        "out": str(out),
        "tables": list(tables),
        "reconciled": sorted(estimates),
        "product": loads and [file["href"] for file in loads["files"]],
    }


def _estimates(folder: Location, reconciled: Location, tables: set[str]) -> dict[str, dict[str, Any]]:
    """Return the reconciled file of each table of the release that has one."""
    manifest = _of_this_release(read_reconciled_manifest(reconciled), folder, reconciled)
    require_files(reconciled, manifest)
    files = {file["path"]: file for file in manifest["files"]}
    interval = manifest["options"]["interval"]
    return {
        name: {**files[f"tables/{name}.parquet"], "interval": interval} for name in manifest["tables"] if name in tables
    }


def _of_this_release(manifest: dict[str, Any], folder: Location, made: Location) -> dict[str, Any]:
    """Return the manifest of what was `made` of releases, if that in `folder` is one of them; raises PlanError."""
    own = hashlib.sha256((folder / MANIFEST).read()).hexdigest()
    if own not in {each["manifest_sha256"] for each in manifest["releases"]}:
        raise PlanError(f"{made}: it was not made of the release in {folder}")
    return manifest


def _with_estimates(facts: Facts, estimates: dict[str, dict[str, Any]], published: str) -> Facts:
    """Return what the site says with reconciled figures; their coverage is that of the reconciled folder."""
    tables = [
        each
        | {"reconciled": True, "interval": estimates[each["name"]]["interval"]}
        | {"other": f"{published}/{each['name']}.html"}
        if each["name"] in estimates
        else each
        for each in facts["tables"]
    ]
    said = [text for text in facts["do_not"] if text not in (NOT_ADDING, SUMS)]
    return facts | {"tables": tables, "do_not": [*said, OF_RECONCILED]}


def _path(file: dict[str, Any], home: str) -> str:
    return str(file["path"].removeprefix(home) if file["path"].startswith(home) else file["name"])


def _into(place: Path) -> Callable[[str, bytes], None]:
    return lambda path, data: _write(place / path, data)


def _copy(source: Location, to: Path, file: dict[str, Any]) -> None:
    digest = FileDigest(file["sha256"], file["bytes"]) if "sha256" in file else source.digest()
    if not LocalPath(to).copy_from(source, digest):
        raise StateError(f"{source} was changed while it was copied: make the site again")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _require_facts(facts: Facts, tables: set[str]) -> None:
    """Touch what pages take from a site's facts; KeyError or TypeError where they lack that."""
    said = [facts[key] for key in ("dataset", "unit", "title", "about", "losses", "interval", "promise", "do_not")]
    for table in facts["tables"]:
        said += [table[key] for key in ("title", "statistic", "cells", "unit")]
        said += [facts["levels"][level][key] for level in table["by"] for key in ("label", "names")]
    if {table["name"] for table in facts["tables"]} != tables or not said:
        raise TypeError
