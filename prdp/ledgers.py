"""Ledgers: what was reserved, drawn, charged and published; what is spent and left; and what officers do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pipeline.base.errors import StateError, arg
from prdp.declared import Arg, documented, location, table

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.ledger.spending import Spending
    from pipeline.ledger.store import Ledger as Store
    from pipeline.storage.location import Location
    from prdp.declared import Reference

LedgerLike: TypeAlias = "str | Path | Ledger | None"
Dataset = Annotated[str, Arg("the dataset or family", "DATASET")]
BudgetFile = Annotated[str | Path, Arg("its facts and limits, a YAML file", "FILE", option=True)]
Reason = Annotated[str, Arg("why, for the record", "TEXT", "reason", option=True)]
Notice = Annotated[str, Arg("why; it is published in the notice of withdrawal", "TEXT", "reason", option=True)]
OfRelease = Annotated[str, Arg("the release", "RELEASE")]
CHECKED = "a published release whose manifest and files must match the chain"
EVERY = "check every release where it was published, and that no other lies beside"
BESIDE = "a folder of published releases, beside those that the ledger names"
WITH_SALTS = "with confidential facts: input digests, salts, locations"
RECORDED = "only record it: the next prdp release of the plan publishes"


class Spent(list[dict[str, Any]]):
    """What releases cost at references, for each dataset or family, as `prdp ledger show --json`."""

    def __init__(self, documents: Iterable[dict[str, Any]], spendings: "Sequence[Spending]" = ()) -> None:
        super().__init__(documents)
        self._spendings = spendings

    @property
    def table(self) -> "pd.DataFrame":
        """A row for each limit, or each dataset at a reference: columns dataset, at, rho (the limit), spent, left."""
        rows = [
            (each["dataset"], _label(entry["at"]), _limit(entry), float(entry["spent"]), entry.get("left"))
            for each in self
            for entry in each.get("limits", [each])
        ]
        return table(rows, dataset="str", at="str", rho="float", spent="float", left="float")

    @property
    def by_year(self) -> "pd.DataFrame":
        """At a reference: a row for each year of each dataset and family, for all years, and for each limit.

        Columns as of `prdp ledger show --at … --csv`. Of a limit, spent and left are those of its own reference `at`.
        """
        from pipeline.ledger.spending import Lost, lost  # noqa: PLC0415

        texts, figures = dict.fromkeys(Lost._fields[:5], "str"), dict.fromkeys(Lost._fields[6:], "float")
        return table([line.values for line in lost(self._spendings)], **texts, releases="int64", **figures)

    def __repr__(self) -> str:
        return f"<prdp.Spent: {', '.join(str(each['dataset']) for each in self) or 'nothing'}>"


def _label(at: Any) -> str:
    if isinstance(at, str):
        return at
    records = at if isinstance(at, list) else [at]
    return "; ".join(", ".join(f"{name}={value}" for name, value in record.items()) for record in records)


def _limit(entry: dict[str, Any]) -> float | None:
    limit = entry.get("limit") or {"rho": entry.get("rho")}
    return None if limit["rho"] is None else float(limit["rho"])


@dataclass(frozen=True, eq=False)
class Ledger:
    """A ledger on SQLite or PostgreSQL; every loss in it is an upper bound. Opened by `open_ledger`."""

    _store: "Store"
    _registered_only: bool

    @property
    def address(self) -> str:
        """The file, or the server's address without password."""
        return self._store.address

    def show(self, dataset: str | None = None) -> "pd.DataFrame":
        """Return a row for each release, of all datasets or one, in the order of first reservation.

        The columns are the keys of `prdp ledger show --json`: release, dataset, state, attempt, draws and so on.
        """
        import pandas as pd  # noqa: PLC0415

        from pipeline.ledger.entries import unknown  # noqa: PLC0415
        from pipeline.ledger.reading import COLUMNS, histories  # noqa: PLC0415

        states = self._store.states()
        known = [*self._store.budgets(), *(state.dataset for state in states)]
        if dataset is not None and dataset not in known:
            raise unknown("dataset", dataset, known)
        shown = histories(self._store.entries()).values()
        rows = [each.to_json() for each in shown if dataset in (None, each.state.dataset)]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def refusals(self) -> dict[str, int]:
        """Return how many releases were refused because of their records, by dataset; few are allowed."""
        return self._store.refusals()

    def budgets(self) -> dict[str, dict[str, Any]]:
        """Return the registered datasets and families by name, each as `prdp ledger show --json` has it."""
        return {name: budget.to_json() for name, budget in self._store.budgets().items()}

    def spent(self, at: "Reference | None" = None, dataset: str | None = None) -> "Spent":
        """Return what releases cost a reference, and what is left, as `prdp ledger show --json`.

        Args:
            at: A reference, as `Plan.explain` takes it. Default: that of each limit.
            dataset: Only this dataset. Default: every one in the ledger; without `at` families too.

        Returns:
            For each dataset: spent (rounded up) and left (rounded down; None without a limit) in zCDP ρ, each
            release's rho (of several records also rho_found, what they were found to lose, where known), the limit
            that leaves least, and what the loss implies. Without `at`: limits, each with at, rho, spent, left and
            releases.

        Raises:
            StateError: The ledger holds no such dataset, or with `at` nothing that is spent.
        """
        from pipeline.ledger.entries import unknown  # noqa: PLC0415
        from pipeline.ledger.spending import spendings  # noqa: PLC0415
        from prdp.explanation import reference_text  # noqa: PLC0415

        if at is not None:
            asked = spendings(self._store, reference_text(at), dataset)
            return Spent((spending.to_json() for spending in asked), asked)
        kept = {account.name: account for account in self._store.overview()[1]}
        if dataset is not None and dataset not in kept:
            raise unknown("dataset", dataset, kept)
        return Spent(account.to_json() for name, account in kept.items() if dataset in (None, name))

    @documented
    def page(
        self, out: Annotated[str | Path, Arg("the HTML file; an earlier page there is replaced", "FILE", option=True)]
    ) -> Path:
        """Write the officers' page to the file `out`, as `prdp ledger page`; return its path.

        It is confidential, of mode 0600: what is spent and left, what waits or is stuck, and who did what. An earlier
        page is replaced.

        Raises:
            StateError: Another file lies there, or releases are published or staged beside it.
        """
        from pipeline.operations.officer_page import write_officer_page  # noqa: PLC0415

        return write_officer_page(self._store, Path(out))

    def health(
        self, longest: float = 1, longest_held: float = 168, least_free: float = 1, metrics: str | Path | None = None
    ) -> dict[str, Any]:
        """Return what is well with the ledger and what must be mended, as `prdp doctor --ledger-only --json`.

        Args:
            longest: Hours that a release may be reserved, drawn, approved or published without going further.
            longest_held: Hours that it may wait for an officer.
            least_free: GB that must be free on each disk of ledger, staging and output.
            metrics: Where to write metrics, as `Plan.release` takes it.

        Returns:
            well: whether nothing must be mended; findings, each with check, state ("good", "mend" or "not looked
            at"), what, and fix (None unless to be mended).
        """
        from datetime import UTC, datetime, timedelta  # noqa: PLC0415

        from pipeline.operations.ledger_health import as_document, health, write_health  # noqa: PLC0415
        from pipeline.operations.telemetry import checked_place  # noqa: PLC0415
        from pipeline.release.installation import site  # noqa: PLC0415

        hours = timedelta(hours=longest), timedelta(hours=longest_held)
        named = metrics or site().metrics
        place = checked_place(str(named)) if named else None
        matters = health(self._store, datetime.now(UTC), *hours, least_free)
        return as_document([*matters, *(write_health(place, self._store, matters) if place else ())])

    @documented
    def verify(
        self,
        *releases: Annotated[str | Path, Arg(CHECKED, "OUT/RELEASE", many=True, flag="release")],
        manifests: Annotated[bool, Arg(EVERY)] = False,
    ) -> dict[str, Any]:
        """Check the chain of entries, and published releases against it; StateError names the first that differs.

        Return entries (their number), head (the hash of the last) and the releases, as `prdp ledger verify --json`.
        """
        from pipeline.operations.ledger_health import published_folders, require_in_chain, require_no_others  # noqa: PLC0415

        entries, head = self._store.verify()
        folders = [location(folder, arg("release")) for folder in releases]
        if manifests:
            folders += published_folders(self._store)
            require_no_others(self._store)
        checked = [require_in_chain(self._store, folder) for folder in folders]
        return {"entries": entries, "head": head, "releases": checked}

    @documented
    def entries(self, *, confidential: Annotated[bool, Arg(WITH_SALTS)] = False) -> list[dict[str, Any]]:
        """Return every entry as `prdp ledger admin export` writes it; `confidential`: with input digests and salts."""
        return [entry.exported(confidential) for entry in self._store.entries()]

    @documented
    def register(self, name: Dataset, budget: BudgetFile) -> None:
        """Register a dataset or family with the limits of a YAML file, as `prdp ledger init`."""
        from pipeline.release.officers import load_budget, register  # noqa: PLC0415

        register(self._store, load_budget(Path(budget), name))

    @documented
    def correct(self, name: Dataset, budget: BudgetFile) -> None:
        """Register a dataset or family anew while nothing was released under it, as `prdp ledger correct`."""
        from pipeline.release.officers import correct, load_budget  # noqa: PLC0415

        correct(self._store, load_budget(Path(budget), name))

    @documented
    def raise_limits(self, name: Dataset, budget: BudgetFile, reason: Reason) -> None:
        """State the limits of a registered dataset or family anew, for a recorded reason."""
        from pipeline.release.officers import load_budget  # noqa: PLC0415

        self._store.raise_limits(load_budget(Path(budget), name), reason)

    @documented
    def close(self, reason: Reason) -> None:
        """Close the ledger for a recorded reason: nothing is reserved, drawn or published before `reopen`."""
        self._store.verify()  # a chain that is not complete is put back from a backup, not closed
        self._store.close(reason)

    @documented
    def reopen(self, *outs: Annotated[str | Path, Arg(BESIDE, "URI", many=True, flag="out")]) -> list[str]:
        """Open the closed ledger again; return the releases whose published heads were found in its chain.

        `outs` hold published releases, beside those that the ledger names. StateError where one, or a staged attempt,
        is not in the chain: the ledger forgot what it cost.
        """
        from pipeline.operations.ledger_health import reopen  # noqa: PLC0415

        return reopen(self._store, [location(out, "out") for out in outs])

    @documented
    def approve(self, release: OfRelease, *, record_only: Annotated[bool, Arg(RECORDED)] = False) -> str:
        """Approve a held release and publish it; return its state. `record_only`: the next run publishes.

        Where `require_approvals` asks for several, the state is still held before the last of them.
        """
        from pipeline.release.officers import approve  # noqa: PLC0415

        return approve(self._store, release, record_only).status

    @documented
    def revoke(self, release: OfRelease) -> str:
        """Take one's approval of a release that is still held back; return its state."""
        from pipeline.release.officers import revoke  # noqa: PLC0415

        return revoke(self._store, release).status

    @documented
    def require_approvals(
        self,
        number: Annotated[int, Arg("by so many roles, 1 to 9", "N", "approvals", option=True, flag="approvals")],
        *,
        by_others: Annotated[bool, Arg("none of them may have run the release")] = False,
    ) -> None:
        """Hold every later release until 1 to 9 roles of the ledger's server approved it; it is never lowered.

        `by_others`: none of them may be a role that ran the release. StateError where the ledger is a file, in which
        nothing proves who approves, or asks for more already.
        """
        from pipeline.ledger.entries import Required  # noqa: PLC0415

        self._store.require_approvals(Required(number, by_others))

    @documented
    def reject(self, release: OfRelease, reason: Reason) -> str:
        """Reject a held release, which stays charged; return its state."""
        from pipeline.release.officers import reject  # noqa: PLC0415

        return reject(self._store, release, reason).status

    @documented
    def withdraw(self, release: OfRelease, reason: Notice) -> str:
        """Withdraw a published release, which stays charged; the reason is published. Return its state."""
        from pipeline.release.officers import withdraw  # noqa: PLC0415

        return withdraw(self._store, release, reason).status

    @documented
    def abort(self, release: OfRelease) -> None:
        """Give up a release that is not published; it is refunded where nothing was drawn."""
        from pipeline.release.attempts import give_up  # noqa: PLC0415

        give_up(self._store, release)

    @documented
    def purge_staging(
        self, release: Annotated[str | None, Arg("only this release", "RELEASE")] = None
    ) -> list[dict[str, Any]]:
        """Remove, and record, what is staged and belongs to no live attempt; return it by release."""
        from pipeline.release.officers import purge  # noqa: PLC0415

        purged = purge(self._store, release)
        return [{"release": each.release, "staging": each.root, "names": list(each.names)} for each in purged]

    def __repr__(self) -> str:
        return f"<prdp.Ledger {self.address}>"


