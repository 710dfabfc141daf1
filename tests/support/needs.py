"""Programs that tests need and that pip does not install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def program(*names: str) -> str:
    """Return the first of these programs that is installed; without any the test is skipped, and fails in CI.

    `.ci/run` installs them, so that nothing stays untested there unnoticed.
    """
    path = next(filter(None, map(shutil.which, names)), None)
    if path is not None:
        return path
    lacking = f"{names[0]} is not installed"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{lacking}: in CI nothing is skipped for want of it", pytrace=False)
    pytest.skip(lacking)


def python_of(version: str) -> str:
    """Return the interpreter of a version such as 3.12, from the path or pyenv; skip where none runs here."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (shutil.which(f"python{version}"), *sorted(homes.glob(f"{version}.*/bin/python"))):
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return str(path)
    pytest.skip(f"Python {version} is not installed")
