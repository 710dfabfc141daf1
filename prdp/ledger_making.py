"""What makes ledgers and brings them to this version, as the command line calls it."""

from pathlib import Path
from typing import Annotated, Any

from pipeline.base.errors import PlanError, file_errors
from prdp.declared import Arg, documented
from prdp.ledgers import Ledger, create_ledger, ledger_at

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
        raise PlanError("ADDRESS and --ledger name two ledgers: give one of them")
    return ledger or address
