"""Which Sparks may hold a key, and what a worker's failure tells: hardly a session is needed to see it."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from jobs.cli import main
from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, PlanError, PrdpError
from pipeline.engines import spark_session
from pipeline.engines.protocol import TaskFailed
from pipeline.engines.spark import SparkEngine
from pipeline.engines.spark_driver import in_plain_words
from pipeline.engines.spark_session import require_safe
from pipeline.engines.tasks import Failure, Guarded, WorkerFailure, job_error
from tests.support.leaks import told
from tests.support.ledgers import is_bare, ledger_file
from tests.support.spark import standalone
from tests.support.world import records, write_world
from udfs.records.contract import ContractBroken

ROOT = Path(__file__).parents[2]
HERE = {"spark.driver.host": "127.0.0.1", "spark.io.encryption.enabled": "true"}
SAFE = {
    "spark.io.encryption.enabled": "true",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.driver.host": "driver.example",
}
FAR = ("spark://192.0.2.1:7077", "spark://spark.example:7077", "yarn", "k8s://https://192.0.2.1:443", "spark://a:1,b:2")


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4, 2]", "spark://127.0.0.1:7077", "spark://[::1]:7077"])
def test_this_machine_needs_encrypted_spills_alone(master: str) -> None:
    require_safe((HERE | {"spark.master": master}).get)
    for lacking in ({"spark.driver.host": "127.0.0.1"}, HERE | {"spark.io.encryption.enabled": "false"}):
        with pytest.raises(PlanError, match=r"set spark\.io\.encryption\.enabled to true"):
            require_safe((lacking | {"spark.master": master}).get)
    for reachable in ({"spark.driver.host": "192.0.2.9"}, {"spark.driver.bindAddress": "0.0.0.0"}):
        with pytest.raises(PlanError, match=r"set spark\.authenticate, spark\.network\.crypto\.enabled to true"):
            require_safe((HERE | reachable | {"spark.master": master}).get)


@pytest.mark.parametrize("master", FAR)
def test_a_cluster_beyond_this_machine_needs_everything(master: str) -> None:
    require_safe((SAFE | {"spark.master": master}).get)
    require_safe(
        (SAFE | {"spark.master": master, "spark.network.crypto.enabled": "", "spark.ssl.rpc.enabled": "true"}).get
    )
    for name in ("spark.io.encryption.enabled", "spark.authenticate", "spark.network.crypto.enabled"):
        for value in (None, "false"):
            lacking = {**SAFE, "spark.master": master, name: value}
            with pytest.raises(PlanError, match=rf"set {re.escape(name)} to true"):
                require_safe(lacking.get)


@pytest.mark.parametrize("master", FAR)
def test_a_remote_master_is_refused_before_anything_is_reserved(
    tmp_path: Path, master: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger" / "ledger.sqlite"
    call = ["release", str(write_world(tmp_path, records(9))), "--engine", "spark", "--master", master]
    assert main([*call, "--ledger", ledger_file(ledger)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --master {master}: only local[N] or a spark:// of this machine")
    assert is_bare(ledger)


def test_no_master_at_a_loopback_port_is_met_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SparkEngine("spark://127.0.0.1:1")
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda **_: pytest.fail("Java was started"))
    with pytest.raises(PrdpError, match="no Spark master answers there; start it"):
        _ = engine.session


@pytest.mark.parametrize(("master", "refused"), [("spark://10.0.0.1:7077", True), ("yarn", False), ("local[2]", False)])
def test_a_standalone_cluster_without_its_secret_is_told(master: str, refused: bool) -> None:
    settings = {"spark.master": master, "spark.authenticate": "true"}
    for more in ({"spark.authenticate.secret": "s"}, {"spark.authenticate.secret.file": "f"}):
        spark_session.require_secret((settings | more).get, {})
    spark_session.require_secret(settings.get, {"_SPARK_AUTH_SECRET": "s"})
    if refused:
        with pytest.raises(PlanError, match=r"spark\.authenticate\.secret is missing"):
            spark_session.require_secret(settings.get, {})
    else:
        spark_session.require_secret(settings.get, {})  # the secret is made for each application


ASKING = """
import sys
from pipeline.engines import spark_session
from pipeline.engines.spark import SparkEngine
from pipeline.base.errors import PrdpError

spark_session.FIRST_SECONDS = 3
try:
    SparkEngine(sys.argv[1]).session
except PrdpError as error:
    print(error)
