"""Writes the public site of an attempt beside its tables: pages, data files, boundaries, and what they say as JSON."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.base.canonical import readable_json
from pipeline.base.errors import PlanError, StateError
from pipeline.base.log import counted
from pipeline.base.plain import source_of
from pipeline.engines.writers import FORMATS, PARQUET
from pipeline.plan.model import VALUES
from pipeline.plan.structure import Structure, TableFacts
from pipeline.publication.description import METADATA, NOT_ADDING, SITE, SUMS, Description, Facts
from pipeline.publication.manifest import (
    PRODUCT,
    RECONCILED,
    Kind,
    Manifest,
    named_signer,
    published_bytes,
    write_manifest,
)
from pipeline.publication.release_folder import as_written, json_in, published_part, structure_of
from pipeline.publication.site.figures import MAPS, WHOLE_NUMBERS, Figures, Read, coarse_of, map_script
from pipeline.publication.site.packed import axes_of, csv_of, index_script, keys_script, part_scripts, ranked
from pipeline.publication.site.site_pages import (
    FIRST_ROWS,
    INDEX,
    asking,
    files_of,
    front_page,
    listed_table,
    place_page,
    published_page,
    report_page,
    table_page,
)
from pipeline.storage.local import LocalPath
from pipeline.storage.location import FileDigest, Location
from pipeline.storage.paths import filled
from pipeline.storage.staging import SIGNED, STRUCTURE, Staging
from udfs.numbers.exact import exact

FRONT = "index.html"  # the front page, in the release's folder and in the site's
MOST_CELLS = 2_000_000  # of a table that can be looked at in full
MOST_IN_ALL = 20_000_000  # cells of all such tables, of which the smallest come first


def stage_public(
    about: Description, staging: Staging, formats: Sequence[str], require_live: Callable[[], object]
) -> set[str]:
    """Write all that a release says of its staged tables, which have these formats; return the paths of the files.

    `require_live` is called before each step, and raises where they may not be written any more.
    """
    with ThreadPoolExecutor(1) as beside:
        report = beside.submit(report_page, about, staging.path)
        require_live()
        written = stage_site(about, staging.path, formats)
    views = {"policy.json": readable_json(about.policy), STRUCTURE: about.structure.to_json()}
    views["report.html"] = report.result()
    for name, text in views.items():
        require_live()
        staging.write_text(name, text)
    require_live()
    return {*views, *written, *about.stage_package(staging.path, formats)}


def stage_site(description: Description, attempt: Location, formats: Collection[str]) -> set[str]:
    """Write the site of the staged tables in `attempt`, which have these formats; return the paths of its files."""
    written = set()

    def write(path: str, data: bytes) -> None:
        folder, _, _ = f"{SITE}/{path}".rpartition("/")
        (attempt / folder).make_private()
        (attempt / SITE / path).write(data)
        written.add(f"{SITE}/{path}")

    def files(table: str, cells: int) -> Iterator[dict[str, Any]]:
        for path in (path for each in formats for path in FORMATS[each].files(table, cells)):
            if not (attempt / "tables" / path).is_file():
                continue  # it vanished: that the attempt is incomplete is found when it is completed
            digest = (attempt / "tables" / path).digest()
            href = f"../../tables/{path}"
            yield {"name": path, "href": href, "bytes": digest.bytes, "sha256": digest.sha256}

    def read(table: str) -> Iterator[pa.RecordBatch]:
        return PARQUET.read(attempt / "tables", table, VALUES)

    write_site(Site(description.facts, description.structure, read, files), write)
    return written


def staged_page(attempt: Location) -> Location:
    """Return the front page of the site that is staged in `attempt`."""
    return attempt / SITE / FRONT


@dataclass(frozen=True, eq=False)
class Site:
    """What a site is made of, all of it public.

    `facts`: what it says beside figures. `files`: gives name, href from the table's page, bytes and sha256 of the files
    of a table of so many cells. `front`: the path from the site's folder to the front page that lists all files.
    """

    facts: Facts
    structure: Structure
    read: Read
    files: Callable[[str, int], Iterable[dict[str, Any]]]
    front: str = "../../" + FRONT


def write_site(site: Site, write: Callable[[str, bytes], None]) -> list[dict[str, Any]]:
    """Write a site's files by `write`, which takes path and contents of each; return the files of whole tables.

    Tables are written by as many threads as there are processors, each with another that compresses.
    """
    facts, structure = site.facts, site.structure
    complete, maps = _in_full(facts), set[str]()
    levels: dict[str, Facts] = {}
    listed: list[Facts] = []
    tables: list[dict[str, Any]] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        made = threads.map(partial(_write_table, site, complete, write), facts["tables"])
        for table in counted("making pages", made, len(facts["tables"])):
            maps |= set(table.maps)
            tables += table.csv
            for axis in table.ranked:
                if len(axis["codes"]) > len(levels.get(axis["level"], {"codes": ()})["codes"]):
                    levels[axis["level"]] = axis
            listed += table.listed
    for level in sorted(maps):
        codes = structure.domain.dimension(level).level_codes(level)
        write(f"maps/{level}.js", map_script(level, codes).encode())
    if listed:
        coarsest = sorted(levels.values(), key=lambda axis: len(axis["codes"]))
        write(INDEX, index_script(coarsest, listed).encode())
        write("place.html", place_page(facts).encode())
    write(FRONT, front_page(asking(facts) if listed else facts, front=site.front).encode())
    for file in ("style.css", "site.js", "table.js", "place.js"):
        write(file, source_of(file).encode())
    write(METADATA, readable_json(facts, 1).encode())
    return tables


@dataclass(frozen=True)
class _Written:
    """What a site's common files need of a table's: whose maps it shows, its CSV, its axes, its place in the index."""

    maps: Sequence[str] = ()
    csv: Sequence[dict[str, Any]] = ()
    ranked: Sequence[Facts] = ()
    listed: Sequence[Facts] = ()


def _write_table(site: Site, complete: Collection[str], write: Callable[[str, bytes], None], about: Facts) -> _Written:
    """Write the page of a table and, of the complete ones, its figures for scripts and as CSV."""
    facts, structure = site.facts, site.structure
    name, full = about["name"], about["name"] in complete
    cells = structure.tables[name].cells(structure.domain)
    nonnegative = about.get("nonnegative", False)  # sites of earlier builds do not say it
    figures = Figures.read(cells, site.read(name), cells.size if full else FIRST_ROWS, nonnegative=nonnegative)
    files = list(site.files(name, cells.size)) if full else []
    in_csv = any(file["name"].endswith(".csv") for file in files)
    in_one = None
    if full and len(figures) and (about.get("reconciled") or not in_csv):  # half of the work: another thread's
        beside = ThreadPoolExecutor(1)
        in_one = beside.submit(csv_of, figures)
        beside.shutdown(wait=False)
    instead = None if full else coarse_of(about, facts, complete, structure, site.read)
    shown = figures if instead is None else instead.figures
    mapped = [each for each in MAPS if each in shown.cells.by and structure.domain.is_conventional(each)]
    scripts = bool(len(shown) and (full or (instead and instead.summed)))
    if scripts:
        write(f"data/{name}/keys.js", keys_script(shown, structure.domain, facts).encode())
        for number, script in enumerate(part_scripts(shown)):
            write(f"data/{name}/{number}.js", script.encode())
    page = table_page(facts, about, figures, {"front": f"../{site.front}", "maps": mapped}, instead)
    made: list[dict[str, Any]] = []
    if in_one is not None:
        data, csv = in_one.result(), f"{name}.csv.gz"
        write(f"tables/{csv}", data)
        digest = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        files.append({"name": csv, "href": csv} | digest)
        made = [{"path": f"{SITE}/tables/{csv}"} | digest]
    write(f"tables/{name}.html", page(files=files).encode())
    written = _Written(mapped if scripts else (), made)
    if not (full and len(figures)):
        return written
    axes = axes_of(figures, structure.domain, facts)
    listed = [listed_table(facts, about, figures, axes)]
    return replace(written, ranked=list(ranked(axes, figures)), listed=listed)


def _in_full(facts: Facts) -> set[str]:
    chosen, cells = set(), 0
    for table in sorted(facts["tables"], key=lambda each: int(each["cells"])):
        cells += table["cells"]
        if table["cells"] <= MOST_CELLS and cells <= MOST_IN_ALL:
            chosen.add(str(table["name"]))
    return chosen


# A second public site, of a release's folder alone: as it was published, or with reconciled figures beside these, and
# with the files of a product for download.
#
# It is made of published files: post-processing, which costs no record anything. The release's folder is not changed.

MARK = "site.json"  # marks the folder as public: nothing confidential is written into it
LOADS = "product"  # the folder of a product's files, which keep their names
PUBLISHED = "published"  # the folder of the site with published figures, where SITE has reconciled ones
DISPLAY = "display"  # of a reconciled table: estimates in whole units
ESTIMATES = "reconciled"  # the folder of reconciled tables
OF_RECONCILED = (
    "Tables that are called reconciled are estimates from all published tables together: their cells add up, also "
    "between tables. Their errors depend on each other: prdp reconcile --sum states that of a sum."
)
OF_DERIVED = "Tables that no release measured have files here, in the folder {folder}, but no pages: {names}."


def make_site(
    folder: Location, out: Path, reconciled: Location | None = None, product: Location | None = None
) -> dict[str, Any]:
    """Write a site of the published release in `folder` to `out`, with copies of its files; return what was written.

    `reconciled` and `product` are folders made of this release, maybe with others: PlanError where they were not. Pages
    of reconciled tables lead to published ones; of tables that the release derives there are files alone, which pages
    name. StateError where a file is missing, changed or too many, the release
    has no site, or `out` cannot be filled.
    """
    manifest = Manifest.verified(folder)
    home = manifest.home
    if f"{SITE}/{METADATA}" not in manifest.files:
        raise StateError(f"{folder}: an earlier build published this release, without a public site")
    facts: Facts = json_in(manifest, f"{SITE}/{METADATA}")
    with as_written(folder / home / SITE / METADATA):
        _require_facts(facts, {table["query"] for table in manifest["tables"]})
    structure = structure_of(manifest)
    tables, abouts = {table["query"]: table for table in manifest["tables"]}, {t["name"]: t for t in facts["tables"]}
    estimates = {} if reconciled is None else _estimates(manifest, reconciled, structure.tables)
    derived = {} if reconciled is None else _estimates(manifest, reconciled, structure.derived)
    loads = None if product is None else _made_of(manifest, product, PRODUCT)

    def listed(table: str) -> list[dict[str, Any]]:
        own = [(file, file["path"].removeprefix(home)) for file in files_of(manifest, tables[table])]
        made = [(estimates[table], f"{ESTIMATES}/{table}.parquet")] if table in estimates else []
        return [{**file, "name": path.removeprefix("tables/"), "href": path} for file, path in (*own, *made)]

    def read(table: str) -> Iterator[pa.RecordBatch]:
        for file in tables[table]["files"]:
            if file["path"].endswith(".parquet"):
                yield from published_part(folder, file).iter_batches(columns=VALUES)

    def estimated(table: str) -> Iterator[pa.RecordBatch]:
        if table not in estimates or reconciled is None:
            return read(table)
        part, about = published_part(reconciled, estimates[table]), abouts[table]
        if about["cells"] > MOST_CELLS or DISPLAY not in part.schema_arrow.names:
            return iter(part.iter_batches(columns=VALUES))
        fixed = about["additive"] and float(facts["interval"]) == float(estimates[table]["interval"])
        before = pa.Table.from_batches(read(table)) if fixed else None
        return iter(in_whole_units(part.read([*VALUES, DISPLAY]), before, _step(structure, table)).to_batches())

    def hrefs(table: str, cells: int) -> list[dict[str, Any]]:
        return [file | {"href": f"../../{file['href']}"} for file in listed(table)]

    with filled(out, MARK) as place:
        beside = [path for path in manifest.files if not path.startswith(f"{SITE}/")]
        for path in beside:
            _write(place / path, manifest.contents(path))
        for table, file in (estimates | derived).items():
            assert reconciled is not None
            _write(place / ESTIMATES / f"{table}.parquet", published_bytes(reconciled, file))
        shown = _with_estimates(facts, estimates, derived, f"../../{PUBLISHED}/tables") if estimates else facts
        front = f"../{FRONT}"
        whole_tables = write_site(Site(shown, structure, estimated, hrefs, front), _into(place / SITE))
        if estimates:
            other = [
                each | {"other": f"../../{SITE}/tables/{each['name']}.html"} if each["name"] in estimates else each
                for each in facts["tables"]
            ]
            write_site(Site(facts | {"tables": other}, structure, read, hrefs, front), _into(place / PUBLISHED))
        files = []
        if loads is not None:
            signature = {"path": f"{PRODUCT.name}{SIGNED}"}
            signed = [signature] * (loads.folder / signature["path"]).is_file()
            for file in ({"path": PRODUCT.name}, *signed, *loads["files"]):
                _copy(loads.folder / file["path"], place / LOADS / file["path"], file)
            files = [file | {"href": f"{LOADS}/{file['path']}"} for file in loads["files"]]
        public = manifest.facts | {"tables": [{"query": name, "files": listed(name)} for name in tables], "home": ""}
        beside += [f"{SITE}/{INDEX}"] * (place / SITE / INDEX).is_file()
        public |= {
            "files": [*({"path": path} for path in beside), *whole_tables],
            "product": loads and loads.facts | {"files": files},
        }
        page = published_page(shown, f"{SITE}/", public, signer=named_signer(folder))
        (place / FRONT).write_text(page, encoding="utf-8")
        made = {
            "release": manifest["release"],
            "attempt": manifest["attempt"],
            "tables": list(tables),
            "reconciled": sorted(estimates),
            "derived": sorted(derived),
            "product": loads and [file["href"] for file in files],
        }
        write_manifest(place, MARK, made)
    return made | {"out": str(out)}


def _step(structure: Structure, table: str) -> float:
    measure = structure.tables[table].statistic.measure
    return 1.0 if measure is None else float(exact(structure.measures[measure]["step"]))


def in_whole_units(estimates: pa.Table, released: pa.Table | None, step: float) -> pa.Table:
    """Return reconciled figures as pages show them: `display`, and intervals no wider than the released ones.

    `released`: the published table, where its intervals have the same coverage and lengths that no draw decides; what
    is chosen by lengths alone keeps its coverage. Totals in whole units (`step` 1) lie in an interval's whole numbers.
    """
    lower, upper = (estimates[name].to_numpy() for name in ("lower", "upper"))
    if released is not None:
        ends = [released[name].to_numpy() for name in ("lower", "upper")]
        shorter = ends[1] - ends[0] < upper - lower
        lower, upper = np.where(shorter, ends[0], lower), np.where(shorter, ends[1], upper)
    if step == 1 and np.abs([lower, upper]).max(initial=0) < WHOLE_NUMBERS:
        lower, upper = (ends.astype(np.int64) for ends in (np.ceil(lower), np.floor(upper)))
        upper = np.maximum(lower, upper)
    error = estimates["standard_error"]
    return pa.table({"value": estimates[DISPLAY], "lower": lower, "upper": upper, "standard_error": error})


def _estimates(release: Manifest, reconciled: Location, tables: Mapping[str, TableFacts]) -> dict[str, dict[str, Any]]:
    made = _made_of(release, reconciled, RECONCILED)
    interval = made["options"]["interval"]
    return {
        name: {**made.files[f"tables/{name}.parquet"], "interval": interval}
        for name in made["tables"]
        if name in tables and tables[name].statistic.adds_up  # others stay as they were released
    }


def _made_of(release: Manifest, folder: Location, kind: Kind) -> Manifest:
    """Return the manifest of what was made in `folder`, if it was made of this release; raises PlanError."""
    made = Manifest.verified(folder, kind)
    if release.sha256 not in {each["manifest_sha256"] for each in made["releases"]}:
        raise PlanError(f"{folder}: it was not made of the release in {release.folder}")
    return made


def _with_estimates(
    facts: Facts, estimates: dict[str, dict[str, Any]], derived: Collection[str], published: str
) -> Facts:
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
    files = [OF_DERIVED.format(folder=ESTIMATES, names=", ".join(sorted(derived)))] if derived else []
    return facts | {"tables": tables, "do_not": [*said, OF_RECONCILED, *files]}


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
