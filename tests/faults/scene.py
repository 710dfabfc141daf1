"""One fault's scene: a world with canaries, a ledger, places and an engine, in which the very command is run."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipeline.ledger.store import Ledger, create_ledger
from tests.faults.shared import PATH, Shared, end_others
from tests.support.link import link_to
from tests.support.patience import PATIENCE
from tests.support.postgres import OWNER, PASSWORD, PostgresServer
from tests.support.store import Server, running, upload
from tests.support.submit import Place
from tests.support.world import records, write_world

if TYPE_CHECKING:
    from tests.faults.table import Fault

RELEASE = "small-release"
PAYROLL = 777_123_456_789
CANARIES = ("CANARY-ID", "CANARY-NAME", str(PAYROLL), f"{PAYROLL:,}", PASSWORD, "canary-secret-key")
HOSTS, LOCALHOST = Path("/etc/hosts"), "127.0.0.1 localhost"
LONGEST = PATIENCE  # seconds; a run that takes longer hangs
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code (None: never), and its last line that tells an error."""

    code: int | None
    line: str
    trace: bool = False


@dataclass
class Scene:
    """What a fault is done to. `driver` is the running command, or the last one that ran."""

    fault: "Fault"
    folder: Path
    stack: ExitStack
    shared: Shared
    driver: Any = field(init=False)
    cluster: Any = None
    own: Path | None = None  # where the cluster's files lie
    server: Any = None  # of PostgreSQL
    database: str = ""
    link: Any = None
    standby: Any = None
    weather: Any = None  # of the object store
    store: Any = None
    meanwhile: list[int | None] = field(default_factory=list)
    runs: int = 0

    @property
    def cues(self) -> Path:
        return self.folder / "cues"

    def borrow(self) -> None:
        """Have the engine's cluster, whole."""
        lent = self.shared.cluster(self.fault.engine, self.fault.settings, self.cues)
        self.cluster, self.own = lent.cluster, lent.folder

    def path(self, name: str) -> Path:
        """The scene's own folder: staging, out, state (of the ledger), tmp, world or logs."""
        return self.folder / name

    @cached_property
    def place(self) -> Place:
        plan = write_world(self.path("world"), with_canaries(300), dataset={"duplicates": "reject"})
        if self.store is None:
            return Place(plan, self.folder, staged_at=self.path("staging"))
        bucket = self.store.bucket()
        upload(self.path("world") / "microdata", bucket / "microdata")
        return Place(plan, self.folder, bucket)

    def ledger(self) -> Ledger:
        """The ledger, reached without the link or the name that a fault may cut."""
        if self.server is None:
            return create_ledger(str(self.place.ledger_path))
        return create_ledger(self.server.url(self.database))

    @property
    def address(self) -> str:
        """The ledger as the command reaches it."""
        if self.server is None:
            return str(self.place.ledger_path)
        login = f"postgresql://{OWNER}:{PASSWORD}@"
        if self.standby is not None:
            both = f"host=127.0.0.1,127.0.0.1&port={self.server.port},{self.standby.port}"
            return f"{login}/{self.database}?{both}&target_session_attrs=read-write"
        port = self.link.own_port if self.fault.link == "server" else self.server.port
        return f"{login}localhost:{port}/{self.database}"

    @property
    def words(self) -> list[str]:
        """The command."""
        at = self.store.uri if self.store else lambda bucket, name: str(self.path(name))
        bucket = self.place.store.authority if self.place.store else ""
        data = ["--data", at(bucket, "microdata")] if self.store else []
        engine = {
            "dask": lambda: ["--workers", "2"],
            "dask cluster": lambda: ["--scheduler", self.leader],
            "spark": lambda: ["--engine", "spark", "--master", "local[2]"],
            "spark cluster": lambda: ["--engine", "spark", "--master", self.leader],
        }[self.fault.engine]()
        places = ["--out", at(bucket, "out"), "--staging", at(bucket, "staging")]
        return ["release", str(self.place.plan), "--ledger", self.address, *data, *places, *engine]

    @property
    def leader(self) -> str:
        """The address of the cluster's scheduler or master, as the driver reaches it."""
        scheme = "tcp" if self.fault.engine == "dask cluster" else "spark"
        port = self.link.own_port if self.fault.link == "leader" else self.port_of_leader
        return f"{scheme}://127.0.0.1:{port}"

    @property
    def port_of_leader(self) -> int:
        address: str = self.cluster.address if self.fault.engine == "dask cluster" else self.cluster.url
        return int(address.rpartition(":")[2])

    @property
    def environment(self) -> dict[str, str]:
        own = dict(getattr(self.cluster, "environment", os.environ))
        if self.fault.clock and FAKETIME:
            own |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.folder / "clock")}
            own |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        state = {"XDG_STATE_HOME": str(self.path("state")), "TMPDIR": str(self.path("tmp"))}
        return own | state | {"PYTHONPATH": PATH, "FAULT_CUES": str(self.cues)}

    def start(self, cue: str = "") -> None:
        """Start the command, by Airflow where it is the engine; it stops at a cue, if any is given."""
        (self.cues / "wanted").write_text(cue)
        self.driver = ByAirflow(self.cluster) if self.fault.engine == "airflow" else self.command(*self.words)

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a prdp command, whose output becomes logs of the scene."""
        self.runs += 1
        logs = [(self.path("logs") / f"{self.runs}.{name}").open("wb") for name in ("out", "err")]
        command = [sys.executable, "-m", "jobs.cli", *words]
        process = subprocess.Popen(
            command, cwd=self.path("world"), env=self.environment, stdout=logs[0], stderr=logs[1], stdin=-3
        )
        for log in logs:
            log.close()
        return process

    def ended(self, number: int = 0) -> Ended:
        """Wait for the command; `number`: of its logs, by default the last ones."""
        try:
            code = self.driver.wait(LONGEST)
        except subprocess.TimeoutExpired:
            code = None
            self.driver.kill()
            self.driver.wait()
        log = self.path("logs") / f"{number or self.runs}.err"
        told = log.read_text(errors="replace") if log.exists() else ""  # what Airflow runs has its logs
        errors = [line for line in told.splitlines() if line.startswith("error: ")]
        return Ended(code, errors[-1] if errors else "", "Traceback (most recent" in told)

    def met(self) -> bool:
        """Whether a process stopped at the cue; False where the command ended before any did."""
        deadline = time.monotonic() + LONGEST
        while not (self.cues / "met").exists():
            if self.driver.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def at_work(self) -> int:
        """The process that stopped at the cue."""
        return int((self.cues / "met").read_text())

    def go(self) -> None:
        (self.cues / "go").touch()

    def another_run(self) -> None:
        """Run the same command meanwhile, to its end, past all cues."""
        (self.cues / "wanted").write_text("")
        self.meanwhile.append(self.command(*self.words).wait(LONGEST))


def with_canaries(count: int) -> pa.Table:
    """Records of which each id, each name and one payroll must never be told."""
    table = records(count)
    ids, payroll = [f"CANARY-ID-{i}" for i in range(count)], table.column("payroll").to_pylist()
    payroll[7] = PAYROLL
    table = table.set_column(0, "establishment_id", pa.array(ids)).set_column(4, "payroll", pa.array(payroll))
    return table.append_column("name", pa.array([f"CANARY-NAME-{i}" for i in range(count)]))


@contextmanager
def opened(fault: "Fault", folder: Path, shared: Shared) -> Iterator[Scene]:
    """Yield a scene, with all that the fault needs started; all of it but what is shared is ended afterwards."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("cues", "logs", "tmp", "out", "staging", "state"):
            (folder / name).mkdir(mode=0o700)
        for name, options in fault.small.items():
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "drill", folder / name], check=True)
            stack.callback(subprocess.run, ["umount", "-l", folder / name], check=True)
        (folder / "clock").write_text("+0")
        (folder / "cues" / "wanted").write_text("")
        scene = Scene(fault, folder, stack, shared)
        stack.callback(end_others, scene.cues)
        if fault.names:
            stack.callback(HOSTS.write_text, HOSTS.read_text())
        for name, value in fault.settings.items():
            patch.setenv(name, value)
        if fault.store:
            scene.weather = Weather()
            scene.store = stack.enter_context(running(scene.weather))
            if fault.store != "127.0.0.1":
                scene.store = replace(scene.store, address=scene.store.address.replace("127.0.0.1", fault.store))
        if fault.ledger != "file":
            scene.server = (
                shared.server() if fault.ledger == "server" else stack.enter_context(_stopped(PostgresServer()))
            )
            scene.database = scene.server.database()
        if fault.ledger == "standby":
            scene.standby = stack.enter_context(_stopped(scene.server.standby()))
            synchronous = "ALTER SYSTEM SET synchronous_standby_names = '*'"
            scene.server.execute("postgres", synchronous, "SELECT pg_reload_conf()")
        if fault.engine.endswith("cluster"):
            scene.borrow()
        if fault.link:
            port = scene.server.port if fault.link == "server" else scene.port_of_leader
            scene.link = stack.enter_context(link_to(port))
        scene.ledger()
        if fault.engine == "airflow":
            scene.cluster = start_airflow(scene)
        yield scene
        if scene.driver.poll() is None:
            scene.driver.kill()


