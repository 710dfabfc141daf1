"""Spark Connect: Spark's driver is a server's, at sc://HOST:PORT, and this process sends it plans over gRPC.

The key of noise travels in these plans. So a token is needed, with which PySpark demands TLS of every server but
`localhost`; a server of this machine is also reached without. Executors are known by the tasks that a server reports.
"""

import os
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.errors import PySparkException

from pipeline.engines.spark_executors import watched
from pipeline.engines.spark_session import is_loopback, require_answer, require_safe
from pipeline.engines.spark_tasks import Carried
from pipeline.errors import PlanError, PrdpError, require_package
from pipeline.log import Log, share

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC goes by, for this machine's addresses too
RETRIES = 6  # of a call, for a minute together; PySpark's own go on for ten


def is_connect(master: str) -> bool:
    """Whether a master is a server of Spark Connect."""
    return master.startswith("sc://")


def require_address(master: str) -> None:
    """Refuse an address that prdp must not send anything to, before any connection; raises PlanError."""
    _builder(master)


def connected(master: str) -> Any:
    """Return a session of its own at a server whose connection and configuration are safe.

    Raises PlanError where one is not, PrdpError where no server answers, or none that takes the token.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 — gRPC, an extra
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    builder = _builder(master)
    host, _, port = builder.endpoint.rpartition(":")
    require_answer(master, host, int(port), "server of Spark Connect")
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error that follows says so
    session = SparkSession(builder)
    session.client.set_retry_policies([DefaultPolicy(max_retries=1)])
    failure = ""
    try:
        ConnectDriver(session).require_safe()
        session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])
        return session
    except PySparkException as error:
        failure = str(error)
    session.client.close()
    if "UNAUTHENTICATED" in failure:
        raise PrdpError(f"--master {master}: the server does not take the token; set {TOKEN} to the one of the server")
    raise PrdpError(
        f"--master {master}: the server does not speak Spark Connect, or has no TLS certificate that this machine "
        "trusts (with a token PySpark asks for TLS, but of the name localhost)"
    )


def _builder(master: str) -> Any:
    """Return PySpark's own reading of an address, if it is safe."""
    require_package("grpc", f"--master {master.partition(';')[0]}")
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    if "token=" in master:
        raise PlanError(f"--master {master.partition(';')[0]}: a token in the address shows to others; set {TOKEN}")
    try:
        builder = DefaultChannelBuilder(master)
        _ = builder.endpoint
    except (PySparkException, ValueError):
        raise PlanError(f"--master {master}: an address of Spark Connect is sc://HOST:PORT") from None
    _require_channel(builder, f"--master {master}")
    return builder


def _require_channel(builder: Any, where: str) -> None:
    """Refuse a connection that others could read, or to which others could answer."""
    proxied = any(os.environ.get(name) for name in PROXIES)
    if type(builder).__module__.partition(".")[0] != "pyspark":
        raise PlanError(f"{where}: a connection of another program's making: prdp cannot see whether it is encrypted")
    if not builder.token and (proxied or not is_loopback(builder.host)):
        by = "by a proxy" if proxied else "beyond this machine"
        raise PlanError(
            f"{where}: {by} Spark Connect needs a token, and TLS with it: set {TOKEN} here and on the server"
        )


@dataclass(frozen=True, eq=False)
class ConnectDriver:
    """The driver of a server, as a session of Spark Connect reaches it."""

    session: Any

    @cached_property
    def parallelism(self) -> int:
        """How many tasks the cluster runs at once, roughly: into how many parts Spark cuts by itself."""
        parts = self.session.range(0, 1 << 16).selectExpr("spark_partition_id()").distinct()
        return int(parts.count())

    @property
    def address(self) -> str:
        """The server's address, without its parameters."""
        return f"sc://{self.session.client.host}"

    def require_safe(self) -> None:
        """Refuse a connection or a server that is not safe; a server needs all that a cluster needs."""
        _require_channel(self.session.client._builder, self.address)
        require_safe(self._setting)

    def _setting(self, key: str) -> str | None:
        """Return a setting of the server. Its master, which alone a user could set, is taken for another machine's."""
        setting: str | None = self.address if key == "spark.master" else self.session.conf.get(key, None)
        return setting

    def shipped(self, data: bytes) -> Carried:
        """Return bytes that travel in each task."""
        return Carried(data)

    @contextmanager
    def working(self, log: Log, stages: Sequence[str]) -> Iterator[None]:
        """Run jobs in a block: counted, and ended where none of their tasks finds an executor."""
        heard, tag = _Heard(stages), f"prdp-{uuid.uuid4().hex}"
        self.session.registerProgressHandler(heard)
        self.session.addTag(tag)
        try:
            with (
                log.tasks(heard.told),
                watched(lambda: heard.running, lambda: self.session.interruptTag(tag), self.address),
            ):
                yield
        finally:
            self.session.removeTag(tag)
            self.session.removeProgressHandler(heard)


@dataclass(eq=False)
class _Heard:
    """What a server reports of the tasks at work, whenever that changes; `names` are those of the stages in order."""

    names: Sequence[str]
    running: bool = True
    stages: list[Any] = field(default_factory=list)

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Take a report."""
        self.stages, self.running = list(stages or ()), done or inflight_tasks > 0

    def told(self) -> str:
        """Return how many tasks are done of the last stage that has begun, "" where it has no name."""
        begun = [stage for stage in sorted(self.stages, key=lambda stage: stage.stage_id) if stage.num_completed_tasks]
        name = self.names[min(len(begun), len(self.names)) - 1] if begun and self.names else ""
        return share(name, begun[-1].num_completed_tasks, begun[-1].num_tasks) if name else ""
