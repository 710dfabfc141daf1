"""A lock on one release that dies with its process, so that a crash leaves nothing to repair by hand."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import StateError
from pipeline.ledger.database import under_way

# Descriptors that keep a lock of this process. A lock belongs to the open file or connection, which fork shares: a
# forked child closes its copies, or it would keep the lock after its parent has died. (exec closes them: they are
# close-on-exec.)
_held: set[int] = set()


def _forget_in_child() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)


def keep(descriptor: int) -> None:
    """Let no process that is forked from now on inherit `descriptor`, which keeps a lock."""
    _held.add(descriptor)


def let_go(descriptor: int) -> bool:
    """Forget `descriptor`; return whether it is this process's own, to be closed, and not one closed by a fork."""
    own = descriptor in _held
    _held.discard(descriptor)
    return own


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
    keep(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise under_way(release) from None
        except OSError as error:
            raise StateError(f"the lock file {path} cannot be locked: {error.strerror}") from None
        yield
    finally:
        if let_go(descriptor):
            os.close(descriptor)
