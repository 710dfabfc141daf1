"""Private staging of attempts: what is drawn lies here, unseen, until the ledger chooses it or it is destroyed.

In a folder of this machine, modes, owner and durability are made and checked. In an object store that is left to the
bucket: a put is durable and complete, and who may read, also older versions of what was removed, is for its operator.
"""

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.base.canonical import canonical_json, digest
from pipeline.base.errors import PlanError, StateError, arg, file_errors
from pipeline.storage.location import FileDigest, Location

AT_ONCE = 8  # files: a disk syncs many in little more time than one, and cores share their digests
Item = TypeVar("Item")
Result = TypeVar("Result")


def together(work: Callable[[Item], Result], items: Iterable[Item], *places: Location) -> Iterator[Result]:
    """Yield the result of `work` for each item, in the items' order; raises the first failure in that order.

    One after the other where one of `places` is a store, whose objects are read whole. After a failure no other item is
    begun, and nothing goes on once it is raised.
    """
    with ThreadPoolExecutor(1 if any(location.remote for location in places) else AT_ONCE) as threads:
        yield from threads.map(work, items)


MANIFEST = "release.json"
SIGNED = ".sig"  # after the name of a manifest: of its signature
SIGNATURE = f"{MANIFEST}{SIGNED}"  # where a site signs its manifests
STRUCTURE = "structure.json"  # beside policy.json, in every attempt since there is one
_CONTENTS = "attempt.json"  # written last: with it an attempt is complete
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def safe_name(kind: str, name: str) -> str:
    """Return `name` where it can name a file or folder everywhere; raises PlanError otherwise."""
    if not _NAME.fullmatch(name):
        raise PlanError(f"{kind} {name!r}: use letters, digits, '.', '_' and '-', at most 128, a letter or digit first")
    return name


@dataclass(frozen=True)
class AttemptContents:
    """What a complete attempt is: the `about` given to `complete`, and every file by its path in the attempt."""

    about: Mapping[str, Any]
    files: Mapping[str, FileDigest]

    def to_json(self) -> dict[str, Any]:
        """The contents as attempt.json holds them."""
        files = {path: {"sha256": file.sha256, "bytes": file.bytes} for path, file in self.files.items()}
        return {"about": dict(self.about), "files": files}

    @property
    def digest(self) -> str:
        """The digest over the contents of all files and `about`: what the ledger publishes."""
        return digest(self.to_json())


def prepare_root(root: Location) -> None:
    """Make the staging root, 0700, where absent; raises StateError where it is not ours, or others have access to it.

    Call it before a draw is recorded: an attempt that others may have seen costs a charge.
    """
    with file_errors(f"the staging folder {root} cannot be made or written: "):
        root.make_private()
        exposed = root.is_exposed()
        root.try_writing()
    _require_private(root, exposed)


def _require_private(folder: Location, exposed: bool) -> None:
    if exposed:
        raise StateError(f"the staging folder {folder} is open to others: make it yours alone, chmod 700")


def other_attempts(root: Location, release: str, attempt: str | None) -> list["Staging"]:
    """Return all that is staged of `release` under `root`, except for the live `attempt`."""
    folder = root / safe_name("release", release)
    with _store_errors(folder):
        return [Staging(root, release, name) for name in folder.children() if name != attempt]


class Staging:
    """The folder root/<release>/<attempt> of one attempt and no other: on disk 0700, its files 0600, at any umask.

    It may not be there yet. Raises PlanError for names that cannot name a folder.
    """

    def __init__(self, root: Location, release: str, attempt: str) -> None:
        self.root = root
        self.release = safe_name("release", release)
        self.attempt = safe_name("attempt", attempt)
        self.path = root / self.release / self.attempt

    def create(self) -> None:
        """Make the empty folder; raises StateError where it exists already or others have access to it."""
        prepare_root(self.root)
        with _store_errors(self.path):
            exists = self.path.exists()
        if exists:
            raise StateError(f"the staging folder {self.path} cannot be made: it exists already")
        with file_errors(f"the staging folder {self.path} cannot be made: "):
            self.path.make_private()
        _require_private(self.path, self.exposed())

    def table_folder(self, query: str) -> Location:
        """Return the folder tables/<query>, made where absent, for the files of one table."""
        folder = self.path / "tables" / safe_name("query", query)
        folder.make_private()
        return folder

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` durably, in UTF-8."""
        with _store_errors(self.path):
            (self.path / safe_name("file", name)).write_durably(text.encode())

    def complete(self, about: Mapping[str, Any], needed: Collection[str] = ()) -> AttemptContents:
        """Make every file durable, then write attempt.json, with which the attempt is complete; return its contents.

        `about` is JSON. Raises StateError where something else than files and folders lies in the attempt, and where
        one of the files `needed` does not.
        """
        with _store_errors(self.path):
            files = self._digests(secured=True)
            self.path.secure_folders()
            if not set(needed) <= files.keys():
                raise StateError(
                    f"{self.path}: files vanished while they were staged: if another ledger stages release "
                    f"{self.release} there too, give another {arg('staging')}"
                )
            contents = AttemptContents(about, files)
            (self.path / _CONTENTS).write_durably(canonical_json(contents.to_json()).encode())
        return contents

    def read_complete(self) -> AttemptContents | None:
        """Return the contents of a complete attempt whose every file is as it was staged; None for any other.

        Raises StateError where a store does not answer: the attempt may be complete, and must not be drawn again.
        """
        try:
            with _store_errors(self.path):
                stored = json.loads((self.path / _CONTENTS).read())
                listed = {path: FileDigest(**file) for path, file in stored["files"].items()}
                present = self._digests()
            contents = AttemptContents(stored["about"], listed)
        except _StoreFailed:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, StateError):
            return None
        del present[_CONTENTS]
        return contents if present == listed else None

    def exposed(self) -> bool:
        """Whether another user could have looked in: a folder above the files is not ours alone."""
        return any(folder.is_exposed() for folder in (self.root, self.root / self.release, self.path))

    def destroy(self) -> None:
        """Remove the attempt and all its files; nothing happens where there are none. StateError where it cannot be."""
        failing = file_errors(f"{self.path} cannot be removed (", "): make staging writable, and run again")
        with failing, _store_errors(self.path):
            self.path.delete_tree()
            (self.root / self.release).delete_if_empty()

    def _files(self) -> list[Location]:
        # Names with a dot are rests of tasks that were killed, or of ones that a worker still runs in vain.
        files = [file for file in self.path.files() if not file.name.startswith(".")]
        for file in files:
            if not file.is_plain_file():
                raise StateError(f"{file} is no ordinary file")
        return files

    def _digests(self, *, secured: bool = False) -> dict[str, FileDigest]:
        def digest_of(file: Location) -> FileDigest:
            if secured:
                file.secure_file()
            return file.digest()

        files = self._files()
        digests = together(digest_of, files, self.root)
        return {file.relative_to(self.path): digest for file, digest in zip(files, digests, strict=True)}


@contextmanager
def scratch(root: Location, release: str, kind: str) -> Iterator[Staging]:
    """Yield a private folder, not made yet, for a block; it is destroyed afterwards."""
    folder = Staging(root, release, f"{kind}-{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        folder.destroy()


class _StoreFailed(StateError):
    """A store that does not say what is staged in it."""


@contextmanager
def _store_errors(location: Location) -> Iterator[None]:
    """Raise a store's failures in the block as StateError: they are no sign that something is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if not location.remote:
            raise
        raise _StoreFailed(f"the staging location {location} cannot be used: {error.strerror}") from None
