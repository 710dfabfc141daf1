"""Programs that tests need and that pip does not install."""

import os
import shutil

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
