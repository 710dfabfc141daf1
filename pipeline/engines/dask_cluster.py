"""A Dask cluster by its scheduler's address: one connection a release, on which what is asked for ends in bounded time.

Sums of records and the key travel between workers and driver; totals lie sealed in staging. So a cluster that is not on
this machine must use TLS and must not spill to disk: anything else is refused (docs/architecture.md, rule 4).
"""

import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from threading import Event
from typing import Any

import dask

from pipeline.base.errors import PlanError, PrdpError, exhausted, require_package
from pipeline.engines.protocol import TaskFailed
from udfs.records.contract import ContractBroken

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60  # for a scheduler, or a worker, that is busy
LOOK_SECONDS = 5  # between looks at the workers while they run tasks
FETCH_SECONDS = 600  # to bring a result to the driver
NO_WORKER_SECONDS = 60  # a worker that died is replaced in less, where it is replaced at all
CERTIFICATES = "distributed.comm.tls."
NEEDED = ("ca-file", "client.cert")  # the key may stand in the certificate's file
# Pieces of work travel with their tasks, so that a lost worker loses none of them; Dask would advise otherwise.
ANY_SIZE = {"distributed.admin.large-graph-warning-threshold": "1 TiB"}


class Cluster:
    """The cluster behind a scheduler; nothing is sent to it before `compute`.

    Raises PlanError for an address beyond this machine that is not tls://, and where TLS lacks a certificate.
    """

    def __init__(self, scheduler: str) -> None:
        if not is_local(scheduler) and not scheduler.startswith("tls://"):
            raise PlanError(f"--scheduler {scheduler}: a cluster beyond this machine must be reached by tls://")
        require_package("distributed", f"--scheduler {scheduler}")
        if scheduler.startswith("tls://"):
            _require_certificates(scheduler)
        self.scheduler = scheduler
        self._client: Any = None

    def compute(self, collection: Any, told: Callable[[Any], AbstractContextManager[None]]) -> Any:
        """Return what a Dask collection comes to, within what `told` makes of the connection.

        Raises the tasks' own errors, and TaskFailed for a lost cluster: one that has no worker for NO_WORKER_SECONDS,
        or does not answer for ANSWER_SECONDS.
        """
        failure = ""
        try:
            client = self._connected()
            with told(client):
                return self._computed(client, collection)
        except (PrdpError, ContractBroken):
            raise
        except Exception as error:  # a worker that dies again and again, a scheduler that is lost
            failure, lacking = type(error).__name__, exhausted(error)
        self.close()
        if failure == "KilledWorker":
            failure += ": workers died again and again, perhaps for want of memory"
        raise TaskFailed(lacking or f"--scheduler {self.scheduler}: the cluster gave up ({failure}); see its own logs")

    def close(self) -> None:
        """End the connection, if there is one, whatever has become of its other end."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def _connected(self) -> Any:
        if self._client is None:
            from distributed import Client  # noqa: PLC0415 — a second of imports that threads do not need

            # A lost connection ends in a line of ours; it would have lines of its own besides.
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
            try:
                self._client = Client(self.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
            except OSError:
                own = ", or it does not take this certificate" if self.scheduler.startswith("tls://") else ""
                raise PrdpError(f"--scheduler {self.scheduler}: no Dask scheduler answers there{own}") from None
        return self._client

    def _computed(self, client: Any, collection: Any) -> Any:
        known: set[str] = set()
        _require_safe(client, known)
        with dask.config.set(ANY_SIZE):
            future = client.compute(collection)
        alive = time.monotonic()
        try:
            done = Event()
            future.add_done_callback(lambda _: done.set())
            while not done.wait(LOOK_SECONDS):
                if _require_safe(client, known):
                    alive = time.monotonic()
                elif time.monotonic() - alive > NO_WORKER_SECONDS:
                    raise TaskFailed(f"--scheduler {self.scheduler}: no worker is left: start workers, and run again")
            return future.result(timeout=FETCH_SECONDS)
        finally:
            with suppress(Exception):
                future.cancel()


def is_local(address: str) -> bool:
    """Whether an address, scheme://host:port and nothing else, is one of this machine alone."""
    if address.startswith("inproc://"):
        return True
    parsed = re.fullmatch(r"(?:[a-z]+://)?(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+):[0-9]+/?", address)
    host = parsed.group(1).strip("[]") if parsed else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tls_settings() -> dict[str, str | None]:
    """Return what Dask's configuration says of TLS for clients: a file by each key, a certificate itself, or None."""
    return {key: dask.config.get(CERTIFICATES + key, None) for key in ("ca-file", "client.cert", "client.key")}


def _require_certificates(scheduler: str) -> None:
    """Refuse tls:// where Dask's configuration names no certificates for it, or ones that cannot be read."""
    files = tls_settings()
    missing = [CERTIFICATES + key for key in NEEDED if not files[key]]
    if missing:
        raise PlanError(f"--scheduler {scheduler}: TLS needs certificates: set {', '.join(missing)} for Dask")
    for key, file in files.items():
        if file and "\n" not in file and not os.access(file, os.R_OK):  # else it is the certificate itself
            raise PlanError(f"--scheduler {scheduler}: {CERTIFICATES}{key}: {file} cannot be read")


def _spills() -> bool:
    """Whether this worker writes what it holds to its disk when memory is short."""
    keys = ("target", "spill")
    return any(dask.config.get(f"distributed.worker.memory.{key}", False) is not False for key in keys)


def _require_safe(client: Any, known: set[str]) -> int:
    """Return the number of workers; refuse a cluster beyond this machine in part without TLS, or that then spills.

    Workers of `known` have answered before; those that do are added. One that does not answer, and is not given up by
    its scheduler either, is a lost cluster's.
    """
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        cluster = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
        workers = set(cluster["workers"])
        addresses = [cluster["address"], *workers]
        if all(is_local(address) for address in addresses):
            return len(workers)
        if not all(address.startswith("tls://") for address in addresses):
            raise PrdpError("--scheduler: a part of the cluster lies beyond this machine and is not reached by tls://")
        new = sorted(workers - known)
        if not new:
            return len(workers)
        asked = {"workers": new, "on_error": "return", "callback_timeout": ANSWER_SECONDS}
        answers = client.sync(client.run, _spills, **asked)
        if any(answer is True for answer in answers.values()):
            raise PrdpError(
                "--scheduler: its workers spill to disk unencrypted; set distributed.worker.memory.target and .spill "
                "to false on them"
            )
        known |= {worker for worker, answer in answers.items() if answer is False}
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.1)
