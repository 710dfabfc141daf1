"""Files of text that people name: plans, lists of codes and cells, studies, files of limits, keys.

Only regular files of a bounded size are read, so that no name that a plan holds can block a run or fill its memory. A
file that is none is an OSError with a plain `strerror`, as one that is absent.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

LARGEST_TEXT: Final = 1_000_000  # bytes of a file in YAML, and of a key
LARGEST_LIST: Final = 1_000_000_000  # bytes of a CSV file, such as a list of cells
LONGEST_LINE: Final = 1_000_000  # characters


class TooLarge(OSError):
    """The file is regular, but larger than its kind may be."""

    def __init__(self, most: int) -> None:
        super().__init__(errno.EFBIG, f"larger than {most / 1_000_000:g} MB")


def open_input(path: Path, most: int) -> BinaryIO:
    """Return the regular file at `path`, open for reading; it has at most `most` bytes now.

    Opening waits for nothing, and what was opened is what is looked at: no other file can take its place in between.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if facts.st_size > most:
            raise TooLarge(most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most: int) -> bytes:
    """Return the bytes of the regular file at `path`, of which there are at most `most`, even while it grows."""
    with open_input(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(most)
    return data


@contextmanager
def input_lines(path: Path, most: int = LARGEST_LIST, longest: int = LONGEST_LINE) -> Iterator[Iterator[str]]:
    """Yield the lines of the UTF-8 file at `path`, with their ends, for a block; each has at most `longest` characters.

    Reading them raises UnicodeDecodeError where one is not UTF-8, and OSError where one is longer or the file grows
    beyond `most` bytes.
    """
    with io.TextIOWrapper(open_input(path, most), encoding="utf-8-sig", newline="") as file:
        yield _lines(file, most, longest)


def _lines(file: io.TextIOWrapper, most: int, longest: int) -> Iterator[str]:
    read = 0
    while line := file.readline(longest + 1):
        read += len(line)
        if len(line) > longest:
            raise OSError(errno.EINVAL, f"a line has more than {longest:,} characters")
        if read > most:
            raise TooLarge(most)
        yield line
