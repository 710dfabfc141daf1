"""What a tight policy costs on one core: one influence, a whole curve, and whole arrays beside np.log1p.

Times are of the processor, and the best of some rounds. The first influence of a family also pays for its nodes.

    python -m benchmarks.tight [--rounds N]
    python -m benchmarks.tight --gains          writes the table of what tight policies gain into docs/tight.md
"""

import argparse
import re
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from pipeline.report.html import number
from udfs.losses.curve import knots, tight_curve
from udfs.losses.nodes import Falling, nodes_of
from udfs.losses.stable_nodes import Stable, stable_nodes
from udfs.losses.tight import tight_loss
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.stable import CauchyWeights, StableWeights

SIZE = 1 << 20
FAMILIES: dict[str, Falling | Stable] = {
    "generalized Gaussian, p ½, σ 5": GeneralizedGaussianWeights(p=Fraction(1, 2), scale=Fraction(5)),
    "generalized Gaussian, p ½, σ 10⁶": GeneralizedGaussianWeights(p=Fraction(1, 2), scale=Fraction(10**6)),
    "polylog, p 2, d 1.5, a 3, σ 20": PolylogWeights(
        p=Fraction(2), d=Fraction(3, 2), a=Fraction(3), scale=Fraction(20)
    ),
    "polylog, p 1, d 3, a 1, σ 20": PolylogWeights(p=Fraction(1), d=Fraction(3), a=Fraction(1), scale=Fraction(20)),
    "polylog, p 2.5, d 2, a 10, σ 1000": PolylogWeights(
        p=Fraction(5, 2), d=Fraction(2), a=Fraction(10), scale=Fraction(1000)
    ),
    "stable, α 1, γ 20": CauchyWeights(scale=Fraction(20)),
    "stable, α 1.5, γ 20": StableWeights(alpha=Fraction(3, 2), scale=Fraction(20)),
    "stable, α 1.9, γ 10⁶": StableWeights(alpha=Fraction(19, 10), scale=Fraction(10**6)),
}
PAGE = Path(__file__).parents[1] / "docs" / "tight.md"
MARKS = re.compile(r"(<!-- made by benchmarks.tight -->\n).*?(<!-- end -->)", re.DOTALL)
INFLUENCES = (1, 2, 10, 50, 200, 1000, 5000)
EXAMPLES = {
    "Laplace, σ = 20": {"kind": "laplace", "sigma": 20},
    "generalized Gaussian, p = ½, σ = 5": {"kind": "generalized_gaussian", "p": "0.5", "sigma": 5},
    "exponential polylog, p = 2, d = 1.5, a = e, σ = 20": {
        "kind": "exponential_polylog",
        "p": 2,
        "d": "1.5",
        "a": "2.718281828459046",
        "sigma": 20,
    },
}
POLICIES = {
    "paper": {"policy": "paper"},
    "tight": {"policy": "tight"},
    "tight, `lattice: fine`": {"policy": "tight", "lattice": "fine"},
}


def main() -> None:
    """Time each family and print a line; or write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tight", description="Times tight policies.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gains", action="store_true", help="write what tight policies gain into docs/tight.md")
    given = parser.parse_args()
    if given.gains:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(MARKS.sub(lambda found: found[1] + gains() + found[2], page), encoding="utf-8")
    else:
        _time(given.rounds)


def example(name: str, policy: str) -> Mechanism:
    """Return one of EXAMPLES under one of POLICIES, on whole steps."""
    return build(EXAMPLES[name] | POLICIES[policy], Fraction(1))


def gains() -> str:
    """Return losses of some influences under each policy, a row for each example and policy."""
    rows = [["noise", "policy", *(f"{influence:,}" for influence in INFLUENCES)], ["---"] * 2 + ["---:"] * 7]
    for name in EXAMPLES:
        for policy in POLICIES:
            losses = [example(name, policy).loss_at(Fraction(influence)) for influence in INFLUENCES]
            rows.append([name if policy == "paper" else "", policy, *(number(float(loss)) for loss in losses)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _time(rounds: int) -> None:
    print("family, knots; ms of the nodes and of a knot; seconds of a curve; curve in units of np.log1p, an influence")
    for name, weights in FAMILIES.items():
        of: Callable[..., object] = stable_nodes if isinstance(weights, Stable) else nodes_of
        nodes = _best(rounds, lambda of=of, weights=weights: of.__wrapped__(weights))  # type: ignore[misc]
        steps = knots(weights)
        some = [step for step in steps[:: len(steps) // 50 + 1] for _ in range(4)]
        knot = _best(rounds, lambda weights=weights, some=some: [tight_loss.__wrapped__(weights, n) for n in some])  # type: ignore[misc]
        whole = _best(rounds, lambda weights=weights: tight_curve.__wrapped__(weights))  # type: ignore[misc]
        curve = tight_curve(weights)
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
