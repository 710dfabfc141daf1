"""Hosts of a small network on this machine: network namespaces, joined by a bridge in a further one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Host:
    """Where a process runs: its address, and the command that starts it there, with the process's own behind it."""

    address: str
    command: tuple[str, ...] = ()
    link: tuple[str, ...] = ()

    def cut(self) -> None:
        """Take the cable out, as seen from the switch."""
        _ip(*self.link, "down")

    def mend(self) -> None:
        """Put it in again."""
        _ip(*self.link, "up")


@contextmanager
def network(hosts: int) -> Iterator[list[Host]]:
    """Yield hosts that reach each other alone; skips the test where this machine does not let us make them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    tag = f"prdp{os.getpid()}"
    spaces = [f"{tag}-{i}" for i in range(hosts)]
    switch = f"{tag}-s"
    try:
        try:
            _ip("netns", "add", switch)
            _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", switch, "link", "set", "bridge", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        yield [_joined(switch, space, i) for i, space in enumerate(spaces)]
    finally:
        for i in range(hosts):  # links first: a namespace with a live one lingers
            _ip("-n", switch, "link", "delete", f"port{i}", check=False)
        for space in (*spaces, switch):
            _ip("netns", "delete", space, check=False)


def _joined(switch: str, space: str, number: int) -> Host:
    port, address = f"port{number}", f"10.99.0.{number + 1}"
    _ip("netns", "add", space)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "cable", "netns", space)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", space, "address", "add", f"{address}/24", "dev", "cable")
    for device in ("lo", "cable"):
        _ip("-n", space, "link", "set", device, "up")
    return Host(address, ("ip", "netns", "exec", space), ("-n", switch, "link", "set", port))


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)
