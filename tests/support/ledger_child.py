"""Child processes that do one thing to a ledger: `python -m tests.support.ledger_child ACT ARGUMENTS…`."""

import multiprocessing
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Lock
from typing import Any

from pipeline.base.errors import PrdpError, StateError
from pipeline.ledger import admission
from pipeline.ledger.database import Connection, postgres
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import reservation
from tests.support.patience import PATIENCE


def full_disk(path: str, release: str) -> None:
    """Draw while no file may grow; a refusal is printed, and ends with its exit code."""
    ledger = create_ledger(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    _drawn(ledger, release)


def read_only(path: str, release: str, user: str) -> None:
    """Draw as a user to whom the ledger is read-only."""
    if os.geteuid() == 0:
        os.setgid(int(user))
        os.setuid(int(user))
    ledger = create_ledger(path)
    ledger.state(release)
    _drawn(ledger, release)


def _drawn(ledger: Ledger, release: str) -> None:
    try:
        ledger.draw(release, "sha256:pin")
    except StateError as error:
        print(error)
        sys.exit(error.exit_code)


def hold_lock(address: str, release: str, leaving: str) -> None:
    """Hold the lock on a release, say so, and sleep; `exec` or `fork` first leaves a child behind."""
    with create_ledger(address).lock(release):
        left = 0
        if leaving == "exec":
            # close_fds=False: only close-on-exec keeps the lock from the child.
            left = subprocess.Popen(["sleep", str(PATIENCE)], close_fds=False, stdout=subprocess.DEVNULL).pid
        elif leaving == "fork":
            left = os.fork()
            if left == 0:
                os.close(1)
                time.sleep(PATIENCE)
                os._exit(0)
        print(left, flush=True)
        time.sleep(PATIENCE)


def publish_on_cue(address: str, release: str, *broken: str) -> None:
    """Take the lock, reserve and draw, say the attempt, and publish once a line comes in.

    Prints "published", or the refusal. `without-lock-check`: a broken twin, which does not see that its lock is gone.
    """
    if broken:
        postgres._is_held = lambda connection, held: True
    ledger = create_ledger(address)
    with ledger.lock(release):
        ledger.reserve(reservation(release))
        attempt = ledger.draw(release, "sha256:pin")
        print(attempt, flush=True)
        sys.stdin.readline()
        try:
            ledger.publish(release, attempt, "sha256:contents")
            print("published", flush=True)
        except StateError as error:
            print(error, flush=True)


@dataclass(frozen=True)
class Together:
    """How the twin's racers wait until all have checked, append one after the other, and go on when all have."""

    all_here: Barrier
    turn: Lock


@contextmanager
def statement_by_statement(database: Any) -> Iterator[Connection]:
    """What `writing` would be without a lock: each statement is a transaction of its own."""
    if database.path is None:
        with closing(database._connect(autocommit=True)) as driver:
            yield Connection(driver, "postgresql")
        return
    with database.reading() as connection:
        connection.execute("COMMIT")
        yield connection


def slowed(check: Any, together: Together) -> Any:
    def slow(*arguments: Any) -> None:
        check(*arguments)
        together.all_here.wait(PATIENCE)
        together.turn.acquire(timeout=PATIENCE)

    return slow


def reserve_unguarded(ledger: Ledger, wanted: Reservation, together: Together) -> None:
    database, check = type(ledger._database), admission.check
    writing = database.writing
    database.writing, admission.check = statement_by_statement, slowed(check, together)
    vars(ledger)["_computed"] = lambda *_: None  # summaries are computed in the transaction: it alone checks
    ledger.reserve(wanted)
    together.turn.release()
    database.writing, admission.check = writing, check
    together.all_here.wait(PATIENCE)


def race(address: str, release: str, fits: int, start: int, together: Together | None) -> None:
    """Publish `release` once the pipe `start` is closed, and exit; with `together`, reserve unguarded."""
    code = 1
    try:
        os.read(start, 1)
        ledger = create_ledger(address)
        with ledger.lock(release):
            wanted = reservation(release, draws=fits)
            if together is None:
                ledger.reserve(wanted)
            else:
                reserve_unguarded(ledger, wanted, together)
            attempt = ledger.draw(release, "sha256:pin")
            ledger.publish(release, attempt, "sha256:contents")
            ledger.settle(release, attempt)
        code = 0
    except PrdpError as error:
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def publish_at_once(address: str, number: str, fits: str, *twin: str) -> None:
    """Fork several that publish a release each at the same moment, under a budget that fits some.

    Prints how each ended: 0 published, 3 refused. With `unguarded` the ledger's transactions are alone no more: a
    broken twin, whose racers overspend.
    """
    start, gate = os.pipe()
    racers, fork = [], multiprocessing.get_context("fork")
    together = Together(fork.Barrier(int(number)), fork.Lock()) if twin else None
    for i in range(int(number)):
        racer = os.fork()
        if racer == 0:
            os.close(gate)
            race(address, f"r{i}", int(fits), start, together)
        racers.append(racer)
    os.close(gate)  # they all read the end of the pipe now
    print(*sorted(os.waitstatus_to_exitcode(os.waitpid(racer, 0)[1]) for racer in racers))


ACTS = (full_disk, read_only, hold_lock, publish_on_cue, publish_at_once)

if __name__ == "__main__":
    next(act for act in ACTS if act.__name__ == sys.argv[1])(*sys.argv[2:])
