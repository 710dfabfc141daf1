"""The families and shapes that a comparison tries: data, to which a new kind adds a line."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

Shapes = Mapping[str, Sequence[str]]  # parameter → values on a small grid

# `a` of exponential_polylog is e^(p−1), where its noise is most peaked; for p = 1 it only scales σ. Thresholds and
# offsets are in the measure's unit: decades from one employee to large establishments. Stable noise has no variance,
# with alpha 1 no mean absolute error either. The groupwise kinds are for counts.
FAMILIES: Sequence[tuple[str, Shapes]] = (
    ("gaussian", {}),
    ("unit_splitting", {"threshold": ("1", "10", "100", "1000")}),
    ("laplace", {}),
    ("generalized_gaussian", {"p": ("0.2", "0.25", "0.33", "0.5", "0.75")}),
    ("exponential_polylog", {"p": ("1",), "a": ("1",), "d": ("3.5", "4", "5", "8")}),
    ("exponential_polylog", {"p": ("1.5",), "a": ("1.64872128",), "d": ("0.75", "1", "1.5", "2", "3")}),
    ("exponential_polylog", {"p": ("2",), "a": ("2.71828183",), "d": ("0.5", "0.75", "1", "1.5", "2.5")}),
    ("exponential_polylog", {"p": ("3",), "a": ("7.3890561",), "d": ("0.1", "0.2", "0.4")}),
    ("symmetric_stable", {"alpha": ("1", "1.25", "1.5", "1.75", "1.9")}),
    ("root", {"noise": ("gaussian",), "k": ("2", "3", "4", "6"), "a": ("0", "1", "10", "100")}),
    ("root", {"noise": ("laplace",), "k": ("2", "3", "4", "6"), "a": ("0", "1", "10", "100")}),
    ("log", {"noise": ("gaussian",), "a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("log", {"noise": ("laplace",), "a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("groupwise_log", {"a": ("1", "3", "10", "30", "100", "300", "1000")}),
    ("groupwise_noisy", {"r": ("0.01", "0.02", "0.05", "0.1")}),
)


def shapes() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each kind with each of its shapes."""
    for kind, grid in FAMILIES:
        for values in product(*grid.values()):
            yield kind, dict(zip(grid, values, strict=True))


def family(described: Mapping[str, Any]) -> str:
    """Return the name under which shapes are one family: the kind, and what noise it has where it has a choice."""
    noise = described.get("noise")
    return described["kind"] if noise is None else f"{described['kind']}, {noise} noise"
