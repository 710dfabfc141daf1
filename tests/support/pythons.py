"""Pythons that a worker of a cluster may have: without prdp, of another version, or dying on cue."""

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, which

from tests.support.spark import ROOT

DIES_AT = "udfs.records.sums"  # only tasks import it on a worker
SUICIDE = f"""import os, sys
from pathlib import Path
def parent(pid):
    return int(Path(f"/proc/{{pid}}/stat").read_text().rsplit(")", 1)[1].split()[1])
def die(event, arguments):
    if event == "import" and arguments[0] == "{DIES_AT}":
        os.kill(VICTIM, 9)
sys.addaudithook(die)
"""
OWN, EXECUTOR = "os.getpid()", "parent(os.getppid())"  # whom it kills; between the two stands PySpark's daemon


def without_prdp(folder: Path) -> Path:
    """Return a Python that has all libraries of this one, and not prdp."""
    venv.create(folder, symlinks=True)
    (own,) = folder.glob("lib/python*/site-packages")
    # A path of a .pth file is searched, but its own .pth files, such as that of an editable prdp, are not read.
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    ask = [python, "-I", "-c", "import pandas, pipeline"]
    assert "No module named 'pipeline'" in subprocess.run(ask, capture_output=True, text=True, check=False).stderr
    return python


def another_version() -> Path | None:
    """Return a Python of another minor version, from the path or from beside this one; None where there is none."""
    return next((python for python in _candidates() if _other(python)), None)


def another_build(folder: Path) -> Path:
    """Return a folder with prdp's packages, of which one has one more module."""
    for package in ("udfs", "pipeline", "jobs"):
        copytree(ROOT / package, folder / package)
    (folder / "udfs" / "more.py").write_text("MORE = True\n")
    return folder


def killing_path(folder: Path, victim: str) -> str:
    """Return a Python path whose processes kill the victim, OWN or EXECUTOR, as soon as they begin a task."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SUICIDE.replace("VICTIM", victim))
    return f"{folder}:{ROOT}"


def _candidates() -> Iterator[Path]:
    for minor in range(19, 10, -1):
        found = which(f"python3.{minor}")
        if found:
            yield Path(found)
    for above in Path(sys.base_prefix).parents[:2]:
        yield from sorted(above.glob("*/bin/python3"), reverse=True)
        yield from sorted(above.glob("*/*/bin/python3"), reverse=True)


def _other(python: Path) -> bool:
    ask = [python, "-I", "-c", "import sys; print(*sys.version_info[:2])"]
    told = subprocess.run(ask, capture_output=True, text=True, check=False)
    version = tuple(int(part) for part in told.stdout.split()) if told.returncode == 0 else ()
    return version > (3, 10) and version != sys.version_info[:2]
