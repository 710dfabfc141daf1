"""Folders for confidential output: new ones of this user's own, apart from every folder of releases and of staging."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from pipeline.base.errors import StateError, arg
from pipeline.ledger.store import Ledger
from pipeline.storage.local import LocalPath
from pipeline.storage.location import file_errors
from pipeline.storage.paths import PUBLIC_MARKS, locate, require_not_in
from pipeline.storage.staging import MANIFEST


def require_outside(out: Path, others: Iterable[Path], option: str | None = None) -> None:
    """Raise StateError where confidential output may not lie at `out`, an absolute path of a folder or file.

    That is in a folder that prdp marked as public, beside a release's, and where it overlaps one of the folders
    `others`, in which releases are published or staged.
    """
    at = out.resolve()
    option = option or arg("out")
    require_not_in(PUBLIC_MARKS, out, option)
    if next(at.parent.glob(f"*/{MANIFEST}"), None) is not None:  # also of a ledger that is not this one
        raise StateError(f"{option} {out}: it lies in {at.parent}, where releases are published: give another folder")
    for folder in (path.resolve() for path in others):
        if at.is_relative_to(folder) or folder.is_relative_to(at):
            raise StateError(
                f"{option} {out}: it overlaps {folder}, where releases or their drafts lie: give another folder"
            )


def require_apart(out: Path, others: Iterable[Path]) -> None:
    """Raise StateError unless the folder `out` is absent or empty, and may hold confidential output."""
    require_outside(out, others)
    with _unusable(out):
        if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
            raise StateError(f"{arg('out', out)}: it exists and is no empty folder: give a new one")


def release_folders(ledger: Ledger) -> list[Path]:
    """Return the folders of this machine in which the ledger's releases are published or staged."""
    states = ledger.states()
    named = [name for state in states for name in (state.out, state.reservation.get("staging"), *state.stagings)]
    paths = [locate(name).as_path() for name in dict.fromkeys(named) if name is not None]
    return [ledger.staging_root, *(path for path in paths if path is not None)]


@contextmanager
def private_folder(out: Path) -> Iterator[Path]:
    """Make `out`, a folder of mode 0700, for a block; it is removed where the block fails."""
    with _unusable(out):
        LocalPath(out.parent).make_folder()
        out.mkdir(mode=0o700, exist_ok=True)
        out.chmod(0o700)
    try:
        yield out
    except BaseException:
        shutil.rmtree(out.resolve(), ignore_errors=True)  # which, of a link, would remove nothing
        raise


def _unusable(out: Path) -> AbstractContextManager[None]:
    return file_errors(f"{arg('out', out)}: it cannot be written (", "): give another folder")
