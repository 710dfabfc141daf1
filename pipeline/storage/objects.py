"""Objects of a store that pyarrow.fs opens, and create-if-absent in S3.

pyarrow.fs cannot send If-None-Match, so that S3 is called through boto3 (the extra `s3`) for it; other stores, which
could replace a manifest, are refused for output.
"""

import errno
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import Any, ClassVar, final
from urllib.parse import parse_qsl, quote

from pipeline.base.errors import StateError, require_package
from pipeline.storage.location import FileDigest, Location, LocationError

TRIES = 3  # of a transfer whose connection ended early
CREATE_TRIES = 5  # S3 answers 409 where two puts meet: the answer is to try again
CUT_OFF = "NETWORK_CONNECTION: cut off"
CONNECT_SECONDS, ANSWER_SECONDS = 10, 120
_LOOPBACK = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/?")


@final
@dataclass(frozen=True, order=True)
class StorePath(Location):
    """An object or a prefix of a store, by its bucket (`authority`) and key; `query` says how the store is reached.

    Each process opens the store when it first needs it. Errors carry our own words, never what the store said.
    """

    scheme: str
    authority: str
    path: str = ""
    query: str = ""

    remote: ClassVar[bool] = True

    @property
    def conditional(self) -> bool:
        """Whether it is S3, whose conditional put `create` needs."""
        return self.scheme == "s3"

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.root}/{quote(self.path)}".rstrip("/") + query

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(self.scheme, self.authority, f"{self.path}/{name}".lstrip("/"), self.query)

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def key(self) -> str:
        return self.path

    def resolve(self, what: str = "the location") -> "StorePath":
        return self

    def as_path(self) -> None:
        return None

    def above(self) -> list["StorePath"]:
        return [replace(self, path="" if path.name == "" else str(path)) for path in PurePosixPath(self.path).parents]

    def exists(self) -> bool:
        return self.is_file() or bool(self.files())

    def is_file(self) -> bool:
        with self._opened() as (store, path):
            return bool(store.get_file_info(path).is_file)

    def is_plain_file(self) -> bool:
        return True  # a store has objects alone

    def is_link(self) -> bool:
        return False

    def is_partial(self) -> bool:
        return False  # an object is never there in part

    def is_exposed(self) -> bool:
        return False  # who has access is for the bucket's policy, and cannot be seen here

    def files(self) -> list["StorePath"]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        with self._opened() as (store, path):
            listed = store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return sorted(self / info.path.removeprefix(path).lstrip("/") for info in listed if info.is_file)

    def children(self) -> list[str]:
        return sorted({file.relative_to(self).partition("/")[0] for file in self.files()})

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield once: (".", no folders, the path of every object below this prefix)."""
        yield ".", [], [file.relative_to(self) for file in self.files()]

    def size(self) -> int:
        with self._opened() as (store, path):
            return int(store.get_file_info(path).size or 0)

    def fingerprint(self) -> list[object]:
        """Return size, time of change in nanoseconds and, where the store has one, the entity tag of the contents."""
        with self._opened() as (store, path):
            info = store.get_file_info(path)
            with store.open_input_file(path) as file:
                tag = (file.metadata() or {}).get("ETag", b"")
            return [info.size, info.mtime_ns, bytes(tag).decode(errors="replace")]

    def digest(self) -> FileDigest:
        return _digest(self.read())

    def open(self) -> Any:
        with self._opened() as (store, path):
            return store.open_input_file(path)

    def read(self) -> bytes:
        with self._opened() as (store, path):
            for _ in range(TRIES):
                with store.open_input_file(path) as file:
                    contents: bytes = file.read()
                    if len(contents) == file.size():
                        return contents
            raise ConnectionError(CUT_OFF)

    def write(self, *parts: Any) -> None:
        data = b"".join(parts)
        with self._opened() as (store, path):
            for _ in range(TRIES):
                with store.open_output_stream(path, compression=None) as file:
                    file.write(data)
                if store.get_file_info(path).size == len(data):
                    return
            raise ConnectionError(CUT_OFF)

    def write_durably(self, data: bytes, *, private: bool = True) -> None:
        self.write(data)

    @contextmanager
    def writing(self) -> Iterator[Any]:
        with self._opened() as (store, path), store.open_output_stream(path, compression=None) as file:
            yield file

    def create(self, data: bytes, writer: str, *, private: bool = False) -> bool:
        failure = (0, "")
        for _ in range(CREATE_TRIES):
            try:
                _client(self.query).put_object(Bucket=self.authority, Key=self.path, Body=data, IfNoneMatch="*")
                return True
            except Exception as error:  # botocore's errors have no narrower common class
                status = _status(error)
                if status == 412:
                    return False
                failure = _plain_error(error)
                if status != 409:
                    break
        raise OSError(*failure, str(self))

    def require_create(self, what: str) -> None:
        """Return if objects can be created below this prefix, and one that is there is kept."""
        if not self.conditional:
            raise StateError(
                f"{what} {self}: {self.scheme}:// has no create-if-absent here; give a path or an s3:// location"
            )
        require_package("boto3", f"{what} {self}")
        probe = self / f".prdp-probe-{uuid.uuid4().hex}"
        try:
            kept = probe.create(b"1", "") and not probe.create(b"2", "")
            _client(probe.query).delete_object(Bucket=probe.authority, Key=probe.path)
        except Exception as error:
            line = error.strerror if isinstance(error, OSError) and error.strerror else _plain_error(error)[1]
            raise StateError(f"{what} {self} cannot be written: {line}") from None
        if not kept:
            raise StateError(f"{what} {self}: its store replaces objects in spite of If-None-Match; give another one")

    def copy_from(self, source: Location, digest: FileDigest) -> bool:
        data = source.read()
        if _digest(data) != digest:
            return False
        self.write(data)
        return self.digest() == digest

    def delete(self) -> None:
        with self._opened() as (store, path):
            try:
                store.delete_file(path)
            except FileNotFoundError:
                return

    def delete_tree(self) -> None:
        with self._opened() as (store, path):
            store.delete_dir_contents(path, missing_dir_ok=True)
        for rest in self.files():  # what was put while the others were removed
            rest.delete()

    def try_writing(self) -> None:
        probe = self / f"probe-{uuid.uuid4().hex}"
        probe.write(b"1")
        probe.delete()

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """Yield the store and the path in it; errors inside the block are raised in our own words."""
        failure: tuple[int, str] | None = None
        try:
            store, base = _store(self.scheme, self.authority, self.query)
            yield store, f"{base}/{self.path}".rstrip("/") if self.path else base
        except (OSError, ValueError, NotImplementedError) as error:
            failure = _plain_error(error)
        if failure is not None:  # outside of the handler: the store's own error must not be its context
            raise OSError(*failure, str(self))


def require_encrypted(query: str, what: str) -> None:
    """Refuse a store that is reached over plain HTTP beyond this machine: microdata and draws travel."""
    options = dict(parse_qsl(query))
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if "/" in options.get("endpoint_override", ""):  # a scheme there would overrule the option of that name
        raise LocationError(what, "write endpoint_override=host:port, and nothing before or after it")
    if "endpoint_override" in options:
        endpoint = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    if endpoint.startswith("http://") and not _LOOPBACK.fullmatch(endpoint):
        raise LocationError(what, "a store beyond this machine must be reached by https; leave out scheme=http")


def _digest(data: bytes) -> FileDigest:
    return FileDigest(hashlib.sha256(data).hexdigest(), len(data))


@cache
def _store(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    """Return a store, opened once a process, and where its keys begin in it."""
    from pyarrow.fs import FileSystem  # noqa: PLC0415 — a tenth of a second that local paths do not need

    require_encrypted(query, f"{scheme}://{authority}")  # a worker's environment need not be the driver's
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


@cache
def _client(query: str) -> Any:
    import boto3  # noqa: PLC0415 — an extra, and half a second
    from botocore.config import Config  # noqa: PLC0415

    options = dict(parse_qsl(query))
    endpoint = options.get("endpoint_override")
    address = {"endpoint_url": f"{options.get('scheme', 'https')}://{endpoint}"} if endpoint else {}
    session = boto3.Session()
    region = options.get("region") or os.environ.get("AWS_REGION") or session.region_name
    style = {"addressing_style": "path" if endpoint else "auto"}
    config = Config(s3=style, connect_timeout=5, retries={"mode": "standard", "total_max_attempts": 3})
    trust = {"verify": options["tls_ca_file_path"]} if "tls_ca_file_path" in options else {}
    return session.client("s3", region_name=region or "us-east-1", config=config, **address, **trust)


def _status(error: Exception) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


_FAILURES = (
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


def _plain_error(error: Exception) -> tuple[int, str]:
    """Return the number and one plain line for an error of a store's library, and nothing of the library's own text.

    The libraries have no classes for these failures, only texts.
    """
    if isinstance(error, FileNotFoundError):
        return errno.ENOENT, "it is not there"
    text = f"{type(error).__name__} {error}"
    for pattern, number, line in _FAILURES:
        if re.search(pattern, text):
            return number, line
    code = re.search(r"AWS Error ([A-Z_]+)", text)
    return errno.EIO, f"the store failed ({code.group(1) if code else type(error).__name__})"
