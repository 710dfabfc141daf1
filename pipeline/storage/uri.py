"""From a path or a URI to its location; a URI that could hold a secret is refused, and not repeated."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location, LocationError
from pipeline.storage.store import StorePath, require_encrypted

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
        raise LocationError(what, "a URI with credentials is refused; give them by the environment, and leave out …@")
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    if not set(names) <= set(OPTIONS) or len(set(names)) < len(names):  # of two, each library takes another
        raise LocationError(
            what, f"after '?' a URI may have only {', '.join(OPTIONS)}, each once; give credentials by the environment"
        )
