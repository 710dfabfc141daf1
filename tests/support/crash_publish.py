"""Child process: die by SIGKILL before the i-th touch of files, for i = 0, n, 2n, … until a run gets through.

After each death the same steps run again, undisturbed. One JSON line tells each i: whether it died, what stood in the
ledger and the output place after the death, and what stands after the second run. Manifests are signed.
"""

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.base.errors import PrdpError
from pipeline.ledger.store import create_ledger
from pipeline.publication.manifest import verify_release
from pipeline.publication.signing import SigningKey
from pipeline.release.publish import build_manifest, copy_to_output, require_publishable
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.ledgers import reservation, stage

# The calls into C that change files or the ledger. A file's written bytes may still be in memory at the next one.
KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))
TOUCHES = {
    *("write", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "chmod", "flock"),
    *("execute", "commit", "rollback"),
}


def run(folder: Path) -> None:
    """One run of the steps around a draw, as `prdp release` does them, forward from whatever is there."""
    ledger, out = create_ledger(str(folder / "state" / "ledger.sqlite")), folder / "out"
    with ledger.lock("r"):
        state = ledger.state("r")
        published = state.attempt if state is not None and state.status in ("published", "settled") else None
        require_publishable(locate(out), "r", locate(ledger.staging_root), published)
        state = ledger.reserve(reservation("r", out=str(out)))
        facts = None
        if state.status == "drawn" and state.attempt is not None:
            staging = Staging(locate(ledger.staging_root), "r", state.attempt)
            facts = staging.read_complete()
            if facts is None:
                exposed = staging.exposed()
                staging.destroy()
                state = ledger.destroyed("r", state.attempt, "incomplete", exposed)
        if state.status == "reserved" or (state.status == "drawn" and facts is None):
            attempt = ledger.draw("r", "sha256:pin")
            facts = stage(ledger, "r", attempt, parts=1)
            state = ledger.state("r")
        staging = Staging(locate(ledger.staging_root), "r", state.attempt)
        if state.status == "drawn":
            state = ledger.publish("r", state.attempt, facts.digest)
        if state.status == "published":
            facts = facts or staging.read_complete()
            copy_to_output(staging, facts, locate(out), build_manifest(state, facts), KEY)
            ledger.settle("r", state.attempt)
        staging.destroy()


def forked(work: Callable[[], None]) -> int:
    """Do `work` in a forked process; return its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def dying(folder: Path, touch: int) -> None:
    """One run that dies before its touch number `touch`."""
    left = [touch]

    def watch(frame: object, event: str, call: Any) -> None:
        if event == "c_call" and call.__name__ in TOUCHES:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    threading.setprofile(watch)
    sys.setprofile(watch)
    run(folder)


def seen(folder: Path) -> dict[str, Any]:
    """What stands in the ledger and in the output place."""
    ledger, place = create_ledger(str(folder / "state" / "ledger.sqlite")), folder / "out" / "r"
    state = ledger.state("r")
    ledger.verify()
    found: dict[str, Any] = {
        "status": state and state.status,
        "draws": state.draws if state else 0,
        "attempts": sorted(path.name for path in place.glob("*") if path.is_dir()),
        "manifest": (place / "release.json").exists(),
        "others": sorted(path.name for path in place.glob("*") if not path.is_dir()),
        "staged": sorted(path.name for path in ledger.staging_root.glob("*/*")),
    }
    if found["manifest"]:
        try:
            found["verified"] = verify_release(locate(place), KEY.public).attempt == state.attempt
        except PrdpError as error:
            found["verified"] = str(error)
    return found


def main(home: Path, every: int) -> None:
    died, touch = True, 0
    while died:
        folder = home / f"crash-{touch}"
        create_ledger(str(folder / "state" / "ledger.sqlite"))  # made whole before: this is not about its making
        status = forked(partial(dying, folder, touch))
        died = os.WIFSIGNALED(status)
        after = seen(folder)
        again = forked(partial(run, folder))
        told = {"touch": touch, "died": died, "status": status, "after": after, "again": again, "end": seen(folder)}
        print(json.dumps(told), flush=True)
        shutil.rmtree(folder)
        touch += every


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