def is_in_a_file(ledger: LedgerLike) -> bool:
    """Whether a ledger is, or would be, a file of this machine."""
    from pipeline.ledger.database.address import in_a_file  # noqa: PLC0415
    from pipeline.release.installation import site  # noqa: PLC0415

    if isinstance(ledger, Ledger):
        return ledger._store.path is not None
    return in_a_file(site().ledger_for(None if ledger is None else str(ledger)))


def open_ledger(url: "str | Path | Ledger | None" = None, *, operator: str | None = None) -> Ledger:
    """Return the ledger at `url`, which `create_ledger` made.

    Args:
        url: A path, sqlite:///path, or postgresql://user@host/database. Default: the site's, or a file in the user's
            state directory, which its first use makes. A site may fix it (docs/ledger.md).
        operator: Operator to record; it is supplied, not proved. Default: PRDP_OPERATOR, or the login name.

    Raises:
        PlanError: Where the site fixes another ledger, or the address is of no known kind.
        StateError: Where there is no ledger, or none that this user may keep.
    """
    from pipeline.ledger.store import open_ledger as open_store  # noqa: PLC0415 — SQLAlchemy loads when it is used
    from pipeline.release.installation import operator_named  # noqa: PLC0415

    if isinstance(url, Ledger):
        return url if operator is None else Ledger(url._store.signed(operator_named(operator)), url._registered_only)
    return ledger_at(url, operator, open_store)


