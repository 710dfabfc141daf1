"""Child process: a release in a store under the known key, which kills itself (SIGKILL) at a step.

Arguments: plan, folder of the ledger, URI of the store, and the step: "manifest", before the manifest is put; "staged",
before the staged attempt is complete; "never".
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pipeline.storage.objects import StorePath
from pipeline.storage.paths import locate
from pipeline.storage.staging import MANIFEST, Staging
from tests.support.submit import Place, submit


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    plan, folder, uri, step = sys.argv[1:]
    create = StorePath.create
    if step == "manifest":
        StorePath.create = lambda at, *given, **named: kill() if at.name == MANIFEST else create(at, *given, **named)
    if step == "staged":
        Staging.complete = kill
    store = locate(uri)
    assert isinstance(store, StorePath)
    submit(Place(Path(plan), Path(folder), store))
