"""Child process: draw for a release while no file may grow; exit 5 with the message where that is refused."""

import resource
import sys

from pipeline.base.errors import StateError
from pipeline.ledger.store import create_ledger

path, release = sys.argv[1:]
ledger = create_ledger(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
try:
    ledger.draw(release, "sha256:pin")
except StateError as error:
    print(error)
    sys.exit(error.exit_code)
