"""Staged attempts: whose their location is, where they lie, how they end; and the chosen one is finished.

A private file in a staging location names one ledger, and no other reserves, stages or removes there:

    root/.ledger    the hash of the ledger's first entry, which stays the same wherever the ledger is moved or restored

The mark is made right after a reservation, since an empty ledger has no entry to name it, and before anything is drawn:
of two ledgers that come to one place at the same moment, one is refused and its charge is given back.
"""

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.errors import PrdpError, StateError, arg, file_errors
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger
from pipeline.release.pinned import FOLDER
from pipeline.release.publish import build_manifest, copy_to_output, published_attempt, put_front_page
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import PUBLIC_MARKS, locate, require_not_in
from pipeline.storage.staging import MANIFEST, AttemptContents, Staging, other_attempts

if TYPE_CHECKING:
    from pipeline.publication.signing import SigningKey

MARK = ".ledger"  # no release's name
NOBODYS = (f"{FOLDER}-", "check-")  # sealed rests of killed runs, also of releases that were never reserved
_ATTEMPT = re.compile(r"[0-9a-f]{16}")


def is_own(ledger: Ledger, root: Location) -> bool:
    """Return whether `root` is marked as this ledger's, or has no mark and nothing that is not this ledger's.

    True also for a folder that this user may not read: nothing in it can be removed. Raises StateError where the
    location cannot be used.
    """
    with _unusable(root):
        try:
            mark = _read(root)
            return _holds_nothing_else(ledger, root) if mark is None else mark == ledger.identity()
        except PermissionError:
            if root.remote:  # who may not read objects may remove them all the same
                raise
            return True


def require_own(ledger: Ledger, root: Location) -> None:
    """Return if `is_own`; raises StateError otherwise, and changes nothing."""
    if not is_own(ledger, root):
        raise StateError(
            f"the staging location {root} is another ledger's: give {arg('staging')} of its own; if that ledger is no "
            f"more, remove what lies there, {MARK} too"
        )


def require_markable(root: Location) -> None:
    """Raise StateError, before anything is charged, where `root` cannot be marked."""
    if root.conditional:
        root.require_create("the staging location")


def mark(ledger: Ledger, root: Location) -> None:
    """Mark `root` as this ledger's, which has an entry; raises StateError where it is, or becomes, another's.

    Guarantee: of several ledgers at once one succeeds, except in a store without conditional puts, where the others are
    refused by their next step.
    """
    require_own(ledger, root)
    identity = ledger.identity() or ""
    with _unusable(root):
        if _read(root) is None:
            root.make_private()
            if root.conditional:
                (root / MARK).create(identity.encode(), uuid.uuid4().hex, private=True)
            else:
                (root / MARK).write_durably(identity.encode())
    require_own(ledger, root)  # another ledger may have been first


def _read(root: Location) -> str | None:
    try:
        return (root / MARK).read().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _holds_nothing_else(ledger: Ledger, root: Location) -> bool:
    """Whether all that is staged in a place without a mark, such as earlier versions left, is this ledger's."""
    names = [
        (release, name)
        for release in root.children()
        if not release.startswith(".")
        for name in (root / release).children()
        if not name.startswith(NOBODYS)
    ]
    if not names:
        return True
    attempts = {(entry.release, entry.attempt) for entry in ledger.entries()}
    releases = {release for release, _ in attempts}
    return all(
        release in releases and (not _ATTEMPT.fullmatch(name) or (release, name) in attempts) for release, name in names
    )


def _unusable(root: Location) -> AbstractContextManager[None]:
    return file_errors(f"the staging location {root} cannot be used: ")


# Locate and remove staged attempts, and finish the one that the ledger chose.


def name_of_root(ledger: Ledger, root: Location) -> str | None:
    """Return how the ledger names a staging root: None for the one beside its file, so that both can be moved."""
    return None if ledger.path is not None and root == LocalPath(ledger.staging_root) else str(root)


def attempt_of(state: ReleaseState) -> str:
    """Return the live attempt of a release that has one."""
    if state.attempt is None:
        raise PrdpError(f"release {state.release}: has no live attempt")
    return state.attempt


def live_staging(ledger: Ledger, state: ReleaseState) -> Staging:
    """Return the staging of the live attempt; raises StateError where it is another ledger's."""
    staging = _staging_of(ledger, state)
    require_own(ledger, staging.root)
    return staging


def _staging_of(ledger: Ledger, state: ReleaseState) -> Staging:
    return Staging(root_of_name(ledger, state.stagings[-1]), state.release, attempt_of(state))


def destroy(ledger: Ledger, staging: Staging, reason: str) -> None:
    """Record that a live attempt is destroyed, then remove it; one that another run destroyed is removed all the same.

    Raises StateError where the ledger does not record it.
    """
    try:
        ledger.destroyed(staging.release, staging.attempt, reason, staging.exposed())
    except StateError:
        state = ledger.state(staging.release)
        if state is not None and state.attempt != staging.attempt:
            staging.destroy()
        raise
    staging.destroy()  # after the entry, which says whether it was exposed; the next run removes what is left


def destroy_leftovers(ledger: Ledger, state: ReleaseState, *roots: Location, keep: str | None = None) -> None:
    """Remove all that is staged of a release but its live attempt, in `roots` and wherever it was reserved or drawn.

    Such leftovers are totals of a killed run, and attempts that were recorded as destroyed. The folder `keep` stays,
    and so does all that lies in another ledger's staging.
    """
    for root in {*roots, *(root_of_name(ledger, name) for name in names_of_roots(state))}:
        leftovers = [staged for staged in other_attempts(root, state.release, state.attempt) if staged.attempt != keep]
        if leftovers and is_own(ledger, root):
            for leftover in leftovers:
                leftover.destroy()


