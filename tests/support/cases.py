"""How many random cases an attack tries, and from which seed: both are told, so that a failure can be had again.

A drill's number is that of PRDP_CASES where it is set, its seed that of PRDP_SEED.
"""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

SEED = "1"


def sizes(few: int, many: int) -> Any:
    """Return the decorator of a test with the argument `count`: a few cases always, many in the drill."""
    drill = pytest.param(int(os.environ.get("PRDP_CASES", many)), marks=pytest.mark.drill, id="drill")
    return pytest.mark.parametrize("count", [pytest.param(few, id="few"), drill])


def cases(count: int) -> Iterator[tuple[str, Random]]:
    """Return the names of cases, each with randomness of its own; the name is in every message of a failure."""
    seed = os.environ.get("PRDP_SEED", SEED)
    print(f"{count} cases, PRDP_SEED={seed}")
    for i in range(count):
        yield f"PRDP_SEED={seed}, case {i}", Random(f"{seed} {i}")
