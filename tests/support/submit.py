"""Releases for tests: the one way in which a known key enters, as an argument, and processes that die on cue."""

import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import PrdpError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.microdata.lakehouse import microdata_at
from pipeline.plan.load import load_plan
from pipeline.release import officers
from pipeline.release.pinned import Table
from pipeline.release.request import Outcome
from pipeline.release.steps import Job, run
from pipeline.storage import staging as together
from pipeline.storage.location import Location
from pipeline.storage.objects import StorePath
from pipeline.storage.paths import locate
from tests.support.logs import log_for
from tests.support.patience import PATIENCE
from udfs.noise.keystream import SecretKey

WORKERS = 2
KEY = bytes(range(32))
TEST_KEY = bytes([36]) * 32  # adds 6 to the records kept, and −3 to those left out
FORK_SERVER = get_context("forkserver")  # children start from a clean process that has imported this module
FORK_SERVER.set_forkserver_preload([__name__, "mpmath", "pandas"])

MOST_EVENTS = 1000
# Kills are tried at one change of a file in so many; the drills try them at each.
EVERY = pytest.mark.parametrize("every", [24, pytest.param(1, marks=pytest.mark.drill)])
LEDGER_STEPS = "reserve test refuse draw destroyed hold approve revoke reject publish settle withdraw purged"
FILE_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod"})


@dataclass(frozen=True)
class Place:
    """Where a test's release lives."""

    plan: Path
    folder: Path
    store: StorePath | None = None  # holds microdata, staging and output
    address: str | None = None  # of the ledger; None: a file in the folder
    staged_at: Path | None = None  # None: in the store, or beside the ledger

    @property
    def out(self) -> Any:
        return (self.store or self.folder) / "out"

    @property
    def microdata(self) -> StorePath | None:
        return self.store and self.store / "microdata"

    @property
    def staging(self) -> Any:
        return locate(self.staged_at) if self.staged_at else self.store and self.store / "staging"

    @property
    def ledger_path(self) -> Path:
        return self.folder / "state" / "ledger.sqlite"

    def ledger(self) -> Ledger:
        return create_ledger(self.address or str(self.ledger_path))

    def state(self, release: str = "small-release") -> ReleaseState:
        """What the ledger knows of a release, which must be there."""
        state = self.ledger().state(release)
        assert state is not None
        return state


def submit(
    place: Place,
    *,
    key: bytes | None = KEY,
    engine: Engine | None = None,
    microdata: Path | Location | Table | None = None,
    csv: bool = False,
    hold: bool = False,
    registered_only: bool = False,
    say: Callable[[str], None] = lambda stage: None,
) -> Outcome:
    """Release under a known key; `key` None: under a fresh one, as in production."""
    plan = load_plan(place.plan)
    chosen = microdata or place.microdata or plan.dataset.path or Table(plan.dataset.table)
    job = Job(
        plan=plan,
        microdata=chosen if isinstance(chosen, Table) else microdata_at(locate(chosen)),
        staging=place.staging,
        out=locate(place.out),
        ledger=place.ledger(),
        engine=engine or DaskEngine(workers=WORKERS),
        formats=("csv",) if csv else (),
        hold=hold,
        registered_only=registered_only,
        new_key=SecretKey.fresh if key is None else lambda: SecretKey(key),
        new_test_key=SecretKey.fresh if key is None else lambda: SecretKey(TEST_KEY),
        log=log_for(say),
    )
    return run(job)


def released(plan: Path, folder: Path, **settings: Any) -> Path:
    """Release a plan under the known key; return the attempt's folder."""
    place = Place(plan, folder)
    outcome = submit(place, **settings)
    return Path(place.out) / outcome.release / outcome.attempt


def officer(place: Place, act: str, *arguments: Any) -> None:
    """Do what an officer does (pipeline.release.officers) with the place's ledger."""
    getattr(officers, act)(place.ledger(), *arguments)


def submit_in_child(place: Place, die_at: int | None, **settings: Any) -> tuple[int | None, str]:
    """Release in a process of its own that kills itself (SIGKILL) before its event number `die_at`.

    Return its exit code and a letter for each event that it met: "s" for a ledger's step, one before and one after,
    "f" for a change of a file below the place's folder.
    """
    return _in_child(place, die_at, partial(submit, place, **settings))


def officer_in_child(place: Place, die_at: int | None, act: str, *arguments: Any) -> tuple[int | None, str]:
    """Do an officer's act in a process that kills itself likewise."""
    return _in_child(place, die_at, partial(officer, place, act, *arguments))


def _in_child(place: Place, die_at: int | None, work: Callable[[], object]) -> tuple[int | None, str]:
    seen = FORK_SERVER.Array("c", MOST_EVENTS)
    state = os.environ.get("XDG_STATE_HOME")  # the server of forks began before a test set it
    child = FORK_SERVER.Process(target=_child, args=(place, die_at, seen, state, work))
    child.start()
    child.join(120)
    return child.exitcode, seen.value.decode()


def submit_at_once(places: Sequence[Place]) -> list[int | None]:
    """Release in a process for each place, all begun at the same moment; return their exit codes."""
    start = FORK_SERVER.Barrier(len(places))
    set_since = {name: value for name, value in os.environ.items() if name.startswith(("XDG_STATE", "AWS_"))}
    racers = [FORK_SERVER.Process(target=_race, args=(place, start, set_since)) for place in places]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    return [racer.exitcode for racer in racers]


def _race(place: Place, start: Any, set_since: dict[str, str]) -> None:
    os.environ.update(set_since)  # the server of forks began before a test set them
    start.wait(PATIENCE)
    try:
        submit(place, key=None, engine=DaskEngine(workers=1))
    except PrdpError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _child(place: Place, die_at: int | None, seen: Any, state: str | None, work: Callable[[], object]) -> None:
    if state is not None:
        os.environ["XDG_STATE_HOME"] = state
    together.AT_ONCE = globals()["WORKERS"] = 1  # in turn, so that every run meets the same events,
    os.sched_setaffinity(0, random.sample(sorted(os.sched_getaffinity(0)), 1))  # and pages by one thread
    event = die_at_event(die_at, seen, place.folder)
    for step in LEDGER_STEPS.split():
        _watch(step, event)
    work()


def die_at_event(die_at: int | None, seen: Any, below: Path) -> Callable[[str], None]:
    """Make this process kill itself before its event number `die_at`; return what tells of further events.

    Each change of a file below a folder is an event; a letter for each is put into `seen`.
    """
    met = itertools.count(1)

    def event(letter: str) -> None:
        number = next(met)
        seen[number - 1] = letter.encode()
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name not in FILE_EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        reads = name == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not reads and os.fspath(arguments[0]).startswith(str(below)):
            event("f")

    sys.addaudithook(audit)
    return event


def _watch(step: str, event: Callable[[str], None]) -> None:
    original = getattr(Ledger, step)

    def watched(*arguments: Any, **named: Any) -> Any:
        event("s")
        result = original(*arguments, **named)
        event("s")
        return result

    setattr(Ledger, step, watched)
