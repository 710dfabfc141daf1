"""Child process: fork several that publish a release each at the same moment, under a budget that fits some.

Prints how each ended: 0 published, 3 refused. With `unguarded` the ledger's transactions are alone no more: a broken
twin, whose racers overspend.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from pipeline.errors import PrdpError
from pipeline.ledger import budget
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, open_ledger
from tests.support.ledgers import reservation

ALL_CHECKED = 3.0  # seconds after which the twin's racers have read and checked, and append one after the other
BETWEEN = 0.1


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


def slowed(check: Any, until: float) -> Any:
    def slow(*arguments: Any) -> None:
        check(*arguments)
        time.sleep(max(0, until - time.monotonic()))

    return slow


def reserve_unguarded(ledger: Ledger, wanted: Reservation, until: float) -> None:
    database, check = type(ledger._database), budget.check
    writing = database.writing
    database.writing, budget.check = statement_by_statement, slowed(check, until)
    ledger.reserve(wanted)
    database.writing, budget.check = writing, check


def race(address: str, release: str, fits: int, start: int, until: float | None) -> None:
    """Publish `release` once the pipe `start` is closed, and exit; reserve unguarded at `until` where it is given."""
    code = 1
    try:
        os.read(start, 1)
        ledger = open_ledger(address)
        with ledger.lock(release):
            wanted = reservation(release, draws=fits)
            if until is None:
                ledger.reserve(wanted)
            else:
                reserve_unguarded(ledger, wanted, until)
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
    racers, began = [], time.monotonic()
    for i in range(number):
        racer = os.fork()
        if racer == 0:
            os.close(gate)
            race(address, f"r{i}", fits, start, None if guarded else began + ALL_CHECKED + BETWEEN * i)
        racers.append(racer)
    os.close(gate)  # they all read the end of the pipe now
    print(*sorted(os.waitstatus_to_exitcode(os.waitpid(racer, 0)[1]) for racer in racers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), guarded=sys.argv[4:] != ["unguarded"])
