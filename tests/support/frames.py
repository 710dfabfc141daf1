"""Releases of DataFrames for tests: under a known key, and by a process that dies between sealing and drawing."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import prdp
from pipeline.ledger.store import Ledger
from pipeline.release import request
from pipeline.release import steps as module
from tests.support.ledgers import ledger_file
from udfs.noise.keystream import SecretKey

KEY = bytes(range(32))


def know_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every release of this process drawn under KEY: the key enters as an argument of the job alone."""
    real = module.run
    monkeypatch.setattr(module, "run", lambda job: real(replace(job, new_key=lambda: SecretKey(KEY))))


def tables(release: prdp.Release) -> dict[str, bytes]:
    """Return the bytes of every file of a release's tables, by its path."""
    folder = Path(release.path) / release.attempt / "tables"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def release_and_die(folder: str) -> None:
    """Release the Parquet file `folder`/frame.parquet as an Arrow table, and be killed once its records are sealed."""

    def die(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    request.reserve = die if (Path(folder) / "before").exists() else request.reserve
    Ledger.draw = die
    frame = pq.read_table(Path(folder) / "frame.parquet")
    prdp.load_plan(Path(folder) / "plan.yaml").release(
        frame, ledger=ledger_file(Path(folder) / "state" / "ledger"), workers=1
    )


if __name__ == "__main__":
    release_and_die(sys.argv[1])
