"""A location: a file or folder of this machine, or an object or prefix of an object store."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

from pipeline.base.errors import PlanError


class LocationError(PlanError):
    """A path or URI names no location; `rule` is what it breaks, without what the location is for."""

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(f"{what}: {rule}")
        self.rule = rule


@dataclass(frozen=True)
class FileDigest:
    """What identifies a file's contents: their SHA-256 in hexadecimal, and how many bytes they are."""

    sha256: str
    bytes: int


class Location(ABC):
    """Where data lie, and what can be done there; `str` gives the path or URI that names it again.

    A location holds no secret and travels by pickle. What fails raises OSError whose `strerror` is one plain line;
    FileNotFoundError where nothing is there. A folder of this machine can be kept private, and its files be made
    durable one by one. A store gives less: an object is put completely or not at all and is durable then, and its
    bucket's policy alone decides who may see it, which cannot be checked here: the operator answers for it.
    """

    remote: ClassVar[bool]  # reached over a network: what fails may succeed the next time, and requests are slow

    @property
    @abstractmethod
    def conditional(self) -> bool:
        """Whether `create` can work here: some stores replace what is there."""

    # Names

    @property
    @abstractmethod
    def root(self) -> str:
        """What its key is relative to: "file", or a bucket's URI."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The path below the root, with "/" between its parts."""

    @abstractmethod
    def __truediv__(self, name: str) -> Self:
        """Return the location `name` below this one; `name` may have several parts."""

    @abstractmethod
    def resolve(self, what: str = "the location") -> Self:
        """Return this location without links; PlanError, which begins with `what`, where they lead in a circle."""

    @abstractmethod
    def as_path(self) -> Path | None:
        """Return the path on this machine; None for a location in a store."""

    @abstractmethod
    def above(self) -> list[Self]:
        """Return the folders or prefixes above this location, the nearest first."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The root, and each part of the key."""
        key = self.key.strip("/")
        return (self.root, *key.split("/")) if key else (self.root,)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    def is_relative_to(self, above: "Location") -> bool:
        """Whether this is the location `above` or lies below it, by name; two ways to reach one bucket are one."""
        return self.parts[: len(above.parts)] == above.parts

    def relative_to(self, above: "Location") -> str:
        """Return the path below `above`, "" for the same location; ValueError where this does not lie there."""
        if not self.is_relative_to(above):
            raise ValueError(f"{self} does not lie below {above}")
        return self.key[len(above.key) :].lstrip("/")

    def overlaps(self, other: "Location") -> bool:
        """Whether one is the other or lies in it, whatever links lead there."""
        one, two = self.resolve(), other.resolve()
        return one.is_relative_to(two) or two.is_relative_to(one)

    # Looking

    @abstractmethod
    def exists(self) -> bool:
        """Whether a file or folder is there, or any object of this key or below it."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether a file or object is there, of a link what it leads to."""

    @abstractmethod
    def is_plain_file(self) -> bool:
        """Whether it is a file itself: no link, folder or device. FileNotFoundError where nothing is there."""

    @abstractmethod
    def is_link(self) -> bool:
        """Whether it is a link."""

    @abstractmethod
    def is_partial(self) -> bool:
        """Whether its name is one under which this package writes what is not complete yet: a crash may leave it."""

    @abstractmethod
    def is_exposed(self) -> bool:
        """Whether something is there and another user is seen to have access to it; False for what cannot be seen."""

    @abstractmethod
    def files(self) -> list[Self]:
        """Return everything below that is no folder, links included, sorted; nothing where nothing is there."""

    @abstractmethod
    def children(self) -> list[str]:
        """Return the names directly below, sorted; nothing where nothing is there."""

    @abstractmethod
    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield (path below this location, names of folders, names of files), as `os.walk` does.

        Folders removed from the list are not entered. A store yields once: its names are paths below this location.
        """

    @abstractmethod
    def size(self) -> int:
        """Return the size of the file in bytes."""

    @abstractmethod
    def fingerprint(self) -> list[object]:
        """Return what changes when the file does: size, time in nanoseconds and, in a store, the entity tag."""

    @abstractmethod
    def digest(self) -> FileDigest:
        """Return the digest of the contents."""

    # Reading

    @abstractmethod
    def open(self) -> Any:
        """Return the contents as an Arrow file, to be closed; it can be read at any position."""

    @abstractmethod
    def read(self) -> bytes:
        """Return all contents."""

    # Writing

    @abstractmethod
    def write(self, *parts: Any) -> None:
        """Write a file of this user alone; it appears at once, and replaces what was there. It is not synced."""

    @abstractmethod
    def write_durably(self, data: bytes, *, private: bool = True) -> None:
        """Write a file that survives a power cut: readers see the old contents, or none, or all of the new."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Any]:
        """Yield an Arrow stream; the file is there when the block ends, also where it ends by an error."""

    @abstractmethod
    def create(self, data: bytes, writer: str, *, private: bool = False) -> bool:
        """Write a file where there is none, durably, for everyone to read unless `private`; return whether this did.

        Guarantee: a file that is there is never replaced, and of several writers at most one succeeds. In a store an
        answer may be lost: False may stand for one's own object, so compare the contents. `writer` names the caller
        apart from all others.
        """

    @abstractmethod
    def require_create(self, what: str) -> None:
        """Return if `create` works below this folder; leaves nothing behind. StateError, with `what`, otherwise."""

    @abstractmethod
    def copy_from(self, source: "Location", digest: FileDigest) -> bool:
        """Write a public file with the contents of `source`, durably; return False, without it, if `digest` differs.

        Nothing must be there yet. What was written is read back.
        """

    @abstractmethod
    def delete(self) -> None:
        """Remove the file; nothing happens where there is none."""

    @abstractmethod
    def delete_tree(self) -> None:
        """Remove everything at this location and below it; nothing happens where there is nothing."""

    @abstractmethod
    def try_writing(self) -> None:
        """Write something here and remove it: permission bits alone do not show whether that works."""

    # A store has no folders, its bucket's policy decides who reads, and what was put is durable: nothing is done there.

    def make_folder(self) -> None:  # noqa: B027
        """Make the folder, and what is missing above it, for everyone to read."""

    def make_private(self) -> None:  # noqa: B027
        """Make the folder, and what is missing above it, for this user alone; folders that are there are left alone."""

    def secure_file(self) -> None:  # noqa: B027
        """Make a file durable, and this user's alone."""

    def secure_folders(self) -> None:  # noqa: B027
        """Make the names in this folder and those below it durable, and the folders this user's alone."""

    def sync_folders(self) -> None:  # noqa: B027
        """Make the names in this folder and those below it durable."""

    def delete_if_empty(self) -> None:  # noqa: B027
        """Remove the folder if nothing lies in it; make the removal of what lay in it durable."""
