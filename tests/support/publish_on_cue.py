"""Child process: take the lock, reserve and draw, say the attempt, and publish once a line comes in.

Prints "published", or the refusal. `without-lock-check`: a broken twin, which does not see that its lock is gone.
"""

import sys

from pipeline.base.errors import StateError
from pipeline.ledger import postgres
from pipeline.ledger.store import create_ledger
from tests.support.ledgers import reservation

address, release, *broken = sys.argv[1:]
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
