"""The known name that is most like an unknown one, for messages."""

from collections.abc import Iterable
from difflib import SequenceMatcher

SAME_WORD = 0.6  # likeness from which an unknown name is taken for a misspelling


def likeness(name: str, other: str) -> float:
    """Return how alike two names are, 0 (nothing shared) to 1 (equal)."""
    return SequenceMatcher(None, name, other, autojunk=False).ratio()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the one of `known`, at least one, that is most like `name`; the first of equals."""
    return max(known, key=lambda other: likeness(name, other))
