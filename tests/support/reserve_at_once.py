"""Child process: wait for the file `go`, then reserve `release` where the budget fits three; exit 0 or 3."""

import sys
import time
from pathlib import Path

from support.ledgers import reservation

from pipeline.errors import BudgetRefused
from pipeline.ledger.store import open_ledger

path, release, go = sys.argv[1:]
print("ready", flush=True)
while not Path(go).exists():
    time.sleep(0.001)
try:
    open_ledger(path).reserve(reservation(release, draws=3))
except BudgetRefused:
    sys.exit(3)
