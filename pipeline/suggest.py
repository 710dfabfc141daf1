"""The nearest known name, for messages about an unknown one."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; nearest known: …" where a known name is close, else the list of the known ones."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; nearest known: {close[0]}" if close else f"; known: {', '.join(names)}"
