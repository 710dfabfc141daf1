"""What people name: locations by path or URI, files of text to read, and folders to fill.

A URI that could hold a secret is refused, and not repeated.
"""

import errno
import io
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.base.errors import PrdpError, StateError, arg, file_errors
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location, LocationError
from pipeline.storage.objects import StorePath, require_encrypted

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# What may stand after "?": how a store is reached. Credentials come from the environment, so that a location can be
# written into the ledger, a message or a manifest.
OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path", "retry_limit_seconds", "replication")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def locate(target: str | Path | Location, *, what: str = "the location", folder: Path | None = None) -> Location:
    """Return the location that a path, relative to `folder`, or a URI names; one that is a location is returned.

    `what`: what it is, for messages. Raises LocationError where the scheme is unknown, or a URI could hold a secret.
    """
    if isinstance(target, Location):
        return target
    text = str(target)
    scheme = _URI.match(text) if isinstance(target, str) else None
    if scheme is None:
        return LocalPath(Path(os.path.abspath(Path(folder or "", text))))
    kind = {"s3a": "s3"}.get(scheme.group(1).lower(), scheme.group(1).lower())
    if kind not in ("file", *SCHEMES):
        raise LocationError(
            what, f"{kind}:// is no location that prdp can use; give a path, file:///… or s3://bucket/…"
        )
    parts = _split(text)
    if parts is None:
        raise LocationError(what, f"it is no URI; write {kind}://bucket/prefix")
    authority, path, query = parts
    _require_no_secret(kind, authority, query, what)
    key = unquote(path).removeprefix("/").rstrip("/")
    if kind == "file":
        if authority not in ("", "localhost") or query:
            raise LocationError(what, "a file:// URI begins with three slashes and has no '?': file:///folder")
        return LocalPath(Path(os.path.abspath(f"/{key}")))
    if not authority or any(part in ("", ".", "..") for part in key.split("/") if key):
        raise LocationError(what, f"it is no location in a store; write {kind}://bucket/prefix")
    require_encrypted(query, what)
    return StorePath(kind, authority, key, query)


def _split(text: str) -> tuple[str, str, str] | None:
    try:
        parts = urlsplit(text, allow_fragments=False)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # its message repeats the text
        return None
    return parts.netloc, parts.path, parts.query


def _require_no_secret(kind: str, authority: str, query: str, what: str) -> None:
    container = kind in ("abfs", "abfss") and re.fullmatch(r"[a-z0-9-]+@[^@:]+", authority) is not None
    if ("@" in authority and not container) or "@" in unquote(query):
        raise LocationError(what, "a URI with credentials is refused; give them by the environment, and leave out …@")
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    if not set(names) <= set(OPTIONS) or len(set(names)) < len(names):  # of two, each library takes another
        raise LocationError(
            what, f"after '?' a URI may have only {', '.join(OPTIONS)}, each once; give credentials by the environment"
        )


# Files of text that people name: plans, lists of codes and cells, studies, files of limits, keys.
#
# Only regular files of a bounded size are read, so that no name that a plan holds can block a run or fill its memory. A
# file that is none is an OSError with a plain `strerror`, as one that is absent.

LARGEST_TEXT: Final = 1_000_000  # bytes of a file in YAML, and of a key
LARGEST_LIST: Final = 1_000_000_000  # bytes of a CSV file, such as a list of cells
LONGEST_LINE: Final = 1_000_000  # characters


class TooLarge(OSError):
    """The file is regular, but larger than its kind may be."""

    def __init__(self, most: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {most / 1_000_000:g} MB")


def open_input(path: Path, most: int) -> BinaryIO:
    """Return the regular file at `path`, open for reading; it has at most `most` bytes now.

    Opening waits for nothing, and what was opened is what is looked at: no other file can take its place in between.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if facts.st_size > most:
            raise TooLarge(most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most: int) -> bytes:
    """Return the bytes of the regular file at `path`, of which there are at most `most`, even while it grows."""
    with open_input(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(most)
    return data


@contextmanager
def input_lines(path: Path, most: int = LARGEST_LIST, longest: int = LONGEST_LINE) -> Iterator[Iterator[str]]:
    """Yield the lines of the UTF-8 file at `path`, with their ends, for a block; each has at most `longest` characters.

    Reading them raises UnicodeDecodeError where one is not UTF-8, and OSError where one is longer or the file grows
    beyond `most` bytes.
    """
    with io.TextIOWrapper(open_input(path, most), encoding="utf-8-sig", newline="") as file:
        yield _lines(file, most, longest)


def _lines(file: io.TextIOWrapper, most: int, longest: int) -> Iterator[str]:
    read = 0
    while line := file.readline(longest + 1):
        read += len(line)
        if len(line) > longest:
            raise OSError(errno.EINVAL, f"a line has more than {longest:,} characters")
        if read > most:
            raise TooLarge(most)
        yield line


# Folders that the files of prdp mark as public or as confidential; nothing of the other kind is written into them.
#
# A mark counts at every depth below its folder, by the path as it is written and by the one that links lead to.

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


def require_not_in(marks: Mapping[str, str], out: Path | Location, option: str | None = None) -> None:
    """Raise StateError where `out` is, or lies in, a folder that holds one of `marks`, or a store does not say."""
    target = LocalPath(out.absolute()) if isinstance(out, Path) else out
    option = option or arg("out")
    for folder in dict.fromkeys(folder for one in (target.resolve(option), target) for folder in (one, *one.above())):
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
    with file_errors(f"{arg('out', out)}: it cannot be read (", "): give another folder"):
        taken = os.path.lexists(out) and (
            not out.is_dir() or any(not path.name.startswith(UNFINISHED) for path in out.iterdir())
        )
    if taken:
        raise StateError(f"{arg('out', out)}: it exists and is no empty folder: give a new one")
    require_not_in({**PUBLIC_MARKS, **CONFIDENTIAL_MARKS}, out)


@contextmanager
def filled(out: Path, manifest: str = "") -> Iterator[Path]:
    """Yield a hidden folder inside `out`, whose contents stand in `out` after the block: folders, files, `manifest`.

    A killed run leaves nothing but hidden folders. Raises as `require_new`; PrdpError where `out` cannot be written.
    """
    require_new(out)
    with file_errors(f"{arg('out', out)}: it cannot be written (", "); give another folder", PrdpError):
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as unfinished:
            yield Path(unfinished)
            require_new(out)  # of two runs at once, one fails
            made = Path(unfinished).iterdir()
            for path in sorted(made, key=lambda path: (path.is_file(), path.name == manifest, path.name)):
                path.rename(out / path.name)
