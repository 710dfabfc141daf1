"""Text and names of files in UTF-8, whatever the locale."""

import io
import os
import sys
from collections.abc import Sequence

from pipeline.base.errors import PlanError, in_a_line


def run_in_utf8() -> None:
    """Begin this process anew in UTF-8 where its locale has another encoding of names, as LC_ALL=C or Latin-1 have.

    Python settles on one before any of our code runs. Java, and workers on this machine, follow the locale too.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        environment = os.environ | {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def escape_what_cannot_be_printed() -> None:
    """Have standard output escape what its encoding lacks, which PYTHONIOENCODING may set; a strict one would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def require_utf8(words: Sequence[str]) -> None:
    """Raise PlanError on a word that is no UTF-8, such as a file's name in Latin-1."""
    for word in words:
        if any("\udc80" <= sign <= "\udcff" for sign in word):
            raise PlanError(f"{in_a_line(word)}: it is not in UTF-8: rename the file, or set the terminal to UTF-8")
