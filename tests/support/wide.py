"""Wide numbers (udfs/numbers/arrays.py) and Python's, by the definition of their words."""

from collections.abc import Sequence

import numpy as np

from udfs.numbers.arrays import Wide


def integers(numbers: Wide) -> list[int]:
    """Return wide numbers as Python's."""
    high = [0] * len(numbers.low) if numbers.high is None else numbers.high.tolist()
    return [word * 2**64 + low for word, low in zip(high, numbers.low.tolist(), strict=True)]


def wide(numbers: Sequence[int]) -> Wide:
    """Return Python's numbers as wide ones."""
    low = [(number + 2**63) % 2**64 - 2**63 for number in numbers]
    high = np.array([(number - word) // 2**64 for number, word in zip(numbers, low, strict=True)], dtype=np.int64)
    return Wide(np.array(low, dtype=np.int64), high if high.any() else None)
