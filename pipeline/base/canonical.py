"""Canonical JSON and frozen mappings: equal contents have equal digests on every machine."""

import hashlib
import json
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

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
