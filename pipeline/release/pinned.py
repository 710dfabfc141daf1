"""The microdata of one run, tied to one state (docs/architecture.md, rule 4): files, a table or a DataFrame."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import stat
from typing import TYPE_CHECKING

from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.frames import Frame
from pipeline.microdata.lakehouse import Place, TableVersion, microdata_at
from pipeline.microdata.read import require_schema
from pipeline.microdata.source import Chunk, Identity, identity_of, require_types
from pipeline.storage.location import Location
from pipeline.storage.paths import locate

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine, Input
    from udfs.records.decoding import SumSpec

FOLDER = "frame"  # begins the names of folders in which a DataFrame's records are sealed


@dataclass(frozen=True)
class Table:
    """The name of a table in a catalog."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class SealedRecords:
    """The records of a DataFrame, sealed in private staging."""

    folder: str  # the name of the one that they are sealed in
    chunks: Sequence[Chunk]
    pin: str
    source: str  # their name in the ledger
    synthetic: bool | None = None  # whether the frame carries the mark of `prdp generate`, where that can be known


Microdata = Location | TableVersion | Table | SealedRecords | Frame


@dataclass(frozen=True, eq=False)
class Pinned:
    """The input of an engine, with the digest that it had at first; `now` takes that digest again."""

    label: str
    input: "Input"
    digest: str
    now: Callable[[], str]

    def require_unchanged(self) -> None:
        """Return if the microdata are as they were; raises MicrodataError otherwise."""
        if self.now() != self.digest:
            raise MicrodataError(
                f"{self.label}: it changed during the run; nothing is published: retry once nothing writes to it"
            )


def require_readable(microdata: Microdata, engine: "Engine", spec: "SumSpec", record: str) -> None:
    """Raise PlanError where there are no microdata with the columns of a scan and `record`; reads no record.

    A DataFrame's columns are checked before it is sealed.
    """
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        columns = list(dict.fromkeys([*spec.columns, record]))
        require_types(f"microdata in table {table.name}", table.schema(columns), spec)
    elif not isinstance(microdata, SealedRecords | Frame):
        require_schema(source.find(microdata), spec, record)


def pinned(microdata: Microdata, engine: "Engine") -> Pinned:
    """Return the microdata as they are now; raises PlanError where they cannot be read."""
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        return Pinned(f"microdata in table {table.name}", table, table.pin(), table.pin)
    if isinstance(microdata, Frame):
        raise PrdpError("a DataFrame must be sealed before it is summed")
    if isinstance(microdata, SealedRecords):  # nobody without the seal can change them
        return Pinned("the DataFrame", microdata.chunks, microdata.pin, lambda: microdata.pin)
    files = source.find(microdata)
    pin = source.pin(files)  # before the footers are read
    return Pinned(
        f"microdata {microdata}", list(source.chunks(files)), pin, lambda: source.pin(source.find(files.root))
    )


def identity(microdata: Microdata) -> Identity:
    """Return what is known of the microdata wherever they lie: of a table nothing, of a DataFrame its mark if any.

    Nothing either where files cannot be read: what reads them next says why. Raises StateError where some files are
    synthetic and others not.
    """
    if isinstance(microdata, SealedRecords | Frame):
        return Identity(synthetic=microdata.synthetic)
    if isinstance(microdata, Table):
        return Identity()
    try:
        return identity_of(source.find(microdata))
    except PlanError:
        return Identity()


def source_of(microdata: Microdata) -> str:
    """Return the name of the microdata in the ledger: where they lie, or a DataFrame's contents."""
    if isinstance(microdata, SealedRecords):
        return microdata.source
    if isinstance(microdata, Frame):
        return "DataFrame"
    if isinstance(microdata, TableVersion):  # whichever version: they have most records in common
        return str(microdata.folder)
    return f"table {microdata.name}" if isinstance(microdata, Table) else str(microdata)


# Whether microdata are files of another dataset under other names: links and mounts lead to them too.


def require_own_files(ledger: Ledger, dataset: str, microdata: Microdata) -> None:
    """Raise StateError where a file of `microdata` is one of another registered dataset's.

    A table may be no other dataset's either of which a release is charged, in whichever version.
    """
    if isinstance(microdata, TableVersion):
        for other, at in ledger.sources():
            if at == source_of(microdata) and other != dataset:
                raise StateError(
                    f"dataset {dataset}: its microdata {microdata} are those of dataset {other}: name that one"
                )
    _require_apart(dataset, microdata, _registered(ledger))


def require_new_files(ledger: Ledger, dataset: str, at: str) -> None:
    """Raise StateError where a file at `at` is one of another dataset, registered or released."""
    if not at.startswith(("table ", "DataFrame ")):
        known = dict.fromkeys([*_registered(ledger), *sorted(ledger.sources(), key=str)])
        _require_apart(dataset, microdata_at(locate(at)), known)


def _registered(ledger: Ledger) -> Iterable[tuple[str, str | None]]:
    return ((budget.name, budget.source) for budget in ledger.budgets().values())


def _require_apart(dataset: str, microdata: Microdata, known: Iterable[tuple[str, str | None]]) -> None:
    mine = _files(microdata) if isinstance(microdata, Place) else set()
    for other, at in known:
        if not mine or other == dataset or at is None or at.startswith(("table ", "DataFrame")):
            continue
        if mine & _files(microdata_at(locate(at))):
            raise StateError(
                f"dataset {dataset}: its microdata {microdata} are files of dataset {other}, {at}: name that one"
            )


def _files(microdata: Place) -> set[tuple[int, int]]:
    """Return device and number of each file; none of a store, and none where they cannot be found or read."""
    if microdata.remote:
        return set()
    try:
        facts = [stat(str(file)) for file in source.find(microdata).files]
    except (PrdpError, OSError):
        return set()
    return {(each.st_dev, each.st_ino) for each in facts}
