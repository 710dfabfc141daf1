"""Where the attempts of a release are staged: where the ledger says, whatever place a later run names."""

from pipeline.errors import PrdpError
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.staging import Staging, staging_at, strays
from pipeline.storage import Place, place


def recorded(ledger: Ledger, root: Place) -> str | None:
    """Return how the ledger names a staging root: None for the one beside its file, that both may be moved together."""
    return None if ledger.path is not None and root == ledger.staging_root else str(root)


def attempt_of(state: ReleaseState) -> str:
    """Return the live attempt of a release that has one."""
    if state.attempt is None:
        raise PrdpError(f"release {state.release}: has no live attempt")
    return state.attempt


def live_staging(ledger: Ledger, state: ReleaseState) -> Staging:
    """Return the staging of the live attempt."""
    attempt = attempt_of(state)
    return staging_at(root_named(ledger, state.stagings[-1]), state.release, attempt)


def destroy(ledger: Ledger, staging: Staging, reason: str) -> None:
    """Record that a live attempt is destroyed, then remove it."""
    ledger.destroyed(staging.release, staging.attempt, reason, staging.exposed())
    staging.destroy()  # after the entry, which holds whether it was exposed; a rest is swept by the next run


def destroy_strays(ledger: Ledger, release: str, state: ReleaseState | None, *roots: Place) -> None:
    """Remove what is staged of a release beside its live attempt, in `roots` and wherever it was reserved or drawn.

    That is totals of a killed run, or an attempt that was recorded as destroyed.
    """
    for root in {*roots, *(root_named(ledger, name) for name in staging_names(state))}:
        for stray in strays(root, release, None if state is None else state.attempt):
            stray.destroy()


def staging_names(state: ReleaseState | None) -> set[str | None]:
    """Return the staging roots in which something of a release may lie, as the ledger names them."""
    return {None} if state is None else {None, state.reservation.get("staging"), *state.stagings}


def give_up(ledger: Ledger, release: str) -> None:
    """Abort a release that is not published; what is staged is destroyed; a charge is given back if nothing was drawn.

    Raises StateError where another run of it is alive, it is unknown, or it is published.
    """
    with ledger.lock(release):
        state = ledger.state(release)
        if state is not None and state.status == "drawn" and state.attempt is not None:
            destroy(ledger, live_staging(ledger, state), "given up")
        destroy_strays(ledger, release, ledger.abort(release))


def root_named(ledger: Ledger, name: str | None) -> Place:
    """Return the staging root that the ledger names so."""
    return ledger.staging_root if name is None else place(name, what="the ledger's staging place")
