"""What prdp sends to a site's own collectors over HTTP: encrypted beyond this machine, in one try, and nowhere else.

No proxy stands between prdp and an address of this machine, and no redirection is followed. TLS trusts the machine's
authorities, or those of the file that SSL_CERT_FILE names.
"""

import re
import socket
import ssl
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pipeline.base.errors import PlanError, PrdpError, in_a_line

WAIT = 10.0  # seconds for each step of a try
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Unsent(PrdpError):
    """A collector did not take what was sent; the message names it."""


def is_url(target: str) -> bool:
    """Whether a place is a URL, and no file or folder."""
    return "://" in target or target.lower().startswith(("http:", "https:"))


def checked_url(url: str, option: str, path: str = "") -> str:
    """Return the URL that an option gives, with `path` where it has none; raises PlanError on an unsafe one.

    Plain HTTP is for this machine alone, and a name and password would show in the list of processes.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    shown = f"{option} {in_a_line(re.sub('//[^/]*@', '//', url))}"
    if parts.scheme.lower() not in ("http", "https") or not host or not url.isprintable():
        raise PlanError(f"{shown}: is no URL of HTTP: write https://HOST:PORT/PATH")
    if parts.username is not None:
        raise PlanError(f"{shown}: leave user and password out: run a collector on this machine that adds them")
    if parts.scheme.lower() == "http" and host not in LOOPBACK:
        raise PlanError(f"{shown}: a server beyond this machine must be reached by https")
    return parts._replace(path=path).geturl() if parts.path in ("", "/") else url


def send(url: str, body: bytes, kind: str, method: str = "POST") -> None:
    """Send `body`, of the content type `kind`, to a checked URL; raises Unsent unless it is taken."""
    from http.client import HTTPException  # noqa: PLC0415 — these take a fortieth of a second, and few runs send
    from urllib import error, request  # noqa: PLC0415

    class NoRedirection(request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Follow none: what is sent is for one server."""

    parts = urlsplit(url)
    handlers = [NoRedirection(), *([request.ProxyHandler({})] if parts.hostname in LOOPBACK else [])]
    asked = request.Request(url, body, {"Content-Type": kind}, method=method)
    try:
        request.build_opener(*handlers).open(asked, timeout=WAIT).close()
        return
    except error.HTTPError as answer:
        reason = f"it answered {answer.code}"
        answer.close()
    except (OSError, HTTPException, ValueError) as failure:
        reason = _reason(failure)
    raise Unsent(f"{_server(parts)} did not take it: {reason}")


def reach(url: str) -> None:
    """Connect to the server of a checked URL, with TLS where the URL says so, and send nothing; raises Unsent."""
    parts = urlsplit(url)
    secure = parts.scheme.lower() == "https"
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or (443 if secure else 80)), WAIT) as connection:
            if secure:
                ssl.create_default_context().wrap_socket(connection, server_hostname=host).close()
    except (OSError, ValueError) as error:
        raise Unsent(f"{_server(parts)} cannot be reached: {_reason(error)}") from None


def _server(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc}"


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    return str(getattr(cause, "strerror", None) or type(cause).__name__)
