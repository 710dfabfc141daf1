"""Where queries meet: the sets of queries that one public cell can belong to.

A query is a pair of masks over the domain's finest naics and county codes; a cell belongs to it if both masks hold.
"""

from collections.abc import Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Masks = NDArray[np.bool_]
Cells = tuple[NDArray[np.int32], NDArray[np.int32]]
Pattern = int  # a set of queries, one bit each


def meetings(naics: Masks, county: Masks, cells: Cells | None) -> tuple[frozenset[int], ...]:
    """Return the maximal sets of queries that share a cell, in a fixed order; none if there is no cell.

    naics: (queries, naics codes), county: (queries, county codes); cells: places of the codes of each cell, or None
    for all pairs. A cell that no query has counts as the empty set.
    """
    naics_patterns, naics_of = _patterns(naics)
    county_patterns, county_of = _patterns(county)
    if cells is None:
        # Where A ⊆ A', A ∩ B ⊆ A' ∩ B: the maximal sets come from the maximal patterns of each key.
        met = {a & b for a in _maximal(naics_patterns) for b in _maximal(county_patterns)}
    else:
        pairs = np.zeros((len(naics_patterns), len(county_patterns)), dtype=bool)
        pairs[naics_of[cells[0]], county_of[cells[1]]] = True
        met = {naics_patterns[i] & county_patterns[j] for i, j in np.argwhere(pairs).tolist()}
    return tuple(sorted((_members(pattern) for pattern in _maximal(met)), key=sorted))


def _patterns(masks: Masks) -> tuple[list[Pattern], NDArray[np.intp]]:
    """Return the distinct columns of `masks` as patterns, and which of them each column is."""
    packed = np.packbits(masks, axis=0, bitorder="little").T
    number: dict[Pattern, int] = {}
    columns = [number.setdefault(int.from_bytes(c.tobytes(), "little"), len(number)) for c in packed]
    return list(number), np.array(columns, dtype=np.intp)


def _maximal(patterns: Iterable[Pattern]) -> list[Pattern]:
    kept: list[Pattern] = []
    for _, of_one_size in groupby(sorted(set(patterns), key=int.bit_count, reverse=True), int.bit_count):
        kept += [pattern for pattern in of_one_size if all(pattern & ~larger for larger in kept)]
    return kept


def _members(pattern: Pattern) -> frozenset[int]:
    return frozenset(i for i in range(pattern.bit_length()) if pattern >> i & 1)
