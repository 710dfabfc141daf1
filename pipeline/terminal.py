"""What a stream can show: colour and lines that are rewritten, on a terminal alone.

Colour repeats what words say, and NO_COLOR or TERM=dumb takes it away.
"""

import os
from typing import IO

RED, GREEN, YELLOW = 31, 32, 33
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
