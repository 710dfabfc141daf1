"""Writes the public site of an attempt beside its tables: pages, data files, boundaries, and what they say as JSON."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.base.canonical import readable_json
from pipeline.base.html import source_of
from pipeline.base.log import counted
from pipeline.engines.writers import FORMATS, PARQUET
from pipeline.plan.model import VALUES, Plan
from pipeline.plan.structure import Structure
from pipeline.publication.site.coarse import coarse_of
from pipeline.publication.site.facts import METADATA, Facts
from pipeline.publication.site.figures import Figures, Read, keys_script, part_scripts
from pipeline.publication.site.maps import MAPS, map_script
from pipeline.publication.site.site_pages import FIRST_ROWS, front_page, table_page
from pipeline.storage.location import Location

SITE = "site"  # the folder, in that of the attempt
FRONT = "index.html"  # the front page, in the release's folder and in the site's
MOST_CELLS = 2_000_000  # of a table that can be looked at in full
MOST_IN_ALL = 20_000_000  # cells of all such tables, of which the smallest come first


def stage_site(plan: Plan, facts: Facts, attempt: Location, formats: Collection[str]) -> set[str]:
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

    site = Site(facts, Structure.of(plan), lambda table: PARQUET.read(attempt / "tables", table, VALUES), files)
    write_site(site, write)
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


def write_site(site: Site, write: Callable[[str, bytes], None]) -> None:
    """Write a site's files by `write`, which takes path and contents of each."""
    facts, structure = site.facts, site.structure
    complete, maps = _in_full(facts), set()
    for about in counted("making pages", facts["tables"], len(facts["tables"])):
        name, full = about["name"], about["name"] in complete
        cells = structure.tables[name].cells(structure.domain)
        figures = Figures.read(cells, site.read(name), cells.size if full else FIRST_ROWS)
        instead = None if full else coarse_of(about, facts, complete, structure, site.read)
        shown = figures if instead is None else instead.figures
        if len(shown) and (full or (instead and instead.summed)):
            write(f"data/{name}/keys.js", keys_script(shown, structure.domain, facts).encode())
            for number, script in enumerate(part_scripts(shown)):
                write(f"data/{name}/{number}.js", script.encode())
            maps |= MAPS.keys() & set(shown.cells.by)
        links = {"front": f"../{site.front}", "files": list(site.files(name, cells.size)) if full else []}
        write(f"tables/{name}.html", table_page(facts, about, figures, links, instead).encode())
    for level in sorted(maps):
        codes = structure.domain.dimension(level).level_codes(level)
        write(f"maps/{level}.js", map_script(level, codes).encode())
    write(FRONT, front_page(facts, front=site.front).encode())
    for file in ("style.css", "site.js"):
        write(file, source_of(file).encode())
    write(METADATA, readable_json(facts, 1).encode())


def _in_full(facts: Facts) -> set[str]:
    """Return the tables that can be looked at in full."""
    chosen, cells = set(), 0
    for table in sorted(facts["tables"], key=lambda each: int(each["cells"])):
        cells += table["cells"]
        if table["cells"] <= MOST_CELLS and cells <= MOST_IN_ALL:
            chosen.add(str(table["name"]))
    return chosen
