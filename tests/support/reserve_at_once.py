"""Child process: fork several that reserve a release each at the same moment, under a budget that fits three.

Prints how each ended: 0 reserved, 3 refused.
"""

import os
import sys
import traceback

from pipeline.errors import BudgetRefused
from pipeline.ledger.store import open_ledger
from tests.support.ledgers import reservation


def race(path: str, release: str, start: int) -> None:
    """Reserve `release` once the pipe `start` is closed, and exit."""
    code = 1
    try:
        os.read(start, 1)
        open_ledger(path).reserve(reservation(release, draws=3))
        code = 0
    except BudgetRefused as error:
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(path: str, number: int) -> None:
    start, gate = os.pipe()
    racers = []
    for i in range(number):
        racer = os.fork()
        if racer == 0:
            os.close(gate)
            race(path, f"r{i}", start)
        racers.append(racer)
    os.close(gate)  # they all read the end of the pipe now
    print(*sorted(os.waitstatus_to_exitcode(os.waitpid(racer, 0)[1]) for racer in racers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
