"""Places by URI: a path of this machine, or an object or a prefix of a store that pyarrow.fs opens.

A local place is a pathlib.Path, and keeps all that durable.py and staging.py do for it. A store gives less: an object
is put whole or not at all, and no object is ever renamed; who may see it is decided by its bucket's policy alone, which
cannot be checked here: the operator answers for it.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pipeline.errors import PlanError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
# What may stand after "?": how a store is reached. Credentials come from the environment, so that a place can be
# written into the ledger, a message or a manifest.
OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path", "retry_limit_seconds", "replication")
_HERE = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/?")
TRIES = 3  # of what a connection cut off
CUT_OFF = "NETWORK_CONNECTION: cut off"
CONNECT_SECONDS, ANSWER_SECONDS = 10, 120
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, order=True)
class Stored:
    """An object or a prefix of a store, by its bucket (`authority`) and key; it holds no secret.

    It travels by pickle: each process opens the store when it first needs it. Every method raises OSError whose
    `strerror` is one plain line, without what the store itself said; FileNotFoundError where nothing is there.
    """

    scheme: str
    authority: str
    key: str = ""
    query: str = ""

    def __str__(self) -> str:
        """The URI, from which `place` makes this place again."""
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.authority}/{quote(self.key)}".rstrip("/") + query

    def __truediv__(self, name: str) -> "Stored":
        return Stored(self.scheme, self.authority, f"{self.key}/{name}".lstrip("/"), self.query)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    def resolve(self) -> "Stored":
        """Return this place: a store has no links."""
        return self

    def relative_to(self, above: "Stored") -> str:
        """Return the key below a prefix; raises ValueError where it is not below it."""
        if not self.is_relative_to(above):
            raise ValueError("not below the prefix")
        return self.key.removeprefix(above.key).lstrip("/")

    def is_relative_to(self, above: "Stored") -> bool:
        """Whether this is the place `above`, or below it; two stores that name a bucket alike count as one."""
        store = (self.scheme, self.authority) == (above.scheme, above.authority)
        return store and f"{self.key}/".startswith(f"{above.key}/".lstrip("/"))

    def is_object(self) -> bool:
        """Whether there is an object of just this key."""
        with self._plain() as (store, path):
            return bool(store.get_file_info(path).is_file)

    def objects(self) -> list["Stored"]:
        """Return all objects below this prefix, sorted; none where there is nothing."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        with self._plain() as (store, path):
            found = store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return sorted(self / info.path.removeprefix(path).lstrip("/") for info in found if info.is_file)

    def size(self) -> int:
        """Return the object's size in bytes."""
        with self._plain() as (store, path):
            return int(store.get_file_info(path).size or 0)

    def fingerprint(self) -> list[object]:
        """Return size, time of change in nanoseconds and, where the store has one, the entity tag of the contents."""
        with self._plain() as (store, path):
            info = store.get_file_info(path)
            with store.open_input_file(path) as file:
                tag = (file.metadata() or {}).get("ETag", b"")
            return [info.size, info.mtime_ns, bytes(tag).decode(errors="replace")]

    def open(self) -> Any:
        """Return the object's contents as an Arrow file, which can be read anywhere."""
        with self._plain() as (store, path):
            return store.open_input_file(path)

    def read(self) -> bytes:
        """Return the object's contents, whole: a connection that ends early is no end of the object."""
        with self._plain() as (store, path):
            for _ in range(TRIES):
                with store.open_input_file(path) as file:
                    contents: bytes = file.read()
                    if len(contents) == file.size():
                        return contents
            raise ConnectionError(CUT_OFF)

    def write(self, data: Any) -> None:
        """Put the object, whole: readers see what was there before, or all of `data`."""
        with self._plain() as (store, path):
            for _ in range(TRIES):
                with store.open_output_stream(path) as file:
                    file.write(data)
                if store.get_file_info(path).size == len(data):
                    return
            raise ConnectionError(CUT_OFF)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Yield a stream; the object is there when the block ends, also where it ends by an error."""
        with self._plain() as (store, path), store.open_output_stream(path) as file:
            yield file

    def delete(self) -> None:
        """Remove the object; nothing happens where there is none."""
        with self._plain() as (store, path):
            try:
                store.delete_file(path)
            except FileNotFoundError:
                return

    def delete_below(self) -> None:
        """Remove every object below this prefix; nothing happens where there are none."""
        with self._plain() as (store, path):
            store.delete_dir_contents(path, missing_dir_ok=True)
        for rest in self.objects():  # what was put while the others were removed
            rest.delete()

    @contextmanager
    def _plain(self) -> Iterator[tuple[Any, str]]:
        """Yield the store and the path in it; of its errors inside the block only our own words are raised."""
        told: tuple[int, str] | None = None
        try:
            store, base = _opened(self.scheme, self.authority, self.query)
            yield store, f"{base}/{self.key}".rstrip("/") if self.key else base
        except (OSError, ValueError, NotImplementedError) as error:
            told = told_of(error)
        if told is not None:
            raise OSError(*told, str(self))


Place = Path | Stored
Located = TypeVar("Located", Path, Stored, Place)


def place(text: str, *, what: str = "the place", folder: Path | None = None) -> Place:
    """Return the place that a path or URI names; a path is relative to `folder`, or the working folder.

    Raises PlanError, which begins with `what`, for an unknown scheme and for a URI that could hold a secret; neither
    is repeated in the message.
    """
    scheme = _URI.match(text)
    if scheme is None:
        return Path(os.path.abspath(Path(folder or "", text)))
    kind = {"s3a": "s3"}.get(scheme.group(1).lower(), scheme.group(1).lower())
    if kind not in ("file", *SCHEMES):
        raise PlanError(f"{what}: {kind}:// is no place that prdp can use; give a path, file:///… or s3://bucket/…")
    parts = _split(text)
    if parts is None:
        raise PlanError(f"{what}: it is no URI; write {kind}://bucket/prefix")
    authority, path, query = parts
    _require_no_secret(kind, authority, query, what)
    key = unquote(path).removeprefix("/").rstrip("/")
    if kind == "file":
        if authority not in ("", "localhost") or query:
            raise PlanError(f"{what}: a file:// URI begins with three slashes and has no '?': file:///folder")
        return Path(os.path.abspath(f"/{key}"))
    if not authority or any(part in ("", ".", "..") for part in key.split("/") if key):
        raise PlanError(f"{what}: it is no place in a store; write {kind}://bucket/prefix")
    _require_encrypted(query, what)
    return Stored(kind, authority, key, query)


def _split(text: str) -> tuple[str, str, str] | None:
    """Return authority, path and query of a URI; None where it is none."""
    try:
        parts = urlsplit(text, allow_fragments=False)
        parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:  # its message repeats the text
        return None
    return parts.netloc, parts.path, parts.query


def _require_no_secret(kind: str, authority: str, query: str, what: str) -> None:
    container = kind in ("abfs", "abfss") and re.fullmatch(r"[a-z0-9-]+@[^@:]+", authority) is not None
    if ("@" in authority and not container) or "@" in unquote(query):
        raise PlanError(f"{what}: a URI with credentials is refused; give them by the environment, and leave out …@")
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    if not set(names) <= set(OPTIONS) or len(set(names)) < len(names):  # of two, each library takes another
        raise PlanError(
            f"{what}: after '?' a URI may have only {', '.join(OPTIONS)}, each once; "
            "give credentials by the environment"
        )


def _require_encrypted(query: str, what: str) -> None:
    """Refuse a store that is reached over plain HTTP beyond this machine: microdata and draws travel."""
    options = dict(parse_qsl(query))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if "/" in options.get("endpoint_override", ""):  # a scheme there would outdo the option of that name
        raise PlanError(f"{what}: write endpoint_override=host:port, and nothing before or after it")
    if "endpoint_override" in options:
        endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    if endpoint.startswith("http://") and not _HERE.fullmatch(endpoint):
        raise PlanError(f"{what}: a store beyond this machine must be reached by https; leave out scheme=http")


def resolved(at: Located, what: str) -> Located:
    """Return a place without links; raises PlanError, which begins with `what`, where its links lead in a circle."""
    try:
        return at.resolve()
    except (OSError, RuntimeError):  # Python 3.13 raises the first, older ones the second
        raise PlanError(f"{what} {at}: its links lead in a circle; give another place") from None


def overlap(one: Place, other: Place) -> bool:
    """Whether one place is the other or lies in it."""
    if isinstance(one, Path) and isinstance(other, Path):
        here, there = one.resolve(), other.resolve()
        return here.is_relative_to(there) or there.is_relative_to(here)
    if isinstance(one, Stored) and isinstance(other, Stored):
        return one.is_relative_to(other) or other.is_relative_to(one)
    return False


def size_of(at: Place) -> int:
    """Return the size of a file or an object in bytes; raises OSError."""
    return at.size() if isinstance(at, Stored) else at.stat().st_size


def opened(at: Place) -> Any:
    """Return the contents of a file or an object as an Arrow file, to be closed; raises OSError."""
    if isinstance(at, Stored):
        return at.open()
    import pyarrow as pa  # noqa: PLC0415 — `explain` knows places too, and reads none

    return pa.OSFile(str(at), "rb")


def parquet_files(folder: Place) -> list[Any]:
    """Return the places of the Parquet files that lie in a folder of a table, in the order of their names."""
    if isinstance(folder, Stored):
        return [at for at in folder.objects() if at.suffix == ".parquet"]
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


@cache
def _opened(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    """Return a store, opened once a process, and where its keys begin in it."""
    from pyarrow.fs import FileSystem  # noqa: PLC0415 — a tenth of a second that local places do not need

    _require_encrypted(query, f"{scheme}://{authority}")  # a worker's environment need not be the driver's
    if scheme == "s3":
        return _s3(authority, dict(parse_qsl(query))), authority
    store, base = FileSystem.from_uri(f"{scheme}://{authority}" + (f"?{query}" if query else ""))
    return store, base.rstrip("/")


def _s3(bucket: str, options: dict[str, str]) -> Any:
    """Return S3 as its URI says, with more patience: what is put again after an answer was missed arrives twice."""
    from pyarrow.fs import S3FileSystem, resolve_s3_region  # noqa: PLC0415

    if not set(options) <= {"endpoint_override", "region", "scheme", "tls_ca_file_path"}:
        raise ValueError("an option of another kind of store")
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = resolve_s3_region(bucket)
    return S3FileSystem(connect_timeout=CONNECT_SECONDS, request_timeout=ANSWER_SECONDS, **options)


_TOLD = (
    (r"NO_SUCH_BUCKET|NoSuchBucket|bucket .* not found", errno.ENOENT, "there is no such bucket"),
    (
        r"ACCESS_DENIED|AccessDenied|\b403\b|INVALID_ACCESS_KEY|InvalidAccessKey|SIGNATURE|Signature|EXPIRED|Expired"
        r"|UNRECOGNIZED_CLIENT|NoCredentials|PartialCredentials|[Uu]nable to locate credentials|CREDENTIALS",
        errno.EACCES,
        "access is denied: check the credentials in the environment, and the bucket's policy",
    ),
    (
        r"NETWORK_CONNECTION|curlCode|EndpointConnection|ConnectTimeout|ReadTimeout|ConnectionClosed|resolve host",
        errno.EHOSTUNREACH,
        "the store cannot be reached: check its endpoint, and the network",
    ),
    (r"libhdfs|libjvm", errno.ENOTSUP, "the Hadoop libraries (libhdfs, libjvm) cannot be loaded on this machine"),
)


def told_of(error: Exception) -> tuple[int, str]:
    """Return the number and the one plain line for an error of a store; nothing of its own text is in it."""
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT, "it is not there"
    text = f"{type(error).__name__} {error}"
    for pattern, number, line in _TOLD:
        if re.search(pattern, text):
            return number, line
    code = re.search(r"AWS Error ([A-Z_]+)", text)
    return errno.EIO, f"the store failed ({code.group(1) if code else type(error).__name__})"
