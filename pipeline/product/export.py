"""Published and reconciled tables in other formats, each with its description; no ledger, plan or microdata is needed.

What is exported was published already: it is post-processing, and costs no loss.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pipeline.errors import PlanError, StateError
from pipeline.names import hint
from pipeline.product.database import write_database, write_delta
from pipeline.product.published_folder import Published, published_in
from pipeline.product.sdmx import write_sdmx
from pipeline.product.workbook import write_workbooks
from pipeline.report.data_package import package_text
from pipeline.report.site.facts import CODES, PACKAGE
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.new_folder import filled, require_no_release
from pipeline.tables.writers import FORMATS


def export(
    folder: Location, to: str, out: Path | None = None, tables: Sequence[str] = (), **options: Any
) -> dict[str, Any]:
    """Write tables of a published release, or reconciled ones, to `out` in the format `to`; return what was written.

    As CSV a released table has the bytes that the release would have published.

    Args:
        folder: Holds release.json, or reconciled.json.
        to: One of EXPORTS.
        out: The folder to write, new or empty. Default: <release>-<format> in the working folder.
        tables: The tables to write. Default: all.
        options: Of the format: agency and year of sdmx (`write_sdmx`); None is none.

    Raises:
        PlanError: The format or a table is unknown, its package is not installed, a workbook cannot hold a table, or
            agency or year are none.
        StateError: A file is missing, changed or too many; an earlier build left no description, without which there
            is only CSV; `out` is neither absent nor empty, or lies in a release's folder.
    """
    if to not in EXPORTS:
        raise PlanError(f"{to}: unknown format{hint(to, EXPORTS, 'format')}")
    chosen = {name: value for name, value in options.items() if value is not None}
    if chosen and EXPORTS[to] is not write_sdmx:
        raise PlanError(f"--{min(chosen)}: it belongs to --to sdmx alone")
    published = published_in(folder)
    for name in tables:
        if name not in published.tables:
            raise PlanError(f"--table {name}: unknown table{hint(name, published.tables, 'table')}")
    published = published.only(tables or list(published.tables))
    if to != "csv" and published.package is None:
        raise StateError(f"{folder}: an earlier build wrote it, without {PACKAGE}: only csv can be made of it")
    at = out or Path(f"{published.name}-{to}")
    require_no_release(at)
    with filled(at) as unfinished:
        files = EXPORTS[to](published, unfinished, **chosen)
    made = {name: {"path": str(at / file), "rows": published.tables[name].rows} for name, file in files.items()}
    return {**published.facts, "format": to, "out": str(at), "tables": made}


def _write_csv(published: Published, home: Path) -> dict[str, str]:
    """Write <table>.csv, and beside them their description and lists of codes."""
    files = {}
    for name in published.each():
        (files[name],) = FORMATS["csv"].files(name, published.tables[name].rows)
        schema, batches = published.rows(name)
        FORMATS["csv"].write(LocalPath(home) / files[name], schema, batches)
    if published.package is not None:
        about = [
            each | {"path": files[each["table"]], "format": "csv", "mediatype": "text/csv"}
            for each in published.described.values()
        ]
        lists = [each for each in published.package["resources"] if each["name"] in published.lists]
        (home / PACKAGE).write_bytes(package_text({**published.package, "resources": [*about, *lists]}))
        (home / CODES).mkdir()
        for name, data in published.lists.items():
            (home / f"{name}.csv").write_bytes(data)
    return files


EXPORTS: Final[Mapping[str, Callable[..., Mapping[str, str]]]] = MappingProxyType(
    {"csv": _write_csv, "xlsx": write_workbooks, "duckdb": write_database, "delta": write_delta, "sdmx": write_sdmx}
)
