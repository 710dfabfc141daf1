"""Folders that a command fills: new or empty before, complete afterwards."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import PrdpError, StateError
from pipeline.storage.staging import MANIFEST

UNFINISHED = ".unfinished-"
SYNTHETIC = {b"prdp.synthetic": b"true"}  # in the schema of Parquet files that `prdp generate` wrote


def require_new(out: Path) -> None:
    """Return if `out` is absent or an empty folder; what a killed run left there counts as nothing.

    Raises StateError where anything else is there, or it cannot be looked into.
    """
    try:
        taken = os.path.lexists(out) and (
            not out.is_dir() or any(not path.name.startswith(UNFINISHED) for path in out.iterdir())
        )
    except OSError as error:
        raise StateError(f"--out {out}: it cannot be read ({error.strerror}): give another folder") from None
    if taken:
        raise StateError(f"--out {out}: it exists and is no empty folder: give a new one")


def require_no_release(out: Path, option: str = "--out") -> None:
    """Return unless `out` lies in a release's folder, whose files are those of its manifest; raises StateError then."""
    at = out.resolve()
    for folder in (at, *at.parents):
        if os.path.lexists(folder / MANIFEST):
            raise StateError(f"{option} {out}: it lies in {folder}, which is a release's folder: give another folder")


@contextmanager
def filled(out: Path, manifest: str = "") -> Iterator[Path]:
    """Yield a hidden folder inside `out`, whose contents stand in `out` after the block: folders, files, `manifest`.

    A killed run leaves nothing but hidden folders. Raises StateError as `require_new`, and PrdpError where `out` cannot
    be written.
    """
    require_new(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as unfinished:
            yield Path(unfinished)
            require_new(out)  # of two runs at once, one fails
            made = Path(unfinished).iterdir()
            for path in sorted(made, key=lambda path: (path.is_file(), path.name == manifest, path.name)):
                path.rename(out / path.name)
    except OSError as error:
        raise PrdpError(f"--out {out}: it cannot be written ({error.strerror or error}); give another folder") from None
