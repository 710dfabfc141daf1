"""The microdata of one run, tied to one state: files at a path, or a table of an engine's catalog (DESIGN rule 4)."""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.engines.protocol import Engine, Input
from pipeline.errors import MicrodataError
from pipeline.microdata import source
from pipeline.storage import Place


@dataclass(frozen=True)
class Table:
    """The name of a table in a catalog."""

    name: str


@dataclass(frozen=True, eq=False)
class Pinned:
    """What an engine reads, `given`, the digest that it had when it was found, and how to take that digest again."""

    label: str
    given: Input
    digest: str
    now: Callable[[], str]

    def require_unchanged(self) -> None:
        """Return if the microdata are as they were; raises MicrodataError otherwise."""
        if self.now() != self.digest:
            raise MicrodataError(
                f"{self.label}: it changed during the run; nothing is published: run again when it rests"
            )


def require_there(microdata: Place | Table, engine: Engine) -> None:
    """Return if there are microdata; raises PlanError or MicrodataError otherwise."""
    if isinstance(microdata, Table):
        engine.table(microdata.name)
    else:
        source.find(microdata)


def pinned(microdata: Place | Table, engine: Engine) -> Pinned:
    """Return the microdata as they are now; raises PlanError or MicrodataError where they cannot be read."""
    if isinstance(microdata, Table):
        table = engine.table(microdata.name)
        return Pinned(f"microdata in table {table.name}", table, table.pin(), table.pin)
    found = source.find(microdata)
    digest = source.pin(found)  # before the footers are read
    return Pinned(f"microdata {found.root}", list(source.chunks(found)), digest, lambda: _now(found))


def source_of(microdata: Place | Table) -> str:
    """Return where the microdata lie, as the ledger keeps it."""
    return f"table {microdata.name}" if isinstance(microdata, Table) else str(microdata)


def _now(found: source.Source) -> str:
    return source.pin(source.find(found.root))