"""


@pytest.mark.drill
def test_a_cluster_without_workers_is_told(tmp_path: Path) -> None:
    with standalone(tmp_path, workers=0) as cluster:  # in a process of its own: Java keeps settings of earlier sessions
        asked = subprocess.run(
            [sys.executable, "-c", ASKING, cluster.url], capture_output=True, text=True, check=True, cwd=ROOT
        )
    assert "no worker gives an executor; start workers" in asked.stdout


@pytest.mark.parametrize("name", ["local", "standalone", "yarn", "kubernetes", "connect"])
def test_the_configurations_are_safe_and_quiet(name: str) -> None:
    lines = (ROOT / "conf" / "spark" / f"{name}.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    remote = {
        "standalone": "spark://a.example:7077",
        "yarn": "yarn",
        "kubernetes": "k8s://https://a.example:443",
        "connect": "sc://a.example",
    }
    require_safe(({"spark.master": remote.get(name), "spark.driver.host": "b.example"} | settings).get)
    assert (settings["spark.ui.enabled"], settings["spark.eventLog.enabled"]) == ("false", "false")


# -- failures --------------------------------------------------------------------------------------------------------

CANARY = "777123456789"


class Failing(Guarded[object]):
    """A task that meets an error of some other program, which shows a value."""

    code = code_digest()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def rows(self, batches: Iterable[object]) -> Iterator[object]:
        yield 1
        try:
            raise ValueError(f"could not convert {CANARY}")
        except ValueError:
            raise self.error  # noqa: B904


@pytest.mark.parametrize(
    "error", [ValueError(f"not a code: {CANARY}"), KeyError(CANARY), OSError(5, CANARY), UnicodeError(CANARY)]
)
def test_a_foreign_error_is_told_by_its_kind_alone(error: Exception) -> None:
    with pytest.raises(WorkerFailure) as raised:
        list(Failing(error)([]))
    assert CANARY not in told(raised.value)
    assert CANARY in told(Failing(error).error)  # the twin: the error itself
    found = job_error(f"PythonException: Traceback …\n{type(raised.value).__name__}: {raised.value}\n at java.lang")
    assert isinstance(found, TaskFailed)
    assert str(found) == f"a task on a Spark worker failed ({type(error).__name__})"


@pytest.mark.parametrize(
    "error",
    [
        ContractBroken("naics", 'is "odd"\nand has – signs'),
        MicrodataError("microdata /a b/c.parquet: reading failed (OSError); check that the file is whole"),
        TaskFailed("a worker runs another build of prdp"),
    ],
)
def test_our_own_errors_arrive_as_they_were(error: Exception) -> None:
    with pytest.raises(WorkerFailure) as raised:
        list(Failing(error)([]))
    found = job_error(f"[PYTHON_EXCEPTION] {raised.value}\n SQLSTATE: 38000\n at x.y {{}}")
    assert (type(found), found.args) == (type(error), error.args)
    assert "\n" not in Failure.of(error).line()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12", "another Python than the driver"),
        ("ModuleNotFoundError: No module named 'pipeline'", "cannot import prdp"),
        ("ModuleNotFoundError: No module named 'cryptography'", "or a library of it"),
        ("AttributeError: Can't get attribute 'X' on <module 'pipeline.engines.spark_tasks'", "cannot import prdp"),
        ("ImportError: x.so: failed to map segment from shared object", "too little memory"),
        ("java.lang.OutOfMemoryError: Java heap space", "too little memory"),
        ('prdp-failure {"kind": "_ArrayMemoryError", "fields": []}', "too little memory"),
        ('java.io.IOException: Cannot run program "python3"', "cannot start Python"),
        ("Python worker exited unexpectedly (crashed): java.io.EOFException", "died again and again"),
        ("Py4JError An error occurred while calling o70.collectToPython", "driver ended in the middle"),
        ("ExecutorLostFailure (executor 3 exited caused by one of the running tasks)", "lost its executors"),
        ("Master removed our application: FAILED", "lost its executors"),
        (f"java.lang.ArithmeticException: {CANARY}", "^Spark gave up; see its own logs, which are confidential$"),
    ],
)
def test_what_spark_says_is_put_in_plain_words(text: str, words: str) -> None:
    assert re.search(words, str(job_error(text)))
    assert isinstance(job_error(text), TaskFailed)


def test_the_pack_holds_the_same_code(tmp_path: Path) -> None:
    packed = tmp_path / "prdp.zip"
    for path in (packed, tmp_path / "again.zip"):
        subprocess.run([sys.executable, "-m", "jobs.submit", "pack", path], cwd=ROOT, check=True)
    assert packed.read_bytes() == (tmp_path / "again.zip").read_bytes()
    ask = "import pipeline; from pipeline.base.canonical import code_digest; print(pipeline.__file__, code_digest())"
    found = [
        subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, env={"PYTHONPATH": str(path)}, stdout=-1, check=True)
        for path in (packed, ROOT)
    ]
    (where, from_pack), (_, here) = (done.stdout.decode().split() for done in found)
    assert where.startswith(str(packed))
    assert from_pack == here


def test_pages_of_py4j_are_not_told() -> None:
    """It logs a call that a signal ended with its whole traceback, to whoever hears the root logger."""
    heard, root = BufferingHandler(9), logging.getLogger()
    root.addHandler(heard)
    try:
        spark_session._silence_py4j()
        logging.getLogger("py4j.clientserver").error("page")
        logging.getLogger("of another library").error("kept")
    finally:
        root.removeHandler(heard)
    assert [record.getMessage() for record in heard.buffer] == ["kept"]


class TidiesUp:
    """As PySpark after a job: by one more call to a Java that is gone."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        raise self.error


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), Py4JError("gone")])
def test_what_ended_a_job_is_told_and_not_what_failed_after_it(error: Exception) -> None:
    with pytest.raises(KeyboardInterrupt), in_plain_words(), TidiesUp(error):
        raise KeyboardInterrupt
    ended = "Spark's driver ended in the middle of the run"
    with pytest.raises(TaskFailed, match=ended), in_plain_words(), TidiesUp(error):
        raise Py4JNetworkError("Answer from Java side is empty")
