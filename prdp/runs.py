"""Runs of prdp from Python: which engine, where the microdata lie, what is written where; and how ledgers are made."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pipeline.base.errors import PlanError, arg, file_errors
from pipeline.base.log import Log, plain_log
from pipeline.engines import ENGINES, OPTIONS, open_engine
from pipeline.plan.model import Plan, default_out
from prdp.declared import FIGURES, Arg, LocationLike, documented, located, location
from prdp.ledgers import Ledger, LedgerLike, create_ledger, is_in_a_file, ledger_at, open_ledger

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine
    from pipeline.storage.location import Location


LEDGER = "the ledger: a path or postgresql://user@host/database"
DataLike = Any  # a LocationLike, or a pandas, Arrow, Dask or Spark DataFrame


class Logged(TypedDict, total=False):
    """What tells of a run; `command_log` is the command line's, which calls these functions too."""

    progress: bool
    command_log: Log | None


class OfEngine(Logged, total=False):
    """Where an engine runs a job; it shapes no byte of a table."""

    scheduler: Annotated[str | None, Arg("dask: address of a scheduler", "ADDRESS", default="local threads")]
    workers: Annotated[int | None, Arg("dask: number of local threads", "N", "at_least_one", default="all cores")]
    master: Annotated[Any, Arg("spark: a master on this machine, or sc://", "URL", default="local[*]")]


class OnEngine(OfEngine, total=False):
    """The engine of a job, and where it runs."""

    engine: Annotated[str | None, Arg("engine to run on", choices=list(ENGINES), default="dask")]


class Economy(OfEngine, total=False):
    """Which synthetic establishments are made."""

    like: Annotated[str | None, Arg("establishments that add up to published figures", choices=FIGURES)]
    states: Annotated[Sequence[str], Arg("with --like: 56,50", "CODES", "names", default="all")]


class OnLedger(Logged, total=False):
    """The ledger of a run, and who acts on it."""

    ledger: Annotated[LedgerLike, Arg(LEDGER, "URL", default="the site's, or a file of the user's")]
    operator: Annotated[
        str | None,
        Arg("operator to record; the name is not verified", "NAME", default="PRDP_OPERATOR, or the login name"),
    ]


class Run(OnEngine, OnLedger, total=False):
    """What every run over microdata takes."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What runs a job over microdata, of the options of `Run`."""

    engine: str | None = None
    scheduler: str | None = None
    workers: int | None = None
    master: Any = None
    ledger: LedgerLike = None
    operator: str | None = None
    progress: bool = False
    command_log: Log | None = None

    @cached_property
    def log(self) -> Log:
        """The command's log, a log for people, or a silent one."""
        return self.command_log or (plain_log() if self.progress else Log())

    @property
    def has_engine(self) -> bool:
        """Whether an engine, or an option of one, was asked for."""
        return any(getattr(self, name) is not None for name in ("engine", *OPTIONS))

    @contextmanager
    def started(self, data: DataLike = None) -> "Iterator[Engine]":
        """Yield the engine, the only one that is imported; close it afterwards.

        Raises PlanError on an option of another engine.
        """
        options = {option: getattr(self, option) for option in OPTIONS}
        asked = {option for option, value in options.items() if value is not None}
        session = self.master if _is_sparks(self.master) else None
        if _is_sparks(data) and not asked:
            session = data.sparkSession
        name = self.engine or ("spark" if _is_sparks(data) or session is not None else "dask")
        if session is not None and name == "spark" and asked <= {"master"}:
            from pipeline.engines.spark import engine_on  # noqa: PLC0415

            with engine_on(session, self.log) as on_that_session:
                yield on_that_session
            return
        with open_engine(name, options, log=self.log) as engine:
            yield engine

    def opened(self) -> Ledger:
        """Return the ledger of the run, and log its address."""
        opened = open_ledger(self.ledger, operator=self.operator)
        self.log.ledger(opened.address)
        return opened

    def lasting(self, engine: "Engine") -> Ledger:
        """Return the ledger of a run on `engine`, and log its address.

        Raises PlanError where the engine's driver moves to another machine and the ledger is a file: there it would be
        a new one, which knows of no earlier loss.
        """
        if engine.driver_moves and is_in_a_file(self.ledger):
            raise PlanError(
                "spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine would begin a new "
                "one, which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
            )
        return self.opened()


def watched(log: Log, plan: str, metrics: Any, traces: str | None) -> AbstractContextManager[Any]:
    """Write metrics and send a trace of a block that runs the plan of a file, also where it fails."""
    from pipeline.operations.telemetry import watched as around  # noqa: PLC0415

    return around(log, plan, metrics, traces)


