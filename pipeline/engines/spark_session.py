"""Spark sessions: which are safe to hold a key and totals (DESIGN rule 4), and how one is opened.

Under spark-submit the session is that of its configuration (conf/spark/ holds safe ones). Elsewhere it is embedded:
Spark runs in this process and beside it, on this machine alone.
"""

import atexit
import ipaddress
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.engines.java import java_home
from pipeline.errors import PlanError, PrdpError

LOCAL = re.compile(r"local(\[.*\])?")
STANDALONE = re.compile(r"spark://(\[[0-9a-fA-F:]+\]|[^:/,]+):([0-9]+)")
ANSWER_SECONDS = 10
EXECUTOR_SECONDS = 60
CONFIGURATIONS = "start it by spark-submit with a configuration as those in conf/spark/"

EMBEDDED = {
    "spark.driver.host": "127.0.0.1",  # no other machine can reach the driver, or be an executor
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.io.encryption.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
OF_ONE_PROCESS = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}  # Spark makes the secret
QUIET = """status = off
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
logger.start.name = org.apache.spark.api.python.PythonGatewayServer
logger.start.level = off
"""

Get = Callable[[str], str | None]


def submitted() -> bool:
    """Whether this process was started by spark-submit, which fixes master and configuration."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_here(master: str) -> None:
    """Refuse a master that an embedded session must not use, before any connection; raises PlanError."""
    standalone = STANDALONE.fullmatch(master)
    if not LOCAL.fullmatch(master) and not (standalone and _is_loopback(standalone.group(1))):
        raise PlanError(f"--master {master}: only local[N] or a spark:// of this machine; else {CONFIGURATIONS}")


def _require_answer(master: str) -> None:
    """Return if a standalone master answers: Spark itself would ask for a minute."""
    standalone = STANDALONE.fullmatch(master)
    if standalone is None:
        return
    try:
        address = (standalone.group(1).strip("[]"), int(standalone.group(2)))
        socket.create_connection(address, ANSWER_SECONDS).close()
    except (OSError, OverflowError):
        raise PrdpError(f"--master {master}: no Spark master answers there; start it, or correct the address") from None


def require_safe(get: Get) -> None:
    """Return if a configuration lets nothing confidential leave this machine, or lie on its disks, in the clear.

    Always needed: encryption of spills, shuffles and broadcasts. Beyond one machine: authentication and encryption of
    the network. Raises PlanError that names the settings which are missing.
    """
    missing = [] if _on(get, "spark.io.encryption.enabled") else ["spark.io.encryption.enabled"]
    master = get("spark.master") or ""
    standalone = STANDALONE.fullmatch(master)
    here = LOCAL.fullmatch(master) or (standalone and _is_loopback(standalone.group(1)))
    if not (here and _is_loopback(get("spark.driver.host") or "") and _is_loopback(_bound(get))):
        if not _on(get, "spark.authenticate"):
            missing.append("spark.authenticate")
        if not (_on(get, "spark.network.crypto.enabled") or _on(get, "spark.ssl.rpc.enabled")):
            missing.append("spark.network.crypto.enabled")
    if missing:
        raise PlanError(f"Spark's configuration for {master}: set {', '.join(missing)} to true; {CONFIGURATIONS}")


@cache
def private_folder() -> Path:
    """Return the private folder of what Spark keeps on this machine's disk; it goes when this process ends.

    One folder for all sessions of a process, since the one Java that they share goes on using the first's.
    """
    folder = Path(tempfile.mkdtemp(prefix="prdp-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def open_session(master: str | None) -> SparkSession:
    """Return a session that is safe.

    Under spark-submit it is that of its configuration. Raises PlanError for a master or a configuration that is not
    safe, PrdpError where Java or the master is missing.
    """
    if submitted():
        return _opened({})
    master = master or "local[*]"
    require_here(master)
    _require_answer(master)
    folder = private_folder()
    (folder / "log4j2.properties").write_text(QUIET)
    settings = EMBEDDED | {
        "spark.master": master,
        "spark.local.dir": str(folder / "spill"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}",
    }
    if LOCAL.fullmatch(master):
        settings |= OF_ONE_PROCESS
    java = str(java_home(os.environ, folder))
    with _environment(
        {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    ):
        return _opened(settings)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Keep what others log: where its Java is gone, Py4J shows pages of traceback to the root logger."""
    return record.module != "java_gateway"


def _opened(settings: Mapping[str, str]) -> SparkSession:
    logging.getLogger().addFilter(_not_of_py4j)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    failure = ""
    try:
        SparkContext._ensure_initialized(conf=conf)  # the JVM, and with it the user's own configuration
        whole = SparkConf()
        for key, value in settings.items():
            whole.set(key, value)
        require_safe(lambda key: whole.get(key, None))
        session = SparkSession.builder.appName("prdp release").config(conf=whole).getOrCreate()
        found = session.sparkContext.getConf()  # it may be another one, which this process had before
        require_safe(lambda key: found.get(key, None))
        if found.get("spark.master") != whole.get("spark.master"):
            raise PrdpError(f"this process has a Spark session at {found.get('spark.master')} already; end it first")
        _require_executor(session)
        return session
    except PrdpError:
        raise
    except Exception as error:  # of Py4J and of PySpark, with pages of Java's stack
        failure = error.getCondition() or "" if isinstance(error, PySparkException) else type(error).__name__
    raise PrdpError(f"Spark does not start ({failure}); check Java, the master and Spark's configuration")


def _require_executor(session: SparkSession) -> None:
    """Return once a standalone cluster gives an executor: without any, Spark would wait for ever."""
    context = session.sparkContext
    grows = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"  # it may begin with none
    if not STANDALONE.fullmatch(context.master or "") or grows:
        return
    tracker = context._jsc.sc().statusTracker()
    end = time.monotonic() + EXECUTOR_SECONDS
    while len(tracker.getExecutorInfos()) < 2:  # the driver is one of them
        if time.monotonic() > end:
            master = context.master
            session.stop()
            raise PrdpError(f"master {master}: no worker gives an executor; start workers, or free cores and memory")
        time.sleep(0.1)


def _on(get: Get, key: str) -> bool:
    return (get(key) or "").lower() == "true"


def _bound(get: Get) -> str:
    return get("spark.driver.bindAddress") or get("spark.driver.host") or ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@contextmanager
def _environment(fixed: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for a block, defaults where they are absent: Java takes them over at its start."""
    before = {name: os.environ.get(name) for name in (*fixed, *defaults)}
    os.environ.update({**defaults, **{name: text for name, text in before.items() if text is not None}, **fixed})
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text
