"""How fast noise is drawn on one core: the exact lattice sampler, and whole mechanisms, against plain NumPy.

The yardstick is Generator.normal rounded to integers: fast, and neither exact nor addressable by cell. It is timed
anew before each contender, so that the ratio holds on a busy machine; the best of the rounds counts. The last column
is the time of building a mechanism's or a family's tables anew, once for a release.

    python -m benchmarks.noise [--draws N] [--rounds N]
"""

import argparse
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np

from udfs.mechanisms.catalogue import build
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.keystream import CellBits, SecretKey
from udfs.noise.lattice import build_table, draw_noise
from udfs.noise.stable import CauchyWeights, StableWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights

SCALES = ("1/3", "1", "10", "1000", str(10**6), str(2**30), str(10**12))
FAMILIES: dict[str, Callable[[Fraction], LogWeights]] = {
    "gaussian": lambda s: GaussianWeights(scale=s),
    "laplace": lambda s: LaplaceWeights(scale=s),
    "generalized, p ½": lambda s: GeneralizedGaussianWeights(p=Fraction(1, 2), scale=s),
    "generalized, p ⅒": lambda s: GeneralizedGaussianWeights(p=Fraction(1, 10), scale=s / 10**6),
    "polylog, p 1, d 2": lambda s: PolylogWeights(p=Fraction(1), d=Fraction(2), a=Fraction(3), scale=s),
    "polylog, p 2, d 1": lambda s: PolylogWeights(p=Fraction(2), d=Fraction(1), a=Fraction(3), scale=s),
    "stable, α 1": lambda s: CauchyWeights(scale=s),
    "stable, α 1½": lambda s: StableWeights(alpha=Fraction(3, 2), scale=s),
    "polylog, p 3½, d 1": lambda s: PolylogWeights(p=Fraction(7, 2), d=Fraction(1), a=Fraction(13), scale=s),
}
MECHANISMS = (
    {"kind": "gaussian", "sigma": 10},
    {"kind": "laplace", "sigma": 10},
    {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5},
    {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.72, "sigma": 20},
    {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 10},
    {"kind": "unit_splitting", "threshold": 10, "rho": 0.5},
    {"kind": "root", "k": 4, "a": 1, "sigma": 0.15},
    {"kind": "root", "k": 2, "a": 1, "sigma": 0.15, "noise": "laplace"},
    {"kind": "log", "a": 1, "sigma": 0.1},
    {"kind": "log", "a": 1, "sigma": 0.1, "noise": "laplace"},
    {"kind": "groupwise_log", "a": 5, "sigma": 0.1},
    {"kind": "groupwise_noisy", "r": 0.1, "sigma": 3},
)
INTERVAL = Fraction(19, 20)


def main() -> None:
    """Time every contender and print draws a second, and that over the yardstick's."""
    given = _arguments()
    bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.arange(given.draws, dtype=np.uint64))
    totals = np.random.default_rng(1).integers(0, 1 << 30, given.draws)
    print(f"{given.draws:,} draws, one thread, best of {given.rounds}")
    print(f"{'':<58}{'million/s':>12}{'of normal + rint':>20}{'tables, s':>12}")
    for family, weights in FAMILIES.items():
        for scale in map(Fraction, SCALES):
            start = time.perf_counter()
            table = build_table(weights(scale))
            contender = partial(draw_noise, table, bits, given.draws)
            _report(f"draws, {family}, scale {scale}", contender, given, start)
    for spec in MECHANISMS:
        start = time.perf_counter()
        mechanism = build(spec, Fraction(1))
        label = "release, " + " ".join(f"{name} {value}" for name, value in spec.items())[len("kind ") :]
        _report(label, partial(mechanism.release, totals, bits, INTERVAL), given, start)


def _report(label: str, contender: Callable[[], object], given: argparse.Namespace, start: float) -> None:
    contender()  # builds tables and constants
    first = time.perf_counter() - start
    generator = np.random.default_rng(0)
    pairs = [
        (_seconds(lambda: np.rint(generator.normal(0, 10, given.draws)).astype(np.int64)), _seconds(contender))
        for _ in range(given.rounds)
    ]
    plain, exact = (min(times) for times in zip(*pairs, strict=True))
    print(f"{label:<58}{given.draws / exact / 1e6:>12.2f}{plain / exact:>20.2f}{max(0.0, first - exact):>12.2f}")


def _seconds(contender: Callable[[], object]) -> float:
    start = time.perf_counter()
    contender()
    return time.perf_counter() - start


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description="Times the noise of one core.")
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
