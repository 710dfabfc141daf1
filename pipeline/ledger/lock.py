"""A lock on one release that dies with its process, so that a crash leaves nothing to repair by hand."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StateError

# Descriptors that this process holds. A flock belongs to the open file, which fork shares: a forked child closes
# its copies, or it would keep the lock after its parent has died. (exec closes them: they are close-on-exec.)
_held: set[int] = set()


def _forget_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def release_lock(folder: Path, release: str) -> Iterator[None]:
    """Hold the lock on `release` in `folder` for the length of the block, alone among processes and threads.

    It never waits: raises StateError at once where another process or thread holds it. The lock file stays.
    """
    path = folder / f"{hashlib.sha256(release.encode()).hexdigest()}.lock"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StateError(f"the lock file {path} cannot be opened: {error.strerror}") from None
    _held.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"another attempt at release {release} is under way: wait until it ends") from None
        except OSError as error:
            raise StateError(f"the lock file {path} cannot be locked: {error.strerror}") from None
        yield
    finally:
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)
