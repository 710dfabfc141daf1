"""Child process: hold the lock on a release, say so, and sleep; `exec` or `fork` first leaves a child behind."""

import os
import subprocess
import sys
import time

from pipeline.ledger.store import create_ledger
from tests.support.patience import PATIENCE

address, release, leaving = sys.argv[1:]
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
