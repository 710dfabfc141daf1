"""The end of a release: the attempt that the ledger chose is copied to its place and settled, whoever finishes it."""

from pipeline.attempts import attempt_of, live_staging
from pipeline.errors import StateError
from pipeline.facts import Facts
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.publish import build_manifest, place_output, published_attempt
from pipeline.staging import Staging
from pipeline.storage import Place


def finish(ledger: Ledger, state: ReleaseState, out: Place) -> ReleaseState:
    """Publish an approved attempt, copy a published one to its place and settle it; return the state after that.

    Call it with the release's lock. A crash anywhere is finished by calling it again. Raises StateError where the
    staged files are not whole, or are not those that were held or published.
    """
    staging = live_staging(ledger, state)
    if state.status == "held":
        facts = require_whole(state, staging)
        state = ledger.publish(state.release, attempt_of(state), facts.digest)
    if state.status == "published":
        facts = require_whole(state, staging)
        place_output(staging, facts, out, build_manifest(state, facts))
        state = ledger.settle(state.release, attempt_of(state))
    staging.destroy()
    return state


def require_whole(state: ReleaseState, staging: Staging) -> Facts:
    """Return the facts of the staged attempt; raises StateError where its files are not those that were recorded."""
    facts = staging.read_complete()
    if facts is None or facts.digest != state.contents:
        held = "reject or abort it (an officer who cannot read them approves with --record-only)"
        advice = held if state.status == "held" else "restore them from a backup"
        raise StateError(
            f"release {state.release}: attempt {state.attempt} is {state.status}, but its staged files in "
            f"{staging.path} are not whole, or not to be read by this user: {advice}"
        )
    return facts


def require_published(folder: Place, release: str, attempt: str) -> None:
    """Raise StateError where the release's folder does not hold the attempt that the ledger settled."""
    if published_attempt(folder) != attempt:
        raise StateError(
            f"release {release}: the ledger says it is published, but {folder} does not hold "
            "it any more: restore it from a backup"
        )
