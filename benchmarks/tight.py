"""What a tight policy costs on one core: one influence, a whole curve, and whole arrays beside np.log1p.

Times are of the processor, and the best of some rounds. The first influence of a family also pays for its nodes.

    python -m benchmarks.tight [--rounds N]
"""

import argparse
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from udfs.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.tight.curve import knots, tight_curve
from udfs.tight.loss import tight_loss
from udfs.tight.nodes import Falling, nodes_of

SIZE = 1 << 20
FAMILIES: dict[str, Falling] = {
    "generalized Gaussian, p ½, σ 5": GeneralizedGaussianWeights(p=Fraction(1, 2), scale=Fraction(5)),
    "generalized Gaussian, p ½, σ 10⁶": GeneralizedGaussianWeights(p=Fraction(1, 2), scale=Fraction(10**6)),
    "polylog, p 2, d 1.5, a 3, σ 20": PolylogWeights(
        p=Fraction(2), d=Fraction(3, 2), a=Fraction(3), scale=Fraction(20)
    ),
    "polylog, p 1, d 3, a 1, σ 20": PolylogWeights(p=Fraction(1), d=Fraction(3), a=Fraction(1), scale=Fraction(20)),
    "polylog, p 2.5, d 2, a 10, σ 1000": PolylogWeights(
        p=Fraction(5, 2), d=Fraction(2), a=Fraction(10), scale=Fraction(1000)
    ),
}


def main() -> None:
    """Time each family and print a line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tight", description="Times tight policies.")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("family, knots; ms of the nodes and of a knot; seconds of a curve; curve in units of np.log1p, an influence")
    for name, weights in FAMILIES.items():
        nodes = _best(rounds, lambda weights=weights: nodes_of.__wrapped__(weights))  # type: ignore[misc]
        steps = knots(weights)
        some = [step for step in steps[:: len(steps) // 50 + 1] for _ in range(4)]
        knot = _best(rounds, lambda weights=weights, some=some: [tight_loss.__wrapped__(weights, n) for n in some])  # type: ignore[misc]
        curve = tight_curve(weights)
        whole = knot / len(some) * len(steps)
        random = np.random.default_rng(1)
        small, large = (np.exp(random.normal(middle, 2.0, SIZE)).astype(np.int64) for middle in (5.5, 16.0))
        log1p = _best(rounds, lambda small=small: np.log1p(small.astype(np.float64)))  # type: ignore[misc]
        reads = [_best(rounds, lambda of=of, curve=curve: curve.over(of)) / log1p for of in (small, large)]  # type: ignore[misc]
        print(
            f"{name:<36} {len(steps):6} {nodes * 1e3:8.1f} {knot / len(some) * 1e3:6.2f} {whole:6.2f}"
            f"   {reads[0]:.2f} (establishments)  {reads[1]:.2f} (giants)   {SIZE / log1p / 1e6:.0f} million log1p/s"
        )


def _best(rounds: int, run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
