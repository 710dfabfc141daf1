"""Canonical JSON, frozen mappings, the digest of prdp's own code: equal contents have equal digests everywhere."""

import hashlib
import json
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Generic, TypeVar

from pipeline.base.errors import PrdpError

V = TypeVar("V")


def canonical_json(value: object) -> str:
    """Return the canonical text of `value`: keys sorted, no spaces, shortest decimals, no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def readable_json(value: object, indent: int = 2) -> str:
    """Return the text of a JSON file that people read, too: in the order of its source, ending with a line's end."""
    return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False) + "\n"


def digest(value: object) -> str:
    """Return "sha256:" and the hexadecimal SHA-256 of the canonical text of `value`."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FrozenMap(Mapping[str, V], Generic[V]):
    """An immutable mapping of a few text keys, hashable; equal to any mapping with the same items, in any order."""

    pairs: tuple[tuple[str, V], ...] = ()

    @classmethod
    def of(cls, mapping: Mapping[str, V]) -> "FrozenMap[V]":
        """Return a frozen copy of `mapping`."""
        return cls(tuple(mapping.items()))

    def __getitem__(self, key: str) -> V:
        for name, value in self.pairs:
            if name == key:
                return value
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self) -> ItemsView[str, V]:
        """Return the pairs, much faster than one by one."""
        return dict(self.pairs).items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self.pairs) == dict(other.items())

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))


# The digest of prdp's own modules: workers whose digest is not the driver's are refused.

PACKAGES = ("udfs", "pipeline")
LIBRARIES = ("cryptography", "mpmath", "numpy", "pandas", "pyarrow")  # they shape the bytes of a table


@cache
def code_digest() -> str:
    """Return the digest of all Python files of `udfs` and `pipeline` as imported here, and of LIBRARIES' versions.

    Raises PrdpError where one of these common names belongs to another program.
    """
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}\0".encode())
    for package in PACKAGES:
        root = files(package)
        if not root.joinpath("py.typed").is_file():
            raise PrdpError(f"the package {package} found on the path is not prdp's: correct the Python path")
        for name, file in sorted(_sources(root, package)):
            digest.update(f"{name}\0{len(file)}\0".encode() + file)
    return "sha256:" + digest.hexdigest()


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()
