"""Child process: a release in a store under the known key, which kills itself (SIGKILL) at a step.

Arguments: plan, folder of the ledger, URI of the store, and the step: "manifest", before the manifest is put; "staged",
before the staged attempt is complete; "never".
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pipeline.storage import conditional
from pipeline.storage.location import Stored, place
from pipeline.storage.staging import MANIFEST, StoreStaging
from tests.support.submit import Place, submit


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    plan, folder, uri, step = sys.argv[1:]
    create = conditional.create
    if step == "manifest":
        conditional.create = lambda at, data: kill() if at.name == MANIFEST else create(at, data)
    if step == "staged":
        StoreStaging.complete = kill
    store = place(uri)
    assert isinstance(store, Stored)
    submit(Place(Path(plan), Path(folder), store))
