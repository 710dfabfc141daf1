"""Folders for confidential output: new ones of this user's own, apart from every folder of releases and of staging."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StateError
from pipeline.ledger.store import Ledger
from pipeline.storage.local import LocalPath
from pipeline.storage.new_folder import require_no_release
from pipeline.storage.staging import MANIFEST
from pipeline.storage.uri import locate


def require_outside(out: Path, others: Iterable[Path], option: str = "--out") -> None:
    """Return if confidential output may lie at `out`, an absolute path of a folder or file.

    Raises StateError where it lies in a release's folder or beside one, or in one of the folders `others`, in which
    releases are published or staged, or where one of those lies in it.
    """
    at = out.resolve()
    require_no_release(out, option)
    if next(at.parent.glob(f"*/{MANIFEST}"), None) is not None:  # also of a ledger that is not this one
        raise StateError(f"{option} {out}: it lies in {at.parent}, where releases are published: give another folder")
    for folder in (path.resolve() for path in others):
        if at.is_relative_to(folder) or folder.is_relative_to(at):
            raise StateError(
                f"{option} {out}: it overlaps {folder}, where releases or their drafts lie: give another folder"
            )


def require_apart(out: Path, others: Iterable[Path]) -> None:
    """Return if confidential output may be written to the folder `out`, which is absent or empty.

    Raises StateError otherwise, and as `require_outside`.
    """
    require_outside(out, others)
    try:
        if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
            raise StateError(f"--out {out}: it exists and is no empty folder: give a new one")
    except OSError as error:
        raise _unusable(out, error) from None


def release_folders(ledger: Ledger) -> list[Path]:
    """Return the folders of this machine in which the ledger's releases are published or staged."""
    states = ledger.states()
    named = [name for state in states for name in (state.out, state.reservation.get("staging"), *state.stagings)]
    paths = [locate(name).as_path() for name in dict.fromkeys(named) if name is not None]
    return [ledger.staging_root, *(path for path in paths if path is not None)]


@contextmanager
def private_folder(out: Path) -> Iterator[Path]:
    """Make `out`, a folder of mode 0700, for a block; it is removed where the block fails."""
    try:
        LocalPath(out.parent).make_folder()
        out.mkdir(mode=0o700, exist_ok=True)
        out.chmod(0o700)
    except OSError as error:
        raise _unusable(out, error) from None
    try:
        yield out
    except BaseException:
        shutil.rmtree(out.resolve(), ignore_errors=True)  # which, of a link, would remove nothing
        raise


def _unusable(out: Path, error: OSError) -> StateError:
    return StateError(f"--out {out}: it cannot be written ({error.strerror}): give another folder")