def _is_sparks(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "pyspark"


def economy_of(options: Economy) -> tuple[str | None, tuple[str, ...], Runner]:
    """Return figures, states and what runs the job."""
    rest: dict[str, Any] = {**options}
    return rest.pop("like", None), tuple(rest.pop("states", None) or ()), Runner(**rest)


def microdata_of(plan: Plan, data: DataLike, runner: Runner, ledger: Ledger, *, released: bool) -> Any:
    """Return where the microdata of a plan lie, or the frame that holds them.

    Guarantee: a location that the ledger's registered datasets do not allow is refused before anything but links is
    looked at, by the same words whether or not something is there. Where they are not `released`, `data` may lie
    elsewhere than the dataset is registered, but be no part of registered microdata.
    """
    from pipeline.microdata.lakehouse import microdata_at, names_of  # noqa: PLC0415
    from pipeline.release.pinned import (  # noqa: PLC0415
        Table,
        require_no_part,
        source_of,
    )
    from pipeline.release.request import TO_DRAW  # noqa: PLC0415

    if data is not None and not isinstance(data, str | os.PathLike):
        from pipeline.release.input_records import frame_of  # noqa: PLC0415 — pandas and Arrow

        return frame_of(data)
    what = "microdata" if data is None else arg("data")
    source = plan.dataset.path if data is None else located(data, what)
    table = Table(plan.dataset.table or "")
    names = (source_of(table),) if source is None else names_of(source)
    state = ledger._store.state(plan.release)
    over = released and state is not None and not state.refunded and state.status not in TO_DRAW  # nothing is read
    apart = not released and data is not None and ledger._store.dataset_at(names) is None
    if not over and not apart:
        only = released and ledger._registered_only
        ledger._store.require_source(plan.dataset.name, names, registered_only=only)
    if source is None:
        return table
    require_no_part(source)
    return microdata_at(source.resolve(what))


def out_of(plan: Plan, out: LocationLike | None, runner: Runner) -> "Location":
    """Return where a release is published."""
    return location(default_out(plan) if out is None else out, arg("out"))


Address = Annotated[str | Path | None, Arg("the ledger, as --ledger names it", "ADDRESS", "file")]
OnAddress = Annotated[
    str | Path | None,
    Arg(
        "the ledger: a path or postgresql://user@host/database",
        "URL",
        option=True,
        default="the site's, or a file of the user's",
    ),
]
LARGEST_EXPORT = 100_000_000_000  # bytes of a ledger's export, one entry a line
LONGEST_ENTRY = 100_000_000  # characters
LEFT_DRAWN = "also where releases are drawn, which this version cannot finish"


@documented
def create(address: Address = None, *, ledger: OnAddress = None) -> dict[str, Any]:
    """Make a ledger where there is none, as `prdp ledger create`; return its address, entries and head."""
    made = create_ledger(_one_of(address, ledger))
    entries, head = made._store.head()
    return {"ledger": made.address, "entries": entries, "head": head}


def import_ledger(file: str | Path, url: str | Path | None = None, *, operator: str | None = None) -> Ledger:
    """Return the ledger at `url`, made of the chain in `file`, as `prdp ledger admin import`; it is closed at first.

    Args:
        file: What `prdp ledger admin export --confidential` printed.
        url: As of `create_ledger`; a ledger there must be empty.

    Raises:
        PlanError: The file cannot be read, or holds no entries with all their columns.
        StateError: The chain is not whole, or the ledger has entries already.
    """
    from pipeline.ledger.entries import read_entry  # noqa: PLC0415
    from pipeline.ledger.store import import_ledger as import_store  # noqa: PLC0415
    from pipeline.storage.paths import input_lines  # noqa: PLC0415

    unread = file_errors(f"{file}: cannot be read: ", kind=PlanError)
    try:
        with unread, input_lines(Path(file), most=LARGEST_EXPORT, longest=LONGEST_ENTRY) as lines:
            chain = [read_entry(line) for line in lines if line.strip()]
    except ValueError:
        raise PlanError(f"{file}: is not what prdp ledger admin export --confidential prints") from None
    return ledger_at(url, operator, lambda address: import_store(chain, address))


@documented
def take_in(
    file: Annotated[str | Path, Arg("what prdp ledger admin export --confidential printed", "FILE", "file")],
    address: Address = None,
    *,
    ledger: OnAddress = None,
) -> dict[str, Any]:
    """Make a ledger of an exported chain, as `prdp ledger admin import`; return its address, entries and head."""
    made = import_ledger(file, _one_of(address, ledger))
    entries, head = made._store.head()
    return {"ledger": made.address, "entries": entries, "head": head, "closed": True}


@documented
def migrate(*, ledger: OnAddress = None, leave_drawn: Annotated[bool, Arg(LEFT_DRAWN)] = False) -> dict[str, Any]:
    """Bring a ledger's schema to this version, as `prdp ledger admin migrate`; older versions refuse it afterwards."""
    from pipeline.ledger.database import SCHEMA_VERSION  # noqa: PLC0415
    from pipeline.ledger.store import migrate_ledger  # noqa: PLC0415
    from pipeline.release.installation import site  # noqa: PLC0415

    named = None if ledger is None else str(ledger)
    before, store = migrate_ledger(site().ledger_for(named), leave_drawn=leave_drawn)
    entries, head = store.verify()
    return {"from": before, "to": SCHEMA_VERSION, "entries": entries, "head": head}


def unseen_budget(name: str, budget: str | Path) -> str | None:
    """Return a warning where the microdata that a budget's file names are not there."""
    from pipeline.release.officers import load_budget, unseen  # noqa: PLC0415

    return unseen(load_budget(Path(budget), name))


def _one_of(address: str | Path | None, ledger: str | Path | None) -> str | Path | None:
    if address is not None and ledger is not None and address != ledger:
        raise PlanError(f"the address and {arg('ledger')} name two ledgers: give one of them")
    return ledger or address
