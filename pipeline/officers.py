"""What disclosure officers do with a release: approve or reject a held one, withdraw a published one, purge staging.

Each act is recorded first and carried out then; a crash in between is finished by doing the same again.
"""

from dataclasses import dataclass

from pipeline.attempts import attempt_of, live_staging, root_named, staging_names
from pipeline.errors import StateError
from pipeline.finish import finish, require_whole
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.staging import Staging, strays
from pipeline.storage import Place, place
from pipeline.withdrawn import retract


@dataclass(frozen=True)
class Purged:
    """What was removed of a release: the names of what was staged under one root."""

    release: str
    root: str
    names: tuple[str, ...]


def approve(ledger: Ledger, release: str, record_only: bool = False) -> ReleaseState:
    """Approve the held attempt of a release, publish and settle it; return its state.

    `record_only`: only the approval is recorded, and the next run of the release publishes; for officers who cannot
    read the staging place. Raises StateError where nothing is held, another run is alive, or the files are not whole.
    """
    with ledger.lock(release):
        state = _known(ledger, release)
        if state.status == "held":
            if not record_only:
                require_whole(state, live_staging(ledger, state))
            state = state if state.approved else ledger.approve(release, attempt_of(state))
        elif not (state.approved and state.status in PUBLIC):
            raise StateError(f"release {release}: is {state.status}, and not held for approval")
        return state if record_only else finish(ledger, state, out_of(state))


def reject(ledger: Ledger, release: str, reason: str) -> ReleaseState:
    """Reject the held attempt of a release and destroy what is staged; the charge stays, nothing more is drawn."""
    with ledger.lock(release):
        state = _known(ledger, release)
        if state.status != "rejected":
            if state.status != "held":
                raise StateError(f"release {release}: is {state.status}, and not held for approval")
            state = ledger.reject(release, attempt_of(state), reason)
        _destroy_rest(ledger, state)
        return state


def withdraw(ledger: Ledger, release: str, reason: str) -> ReleaseState:
    """Withdraw a published release: its files go, a note that says so takes the manifest's place, its loss stays.

    `reason` is published in the note.
    """
    with ledger.lock(release):
        state = _known(ledger, release)
        if state.status != "withdrawn":
            if state.status not in PUBLIC:
                raise StateError(f"release {release}: is {state.status}: what is not published cannot be withdrawn")
            state = ledger.withdraw(release, attempt_of(state), reason)
        retract(out_of(state), state)
        _destroy_rest(ledger, state)
        return state


def purge(ledger: Ledger, release: str | None = None) -> list[Purged]:
    """Remove, and record, what lies in staging of releases and is no live attempt; return what was removed.

    `release` None: of all releases in the ledger. Raises StateError where a run works on one of them, after the others.
    """
    found: list[Purged] = []
    busy: StateError | None = None
    for state in ledger.states() if release is None else [_known(ledger, release)]:
        if not _strays(ledger, state):
            continue
        try:
            with ledger.lock(state.release):
                found += _purge(ledger, _known(ledger, state.release))
        except StateError as error:
            busy = error
    if busy is not None:
        raise busy
    return found


def out_of(state: ReleaseState) -> Place:
    """Return the output place that was reserved."""
    return place(state.out, what="the ledger's output place")


def _purge(ledger: Ledger, state: ReleaseState) -> list[Purged]:
    found = []
    for name, staged in _strays(ledger, state).items():
        names = tuple(stray.attempt for stray in staged)
        ledger.purged(state.release, name, names)
        for stray in staged:
            stray.destroy()
        found.append(Purged(state.release, str(root_named(ledger, name)), names))
    return found


def _strays(ledger: Ledger, state: ReleaseState) -> dict[str | None, list[Staging]]:
    live = state.attempt if state.status in ("drawn", "held", "published") else None
    found = {name: strays(root_named(ledger, name), state.release, live) for name in staging_names(state)}
    return {name: staged for name, staged in found.items() if staged}


def _destroy_rest(ledger: Ledger, state: ReleaseState) -> None:
    try:
        for staged in _strays(ledger, state).values():
            for stray in staged:
                stray.destroy()
    except OSError as error:
        raise StateError(
            f"release {state.release}: is {state.status}, but what is staged cannot be removed: {error.strerror}: "
            "run prdp ledger staging purge as its owner"
        ) from None


def _known(ledger: Ledger, release: str) -> ReleaseState:
    state = ledger.state(release)
    if state is None:
        raise StateError(f"release {release}: is not in the ledger: check the name")
    return state
