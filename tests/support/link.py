"""A link on loopback that can be cut, slow or dead: a proxy in front of a port."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread


class Link:
    """Passes bytes on between `port` of this machine and whoever connects to `own_port`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.delay = 0.0  # seconds, before what has arrived is passed on
        self.still = False  # nothing is passed on, and nobody is told
        self._cut = False
        self._ends: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.own_port = int(self._server.getsockname()[1])
        Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        self._cut = True
        self._end_all()

    def mend(self) -> None:
        """Pass on again."""
        self._cut, self.still, self.delay = False, False, 0.0

    def close(self) -> None:
        """End the link for good."""
        self._server.close()
        self._end_all()

    def _end_all(self) -> None:
        while self._ends:
            end = self._ends.pop()
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.port))
                self._ends += (near, far)
                for one, other in ((near, far), (far, near)):
                    Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                time.sleep(self.delay)
                while self.still:
                    time.sleep(0.05)
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@contextmanager
def link_to(port: int) -> Iterator[Link]:
    """Yield a link to a port of this machine."""
    link = Link(port)
    try:
        yield link
    finally:
        link.close()