class ByAirflow:
    """A run of our DAG, as a process is asked for its end."""

    def __init__(self, airflow: Any) -> None:
        self.run = airflow.trigger("prdp_release_dask", plan="plan.yaml")

    def poll(self) -> int | None:
        state = self.run.airflow.call(self.run.at)["state"]
        return {"success": 0, "failed": 1}.get(state)

    def wait(self, seconds: float | None = None) -> int | None:
        if seconds is None:  # after kill()
            return self.poll()
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("Airflow", seconds)
            time.sleep(1)
        return code

    def kill(self) -> None:
        """Leave it to the end of Airflow itself."""


class Weather(Server):
    """An object store that answers 503, or late."""

    def __init__(self) -> None:
        super().__init__()
        self.failing, self.delay = False, 0.0

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        time.sleep(self.delay)
        if self.failing:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"]
        return super().__call__(environ, start)


@contextmanager
def _stopped(server: PostgresServer) -> Iterator[PostgresServer]:
    try:
        yield server
    finally:
        server.stop()


def start_airflow(scene: Scene) -> Any:
    """Start an Airflow of the scene's own."""
    from tests.support.airflow import standalone

    places = {name: str(scene.path(name)) for name in ("out", "staging")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULT_CUES", str(scene.cues))
        started = standalone(scene.folder, home=PATH, plans=str(scene.path("world")), **places)
        return scene.stack.enter_context(started)