def opened(url: str | None, operator: str | None, *, first_use: bool) -> Ledger:
    """Return the ledger that a command names; `first_use`: the user's own is made where there is none."""
    from pipeline.ledger.store import open_ledger as open_store  # noqa: PLC0415

    return ledger_at(url, operator, lambda address: open_store(address, first_use=first_use))


def create_ledger(url: str | Path | None = None, *, operator: str | None = None) -> Ledger:
    """Return the ledger at `url`, made where it is absent, as `prdp ledger create`; takes what `open_ledger` does."""
    from pipeline.ledger.store import create_ledger as create_store  # noqa: PLC0415

    return ledger_at(url, operator, create_store)


@dataclass(frozen=True, eq=False)
class KnownDatasets:
    """What a ledger knows of datasets' microdata, for files that are said to be none; without a ledger nothing."""

    _store: "Store | None"

    @classmethod
    def of(cls, ledger: LedgerLike) -> "KnownDatasets":
        """Return what a ledger knows; None: the site's, or the user's own if there is one."""
        from pipeline.ledger.database.address import own_file  # noqa: PLC0415
        from pipeline.release.installation import site  # noqa: PLC0415

        if ledger is None and site().ledger is None and not own_file().exists():
            return cls(None)
        return cls(open_ledger(ledger)._store)

    def require_none_at(self, at: "Location", what: str) -> None:
        """Raise StateError where a location is, holds or is a part of a registered dataset's; it is not looked at."""
        from pipeline.microdata.lakehouse import names_of  # noqa: PLC0415

        owner = None if self._store is None else self._store.dataset_at(names_of(at))
        if owner is not None:
            raise StateError(
                f"{what}: the microdata of dataset {owner.name} lie there, {owner.source}: give other files"
            )

    def with_files(self, fingerprints: Sequence[str]) -> str | None:
        """Return a dataset of which a file with one of these fingerprints is; None where none is known."""
        return None if self._store is None else self._store.dataset_with(fingerprints)


def ledger_at(url: str | Path | None, operator: str | None, opened: "Callable[[str | None], Store]") -> Ledger:
    """Return the ledger at `url`, or the site's, as `opened` opens or makes it, signed by the operator."""
    from pipeline.release.installation import operator_named, site  # noqa: PLC0415

    here = site()
    address = here.ledger_for(None if url is None else str(url))
    return Ledger(opened(address).signed(operator_named(operator)), here.require_registered)
