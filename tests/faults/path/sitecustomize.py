"""On the Python path of every process of a drill: one of them stops at a cue, until the drill has done its fault.

FAULT_CUES names a folder (for clusters a link, which leads to the folder of the row), and the file `wanted` in it the
cue: a stage of a release that begins ("scan"), or a task at work ("sums", "noise"). The first process that gets there
leaves its number in `met`, and waits for the file `go`.
"""

import os
import select
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def stop_at(cue: str) -> None:
    folder = Path(os.environ["FAULT_CUES"]).resolve()
    wanted, mine = folder / "wanted", folder / f"met-{os.getpid()}"
    if not cue or not wanted.exists() or wanted.read_text() != cue or (folder / "met").exists():
        return
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, folder / "met")
    except FileExistsError:
        return  # another process was first
    while folder.exists() and not (folder / "go").exists():
        select.select([], [], [], 0.02)  # not time.sleep, which fails where libfaketime has moved the clock
    if (folder / "hungry").exists():
        b"needs memory" * 2**23


def stopping(function: Callable[..., Any], cue_of: Callable[..., str]) -> Callable[..., Any]:
    def stops(*arguments: Any, **named: Any) -> Any:
        stop_at(cue_of(*arguments))
        return function(*arguments, **named)

    return stops


def in_log(module: Any) -> None:
    def stage(log: Any, level: int, event: str, *_: object) -> str:
        return str(log._facts["stage"]) if event == "begun" else ""

    module.Log._log = stopping(module.Log._log, stage)


def in_tasks(module: Any) -> None:
    module.SumTask.__call__ = stopping(module.SumTask.__call__, lambda *_: "sums")
    module.NoiseTask.__call__ = stopping(module.NoiseTask.__call__, lambda *_: "noise")


def in_spark_tasks(module: Any) -> None:
    module.SumRecords.rows = stopping(module.SumRecords.rows, lambda *_: "sums")


def in_session(module: Any) -> None:
    module.FIRST_SECONDS = 900  # on a busy machine an executor takes minutes to come, which is no fault of a row


HOOKS = {
    "pipeline.base.log": in_log,
    "pipeline.engines.tasks": in_tasks,
    "pipeline.engines.spark_tasks": in_spark_tasks,
    "pipeline.engines.spark_session": in_session,
}


class Hooked(MetaPathFinder):
    """Finds the modules of HOOKS as others do, and changes them once they are loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in HOOKS:
            return None
        sys.meta_path.remove(self)
        try:
            spec: Any = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def load_and_change(module: Any) -> None:
            load(module)
            HOOKS[name](module)

        spec.loader.exec_module = load_and_change
        return spec


if "FAULT_CUES" in os.environ:
    sys.meta_path.insert(0, Hooked())
