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
# The field's words: what prdp calls each, by the places that have such a name, and in what the two may differ.
SYNONYMS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "normal": (("gaussian",), ""),
    "discrete_gaussian": (("gaussian",), ""),
    "geometric": (("laplace",), "drawn on a lattice, as geometric noise is"),
    "two_sided_geometric": (("laplace",), "drawn on a lattice, as geometric noise is"),
    "discrete_laplace": (("laplace",), ""),
    "double_exponential": (("laplace",), ""),
    "stable": (("symmetric_stable",), ""),
    "logarithm": (("log",), ""),
    "sqrt": (("root",), ""),
    "square_root": (("root",), ""),
    "scale": (("sigma", "gamma", "calibrate"), ""),
    "b": (("sigma",), ""),
    "std": (("standard_error", "sigma"), _SCALE),
    "stddev": (("standard_error", "sigma"), _SCALE),
    "sd": (("standard_error", "sigma"), _SCALE),
    "standard_deviation": (("standard_error", "sigma"), _SCALE),
    "stderr": (("standard_error",), ""),
    "se": (("standard_error",), ""),
    "mae": (("mean_absolute_error",), ""),
    "epsilon": (("rho", "loss", "calibrate"), _LOSS),
    "eps": (("rho", "loss", "calibrate"), _LOSS),
    "type": (("kind",), ""),
    "noise": (("mechanism",), ""),
    "groupby": (("by",), ""),
    "group_by": (("by",), ""),
    "filter": (("where",), ""),
    "confidence": (("interval",), ""),
    "coverage": (("interval",), ""),
    "tables": (("queries",), ""),
    "limits": (("budget",), ""),
    "owner": (("unit",), ""),
    "id": (("record",), ""),
    "fips": (("county",), ""),
    "industry": (("naics",), ""),
    "sector": (("naics2",), ""),
    "national": (("nation",), ""),
}


def likeness(name: str, other: str) -> float:
    """Return the share of letters that two names have in common, in their order: 0 (nothing) to 1 (equal)."""
    return SequenceMatcher(None, _plain(name), _plain(other), autojunk=False).ratio()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that was meant by `name`; None where none is near, or two are equally near."""
    known = list(known)
    words, _ = SYNONYMS.get(_plain(name), ((), ""))
    for word in words:
        if word in known:
            return word
    short_for = [other for other in known if len(name) >= SHORTEST and _shortens(_plain(name), _plain(other))]
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
        words, difference = SYNONYMS.get(_plain(name), ((), ""))
        return f"; nearest known{one}: {meant}" + (f" ({difference})" if difference and meant in words else "")
    listed = ", ".join(list(known)[:MOST_LISTED]) + (", …" if len(known) > MOST_LISTED else "")
    return f"; known{many}: {listed}" if listed else ""


def _shortens(name: str, other: str) -> bool:
    return other.startswith(name) or name in other.split("_")


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
