"""The microdata of one run, tied to one state (docs/architecture.md, rule 4): files, a table or a DataFrame."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import MicrodataError, PlanError, PrdpError
from pipeline.microdata import source
from pipeline.microdata.columns import require_types
from pipeline.microdata.frames import Frame
from pipeline.microdata.identity import Identity, identity_of
from pipeline.microdata.lakehouse import TableVersion
from pipeline.microdata.schema import require_schema
from pipeline.microdata.source import Chunk
from pipeline.storage.location import Location

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
    """The records of a DataFrame, sealed in private staging; `source` names them in the ledger, `pin` ties them.

    `folder` is the name of the folder that they are sealed in; `synthetic`: True where the frame carries the mark of
    `prdp generate`; None: that cannot be known.
    """

    folder: str
    chunks: Sequence[Chunk]
    pin: str
    source: str
    synthetic: bool | None = None


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
    """Return if there are microdata with the columns of a scan and the column `record`; raises PlanError otherwise.

    Reads no record. A DataFrame's columns are checked before it is sealed.
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
        return str(microdata.at)
    return f"table {microdata.name}" if isinstance(microdata, Table) else str(microdata)
