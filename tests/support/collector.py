"""An HTTP server of loopback that keeps what is sent to it: a push gateway, a collector or a catalogue for tests."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple


class Received(NamedTuple):
    """One request."""

    method: str
    path: str
    kind: str
    body: bytes


class Collector(ThreadingHTTPServer):
    """`answer`: the status of each answer; with `location` it leads there."""

    daemon_threads = True

    def __init__(self, tls: tuple[Path, Path] | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[Received] = []
        self.answer, self.location = 200, ""
        self.url = f"http{'s' if tls else ''}://localhost:{self.server_port}"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that end the handshake."""


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append(Received(self.command, self.path, self.headers["Content-Type"], body))
        self.send_response(self.server.answer)
        self.send_header("Location", self.server.location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_POST  # noqa: N815 — as http.server wants it

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def collector(tls: tuple[Path, Path] | None = None) -> Iterator[Collector]:
    """Yield a server of loopback, with TLS where `tls` is (certificate, key)."""
    with Collector(tls) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
