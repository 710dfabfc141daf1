"""Lakehouse tables as microdata: a version of a Delta table or a snapshot of an Iceberg table.

A library reads the table's log: which files a version has, which of their rows are deleted, what its columns are called
there. Only these files are read, by the code that reads plain Parquet. What a log may ask for beyond that is refused by
name: a row that is deleted must not be counted, and none twice. No message repeats a library's own, for logs hold the
least and the greatest value of each column.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pipeline.base.errors import PlanError, arg, require_package
from pipeline.microdata.lake_tables import ICEBERG, METADATA, Listing, Unread, delta_listing, iceberg_listing
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.objects import StorePath

LOG = "_delta_log"  # the folder that makes a folder a Delta table
VERSION = re.compile(r"(.+)@v([0-9]{1,19})", re.DOTALL)


@dataclass(frozen=True)
class TableFormat:
    """A format of tables: its package, and what returns a version's number and files, by a metadata file or None."""

    name: str
    package: str
    listing: Callable[[Location, int | None, Location | None], tuple[int, Listing]]
    unreadable: str


DELTA_TABLE = TableFormat(
    "a Delta table",
    "deltalake",
    delta_listing,
    "the package deltalake cannot read this version of the Delta table; check that the version and its "
    "log are there, and are of no newer form than the package knows",
)
ICEBERG_TABLE = TableFormat(
    "an Iceberg table",
    "pyiceberg",
    iceberg_listing,
    "the package pyiceberg cannot read this snapshot of the Iceberg table; check that all files of its "
    "metadata are there",
)


class TableVersion:
    """The table of a `folder`, at a version; None is the latest when it is first read, and that one from then on."""

    def __init__(self, folder: Location, version: int | None = None, metadata: Location | None = None) -> None:
        self.folder = folder
        self.version = version
        self._metadata = metadata  # of Iceberg, the file to read; None: the folder's latest

    def __str__(self) -> str:
        return str(self.folder) if self.version is None else f"{self.folder}@v{self.version}"

    @property
    def remote(self) -> bool:
        """Whether it lies in a store."""
        return self.folder.remote

    @cached_property
    def listing(self) -> Listing:
        """The files of the version; raises PlanError where they cannot be known, or rows could be counted twice."""
        form = ICEBERG_TABLE if self._metadata is not None else format_of(self.folder)
        if form is None:
            raise PlanError(
                f"microdata {self}: no Delta or Iceberg table lies there; set dataset.path or {arg('data')}"
            )
        require_package(form.package, f"microdata {self.folder}: {form.name}")
        made, problem = None, form.unreadable
        try:
            self.version, made = form.listing(self.folder, self.version, self._metadata)
        except Unread as error:
            problem = str(error)
        except MemoryError:
            raise
        except Exception:  # its message may hold values, which stand in logs
            pass
        if made is None:
            raise PlanError(f"microdata {self}: {problem}")
        if len({file.key for file, _ in made.files}) < len(made.files):
            raise PlanError(f"microdata {self}: the table lists a file twice, whose rows would count twice; restore it")
        if not made.files:
            raise PlanError(f"microdata {self}: the table has no file in this version; name another, PATH@vVERSION")
        return made


Place = Location | TableVersion


def microdata_at(location: Location) -> Place:
    """Return what lies at a location: the version of a table that `PATH@vVERSION` names, a table, or the location."""
    named = VERSION.fullmatch(location.name)
    try:
        version = int(named[2]) if named and not location.exists() else None
        if named and version is not None:
            location = _moved(location, location.key.removesuffix(location.name) + named[1])
        if location.name.endswith(ICEBERG) and location.parts[-2] == METADATA:
            return TableVersion(_moved(location, location.key.rpartition(f"/{METADATA}/")[0]), version, location)
        table = version is not None or format_of(location) is not None
        return TableVersion(location, version) if table else location
    except OSError:
        return location  # what reads it says why it cannot


def names_of(location: Location) -> tuple[str, ...]:
    """Return by what names a ledger may know what a location names; nothing is looked at but links.

    The first is the location as it is written. The others are without links, and of a version or of a metadata file
    the table's folder.
    """
    named = [location]
    with suppress(PlanError):  # links in a circle lead nowhere
        named.append(location.resolve())
    for one in tuple(named):
        version = VERSION.fullmatch(one.name)
        key = one.key if version is None else one.key.removesuffix(one.name) + version[1]
        folder, _, name = key.rpartition("/")
        table = folder.removesuffix(f"/{METADATA}") if name.endswith(ICEBERG) else key
        with suppress(PlanError):
            named += [_moved(one, key), _moved(one, table)]
    return tuple(dict.fromkeys(map(str, named)))


def folders_above(location: Location) -> Iterator[Location]:
    """Yield the folders that hold a location, the nearest first, whatever links lead to it."""
    key = location.resolve().key
    while key:
        key = key.rpartition("/")[0]
        yield _moved(location, key if location.remote else key or "/")


def _moved(location: Location, key: str) -> Location:
    return replace(location, path=key) if isinstance(location, StorePath) else LocalPath(Path(key)).resolve("microdata")


def format_of(folder: Location) -> TableFormat | None:
    """Return the format of the table at a location, if any; one that other readers take for Iceberg may be Delta."""
    if (folder / LOG).exists():
        return DELTA_TABLE
    return ICEBERG_TABLE if any(name.endswith(ICEBERG) for name in (folder / METADATA).children()) else None
