"""Folders that the files of prdp mark as public or as confidential; nothing of the other kind is written into them.

A mark counts at every depth below its folder, by the path as it is written and by the one that links lead to.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.errors import PrdpError, StateError
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location, file_errors

PUBLIC_MARKS: Mapping[str, str] = {
    "release.json": "a release's folder",
    "withdrawn.json": "a withdrawn release's folder",
    "reconciled.json": "a folder of reconciled tables",
    "product.json": "a product's folder",
    "derived.json": "a folder of derived tables",
    "site.json": "a site's folder",
    "export.json": "a folder of exported tables",
}
CONFIDENTIAL_MARKS: Mapping[str, str] = {
    "prepared.json": "a folder of prepared microdata",
    ".preparing": "a folder of prepared microdata",
    "diagnostics.json": "a folder of confidential diagnostics",
    "attempt.json": "a staged attempt's folder",
    ".ledger": "the staging folder of a ledger",
}


def require_not_in(marks: Mapping[str, str], out: Path | Location, option: str = "--out") -> None:
    """Raise StateError where `out` is, or lies in, a folder that holds one of `marks`, or a store does not say."""
    at = LocalPath(out.absolute()) if isinstance(out, Path) else out
    for folder in dict.fromkeys(folder for one in (at.resolve(option), at) for folder in (one, *one.above())):
        for name, what in marks.items():
            with file_errors(f"{option} {out}: {folder} cannot be looked at (", ")"):
                marked = (folder / name).is_file() if folder.remote else (folder / name).exists()
            if marked:
                raise StateError(f"{option} {out}: it lies in {folder}, which is {what}: give another folder")


# Folders that a command fills: new or empty before, complete afterwards.

UNFINISHED = ".unfinished-"
SYNTHETIC = {b"prdp.synthetic": b"true"}  # in the schema of Parquet files that `prdp generate` wrote


def require_new(out: Path) -> None:
    """Raise StateError unless `out` is absent or empty, but for what killed runs left, and lies in no marked folder."""
    with file_errors(f"--out {out}: it cannot be read (", "): give another folder"):
        taken = os.path.lexists(out) and (
            not out.is_dir() or any(not path.name.startswith(UNFINISHED) for path in out.iterdir())
        )
    if taken:
        raise StateError(f"--out {out}: it exists and is no empty folder: give a new one")
    require_not_in({**PUBLIC_MARKS, **CONFIDENTIAL_MARKS}, out)


@contextmanager
def filled(out: Path, manifest: str = "") -> Iterator[Path]:
    """Yield a hidden folder inside `out`, whose contents stand in `out` after the block: folders, files, `manifest`.

    A killed run leaves nothing but hidden folders. Raises as `require_new`; PrdpError where `out` cannot be written.
    """
    require_new(out)
    with file_errors(f"--out {out}: it cannot be written (", "); give another folder", PrdpError):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as unfinished:
            yield Path(unfinished)
            require_new(out)  # of two runs at once, one fails
            made = Path(unfinished).iterdir()
            for path in sorted(made, key=lambda path: (path.is_file(), path.name == manifest, path.name)):
                path.rename(out / path.name)
