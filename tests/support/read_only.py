"""Child process: draw for a release as a user to whom the ledger is read-only; exit 5 with the message."""

import os
import sys

path, release, user = sys.argv[1:]
from pipeline.base.errors import StateError  # noqa: E402
from pipeline.ledger.store import create_ledger  # noqa: E402

if os.geteuid() == 0:
    os.setgid(int(user))
    os.setuid(int(user))
try:
    ledger = create_ledger(path)
    ledger.state(release)
    ledger.draw(release, "sha256:pin")
except StateError as error:
    print(error)
    sys.exit(error.exit_code)