def names_of_roots(state: ReleaseState) -> set[str | None]:
    """Return the staging roots in which something of a release may lie, as the ledger names them."""
    return {None, state.reservation.get("staging"), *state.stagings}


def give_up(ledger: Ledger, release: str) -> None:
    """Abort a release that is not published; what is staged is destroyed; a charge is given back if nothing was drawn.

    Raises StateError where another run of it is alive, it is unknown, or it is published.
    """
    with ledger.lock(release):
        state = ledger.state(release)
        if state is not None and state.status == "drawn" and state.attempt is not None:
            destroy(ledger, live_staging(ledger, state), "given up")
        destroy_leftovers(ledger, ledger.abort(release))


def root_of_name(ledger: Ledger, name: str | None) -> Location:
    """Return the staging root by the ledger's name for it."""
    return LocalPath(ledger.staging_root) if name is None else locate(name, what="the ledger's staging location")


def finish(ledger: Ledger, state: ReleaseState, out: Location, signing: "SigningKey | None") -> ReleaseState:
    """Publish an approved attempt, copy a published one to its output, signed, and settle it; return the state.

    Call it with the release's lock. A crash anywhere is finished by calling it again. Raises StateError where the
    staged files are incomplete, or are not those that were held or published, or lie in another ledger's staging.
    """
    if state.status == "held":
        contents = require_staged(state, live_staging(ledger, state))
        state = ledger.publish(state.release, attempt_of(state), contents.digest)
    if state.status == "published":
        staging = live_staging(ledger, state)
        contents = require_staged(state, staging)
        put_front_page(copy_to_output(staging, contents, out, build_manifest(state, contents), signing))
        _note_correction(ledger, state)
        state = ledger.settle(state.release, attempt_of(state))
    staging = _staging_of(ledger, state)
    if is_own(ledger, staging.root):
        staging.destroy()
    return state


def _note_correction(ledger: Ledger, state: ReleaseState) -> None:
    """Say on the front page of the release that this one supersedes that it is corrected, where it can be written."""
    corrected = ledger.state(str(state.reservation.get("supersedes")))
    if corrected is not None:
        folder = locate(corrected.out) / corrected.release
        note = f"Release {state.release} of {state.date} corrects this one: use its figures."
        with suppress(StateError):  # a folder that was moved, withdrawn, or is another user's
            put_front_page(folder, [note])


def require_staged(state: ReleaseState, staging: Staging) -> AttemptContents:
    """Return the contents of the staged attempt; StateError where its files are not those that were recorded."""
    contents = staging.read_complete()
    if contents is None or contents.digest != state.contents:
        held = f"reject or abort it (an officer who cannot read them approves with {arg('record_only')})"
        advice = held if state.status == "held" else "restore them from a backup"
        raise StateError(
            f"release {state.release}: attempt {state.attempt} is {state.status}, but its staged files in "
            f"{staging.path} are incomplete, or not readable for this user: {advice}"
        )
    return contents


def require_published(folder: Location, release: str, attempt: str) -> None:
    """Raise StateError where the release's folder does not hold the attempt that the ledger settled."""
    if published_attempt(folder) != attempt:
        raise StateError(
            f"release {release}: the ledger says it is published, but {folder} does not hold "
            "it any more: restore it from a backup"
        )


# Folders for confidential output: new ones of this user's own, apart from every folder of releases and of staging.


def require_outside(out: Path, others: Iterable[Path], option: str | None = None) -> None:
    """Raise StateError where confidential output may not lie at `out`, an absolute path of a folder or file.

    That is in a folder that prdp marked as public, beside a release's, and where it overlaps one of the folders
    `others`, in which releases are published or staged.
    """
    path = out.resolve()
    option = option or arg("out")
    require_not_in(PUBLIC_MARKS, out, option)
    if next(path.parent.glob(f"*/{MANIFEST}"), None) is not None:  # also of a ledger that is not this one
        raise StateError(f"{option} {out}: it lies in {path.parent}, where releases are published: give another folder")
    for folder in (other.resolve() for other in others):
        if path.is_relative_to(folder) or folder.is_relative_to(path):
            raise StateError(
                f"{option} {out}: it overlaps {folder}, where releases or their drafts lie: give another folder"
            )


def require_apart(out: Path, others: Iterable[Path]) -> None:
    """Raise StateError unless the folder `out` is absent or empty, and may hold confidential output."""
    require_outside(out, others)
    with _unwritable_out(out):
        if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
            raise StateError(f"{arg('out', out)}: it exists and is no empty folder: give a new one")


def release_folders(ledger: Ledger) -> list[Path]:
    """Return the folders of this machine in which the ledger's releases are published or staged."""
    paths = [locate(name).as_path() for name in ledger.places()]
    return [ledger.staging_root, *(path for path in paths if path is not None)]


@contextmanager
def private_folder(out: Path) -> Iterator[Path]:
    """Make `out`, a folder of mode 0700, for a block; it is removed where the block fails."""
    with _unwritable_out(out):
        LocalPath(out.parent).make_folder()
        out.mkdir(mode=0o700, exist_ok=True)
        out.chmod(0o700)
    try:
        yield out
    except BaseException:
        shutil.rmtree(out.resolve(), ignore_errors=True)  # which, of a link, would remove nothing
        raise


def _unwritable_out(out: Path) -> AbstractContextManager[None]:
    return file_errors(f"{arg('out', out)}: it cannot be written (", "): give another folder")
