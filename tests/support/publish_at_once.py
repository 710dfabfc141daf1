"""Child process: fork several that publish a release each at the same moment, under a budget that fits some.

Prints how each ended: 0 published, 3 refused. With `unguarded` the ledger's transactions are alone no more: a broken
twin, whose racers overspend.
"""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Lock
from typing import Any

from sqlalchemy import Connection

from pipeline.base.errors import PrdpError
from pipeline.ledger import admission
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import reservation
from tests.support.patience import PATIENCE


@dataclass(frozen=True)
class Together:
    """How the twin's racers wait until all have checked, append one after the other, and go on when all have."""

    all_here: Barrier
    turn: Lock


@contextmanager
def statement_by_statement(database: Any) -> Iterator[Connection]:
    """What `writing` would be without a lock: each statement is a transaction of its own."""
    if database.path is None:
        with database._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            yield connection
        return
    with database.reading() as connection:
        connection.exec_driver_sql("COMMIT")
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


def main(address: str, number: int, fits: int, guarded: bool) -> None:
    start, gate = os.pipe()
    racers, fork = [], multiprocessing.get_context("fork")
    together = None if guarded else Together(fork.Barrier(number), fork.Lock())
    for i in range(number):
        racer = os.fork()
        if racer == 0:
            os.close(gate)
            race(address, f"r{i}", fits, start, together)
        racers.append(racer)
    os.close(gate)  # they all read the end of the pipe now
    print(*sorted(os.waitstatus_to_exitcode(os.waitpid(racer, 0)[1]) for racer in racers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), guarded=sys.argv[4:] != ["unguarded"])
