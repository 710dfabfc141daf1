"""What a stream can show, colour and rewritten lines on a terminal alone; and commands that can be pasted into one.

Colour repeats what words say, and NO_COLOR or TERM=dumb takes it away.
"""

import os
import re
import shlex
from typing import IO

RED, GREEN, YELLOW = 31, 32, 33
# A command that opens a ledger, but for the two that make one, without the option that names it.
_ACTS = r"staging purge|(?!create\b|import\b|staging\b)[a-z]+"
_OF_LEDGER = re.compile(rf"\bprdp (?:ledger (?:{_ACTS})|release|check|diagnose)\b(?!\.| --ledger)")
_PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")
ERASED = "\r\x1b[K"  # to the line's begin, and nothing in it


def rewrites(stream: IO[str]) -> bool:
    """Whether lines of the stream can be rewritten: it is a terminal, and not a dumb one."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def painted(text: str, colour: int, stream: IO[str]) -> str:
    """Return the text in a colour, or as it is where the stream shows none or its user wants none."""
    return f"\x1b[{colour}m{text}\x1b[0m" if rewrites(stream) and not os.environ.get("NO_COLOR") else text


def columns(stream: IO[str]) -> int:
    """Return the width of a terminal; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def with_ledger(text: str, ledger: str | None) -> str:
    """Return the text with every command of prdp that opens a ledger naming this one, quoted for a shell.

    Without it a command that is pasted would act on the user's own ledger. A password is left out. None: as it is.
    """
    if ledger is None:
        return text
    address = shlex.quote(_PASSWORD.sub(r"\1@", ledger))
    return _OF_LEDGER.sub(lambda command: f"{command[0]} --ledger {address}", text)
