"""Which known name was meant by an unknown one: a misspelling, an abbreviation, or the field's other word for it.

A bad guess is worse than none: where no known name is near, or two are equally near, all known names are listed.
"""

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher
from typing import Final

ALIKE = 0.6  # share of letters in common from which an unknown name is taken for a misspelling
SHORTEST = 3  # letters of an abbreviation; shorter names are like nothing
MOST_LISTED = 12  # known names that a message lists

_SCALE = "the scale of the noise; a standard deviation is asked for by calibrate: {standard_error: …}"
_LOSS = "a loss is zCDP's rho here, not epsilon"
# What prdp calls each of the field's words, by the places that have such a name, and in what the two may differ.
_WORDS: Final = (
    ("gaussian", "normal discrete_gaussian", ""),
    ("laplace", "geometric two_sided_geometric", "drawn on a lattice, as geometric noise is"),
    ("laplace", "discrete_laplace double_exponential", ""),
    ("symmetric_stable", "stable", ""),
    ("log", "logarithm", ""),
    ("root", "sqrt square_root", ""),
    ("sigma gamma calibrate", "scale", ""),
    ("sigma", "b", ""),
    ("standard_error sigma", "std stddev sd standard_deviation", _SCALE),
    ("standard_error", "stderr se", ""),
    ("mean_absolute_error", "mae", ""),
    ("rho loss calibrate", "epsilon eps", _LOSS),
    ("kind", "type", ""),
    ("mechanism", "noise", ""),
    ("by", "groupby group_by", ""),
    ("where", "filter", ""),
    ("interval", "confidence coverage", ""),
    ("queries", "tables", ""),
    ("budget", "limits", ""),
    ("unit", "owner", ""),
    ("record", "id", ""),
    ("county", "fips", ""),
    ("naics", "industry", ""),
    ("naics2", "sector", ""),
    ("nation", "national", ""),
)
SYNONYMS: Final = {word: (ours.split(), differs) for ours, words, differs in _WORDS for word in words.split()}
NO_WORDS: Final[tuple[list[str], str]] = ([], "")


def likeness(name: str, other: str) -> float:
    """Return the share of letters that two names have in common, in their order: 0 (nothing) to 1 (equal)."""
    return SequenceMatcher(None, _plain(name), _plain(other), autojunk=False).ratio()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that was meant by `name`; None where none is near, or two are equally near."""
    known = list(known)
    words, _ = SYNONYMS.get(_plain(name), NO_WORDS)
    for word in words:
        if word in known:
            return word
    short = _plain(name)
    longer = ((other, _plain(other)) for other in known if len(name) >= SHORTEST)
    short_for = [other for other, plain in longer if plain.startswith(short) or short in plain.split("_")]
    if len(short_for) == 1:
        return short_for[0]
    order = sorted(((likeness(name, other), other) for other in known if len(other) >= SHORTEST), reverse=True)
    if not order or order[0][0] < ALIKE or (len(order) > 1 and order[1][0] == order[0][0]):
        return None
    return order[0][1]


def hint(name: str, known: Collection[str], what: str = "") -> str:
    """Return the end of a message on an unknown name: "; nearest known key: sigma", or the `what`s that are known."""
    one, many = (f" {what}", f" {what}s") if what else ("", "")
    meant = nearest(name, known)
    if meant is not None:
        words, difference = SYNONYMS.get(_plain(name), NO_WORDS)
        return f"; nearest known{one}: {meant}" + (f" ({difference})" if difference and meant in words else "")
    listed = ", ".join(list(known)[:MOST_LISTED]) + (", …" if len(known) > MOST_LISTED else "")
    return f"; known{many}: {listed}" if listed else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
